"""What staleness does to a gradient: its weight, its admission threshold, and the optimizer's step.

Staleness is counted in published versions: `clock now - version the gradient was computed on`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from stellaris.types import Array, Tree


def staleness_weight(staleness: Int[Array, "*batch"] | int, *, smoothness: float = 3.0) -> Float[jax.Array, "*batch"]:
    """The factor on the learning rate of a stale gradient: `max(staleness, 1) ** (-1 / smoothness)`.

    It multiplies the *optimizer's update*. A constant factor on the gradient would cancel under Adam.

    Args:
      staleness: `[...]` versions published since the gradient's parameters; 0 is fresh.
      smoothness: positive; 1 weighs by 1/staleness (Zhang et al. 2016), `math.inf` ignores staleness.

    Returns:
      The weights `[...]` in (0, 1], float32.

    Raises:
      ValueError: if `smoothness` is not positive.

    Source:
      Stellaris (SC 2024), staleness-aware gradient aggregation: `alpha_0 / delta ** (1 / v)`.

    Example:
      >>> import jax.numpy as jnp
      >>> staleness_weight(jnp.array([0, 1, 8])).round(4).tolist()
      [1.0, 1.0, 0.5]
    """
    check_smoothness(smoothness)
    return jnp.maximum(jnp.asarray(staleness, jnp.float32), 1.0) ** (-1.0 / smoothness)


def staleness_threshold(
    round: Int[Array, ""] | int,
    *,
    max_staleness: Float[Array, ""] | Int[Array, ""] | float,
    decay: float,
) -> Float[jax.Array, ""]:
    """The mean staleness up to which a group of gradients is applied: `beta_k = max_staleness * decay ** k`.

    Permissive in early rounds, strict as training converges.

    Args:
      round: `k`, fragments delivered divided by the number of actors, rounded down.
      max_staleness: `beta_0`, in versions; `math.inf` for no threshold.
      decay: in (0, 1].

    Returns:
      The threshold, a float32 scalar.

    Raises:
      ValueError: if `decay` lies outside (0, 1].

    Source:
      Stellaris (SC 2024), staleness-aware gradient aggregation.

    Example:
      >>> [float(staleness_threshold(k, max_staleness=4, decay=0.5)) for k in range(3)]
      [4.0, 2.0, 1.0]
    """
    check_decay(decay)
    # inf * 0 is not a number, and decay ** k does reach 0: no threshold stays no threshold.
    start = jnp.asarray(max_staleness, jnp.float32)
    return jnp.where(jnp.isinf(start), start, start * jnp.float32(decay) ** jnp.asarray(round, jnp.float32))


def scale_by_staleness(smoothness: float = 3.0) -> optax.GradientTransformationExtraArgs:
    """Scales updates by `staleness_weight`; belongs *after* `optax.scale_by_adam` and its like in a chain.

    Args:
      smoothness: as in `staleness_weight`.

    Returns:
      A transformation whose `update(updates, state, params, staleness=...)` takes an int32 scalar.

    Raises:
      ValueError: if `smoothness` is not positive.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> optimizer = optax.chain(optax.scale_by_adam(), scale_by_staleness(3.0), optax.scale(-0.1))
      >>> params = jnp.zeros(1)
      >>> step, _ = optimizer.update(jnp.ones(1), optimizer.init(params), params, staleness=jnp.int32(8))
      >>> print(step.round(4))
      [-0.05]
    """
    check_smoothness(smoothness)

    def update(
        updates: Tree, state: optax.EmptyState, params: Tree = None, *, staleness: Any, **extra: Any
    ) -> tuple[Tree, optax.EmptyState]:
        del params, extra
        weight = staleness_weight(staleness, smoothness=smoothness)
        return jax.tree.map(lambda u: u * weight.astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def check_smoothness(smoothness: float) -> None:
    """Raises a ValueError unless `smoothness` is positive."""
    if not smoothness > 0:
        raise ValueError(f"smoothness={smoothness} is not positive: use math.inf to ignore staleness")


def check_decay(decay: float) -> None:
    """Raises a ValueError unless `decay` lies in (0, 1]."""
    if not 0.0 < decay <= 1.0:
        raise ValueError(f"decay={decay} lies outside (0, 1]: use 1.0 for a constant threshold")
