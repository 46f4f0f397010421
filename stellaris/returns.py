"""Advantages and value targets of trajectories: pure, time-major."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from stellaris.types import Array


def gae(
    reward: Float[Array, "T *batch"],
    discount: Float[Array, "T *batch"],
    value: Float[Array, "T+1 *batch"],
    *,
    lambda_: float = 0.95,
    valid: Bool[Array, "T *batch"] | None = None,
) -> Float[Array, "T *batch"]:
    """Generalised advantage estimation.

    `A_t = delta_t + discount_t * lambda * A_{t+1}` with `delta_t = r_t + discount_t * V_{t+1} - V_t` and `A_T = 0`.

    Args:
      reward: `[T, ...]`.
      discount: `[T, ...]`, `gamma * (1 - terminated)`: zero where the next state has no value, `gamma` at a truncation.
      value: `[T + 1, ...]`, the last row bootstraps.
      lambda_: in [0, 1]: 0 gives one-step temporal differences, 1 Monte-Carlo returns minus the value.
      valid: `[T, ...]`, False for steps that are no transition (an environment's reset): their advantage is zero, and
        no trace crosses them. All steps are transitions by default.

    Returns:
      The advantages `[T, ...]`. The value target is `advantage + value[:-1]`.

    Raises:
      ValueError: if the shapes do not fit, or `lambda_` lies outside [0, 1].

    Source:
      Schulman et al. 2016, High-Dimensional Continuous Control Using Generalized Advantage Estimation, Eq. 16.

    Example:
      Two steps at discount 0.5 and lambda 0.5; the second ends the episode:

      >>> import jax.numpy as jnp
      >>> reward, discount = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
      >>> gae(reward, discount, jnp.array([0.0, 1.0, 9.0]), lambda_=0.5).tolist()
      [1.75, 1.0]
    """
    _check_shapes(reward=reward, discount=discount, value=value, valid=valid)
    if not 0.0 <= lambda_ <= 1.0:
        raise ValueError(f"lambda_={lambda_} lies outside [0, 1]")
    delta = reward + discount * value[1:] - value[:-1]
    trace = discount * lambda_
    if valid is not None:
        delta, trace = jnp.where(valid, delta, 0.0), jnp.where(valid, trace, 0.0)

    def step(later: jax.Array, now: Any) -> tuple[jax.Array, jax.Array]:
        delta_t, trace_t = now
        advantage = delta_t + trace_t * later
        return advantage, advantage

    start = jnp.zeros_like(delta, shape=delta.shape[1:])
    _, advantage = jax.lax.scan(step, start, (delta, trace), reverse=True, unroll=8)
    return advantage


def _check_shapes(*, reward: Array, discount: Array, value: Array, valid: Array | None) -> None:
    """Raises a ValueError that names the argument whose shape does not fit `reward`'s."""
    if reward.ndim < 1:
        raise ValueError(f"reward has shape {reward.shape}: expected [T, ...]")
    if value.shape != (reward.shape[0] + 1, *reward.shape[1:]):
        expected = (reward.shape[0] + 1, *reward.shape[1:])
        raise ValueError(f"value has shape {value.shape}: expected {expected}, one row more than reward {reward.shape}")
    for name, array in (("discount", discount), ("valid", valid)):
        if array is not None and array.shape != reward.shape:
            raise ValueError(f"{name} has shape {array.shape}: expected reward's {reward.shape}")
