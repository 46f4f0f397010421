"""The reduction of losses per step to one number, by the three rules in use."""

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from stellaris._core import checks
from stellaris.corrections.ratios import check_sequences, step_totals
from stellaris.types import Array, JaxArray, Scalar, at_least_float32


def reduce_loss(
    loss: Float[Array, "T *batch"],
    *,
    valid: Shaped[Array, "T *batch"] | None = None,
    segment: Int[Array, "T *batch"] | None = None,
    over: str = "steps",
    length: Scalar | None = None,
) -> Float[JaxArray, ""]:
    """Reduces a loss per step to a scalar: a mean over steps, a mean over sequences, or sums over a fixed length.

    Over the valid steps, with `N` sequences that have a valid step:

    * `"steps"`: `sum_i sum_t loss_it / sum_i T_i`, the mean over all steps of the batch, in which long sequences
      count more. DAPO; `"token-mean"` in verl, `"dapo"` and `"bnpo"` in TRL.
    * `"sequences"`: `1/N sum_i (1/T_i) sum_t loss_it`, in which each sequence counts once, so that a step of a long
      sequence counts less. GRPO; `"seq-mean-token-mean"` in verl, `"grpo"` in TRL.
    * `"length"`: `1/N sum_i sum_t loss_it / length`, in which a step's weight depends on no sequence's length. Dr.
      GRPO; `"seq-mean-token-sum-norm"` in verl, `"dr_grpo"` in TRL.

    Args:
      loss: `[T, ...]`, time-major; columns are sequences. Values at invalid steps do not matter; their gradient is
        exactly zero.
      valid: `[T, ...]`, False for padding and for prompts; by default all steps are valid. Samples that a correction
        drops stay valid in nearly all sources: pass `jnp.where(kept, loss, 0.0)` as the loss. To divide by the kept
        ones, pass `valid & kept`.
      segment: `[T, ...]` integers from 0 to T - 1, for several sequences packed into one column, as in
        `sequence_log_ratio`; it does not matter over steps.
      over: `"steps"`, `"sequences"` or `"length"`.
      length: the fixed length, positive, such as the longest answer allowed; needed over `"length"` only.

    Returns:
      A scalar in float32 at least; 0 without a valid step, and NaN if the `segment` of a valid step is out of range.
      Under `jit` with sharded arrays it is the reduction of the global batch. For a batch in parts (microbatches, or
      devices under `shard_map`) weight each part's result by its share of the batch's valid steps or, over
      `"sequences"` and `"length"`, of its sequences: a plain mean of the parts' means is another loss.

    Raises:
      TypeError: if `loss` holds integers, `segment` does not, or `length` is not a number.
      ValueError: if the shapes differ, the time axis is missing, `over` is unknown, or `length` is not positive, is
        missing, or is given and not used.

    Source:
      Yu et al. 2025, DAPO: An Open-Source LLM Reinforcement Learning System at Scale, Section 3.3; Shao et al. 2024,
      DeepSeekMath, Eq. 3; Liu et al. 2025, Understanding R1-Zero-Like Training: A Critical Perspective (Dr. GRPO).
      Sequences without a valid step do not count, as in verl; TRL counts them, over `"sequences"` and `"length"`.

    Example:
      >>> import jax.numpy as jnp
      >>> loss = jnp.array([[1.0, 4.0], [1.0, 0.0], [1.0, 0.0]])
      >>> valid = jnp.array([[True, True], [True, False], [True, False]])  # sequences of three steps and of one
      >>> [f"{reduce_loss(loss, valid=valid, over=over):.2f}" for over in ("steps", "sequences")]
      ['1.75', '2.50']
      >>> float(reduce_loss(loss, valid=valid, over="length", length=7.0))  # (3 / 7 + 4 / 7) / 2
      0.5
    """
    segment = check_sequences("loss", loss, valid, segment)
    if over not in ("steps", "sequences", "length"):
        raise ValueError(f"over={over!r} is not 'steps', 'sequences' or 'length'")
    if (length is None) == (over == "length"):
        raise ValueError(f"length={length} with over={over!r}: pass a length over 'length', and only then")
    checks.positive(**checks.given(length=length))
    wide = jnp.asarray(loss, at_least_float32(jnp.result_type(loss)))
    there = checks.mask(valid, wide)
    one = there.astype(wide.dtype)
    # Each step's share of its sequence: the shares of one sequence add up to 1, so all shares add up to the number of
    # sequences.
    share = one if over == "steps" else one / jnp.maximum(step_totals(one, segment), 1.0)
    total = jnp.sum(jnp.where(there, wide, 0.0) * (one if over == "length" else share))
    parts = jnp.sum(share)
    mean: jax.Array = total / jnp.where(parts == 0, 1.0, parts)
    return mean if length is None else mean / jnp.asarray(length, mean.dtype)
