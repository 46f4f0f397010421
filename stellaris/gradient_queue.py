"""The queue of gradients that every aggregator keeps: a ring of static capacity, as pure functions over its state."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from stellaris import checks
from stellaris.types import Tree


class AggregatorState(NamedTuple):
    """The queue of gradients, oldest first from `head`, and what an aggregator remembers besides.

    Example:
      >>> state = push(empty(jnp.zeros(3), 4, memory=()), jnp.ones(3), version=7)
      >>> state.capacity, int(state.count), state.version.tolist()
      (4, 1, [7, 0, 0, 0])
    """

    gradient: Tree  #: every leaf `[capacity, ...]`, a ring.
    version: Int[jax.Array, "capacity"]  #: the version each gradient was computed on.
    head: Int[jax.Array, ""]  #: the slot of the oldest gradient.
    count: Int[jax.Array, ""]  # type: ignore[assignment]  #: how many are queued.
    overflow: Bool[jax.Array, ""]  #: whether a gradient was ever pushed into a full queue, and so lost.
    memory: Tree  #: the aggregator's own.

    @property
    def capacity(self) -> int:
        """How many gradients the queue can hold."""
        return self.version.shape[0]


class Update(NamedTuple):
    """A group of gradients, ready for `apply_update`.

    `combine="mean"`: `gradient = sum(w g) / sum(w)` and `scale = sum(w) / n`, a scalar: one optimizer step.
    `combine="sequential"`: both stacked `[capacity, ...]`, oldest first and zero beyond `count`: one step each.

    Example:
      >>> update = Update(jnp.array([2.0]), scale=jnp.array(0.5), count=jnp.int32(1), staleness=jnp.array([8, -1]))
      >>> print(update.gradient * update.scale)
      [1.]
    """

    gradient: Tree
    scale: Float[jax.Array, "*n"]  #: factor on the optimizer's update: never on the gradient.
    count: Int[jax.Array, ""]  # type: ignore[assignment]  #: gradients in the group.
    staleness: Int[jax.Array, "capacity"]  #: of each, oldest first; -1 beyond `count`.


def empty(like: Tree, capacity: int, memory: Tree) -> AggregatorState:
    """A queue without gradients, for gradients of this structure.

    Raises:
      TypeError: if a leaf holds integers.
    """
    checks.floats(**{f"gradient_like{name}": leaf for name, leaf in _named(like)})
    return AggregatorState(
        gradient=jax.tree.map(lambda g: jnp.zeros((capacity, *jnp.shape(g)), jnp.result_type(g)), like),
        version=jnp.zeros(capacity, jnp.int32),
        head=jnp.int32(0),
        count=jnp.int32(0),
        overflow=jnp.bool_(False),
        memory=memory,
    )


def push(state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
    """Appends a gradient; if the queue is full it is lost, `overflow` is set, and nothing else changes.

    Raises:
      TypeError: if the version is not a whole number.
      ValueError: if the gradient's structure or a leaf's shape is not what `empty` was given.
    """
    del learner
    _check_like(gradient, state.gradient)
    if not jnp.issubdtype(jnp.result_type(version), jnp.integer):
        raise TypeError(f"version={version} has dtype {jnp.result_type(version)}: expected a whole number")
    free = state.count < state.capacity
    slot = (state.head + state.count) % state.capacity

    def put(ring: jax.Array, new: Any) -> jax.Array:
        # Only one slot is read and written, so that a donated state is updated in place.
        return ring.at[slot].set(jnp.where(free, jnp.asarray(new, ring.dtype), ring[slot]))

    return state._replace(
        gradient=jax.tree.map(put, state.gradient, gradient),
        version=put(state.version, version),
        count=state.count + free,
        overflow=state.overflow | ~free,
    )


def queued(state: AggregatorState) -> Bool[jax.Array, "capacity"]:
    """Which slots of the ring are in use."""
    return (jnp.arange(state.capacity) - state.head) % state.capacity < state.count


def take(
    state: AggregatorState, n: Any, clock: Any, weigh: Callable[[jax.Array], jax.Array], combine: str
) -> tuple[Update, AggregatorState]:
    """Takes the oldest `n` gradients, at most those there are, weighed by their staleness; the rest stay in order."""
    n = jnp.minimum(state.count, n).astype(jnp.int32)
    order = (state.head + jnp.arange(state.capacity)) % state.capacity
    taken = jnp.arange(state.capacity) < n
    staleness = jnp.where(taken, clock - state.version[order], -1).astype(jnp.int32)
    weight = jnp.where(taken, weigh(staleness), 0.0)
    if combine == "mean":
        gradient, scale = _mean(state.gradient, order, weight, n), jnp.sum(weight) / jnp.maximum(n, 1)
    else:
        gradient, scale = _stacked(state.gradient, order, n), weight
    update = Update(gradient, scale, n, staleness)
    return update, state._replace(head=(state.head + n) % state.capacity, count=state.count - n)


# Both loop over what is taken: the other slots may hold anything, and cost nothing.


def _mean(ring: Tree, order: jax.Array, weight: jax.Array, n: jax.Array) -> Tree:
    """`sum(w g) / sum(w)`, in float32 at least; zero where every weight has underflowed, as the scale then is."""
    total = jnp.sum(weight)
    share = weight / jnp.where(total > 0, total, 1.0)
    wide = jax.tree.map(lambda g: jnp.promote_types(g.dtype, jnp.float32), ring)

    def add(i: jax.Array, sums: Tree) -> Tree:
        return jax.tree.map(lambda s, g: s + share[i].astype(s.dtype) * g[order[i]].astype(s.dtype), sums, ring)

    zeros = jax.tree.map(lambda g, dtype: jnp.zeros(g.shape[1:], dtype), ring, wide)
    sums = jax.lax.fori_loop(0, n, add, zeros)
    return jax.tree.map(lambda s, g: s.astype(g.dtype), sums, ring)


def _stacked(ring: Tree, order: jax.Array, n: jax.Array) -> Tree:
    def copy(i: jax.Array, stacked: Tree) -> Tree:
        return jax.tree.map(lambda s, g: s.at[i].set(g[order[i]]), stacked, ring)

    return jax.lax.fori_loop(0, n, copy, jax.tree.map(jnp.zeros_like, ring))


def _named(tree: Tree) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _check_like(gradient: Tree, ring: Tree) -> None:
    checks.same_structure(ring, "gradient_like", gradient=gradient)
    for (name, leaf), slots in zip(_named(gradient), jax.tree.leaves(ring), strict=True):
        if jnp.shape(leaf) != slots.shape[1:]:
            raise ValueError(f"gradient{name} has shape {jnp.shape(leaf)}: expected {slots.shape[1:]}")
