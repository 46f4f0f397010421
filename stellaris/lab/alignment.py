"""The cosine of the angle between successive gradients, measured within an optimizer."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float

from stellaris.diagnostics import gradient_cosine
from stellaris.types import JaxArray, Tree


class Alignment(NamedTuple):
    """The state of `measure_alignment`.

    Example:
      >>> Alignment(jnp.zeros(2), jnp.float32(0.5)).previous.tolist()
      [0.0, 0.0]
    """

    previous: Tree  #: the previous gradient, zero at first.
    cosine: Float[JaxArray, ""]  #: of the last two gradients; 0 before the second.


def measure_alignment() -> optax.GradientTransformation:
    """Passes gradients on unchanged, and measures the cosine of each with the previous one.

    Put it first in an algorithm's chain; the result of a `sweep` then has a variable `gradient_cosine`. Its value at an
    update is that of the last two gradients that the optimizer received.

    Returns:
      A transformation whose state is an `Alignment`.

    Source:
      Xu et al. 2026, GAC, which reports a persistently high cosine in stale training.

    Example:
      >>> optimizer = measure_alignment()
      >>> state = optimizer.init(jnp.zeros(2))
      >>> _, state = optimizer.update(jnp.array([1.0, 0.0]), state)
      >>> _, state = optimizer.update(jnp.array([3.0, 4.0]), state)
      >>> print(f"{state.cosine:.2f}")
      0.60
    """

    def init(params: Tree) -> Alignment:
        return Alignment(jax.tree.map(jnp.zeros_like, params), jnp.float32(0))

    def update(updates: Tree, state: Alignment, params: Tree = None) -> tuple[Tree, Alignment]:
        del params
        return updates, Alignment(updates, jnp.float32(gradient_cosine(updates, state.previous)))

    return optax.GradientTransformation(init, update)


def alignment_of(opt_state: Any) -> dict[str, jax.Array]:
    """Returns the metric `gradient_cosine` if the optimizer measures it."""
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, Alignment))
    found = [leaf.cosine for leaf in leaves if isinstance(leaf, Alignment)]
    return {"gradient_cosine": found[0]} if found else {}
