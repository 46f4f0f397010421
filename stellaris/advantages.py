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
from stellaris.corrections.ratios import constant
from stellaris.types import Array, JaxArray, Scalar


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
    advantage = jnp.where(there, wide - _mean(wide, there, number), 0.0)
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
    difference = jnp.where(there, wide - _mean(wide, there, number), 0.0)
    return (difference * members / jnp.maximum(members - 1.0, 1.0)).astype(jnp.result_type(reward))


def _members(reward: Array, group: Array, valid: Array | None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Checks the arguments; returns constant rewards, validity, and the groups numbered from 0."""
    checks.floats(reward=reward)
    checks.integers(group=group)
    checks.int32(group=group)
    checks.same_shape(reward, "reward", group=group, valid=valid)
    wide = constant(reward)
    # Sums by group need numbers below the size of the batch; users' numbers may be any.
    _, number = jnp.unique(jnp.asarray(group, jnp.int32), size=wide.size, return_inverse=True)
    return wide, checks.mask(valid, wide), number.reshape(wide.shape)


def _mean(x: jax.Array, weight: Any, number: jax.Array) -> jax.Array:
    """The weighted mean of each sample's group; 0 where all weights are 0."""
    weight = jnp.asarray(weight, x.dtype)
    total = _total(weight, number)
    return _total(jnp.where(weight > 0, x, 0.0) * weight, number) / jnp.where(total > 0, total, 1.0)


def _total(x: jax.Array, number: jax.Array) -> jax.Array:
    """The sum over each sample's group, at each sample."""
    sums = jax.ops.segment_sum(x.ravel(), number.ravel(), num_segments=x.size)
    return sums[number]
