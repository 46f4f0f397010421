"""What an algorithm learns from: flat samples, their minibatches, and means over those that are valid."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from stellaris._core import checks
from stellaris.types import Array, JaxArray, Tree


class Batch(NamedTuple):
    """`N` samples to learn from, flat, with what the behaviour policy made of them.

    Example:
      >>> one = jnp.ones(4)
      >>> batch = Batch(jnp.ones((4, 2)), jnp.zeros(4, jnp.int32), -one, one, one, one, jnp.int32(one), one > 0)
      >>> batch.observation.shape, batch.advantage.shape
      ((4, 2), (4,))
    """

    observation: Tree  #: `[N, *obs]` raw, an array or a tree of them.
    action: Array  #: `[N, *action]`.
    log_prob: Float[Array, "N"]  #: of the action under the behaviour policy.
    value: Float[Array, "N"]  #: the behaviour policy's.
    advantage: Float[Array, "N"]  #: standardised over the batch if the configuration says so.
    target: Float[Array, "N"]  #: of the value: advantage before standardisation plus value.
    version: Int[Array, "N"]  #: of the behaviour policy.
    valid: Shaped[Array, "N"]  #: False for a sample that is no transition, and weighs nothing.


def take(batch: Any, indices: Int[Array, "n"], *, axis: int = 0) -> Any:
    """The items at `indices` along an axis; an index beyond gives zeros, which are not valid and weigh nothing."""
    return jax.tree.map(lambda x: jnp.take(jnp.asarray(x), indices, axis=axis, mode="fill", fill_value=0), batch)


def before_the_last(observation: Any) -> Any:
    """Of observations `[T + 1, ...]` the first `T`, which actions were chosen on."""
    return jax.tree.map(lambda x: x[:-1], observation)


def the_last(observation: Any) -> Any:
    """Of observations `[T + 1, ...]` the last one, `[1, ...]`, whose value bootstraps."""
    return jax.tree.map(lambda x: x[-1:], observation)


def flatten(batch: Any, axes: int) -> Any:
    """The first `axes` axes as one: of `[T, B, ...]`, sample `t * B + b` is step `t` of environment `b`."""
    return jax.tree.map(lambda x: jnp.reshape(x, (math.prod(x.shape[:axes]), *x.shape[axes:])), batch)


def minibatches(key: jax.Array, size: int, *, epochs: int, minibatch_size: int) -> Int[JaxArray, "gradients minibatch"]:
    """Indices of every minibatch of every epoch: each epoch is one permutation, cut into pieces of equal length.

    If they do not come out even, the last is filled up with `size`, an index beyond the batch.

    Args:
      key: of the shuffles; each epoch has its own.
      size: items in the batch.
      epochs: how often each item is learned from.
      minibatch_size: items of a minibatch, at most.

    Returns:
      int32 `[epochs * ceil(size / minibatch_size), m]`.

    Raises:
      ValueError: if `size` is below 1.
    """
    if size < 1:
        raise ValueError(f"size={size} is below 1: there is nothing to learn from")
    count = -(-size // minibatch_size)
    length = -(-size // count)

    def epoch(key: jax.Array) -> jax.Array:
        order = permutation(key, size)
        return jnp.pad(order, (0, count * length - size), constant_values=size)

    return jax.vmap(epoch)(jax.random.split(key, epochs)).reshape(epochs * count, length)


def permutation(key: jax.Array, size: int) -> Int[JaxArray, "size"]:
    """The numbers below `size` in the random order of `jax.random.permutation`, which takes thrice as long on a CPU.

    Args:
      key: of the order.
      size: at least 1.

    Example:
      >>> key = jax.random.key(0)
      >>> bool((permutation(key, 1000) == jax.random.permutation(key, 1000)).all())
      True
    """
    order = jnp.arange(size, dtype=jnp.int32)
    # Sorted by random numbers that may be equal: so often that hardly any order is likelier than another.
    for _ in range(math.ceil(3 * math.log(size) / math.log(2**32 - 1))):
        key, subkey = jax.random.split(key)
        order = order[_ranking(jax.random.bits(subkey, (size,), jnp.uint32))]
    return order


def _ranking(x: jax.Array) -> jax.Array:
    """Where the smallest of `x` is, the second smallest, and so on; of equals the first comes first.

    XLA sorts one array several times as fast as two by one of them: so each number and its place become one of 64 bits.
    """
    with jax.enable_x64(True):
        place = jax.lax.iota(jnp.uint64, len(x))
        high = jax.lax.shift_left(jax.lax.convert_element_type(x, jnp.uint64), jnp.uint64(32))
        return jax.lax.convert_element_type(jax.lax.sort(high | place, is_stable=False), jnp.uint32)


def standardized(x: Array, valid: Array) -> jax.Array:
    """To zero mean and unit variance over valid samples; the others are zero."""
    valid = checks.mask(valid, x)
    mean = masked_mean(x, valid)
    deviation = jnp.sqrt(masked_mean(jnp.square(x - mean), valid))
    return jnp.where(valid, (x - mean) / (deviation + 1e-8), 0.0)


def masked_mean(x: Any, valid: Array) -> jax.Array:
    """Mean over valid samples; 0 if there are none. What an invalid sample holds is never looked at."""
    x, valid = x.astype(float) if x.dtype == bool else x, checks.mask(valid, x)
    total = jnp.sum(jnp.where(valid, x, 0.0))
    return total / jnp.maximum(jnp.sum(valid), 1).astype(x.dtype)


def cleaned(batch: Any, *fields: str) -> Any:
    """Zeros in these fields where a sample is not valid: what multiplies a gradient of zero must be a number.

    `valid` itself comes back as bools.

    Observations are better left as they are: a network may need more of them than zeros.
    """
    valid = checks.mask(batch.valid, batch.log_prob)

    def clean(x: Array) -> jax.Array:
        mask = valid.reshape(*valid.shape, *[1] * (jnp.ndim(x) - valid.ndim))
        return jnp.where(mask, x, jnp.zeros((), jnp.result_type(x)))

    return batch._replace(valid=valid, **{field: clean(getattr(batch, field)) for field in fields})
