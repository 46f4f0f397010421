"""Batches: flat samples, their minibatches, and means over the valid samples."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from stellaris._core import checks
from stellaris._core.sharding import merged, taken
from stellaris.memory import Sequences
from stellaris.types import Array, JaxArray, Trajectory, Tree, at_least_float32


class Batch(NamedTuple):
    """`N` flat samples to learn from, evaluated under the behaviour policy.

    For a policy with memory, samples keep their order: every `N` below is then `T, B`, and the observation is
    `Sequences`.

    Example:
      >>> one = jnp.ones(4)
      >>> batch = Batch(jnp.ones((4, 2)), jnp.zeros(4, jnp.int32), -one, one, one, one, jnp.int32(one), one > 0)
      >>> batch.observation.shape, batch.advantage.shape
      ((4, 2), (4,))
    """

    observation: Tree  #: `[N, *obs]` before normalisation, an array or a tree of arrays.
    action: Array  #: `[N, *action]`.
    log_prob: Float[Array, "N"]  #: log-probability of the action under the behaviour policy.
    value: Float[Array, "N"]  #: the behaviour policy's value.
    advantage: Float[Array, "N"]  #: standardised over the batch if `standardize_advantage` is set.
    target: Float[Array, "N"]  #: value target: the advantage before standardisation plus the value.
    version: Int[Array, "N"]  #: version of the behaviour policy.
    valid: Shaped[Array, "N"]  #: False for a sample that is not a transition; it is ignored.


def sampled_minibatches(
    key: jax.Array, batch: Any, *, epochs: int, minibatch_size: int
) -> Int[JaxArray, "gradients minibatch"]:
    """Indices of every minibatch of a batch of samples or of sequences, for minibatches of at most so many samples.

    A minibatch of sequences has as many as have `minibatch_size` steps together, and at least one.
    """
    if batch.valid.ndim == 1:
        return minibatches(key, len(batch.valid), epochs=epochs, minibatch_size=minibatch_size)
    steps, sequences = batch.valid.shape
    return minibatches(key, sequences, epochs=epochs, minibatch_size=max(minibatch_size // steps, 1))


def take_items(batch: Any, indices: Int[Array, "n"]) -> Any:
    """The samples at `indices`, or the sequences of a batch `[T, B, ...]`."""
    return take(batch, indices, axis=batch.valid.ndim - 1)


def take(batch: Any, indices: Int[Array, "n"], *, axis: int = 0) -> Any:
    """The items at `indices` along an axis; an index beyond the end gives zeros, an invalid item."""
    return jax.tree.map(lambda x: taken(x, indices, axis), batch)


def check_trajectory(trajectory: Trajectory) -> None:
    """Raises a ValueError unless observations, actions, log-probabilities and versions fit the rewards.

    Else samples would be paired with other samples' observations: an index beyond an array takes its last row. The
    functions that compute advantages check the other arrays.
    """
    steps = jnp.shape(trajectory.reward)
    checks.same_shape(trajectory.reward, "reward", log_prob=trajectory.log_prob, version=trajectory.version)
    if steps == ():
        return  # refused where advantages are computed
    more = (steps[0] + 1, *steps[1:])
    for name, expected in (("action", steps), ("observation", more)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(getattr(trajectory, name)):
            if jnp.shape(leaf)[: len(steps)] != expected:
                rows = ", one row more than reward" if expected is more else ", as reward"
                raise ValueError(
                    f"{name}{jax.tree_util.keystr(path)} has shape {jnp.shape(leaf)}: expected "
                    f"({', '.join(map(str, expected))}, ...){rows}"
                )


def check_prepared(batch: Any) -> None:
    """Raises a TypeError if a loss that needs a prepared batch is given a trajectory."""
    if isinstance(batch, Trajectory):
        raise TypeError("batch is a Trajectory: pass the result of the algorithm's prepare")


def observations(trajectory: Trajectory) -> Any:
    """The `T + 1` observations of a trajectory, as `Sequences` if it has a memory."""
    return trajectory.observation if trajectory.memory is None else Sequences.of(trajectory)


def before_the_last(observation: Any) -> Any:
    """The first `T` of `T + 1` observations, on which the actions were chosen."""
    if isinstance(observation, Sequences):
        return observation.before_the_last
    return jax.tree.map(lambda x: x[:-1], observation)


def the_last(observation: Any) -> Any:
    """The last of `T + 1` observations, as `[1, ...]`; its value is the bootstrap value."""
    return jax.tree.map(lambda x: x[-1:], observation)


def flatten(batch: Any, axes: int) -> Any:
    """Merges the first `axes` axes: from `[T, B, ...]`, sample `t * B + b` is step `t` of environment `b`."""
    return jax.tree.map(lambda x: merged(x, axes), batch)


def items(batch: Any, axes: int, observation: Any) -> Any:
    """Flattens a batch to samples; with `Sequences` it stays `[T, B, ...]`, because its items are whole sequences."""
    if isinstance(observation, Sequences):
        if axes != 2:
            raise ValueError(f"a trajectory with a memory has {axes} axes before the features: expected 2, [T, B]")
        return batch
    return flatten(batch, axes)


def minibatches(key: jax.Array, size: int, *, epochs: int, minibatch_size: int) -> Int[JaxArray, "gradients minibatch"]:
    """Indices of every minibatch of every epoch: each epoch is one permutation, cut into minibatches of equal size.

    If `size` is not a multiple of the number of minibatches, the last one is padded with `size`, an index beyond the
    batch.

    Args:
      key: key of the shuffles; it is split into one key per epoch.
      size: items in the batch.
      epochs: how often each item is learned from.
      minibatch_size: the most items in a minibatch.

    Returns:
      int32 `[epochs * ceil(size / minibatch_size), m]`.

    Raises:
      ValueError: if `size` is below 1.
    """
    if size < 1:
        raise ValueError(f"size={size} is below 1: the batch is empty, so pass at least one item")
    count = -(-size // minibatch_size)
    length = -(-size // count)

    def epoch(key: jax.Array) -> jax.Array:
        order = permutation(key, size)
        return jnp.pad(order, (0, count * length - size), constant_values=size)

    return jax.vmap(epoch)(jax.random.split(key, epochs)).reshape(epochs * count, length)


def permutation(key: jax.Array, size: int) -> Int[JaxArray, "size"]:
    """Computes `jax.random.permutation(key, size)`, in a third of the time on a CPU.

    Args:
      key: key of the permutation.
      size: at least 1.

    Example:
      >>> key = jax.random.key(0)
      >>> bool((permutation(key, 1000) == jax.random.permutation(key, 1000)).all())
      True
    """
    order = jnp.arange(size, dtype=jnp.int32)
    # Ties between random numbers bias the order; as many rounds as in `jax.random.permutation` make the bias small.
    for _ in range(math.ceil(3 * math.log(size) / math.log(2**32 - 1))):
        key, subkey = jax.random.split(key)
        order = order[_ranking(jax.random.bits(subkey, (size,), jnp.uint32))]
    return order


def _ranking(x: jax.Array) -> jax.Array:
    """The indices that sort `x` stably.

    XLA sorts one array several times as fast as a pair of arrays, so each number and its index are packed into 64 bits.
    """
    with jax.enable_x64(True):
        place = jax.lax.iota(jnp.uint64, len(x))
        high = jax.lax.shift_left(jax.lax.convert_element_type(x, jnp.uint64), jnp.uint64(32))
        return jax.lax.convert_element_type(jax.lax.sort(high | place, is_stable=False), jnp.uint32)


def standardized(x: Array, mask: Array) -> jax.Array:
    """Scales `x` to zero mean and unit variance over the samples where the mask is True; the others become zero.

    If all samples are equal, they become zero.
    """
    mask = checks.mask(mask, x)
    wide = x.astype(at_least_float32(x.dtype))
    mean = masked_mean(wide, mask)
    deviation = jnp.sqrt(masked_mean(jnp.square(wide - mean), mask))
    # The mean of equal samples is rounded, and a division by the rounding error would make them 1 or -1.
    least, most = jnp.min(wide, where=mask, initial=jnp.inf), jnp.max(wide, where=mask, initial=-jnp.inf)
    return jnp.where(mask & (least != most), (wide - mean) / (deviation + 1e-8), 0.0).astype(x.dtype)


def masked_mean(x: Any, mask: Array) -> jax.Array:
    """The mean over the samples where the mask is True; 0 if it is False everywhere. Other samples may hold NaN."""
    x, mask = x.astype(float) if x.dtype == bool else x, checks.mask(mask, x)
    # Neither the sum nor the number of many samples fits into float16.
    total = jnp.sum(jnp.where(mask, x, 0.0), dtype=at_least_float32(x.dtype))
    return (total / jnp.maximum(jnp.sum(mask), 1).astype(total.dtype)).astype(x.dtype)


def cleaned(batch: Any, *fields: str) -> Any:
    """Zeroes these fields at invalid samples, because 0 * NaN would make the gradient NaN. `valid` becomes bools.

    Do not zero observations: a network may require valid observations.
    """
    valid = checks.mask(batch.valid, batch.log_prob)

    def clean(x: Array) -> jax.Array:
        mask = valid.reshape(*valid.shape, *[1] * (jnp.ndim(x) - valid.ndim))
        return jnp.where(mask, x, jnp.zeros((), jnp.result_type(x)))

    return batch._replace(valid=valid, **{field: clean(getattr(batch, field)) for field in fields})
