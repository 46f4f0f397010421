"""Losses per sample, unreduced: the caller masks, weights and averages.

Log-ratios are relative to the *behaviour* policy, which chose the actions. No loss stops the gradient of
advantages and targets: pass them as constants. An entropy bonus is `-coefficient * distribution.entropy()`, with
`stellaris.Categorical(logits)` or `stellaris.DiagonalGaussian(mean, log_std)`.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from stellaris._core import checks
from stellaris.corrections.caps import check_rho, truncate_ratio
from stellaris.corrections.ratios import ROOM, importance_ratio, saturated
from stellaris.types import Array, JaxArray, Scalar, largest

#: Lower bound of log-probabilities and log-ratios: -1e6 times an advantage of 1e8 is finite in float32.
MIN_LOG_PROB = -1e6


def ppo_loss(
    log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    clip: Float[Array, "*batch"] | Scalar = 0.2,
    clip_high: Float[Array, "*batch"] | Scalar | None = None,
    ratio_cap: Float[Array, "*batch"] | Scalar | None = None,
) -> Float[Array, "*batch"]:
    """PPO's clipped surrogate with Stellaris' global truncation, negated for minimisation.

    `-min(r' A, clip(r', 1 - clip, 1 + clip_high) A)` with `r' = min(exp(log_ratio), cap)`.

    Args:
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy. For
        GSPO, pass the log-ratio of whole sequences, from `sequence_log_ratio`.
      advantage: `[...]`.
      clip: half-width of the trust region, positive: a number or, from `adaptive_clip`, `[...]`. `math.inf` turns
        clipping off.
      clip_high: width of the upper half, `clip` by default; DAPO's clip-higher uses 0.28 with a `clip` of 0.2.
      ratio_cap: `[...]` from `global_ratio_cap`, or a constant; without it this is plain PPO.

    Returns:
      The loss `[...]`. Its gradient is zero where the ratio is above its cap. This includes samples with a negative
      advantage, whose ratio plain PPO would lower. A constant cap of at least `1 + clip_high` acts on negative
      advantages only; this is dual-clip PPO, usually with a cap of 3.

    Raises:
      TypeError: if an array holds integers, or a setting is not a number.
      ValueError: if the shapes differ, or a constant width or cap is not positive.

    Source:
      Schulman et al. 2017, Proximal Policy Optimization Algorithms, Eq. 7; Stellaris (SC 2024) for the cap; Yu et al.
      2025, DAPO: An Open-Source LLM Reinforcement Learning System at Scale, Eq. 10, for two widths; Ye et al. 2020,
      Mastering Complex Control in MOBA Games with Deep Reinforcement Learning, Eq. 4, for the dual clip.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio = jnp.log(jnp.array([1.5, 1.5, 0.5]))
      >>> advantage = jnp.array([1.0, -1.0, -1.0])
      >>> print(ppo_loss(log_ratio, advantage))
      [-1.2  1.5  0.8]
      >>> print(ppo_loss(log_ratio, advantage, ratio_cap=jnp.ones(3)))
      [-1.   1.   0.8]
    """
    _check(log_ratio, advantage=advantage)
    low, high = _trust_region(log_ratio, clip, clip_high)
    return _clipped_surrogate(_ratio(log_ratio, ratio_cap), advantage, low, high)


def ppo_penalty_loss(
    log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    kl: Float[Array, "*batch"],
    *,
    coefficient: Scalar,
    clip: Scalar | None = None,
    ratio_cap: Float[Array, "*batch"] | Scalar | None = None,
) -> Float[Array, "*batch"]:
    """PPO with a penalty on the divergence from the behaviour policy: `-r' A + coefficient * KL`.

    Args:
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy.
      advantage: `[...]`.
      kl: `[...]` divergence `KL(mu || pi)` from the behaviour policy `mu` to the learning policy `pi` at each sample's
        state, with its gradient: exact, or from `approximate_kl`.
      coefficient: beta, from `adapt_kl_coefficient`.
      clip: half-width of an additional trust region; none by default. RLlib and the workloads of MinionsRL
        use the penalty and this region together.
      ratio_cap: `[...]` from `global_ratio_cap`, or a constant; it bounds the ratio, not the penalty.

    Returns:
      The loss `[...]`. Where the ratio is above its cap only the penalty has a gradient.

    Raises:
      TypeError: if an array holds integers, or a setting is not a number.
      ValueError: if the shapes differ or `clip` is not positive.

    Source:
      Schulman et al. 2017, Proximal Policy Optimization Algorithms, Eq. 8.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio, advantage = jnp.log(jnp.array([1.5, 0.5])), jnp.array([1.0, 1.0])
      >>> print(ppo_penalty_loss(log_ratio, advantage, jnp.array([0.25, 0.5]), coefficient=2.0))
      [-1.   0.5]
    """
    _check(log_ratio, advantage=advantage, kl=kl)
    checks.positive(**checks.given(clip=clip))
    ratio = _ratio(log_ratio, ratio_cap)
    low, high = (-jnp.inf, jnp.inf) if clip is None else (1.0 - clip, 1.0 + clip)
    return _clipped_surrogate(ratio, advantage, low, high) + coefficient * kl


def adapt_kl_coefficient(
    coefficient: Scalar,
    kl: Scalar,
    *,
    target: Scalar = 0.01,
    tolerance: Scalar = 1.5,
    increase: Scalar = 2.0,
    decrease: Scalar = 0.5,
) -> Float[JaxArray, ""]:
    """Raises the penalty's coefficient for the next batch after too large a step, and lowers it after too small a step.

    `coefficient * increase` if `kl > target * tolerance`, `coefficient * decrease` if `kl < target / tolerance`.

    Args:
      coefficient: beta, a scalar.
      kl: mean divergence from the behaviour policy after learning from the batch.
      target: the desired divergence, in nats.
      tolerance: factor, at least 1: the coefficient stays the same for a divergence between `target / tolerance` and
        `target * tolerance`. The defaults are the paper's. RLlib and the workloads of MinionsRL use
        `tolerance=2.0, increase=1.5, decrease=0.5`.
      increase: factor that raises the coefficient, at least 1.
      decrease: factor that lowers the coefficient, in (0, 1].

    Returns:
      The new coefficient, a scalar.

    Raises:
      ValueError: if a number is out of its range.

    Source:
      Schulman et al. 2017, Proximal Policy Optimization Algorithms, Section 4.

    Example:
      >>> [float(adapt_kl_coefficient(0.2, kl)) for kl in (0.005, 0.01, 0.02)]  # doctest: +ELLIPSIS
      [0.1..., 0.2..., 0.4...]
    """
    checks.positive(target=target)
    known = dict(checks.known(tolerance=tolerance, increase=increase, decrease=decrease))
    if not (known.get("tolerance", 1) >= 1 and known.get("increase", 1) >= 1 and 0 < known.get("decrease", 1) <= 1):
        raise ValueError(
            f"tolerance={tolerance}, increase={increase}, decrease={decrease}: expected tolerance >= 1, "
            "increase >= 1 and decrease in (0, 1]"
        )
    coefficient, kl = _as_float(coefficient), _as_float(kl)
    factor = jnp.where(kl > target * tolerance, increase, jnp.where(kl < target / tolerance, decrease, 1.0))
    return coefficient * factor.astype(jnp.result_type(coefficient, kl))


def approximate_kl(log_ratio: Float[Array, "*batch"], *, estimator: str = "k3") -> Float[Array, "*batch"]:
    """An estimate of `KL(mu || pi)` from actions of `mu`: by default `r - 1 - log r`, unbiased and never negative.

    * `"k1"`: `-log r`, unbiased in value and gradient; of either sign, with the largest variance.
    * `"k2"`: `(log r)^2 / 2`, never negative; biased in value and gradient, little where the policies are close.
    * `"k3"`: `r - 1 - log r`, never negative; unbiased in value and gradient.

    Args:
      log_ratio: `[...]` log-ratios `log r` of actions that the behaviour policy `mu` chose. With the same actions,
        `importance_ratio(log_ratio) * approximate_kl(-log_ratio)` estimates the other divergence, `KL(pi || mu)`. That
        estimate is also unbiased in value and gradient.
        A penalty for moving away from a reference policy passes `log_ref - log_pi`, of actions of `pi`. Alone, `"k1"`
        then has the mean gradient 0, and `"k3"` that of `KL(ref || pi)`; times the importance ratio of `pi` to the
        policy that sampled, both have that of `KL(pi || ref)`.
      estimator: `"k1"`, `"k2"` or `"k3"`.

    Returns:
      The estimates `[...]`. `r` saturates as in `importance_ratio`, and so does `log r` in `"k2"`. For an action of
      probability zero under `pi`, where the divergence is infinite, `"k1"` and `"k3"` are 1e6.

    Raises:
      TypeError: if `log_ratio` holds integers.
      ValueError: if `estimator` is unknown.

    Source:
      Schulman 2020, Approximating KL Divergence, for samples of the first policy, here `mu`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(approximate_kl(jnp.log(jnp.array([1.0, 2.0]))).round(4))
      [0.     0.3069]
    """
    checks.floats(log_ratio=log_ratio)
    if estimator not in ("k1", "k2", "k3"):
        raise ValueError(f"estimator={estimator!r} is not 'k1', 'k2' or 'k3'")
    if estimator == "k2":
        return 0.5 * jnp.square(saturated(log_ratio))
    least = min_log_prob(log_ratio)
    if estimator == "k1":
        return -jnp.clip(log_ratio, least, -least)
    # Most ratios are near 1, where expm1 is more accurate than exp(x) - 1.
    ratio_minus_one = jnp.expm1(saturated(log_ratio))
    return ratio_minus_one - jnp.clip(log_ratio, least, -least)


def impala_loss(log_prob: Float[Array, "*batch"], advantage: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """The policy gradient as a loss: `-log_prob * A`, with the advantages of `vtrace`.

    This loss has no `ratio_cap`: pass the cap from `global_ratio_cap` to `vtrace`, which bounds the ratio in the
    advantage. With `vtrace`'s default clips of 1 the cap has no effect. Stellaris' IMPALA uses the cap instead of
    `rho_clip` and `pg_rho_clip`.

    Args:
      log_prob: `[...]` log-probability under the policy that learns.
      advantage: `[...]` from `vtrace`, which has weighted it by the truncated ratio.

    Returns:
      The loss `[...]`. An action of probability zero, whose loss would be infinite, gets the log-probability -1e6 and
      a zero gradient.

    Raises:
      TypeError: if an array holds integers.
      ValueError: if the shapes differ.

    Source:
      Espeholt et al. 2018, IMPALA, Section 4.2.

    Example:
      >>> import jax.numpy as jnp
      >>> impala_loss(jnp.array([-0.5, -2.0]), jnp.array([1.0, -1.0])).tolist()
      [0.5, -2.0]
    """
    checks.floats(log_prob=log_prob, advantage=advantage)
    checks.same_shape(log_prob, "log_prob", advantage=advantage)
    least = min_log_prob(log_prob)
    return -jnp.where(log_prob < least, least, log_prob) * advantage


def truncated_policy_gradient_loss(
    log_prob: Float[Array, "*batch"],
    log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    ratio_cap: Float[Array, "*batch"] | Scalar | None = 1.0,
    ratio_floor: Scalar = 0.0,
) -> Float[Array, "*batch"]:
    """The importance-weighted policy gradient with truncated weights: `-max(min(r, cap), floor) * log_prob * A`.

    The weight is a constant, so a truncated sample has the gradient `cap * A * grad log pi`, not zero as in `ppo_loss`.
    Between the bounds both losses have the same gradient, `r A grad log pi`, where `r = exp(log_ratio)`.

    With a cap of `1 + eps_high` and a floor of `1 - eps_low` this is CISPO. With a cap of 2 to 10 and no floor it is
    LlamaRL's AIPO, PipelineRL's objective, and REINFORCE with truncated importance sampling. For masked or soft
    weights, multiply `impala_loss` by the weight.

    Args:
      log_prob: `[...]` log-probability under the policy that learns, with its gradient.
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy; its
        gradient is ignored.
      advantage: `[...]`.
      ratio_cap: `[...]` from `global_ratio_cap`, or a constant; None for no truncation.
      ratio_floor: the smallest weight, at least 0; it overrides a lower cap.

    Returns:
      The loss `[...]`; actions of probability zero are treated as in `impala_loss`.

    Raises:
      TypeError: if an array holds integers, or a setting is not a number.
      ValueError: if the shapes differ, a constant cap is not positive, or the floor is negative.

    Source:
      Espeholt et al. 2018, IMPALA, Section 4.2, with one-step weights; Ionides 2008, Truncated Importance Sampling;
      MiniMax 2025, MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention, Eq. 4 and 5 (CISPO),
      which averages over all valid steps of the batch, and sets `eps_low` so large that the floor never acts.

    Example:
      >>> import jax.numpy as jnp
      >>> log_prob, log_ratio = jnp.array([-1.0, -1.0]), jnp.log(jnp.array([0.5, 3.0]))
      >>> print(truncated_policy_gradient_loss(log_prob, log_ratio, jnp.array([1.0, 1.0]), ratio_cap=2.0))
      [0.5 2. ]
    """
    _check(log_ratio, advantage=advantage, log_prob=log_prob)
    checks.not_negative(ratio_floor=ratio_floor)
    ratio = jax.lax.stop_gradient(_ratio(log_ratio, ratio_cap))
    return jnp.maximum(ratio, jnp.asarray(ratio_floor, ratio.dtype)) * impala_loss(log_prob, advantage)


def impact_loss(
    log_ratio: Float[Array, "*batch"],
    target_log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    clip: Float[Array, "*batch"] | Scalar = 0.2,
    clip_high: Float[Array, "*batch"] | Scalar | None = None,
    target_rho: Scalar = 2.0,
    ratio_cap: Float[Array, "*batch"] | Scalar | None = None,
) -> Float[Array, "*batch"]:
    """IMPACT's surrogate: PPO's, clipped around a slowly moving target policy instead of the behaviour policy.

    `-min(R A, clip(R, 1 - clip, 1 + clip_high) A)` with
    `R = min(exp(log_ratio), cap) * min(exp(-target_log_ratio), target_rho)`, which is `pi / target` where neither bound
    acts.

    Args:
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy.
      target_log_ratio: `[...]` log-probability under the target policy minus that under the behaviour policy; a
        constant. Zeros, for a target equal to the behaviour policy, give `ppo_loss`.
      advantage: `[...]` under the target policy, not weighted by a ratio: `reward + discount V'_{t+1} - V_t`, with the
        targets `V'` of `vtrace` at `target_log_ratio`, as `IMPACT.prepare` computes it. Do not pass the
        advantage that `vtrace` returns: it is already weighted by a ratio, and this loss would weight it again.
      clip: half-width of the trust region around the target, positive; a number or `[...]`.
      clip_high: width of the upper half; `clip` by default.
      target_rho: truncation level of `behaviour / target`, at least 1.
      ratio_cap: `[...]` from `global_ratio_cap`, or a constant; bounds `pi / behaviour`.

    Returns:
      The loss `[...]`. Its gradient is zero where `pi / behaviour` is above its cap.

    Raises:
      TypeError: if an array holds integers, or a setting is not a number.
      ValueError: if the shapes differ, a constant width is not positive, or `target_rho` is below 1.

    Source:
      Luo et al. 2019, IMPACT: Importance Weighted Asynchronous Architectures with Clipped Target Networks, Section 3.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio, target_log_ratio = jnp.log(jnp.array([1.5, 1.5])), jnp.log(jnp.array([1.5, 1.0]))
      >>> print(impact_loss(log_ratio, target_log_ratio, jnp.ones(2)))
      [-1.  -1.2]
    """
    _check(log_ratio, advantage=advantage, target_log_ratio=target_log_ratio)
    low, high = _trust_region(log_ratio, clip, clip_high)
    check_rho(target_rho=target_rho)
    weight = jnp.minimum(importance_ratio(-jax.lax.stop_gradient(target_log_ratio)), target_rho)
    return _clipped_surrogate(_ratio(log_ratio, ratio_cap) * weight, advantage, low, high)


def decoupled_ppo_loss(
    log_ratio: Float[Array, "*batch"],
    proximal_log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    clip: Float[Array, "*batch"] | Scalar = 0.2,
    clip_high: Float[Array, "*batch"] | Scalar | None = None,
    weight: Float[Array, "*batch"] | Scalar | None = None,
    ratio_cap: Float[Array, "*batch"] | Scalar | None = None,
) -> Float[Array, "*batch"]:
    """Decoupled PPO: importance weights from the behaviour policy, and a trust region around a recent, proximal one.

    `-min(r' A, clip(r', (1 - clip) w, (1 + clip_high) w) A)` with `r' = min(exp(log_ratio), cap)` and
    `w = exp(proximal_log_ratio)`: the paper's `w min(u A, clip(u, 1 - clip, 1 + clip_high) A)` for `u = r' / w`,
    without a division. `weight` replaces the outer, unbounded `w`; the trust region does not move.

    Args:
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy.
      proximal_log_ratio: `[...]` log-probability under the proximal policy minus that under the behaviour policy; a
        constant. Zeros, for a proximal policy equal to the behaviour policy, give `ppo_loss`.
        `approximate_proximal_log_ratio` estimates it without a forward pass.
      advantage: `[...]`.
      clip: half-width of the trust region around the proximal policy, positive; a number or `[...]`.
      clip_high: width of the upper half; `clip` by default.
      weight: `[...]` or a number that replaces the outer `w`; a constant. AReaL masks weights above 5 and divides by
        all samples: `bounded_importance_weight(proximal_log_ratio, high=5.0, outside="mask").weight`. A weight of 1
        leaves the loss unweighted.
      ratio_cap: `[...]` from `global_ratio_cap`, or a constant; bounds `pi / behaviour`. For a dual clip,
        which bounds `pi / proximal`, pass `3 * importance_ratio(proximal_log_ratio)`.

    Returns:
      The loss `[...]`. Its gradient is zero where `pi / behaviour` is above its cap.

    Raises:
      TypeError: if an array holds integers, or a setting is not a number.
      ValueError: if the shapes differ, a constant width is not positive, or a constant weight is negative.

    Source:
      Hilton et al. 2021, Batch size-invariance for policy optimization, Section 2; Fu et al. 2025, AReaL: A Large-Scale
      Asynchronous Reinforcement Learning System for Language Reasoning, whose code bounds the weight.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio, proximal = jnp.log(jnp.array([1.5, 1.5])), jnp.log(jnp.array([1.0, 2.0]))
      >>> print(decoupled_ppo_loss(log_ratio, proximal, jnp.array([1.0, -1.0])))
      [-1.2  1.6]
      >>> print(decoupled_ppo_loss(log_ratio, proximal, jnp.array([1.0, -1.0]), weight=1.0))
      [-1.2  0.8]
    """
    _check(log_ratio, advantage=advantage, proximal_log_ratio=proximal_log_ratio)
    low, high = _trust_region(log_ratio, clip, clip_high)
    proximal_log_ratio = jax.lax.stop_gradient(proximal_log_ratio)
    if weight is None:
        proximal = importance_ratio(proximal_log_ratio)
        return _clipped_surrogate(_ratio(log_ratio, ratio_cap), advantage, low * proximal, high * proximal)
    checks.per_sample(log_ratio, "log_ratio", checks.not_negative, weight=weight)
    surrogate = _clipped_surrogate(_between(log_ratio, proximal_log_ratio, ratio_cap), advantage, low, high)
    return jax.lax.stop_gradient(jnp.asarray(weight, surrogate.dtype)) * surrogate


def sapo_loss(
    log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    temperature: Scalar = 1.0,
    negative_temperature: Scalar = 1.05,
    ratio_cap: Float[Array, "*batch"] | Scalar | None = None,
) -> Float[Array, "*batch"]:
    """SAPO's soft surrogate: `-(4 / tau) sigmoid(tau (r' - 1)) A` with `r' = min(exp(log_ratio), cap)`.

    At `r = 1` the surrogate has the slope of the importance-weighted policy gradient. On both sides the slope falls
    smoothly to 0, whereas PPO's slope drops to 0 at the bounds of its trust region.

    Args:
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy.
      advantage: `[...]`; its sign chooses between the temperatures.
      temperature: tau where the advantage is positive; with a larger tau the slope falls faster.
      negative_temperature: tau where the advantage is zero or negative.
      ratio_cap: `[...]` from `global_ratio_cap`, or a constant; without it this is plain SAPO.

    Returns:
      The loss `[...]`. Its gradient is zero where the ratio is above its cap.

    Raises:
      TypeError: if an array holds integers, or a setting is not a number.
      ValueError: if the shapes differ, a temperature or a constant cap is not positive, or a temperature is infinite.

    Source:
      Gao et al. 2025, Soft Adaptive Policy Optimization, Eq. 5 and 6; it averages over the steps of each sequence, then
      over sequences.

    Example:
      >>> import jax.numpy as jnp
      >>> loss = sapo_loss(jnp.log(jnp.array([1.0, 3.0])), jnp.array([1.0, 1.0]))
      >>> [f"{x:.4f}" for x in loss]
      ['-2.0000', '-3.5232']
    """
    _check(log_ratio, advantage=advantage)
    checks.positive(temperature=temperature, negative_temperature=negative_temperature)
    checks.finite(temperature=temperature, negative_temperature=negative_temperature)
    ratio = _ratio(log_ratio, ratio_cap)
    tau = jnp.where(jnp.asarray(advantage) > 0, temperature, negative_temperature).astype(jnp.result_type(ratio))
    return -4.0 / tau * jax.nn.sigmoid(tau * (ratio - 1.0)) * advantage


def oapl_loss(
    log_ratio: Float[Array, "*batch"], advantage: Float[Array, "*batch"], *, coefficient: Scalar
) -> Float[Array, "*batch"]:
    """OAPL's regression: `(coefficient * log_ratio - A)^2`, without an importance ratio and without clipping.

    If `mu exp(A / coefficient)` is a policy, this policy minimises the loss on samples of any policy, so stale samples
    need no correction; `mu` is the behaviour policy in the log-ratio.

    Args:
      log_ratio: `[...]` of whole sequences, from `sequence_log_ratio`: log-probability under the policy that learns
        minus that under the behaviour policy.
      advantage: `[...]` of each sequence, from `optimal_advantage`.
      coefficient: weight of the log-ratio, positive: the strength of the penalty on the divergence from `mu`. It need
        not be the `beta` of `optimal_advantage`; the paper has two.

    Returns:
      The loss `[...]`. A log-ratio beyond ±1e6, or beyond ±64 / `coefficient` in float16, counts as this bound, with a
      gradient of zero.

    Raises:
      TypeError: if an array holds integers, or `coefficient` is not a number.
      ValueError: if the shapes differ, or `coefficient` is not positive and finite.

    Source:
      Ritter et al. 2026, LLMs Can Learn to Reason Via Off-Policy RL (OAPL), Eq. 3, averaged over sequences; read in the
      tests of two independent ports to NeMo RL, which agree, not in the paper.

    Example:
      >>> import jax.numpy as jnp
      >>> oapl_loss(jnp.array([0.0, 2.0]), jnp.array([1.0, 1.0]), coefficient=0.5).tolist()  # the second is optimal
      [1.0, 0.0]
    """
    _check(log_ratio, advantage=advantage)
    checks.positive(coefficient=coefficient)
    checks.finite(coefficient=coefficient)
    # The square of the bound is also finite in float16.
    dtype = jnp.result_type(log_ratio)
    widest = math.sqrt(largest(dtype)) / 4.0
    most = jnp.minimum(-min_log_prob(log_ratio), widest / coefficient).astype(dtype)
    bounded = jnp.where(log_ratio > most, most, jnp.where(log_ratio < -most, -most, log_ratio))
    return jnp.square(coefficient * bounded - advantage)


def value_loss(
    value: Float[Array, "*batch"],
    target: Float[Array, "*batch"],
    *,
    old_value: Float[Array, "*batch"] | None = None,
    clip: Scalar | None = None,
    loss_clip: Scalar | None = None,
    huber: Scalar | None = None,
) -> Float[Array, "*batch"]:
    """Squared or Huber error of a value, with the two common kinds of clipping.

    `min(max(e(V - G), e(V_old + clip(V - V_old, ±clip) - G)), loss_clip)` with `e(x) = x^2`. With `huber`, `e(x)` is
    `x^2` up to `|x| = huber` and `2 huber |x| - huber^2` beyond. By default the loss is plain `(V - G)^2`.

    Args:
      value: `[...]` with its gradient.
      target: `[...]` the return estimate, a constant of the loss.
      old_value: `[...]` the behaviour policy's value; needed by `clip`.
      clip: how far the value may move from `old_value` before its gradient vanishes.
      loss_clip: upper bound of the loss itself, beyond which its gradient vanishes (RLlib's `vf_clip_param`; the
        demo of Stellaris sets it to 100).
      huber: absolute error beyond which the loss grows linearly.

    Returns:
      The loss `[...]`.

    Raises:
      TypeError: if an array holds integers, or a setting is not a number.
      ValueError: if the shapes differ, a bound is not positive, or `clip` is given without `old_value`.

    Source:
      Engstrom et al. 2020, Implementation Matters in Deep Policy Gradients, Section 2, for `clip`. The paper prints the
      minimum of the two errors; the code it describes takes the maximum, as here. Huber 1964, Robust Estimation of a
      Location Parameter, for `huber`.

    Example:
      >>> import jax.numpy as jnp
      >>> value, target = jnp.array([1.0, 20.0]), jnp.array([3.0, 0.0])
      >>> value_loss(value, target, loss_clip=100.0).tolist()
      [4.0, 100.0]
      >>> value_loss(value, target, huber=1.0).tolist()
      [3.0, 39.0]
    """
    checks.floats(value=value, target=target, old_value=old_value)
    checks.same_shape(value, "value", target=target, old_value=old_value)
    checks.positive(**checks.given(clip=clip, loss_clip=loss_clip, huber=huber))

    def error(x: Any) -> jax.Array:
        if huber is None:
            return jnp.square(x)
        near = jnp.clip(x, -huber, huber)
        return jnp.asarray(near * (2.0 * x - near))

    loss = error(value - target)
    if clip is not None:
        if old_value is None:
            raise ValueError("old_value is None: pass the behaviour policy's values, which clip needs")
        near = old_value + jnp.clip(value - old_value, -clip, clip)
        loss = jnp.maximum(loss, error(near - target))
    return loss if loss_clip is None else jnp.minimum(loss, loss_clip)


def min_log_prob(log_prob: Array) -> float:
    """The lower bound of log-probabilities that keeps losses finite in this dtype; -3261 in float16."""
    return max(MIN_LOG_PROB, -largest(jnp.result_type(log_prob)) / math.exp(ROOM))


def _as_float(x: Any) -> jax.Array:
    """Converts a whole number to JAX's default float type; keeps a float."""
    number = jnp.asarray(x)
    return number if jnp.issubdtype(number.dtype, jnp.floating) else number.astype(float)


def _ratio(log_ratio: Array, ratio_cap: Array | float | None) -> Array:
    """The ratio to the behaviour policy, truncated if there is a cap."""
    checks.per_sample(log_ratio, "log_ratio", checks.positive, **checks.given(ratio_cap=ratio_cap))
    ratio = importance_ratio(log_ratio)
    return ratio if ratio_cap is None else truncate_ratio(ratio, ratio_cap)


def _between(log_ratio: Array, proximal_log_ratio: Array, ratio_cap: Array | float | None) -> Array:
    """The ratio to the proximal policy; the cap applies to the ratio to the behaviour policy."""
    checks.per_sample(log_ratio, "log_ratio", checks.positive, **checks.given(ratio_cap=ratio_cap))
    # Each log-ratio saturates before the subtraction, because inf - inf is NaN.
    ratio = importance_ratio(saturated(log_ratio) - saturated(proximal_log_ratio))
    if ratio_cap is None:
        return ratio
    # Compared as ratios to the behaviour policy: as ratios to the proximal policy, a ratio that equals its cap would be
    # above it by rounding for some samples, which then had no gradient.
    cap = jnp.asarray(ratio_cap, ratio.dtype)
    # In float16 the product may overflow, and infinity times 0 is NaN; the capped ratio is never above the ratio.
    product = jnp.minimum(cap, largest(cap.dtype)) * importance_ratio(-proximal_log_ratio)
    capped = jax.lax.stop_gradient(jnp.minimum(ratio, product))
    return jnp.where(importance_ratio(log_ratio) > cap, capped, ratio)


def _trust_region(log_ratio: Array, clip: Any, clip_high: Any) -> tuple[Any, Any]:
    """The bounds of the ratio: `1 - clip` and `1 + clip_high`."""
    if isinstance(clip, tuple | list):
        raise TypeError(f"clip is a {type(clip).__name__}: pass its half-widths as clip= and clip_high=")
    checks.per_sample(log_ratio, "log_ratio", checks.positive, clip=clip, **checks.given(clip_high=clip_high))
    return 1.0 - clip, 1.0 + (clip if clip_high is None else clip_high)


def _clipped_surrogate(ratio: Array, advantage: Array, low: Array | float, high: Array | float) -> Array:
    """`-min(ratio A, clip(ratio, low, high) A)`: the advantage's sign decides which bound can act."""
    # `where` replaces `minimum`, because the gradient of `where` is cheaper, and at the bound it is 1, not one half.
    above, below = jnp.where(ratio > high, high, ratio), jnp.where(ratio < low, low, ratio)
    return -jnp.where(jnp.asarray(advantage) > 0, above, below) * advantage


def _check(log_ratio: Array, **arrays: Array) -> None:
    checks.floats(log_ratio=log_ratio, **arrays)
    checks.same_shape(log_ratio, "log_ratio", **arrays)
