"""Losses, per sample and unreduced: masking, weighting and averaging are the caller's."""

import jax.numpy as jnp
from jaxtyping import Float

from stellaris.truncation import importance_ratio, truncate_ratio
from stellaris.types import Array


def ppo_loss(
    log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    clip: float = 0.2,
    ratio_cap: Float[Array, "*batch"] | None = None,
) -> Float[Array, "*batch"]:
    """PPO's clipped surrogate with Stellaris' global truncation, negated to be minimised.

    `-min(r' A, clip(r', 1 - clip, 1 + clip) A)` with `r' = min(exp(log_ratio), cap)`.

    Args:
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy.
      advantage: `[...]`, a constant of the loss: pass it without a gradient.
      clip: half-width of the trust region, positive.
      ratio_cap: `[...]` from `global_ratio_cap`; none by default, which is plain PPO.

    Returns:
      The loss `[...]`. It has no gradient where the ratio is above its cap.

    Raises:
      ValueError: if the shapes differ or `clip` is not positive.

    Source:
      Schulman et al. 2017, Proximal Policy Optimization Algorithms, Eq. 7; Stellaris (SC 2024) for the cap.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio = jnp.log(jnp.array([1.5, 1.5, 0.5]))
      >>> advantage = jnp.array([1.0, -1.0, -1.0])
      >>> print(ppo_loss(log_ratio, advantage))
      [-1.2  1.5  0.8]
      >>> print(ppo_loss(log_ratio, advantage, ratio_cap=jnp.ones(3)))
      [-1.   1.   0.8]
    """
    if log_ratio.shape != advantage.shape:
        raise ValueError(f"advantage has shape {advantage.shape}: expected log_ratio's {log_ratio.shape}")
    if not clip > 0:
        raise ValueError(f"clip={clip} is not positive")
    ratio = importance_ratio(log_ratio)
    if ratio_cap is not None:
        ratio = truncate_ratio(ratio, ratio_cap)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def value_loss(
    value: Float[Array, "*batch"],
    target: Float[Array, "*batch"],
    *,
    old_value: Float[Array, "*batch"] | None = None,
    clip: float | None = None,
    loss_clip: float | None = None,
) -> Float[Array, "*batch"]:
    """Squared error of a value, with either of the two clippings in use.

    `max((V - G)^2, (V_old + clip(V - V_old, ±clip) - G)^2)`, at most `loss_clip`; plain `(V - G)^2` without either.

    Args:
      value: `[...]` with its gradient.
      target: `[...]` the return estimate, a constant of the loss.
      old_value: `[...]` the behaviour policy's value; needed by `clip`.
      clip: how far the value may move from `old_value` before its gradient vanishes.
      loss_clip: upper bound of the loss itself, beyond which its gradient vanishes (RLlib's `vf_clip_param`; the
        demo of Stellaris sets it to 100).

    Returns:
      The loss `[...]`.

    Raises:
      ValueError: if the shapes differ, a bound is not positive, or `clip` is given without `old_value`.

    Source:
      Engstrom et al. 2020, Implementation Matters in Deep Policy Gradients, Section 2, for `clip`.

    Example:
      >>> import jax.numpy as jnp
      >>> value, target = jnp.array([1.0, 20.0]), jnp.array([3.0, 0.0])
      >>> value_loss(value, target, loss_clip=100.0).tolist()
      [4.0, 100.0]
    """
    for name, array in (("target", target), ("old_value", old_value)):
        if array is not None and array.shape != value.shape:
            raise ValueError(f"{name} has shape {array.shape}: expected value's {value.shape}")
    for name, bound in (("clip", clip), ("loss_clip", loss_clip)):
        if bound is not None and not bound > 0:
            raise ValueError(f"{name}={bound} is not positive")
    loss = jnp.square(value - target)
    if clip is not None:
        if old_value is None:
            raise ValueError("old_value is None: clip needs the behaviour policy's values")
        near = old_value + jnp.clip(value - old_value, -clip, clip)
        loss = jnp.maximum(loss, jnp.square(near - target))
    return loss if loss_clip is None else jnp.minimum(loss, loss_clip)
