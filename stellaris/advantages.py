"""Advantages of whole sequences from the rewards of their group: the answers to one prompt, the episodes of one task.

A batch is flat: `reward[i]` is the reward of sequence `i`, and `group[i]` names its group by any integer, such as the
prompt's number. Groups may differ in size, and their members need not be adjacent, because asynchronous trainers
filter samples and mix them. For rewards `[groups, members]` pass
`group=jnp.broadcast_to(jnp.arange(groups)[:, None], reward.shape)`. For a loss per token, `[T, N]`, broadcast the
advantages over the first axis. Rewards should already contain a penalty if the source subtracts one from them.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from stellaris._core import checks
from stellaris._core.sharding import replicated, split_like
from stellaris.corrections.ratios import constant
from stellaris.types import Array, JaxArray, Scalar, largest


def group_relative_advantage(
    reward: Float[Array, "*batch"],
    group: Int[Array, "*batch"],
    *,
    valid: Shaped[Array, "*batch"] | None = None,
    divide_by_std: bool = True,
    epsilon: Scalar = 1e-6,
) -> Float[JaxArray, "*batch"]:
    """GRPO's advantage: the reward minus the mean of its group, divided by the group's standard deviation.

    `A_i = (R_i - mean_g R) / (std_g R + epsilon)`, with `std_g` the sample standard deviation (divisor `n - 1`).
    Without the division this is the advantage of Dr. GRPO: the division gives more weight to the prompts that are
    nearly always or nearly never solved, because their rewards differ little.

    Args:
      reward: `[...]`, one reward per sequence.
      group: `[...]` integers; sequences with the same number form a group.
      valid: `[...]`, False for sequences to ignore; all count by default.
      divide_by_std: False for Dr. GRPO.
      epsilon: added to the standard deviation, at least 0: 1e-6 in verl, 1e-4 in TRL.

    Returns:
      The advantages `[...]`, without a gradient; 0 for an invalid sequence and for the only member of a group. A NaN
      reward makes all advantages of its group NaN; pass `valid=jnp.isfinite(reward)` to ignore such rewards.

    Raises:
      TypeError: if `reward` holds integers, or `group` does not.
      ValueError: if the shapes differ, a group's number is beyond int32, or `epsilon` is negative or infinite.

    Source:
      Shao et al. 2024, DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models, Section
      4.1.2, which does not define its standard deviation; verl and TRL divide by `n - 1`, as here. For the only member
      of a group verl returns the raw reward. Liu et al. 2025, Understanding R1-Zero-Like Training: A Critical
      Perspective, for the advantage without the division.

    Example:
      >>> import jax.numpy as jnp
      >>> reward, group = jnp.array([1.0, 0.0, 0.0, 5.0, 7.0]), jnp.array([4, 4, 4, 9, 9])
      >>> [f"{x:.3f}" for x in group_relative_advantage(reward, group)]
      ['1.155', '-0.577', '-0.577', '-0.707', '0.707']
      >>> [f"{x:.3f}" for x in group_relative_advantage(reward, group, divide_by_std=False)]
      ['0.667', '-0.333', '-0.333', '-1.000', '1.000']
    """
    checks.not_negative(epsilon=epsilon)
    checks.finite(epsilon=epsilon)
    wide, there, number = _members(reward, group, valid)
    # The mean of equal rewards is rounded, and the division below would enlarge its error; that of zeros is exact.
    excess = _below_the_best(wide, there, number)
    advantage = jnp.where(there, excess - _mean(excess, there, number), 0.0)
    if divide_by_std:
        others = jnp.maximum(_total(there.astype(wide.dtype), number) - 1.0, 1.0)
        deviation = jnp.sqrt(_total(jnp.square(advantage), number) / others) + epsilon
        # Equal rewards have a deviation of 0, which `epsilon=0` would divide by.
        advantage = jnp.where(deviation == 0, advantage, advantage / jnp.where(deviation == 0, 1.0, deviation))
    return advantage.astype(jnp.result_type(reward))


def leave_one_out_advantage(
    reward: Float[Array, "*batch"], group: Int[Array, "*batch"], *, valid: Shaped[Array, "*batch"] | None = None
) -> Float[JaxArray, "*batch"]:
    """RLOO's advantage: the reward minus the mean reward of the *other* members of its group.

    `A_i = R_i - sum_{j in g, j != i} R_j / (n - 1) = n / (n - 1) (R_i - mean_g R)`. The baseline does not depend on the
    sequence itself, so the policy gradient is unbiased. It is the advantage of Dr. GRPO times `n / (n - 1)`.

    Args:
      reward: `[...]`, one reward per sequence.
      group: `[...]` integers; sequences with the same number form a group.
      valid: `[...]`, False for sequences to ignore; all count by default.

    Returns:
      The advantages `[...]`, without a gradient; 0 for an invalid sequence and for the only member of a group. A NaN
      reward makes all advantages of its group NaN.

    Raises:
      TypeError: if `reward` holds integers, or `group` does not.
      ValueError: if the shapes differ, or a group's number is beyond int32.

    Source:
      Kool et al. 2019, Buy 4 REINFORCE Samples, Get a Baseline for Free!; Ahmadian et al. 2024, Back to Basics:
      Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs. For the only member of a group
      verl returns the raw reward, TRL 0, as here.

    Example:
      >>> import jax.numpy as jnp
      >>> reward, group = jnp.array([1.0, 0.0, 0.5, 5.0]), jnp.array([4, 4, 4, 9])
      >>> print(leave_one_out_advantage(reward, group))
      [ 0.75 -0.75  0.    0.  ]
    """
    wide, there, number = _members(reward, group, valid)
    members = _total(there.astype(wide.dtype), number)
    # The mean of equal rewards is rounded, and the sign of the error would count as an advantage; that of zeros is 0.
    excess = _below_the_best(wide, there, number)
    difference = jnp.where(there, excess - _mean(excess, there, number), 0.0)
    return (difference * members / jnp.maximum(members - 1.0, 1.0)).astype(jnp.result_type(reward))


def optimal_advantage(
    reward: Float[Array, "*batch"],
    group: Int[Array, "*batch"],
    *,
    beta: Scalar,
    valid: Shaped[Array, "*batch"] | None = None,
) -> Float[JaxArray, "*batch"]:
    """OAPL's estimate of the optimal advantage under a penalty on the divergence from the behaviour policy.

    `A_i = R_i - V_g` with `V_g = beta log mean_g exp(R / beta)`. For samples of the behaviour policy `mu`, `V_g`
    estimates the optimal value of `E_pi[R] - beta KL(pi || mu)`, whose optimum is `mu exp(A / beta)`. `V_g` is the
    group's largest reward as `beta` goes to 0, and the mean reward as it goes to infinity.

    Args:
      reward: `[...]`, one reward per sequence.
      group: `[...]` integers; sequences with the same number form a group.
      beta: temperature, positive, in units of the reward.
      valid: `[...]`, False for sequences to ignore; all count by default.

    Returns:
      The advantages `[...]` for `oapl_loss`, without a gradient; 0 for an invalid sequence and for the only member of a
      group. A NaN reward makes all advantages of its group NaN.

    Raises:
      TypeError: if `reward` holds integers, `group` does not, or `beta` is not a number.
      ValueError: if the shapes differ, a group's number is beyond int32, or `beta` is not positive and finite.

    Source:
      Ritter et al. 2026, LLMs Can Learn to Reason Via Off-Policy RL (OAPL), Eq. 2 and its estimate from a group; read
      in the tests of two independent ports to NeMo RL, which agree, not in the paper.

    Example:
      >>> import jax.numpy as jnp
      >>> reward, group = jnp.array([1.0, 0.0]), jnp.array([4, 4])  # log((e + 1) / 2) = 0.620
      >>> [f"{x:.3f}" for x in optimal_advantage(reward, group, beta=1.0)]
      ['0.380', '-0.620']
    """
    checks.positive(beta=beta)
    checks.finite(beta=beta)
    wide, there, number = _members(reward, group, valid)
    # Relative to the group's largest reward no exponential overflows. A large beta needs the accuracy of expm1.
    excess = _below_the_best(wide, there, number)
    value = beta * jnp.log1p(_mean(jnp.expm1(excess / beta), there, number))
    return jnp.where(there, excess - value, 0.0).astype(jnp.result_type(reward))


def optimal_baseline(
    reward: Float[Array, "*batch"],
    log_ratio: Float[Array, "*batch"],
    gradient_norm: Float[Array, "*batch"],
    group: Int[Array, "*batch"],
    *,
    valid: Shaped[Array, "*batch"] | None = None,
) -> Float[JaxArray, "*batch"]:
    """VCPO's baseline (OPOB), which minimises the variance of a group's importance-weighted policy gradient.

    `b_g = sum_i w_i^2 |g_i|^2 R_i / sum_i w_i^2 |g_i|^2` with `w = exp(log_ratio)` and `|g_i|` the norm of
    `grad log pi` of sequence `i`: the mean reward, weighted by each sequence's share of the variance, as estimated from
    the group's samples.

    Args:
      reward: `[...]`, one reward per sequence.
      log_ratio: `[...]` of whole sequences, from `sequence_log_ratio`. Pass it unbounded; weights never overflow,
        because each is divided by its group's largest.
      gradient_norm: `[...]`, at least 0: the norm of the gradient of each sequence's summed log-probability.
      group: `[...]` integers; sequences with the same number form a group. Pass zeros for one baseline per batch.
      valid: `[...]`, False for sequences to ignore; all count by default.

    Returns:
      The baseline `[...]` of each sequence's group, without a gradient; 0 where all weights of the group are 0. The
      advantage is `reward - optimal_baseline(...)`.

    Raises:
      TypeError: if an array that should hold floats holds integers, or `group` does not hold integers.
      ValueError: if the shapes differ, or a group's number is beyond int32.

    Source:
      Huang et al. 2026, Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs (VCPO), the formula of the
      authors' repository. Their code adds 1e-8 to the denominator, and can use truncated ratios, gradient norms per
      token, or one baseline per minibatch.

    Example:
      >>> import jax.numpy as jnp
      >>> reward, log_ratio, norm = jnp.array([1.0, 0.0]), jnp.log(jnp.array([1.0, 2.0])), jnp.array([2.0, 1.0])
      >>> print(optimal_baseline(reward, log_ratio, norm, jnp.zeros(2, int)))  # both weights are 2 squared
      [0.5 0.5]
    """
    checks.floats(log_ratio=log_ratio, gradient_norm=gradient_norm)
    checks.same_shape(reward, "reward", log_ratio=log_ratio, gradient_norm=gradient_norm)
    wide, there, number = _members(reward, group, valid)
    log_ratio = jnp.minimum(constant(log_ratio), largest(wide.dtype))
    log_weight = jnp.where(there, log_ratio + jnp.log(constant(gradient_norm)), -jnp.inf).astype(wide.dtype)
    top = _largest(log_weight, number)
    weight = jnp.square(jnp.exp(log_weight - jnp.where(top == -jnp.inf, 0.0, top)))
    return _mean(wide, weight, number).astype(jnp.result_type(reward))


def _members(reward: Array, group: Array, valid: Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Checks the arguments; returns constant rewards, validity, and the groups numbered from 0."""
    checks.floats(reward=reward)
    checks.integers(group=group)
    checks.int32(group=group)
    checks.same_shape(reward, "reward", group=group, valid=valid)
    wide = constant(reward)
    # Sums by group need numbers below the size of the batch; users' numbers may be any.
    _, number = jnp.unique(replicated(jnp.asarray(group, jnp.int32)), size=wide.size, return_inverse=True)
    return wide, checks.mask(valid, wide), number.reshape(wide.shape)


def _mean(x: jax.Array, weight: Any, number: jax.Array) -> jax.Array:
    """The weighted mean of each sample's group; 0 where all weights are 0."""
    weight = jnp.asarray(weight, x.dtype)
    total = _total(weight, number)
    return _total(jnp.where(weight == 0, 0.0, x) * weight, number) / jnp.where(total == 0, 1.0, total)


def _largest(x: jax.Array, number: jax.Array) -> jax.Array:
    """The maximum over each sample's group, at each sample."""
    greatest = jax.ops.segment_max(replicated(x).ravel(), number.ravel(), num_segments=x.size)
    return split_like(greatest[number], x)


def _below_the_best(x: jax.Array, there: jax.Array, number: jax.Array) -> jax.Array:
    """Each valid sample less the maximum over its group's valid ones, 0 for the others."""
    return jnp.where(there, x - _largest(jnp.where(there, x, -jnp.inf), number), 0.0)


def _total(x: jax.Array, number: jax.Array) -> jax.Array:
    """The sum over each sample's group, at each sample."""
    sums = jax.ops.segment_sum(replicated(x).ravel(), number.ravel(), num_segments=x.size)
    return split_like(sums[number], x)
