"""Staleness thresholds: the largest mean staleness at which a group of gradients is applied, by round."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.types import Array, JaxArray, Scalar, default_float


def staleness_threshold(
    round: Int[Array, ""] | int,
    *,
    max_staleness: Scalar | Int[Array, ""],
    decay: Scalar,
) -> Float[JaxArray, ""]:
    """The largest mean staleness at which a group is applied in round `k`: `beta_k = max_staleness * decay ** k`.

    The threshold is permissive in early rounds and strict as training converges; a decay of 1 keeps it constant.

    Args:
      round: `k`, the number of batches that have been made. Usually a batch has as many fragments as there are actors,
        where a fragment is the steps that an actor samples before it delivers them.
      max_staleness: `beta_0`, in versions; `math.inf` for no threshold.
      decay: decay per round, in (0, 1].

    Returns:
      The threshold, a float scalar.

    Raises:
      ValueError: if `decay` lies outside (0, 1], or `max_staleness` is negative or NaN.

    Source:
      Stellaris (SC 2024), staleness-aware gradient aggregation.

    Example:
      >>> [float(staleness_threshold(k, max_staleness=4, decay=0.5)) for k in range(3)]
      [4.0, 2.0, 1.0]
    """
    check_decay(decay)
    checks.not_negative(max_staleness=max_staleness)
    return _unless_infinite(
        max_staleness, lambda start: start * jnp.asarray(decay, start.dtype) ** default_float(round)
    )


def demo_threshold(
    round: Int[Array, ""] | int,
    *,
    max_staleness: Scalar | Int[Array, ""],
    decay: Scalar,
) -> Float[JaxArray, ""]:
    """The threshold of the authors' demo, in whole versions.

    `clip(int(max_staleness * decay ** (k - 1)) + 1, 1, max_staleness)`: if `max_staleness` is at least 1, so is
    the threshold, and a group of mean staleness 1 is always applied.

    Args:
      round: `k`, as for `staleness_threshold`.
      max_staleness: the largest threshold, in versions; `math.inf` for no threshold. The demo measures
        `int(mean staleness) + 1` over the first round with a stale gradient.
      decay: decay per round, in (0, 1].

    Returns:
      The threshold, a float scalar; it is whole if `max_staleness` is whole.

    Raises:
      ValueError: if `decay` lies outside (0, 1], or `max_staleness` is negative or NaN.

    Source:
      The authors' public demo of Stellaris (SC 2024).

    Example:
      >>> [float(demo_threshold(k, max_staleness=4, decay=0.5)) for k in range(5)]
      [4.0, 4.0, 3.0, 2.0, 1.0]
    """
    check_decay(decay)
    checks.not_negative(max_staleness=max_staleness)

    def threshold(start: jax.Array) -> jax.Array:
        decayed = start * jnp.asarray(decay, start.dtype) ** (default_float(round) - 1.0)
        # The product is enlarged by a millionth, because rounding may put a whole product just below a whole number.
        return jnp.clip(jnp.floor(decayed * (1.0 + 1e-6)) + 1.0, 1.0, start)

    return _unless_infinite(max_staleness, threshold)


def check_decay(decay: Scalar) -> None:
    """Raises an error unless `decay` lies in (0, 1]."""
    for _, number in checks.known(decay=decay):
        if not 0.0 < number <= 1.0:
            raise ValueError(f"decay={decay} lies outside (0, 1]: use 1.0 for a constant threshold")


def _unless_infinite(max_staleness: Any, threshold: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Keeps an infinite threshold infinite, because its product with a decay that underflows to zero would be NaN."""
    start = default_float(max_staleness)
    infinite = jnp.isinf(start)
    return jnp.where(infinite, start, threshold(jnp.where(infinite, 1.0, start)))
