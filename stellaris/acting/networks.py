"""The networks of `ActorCritic` and `Pixels`, taken from the cited papers and written in flax."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stellaris._core.extras import needs
from stellaris.distributions import Categorical, DiagonalGaussian

with needs("a network of ActorCritic or Pixels"):
    import flax.linen as nn

#: A standard deviation of 0.6 keeps most first actions within bounds of [-1, 1].
INITIAL_LOG_STD = -0.5
#: A small last layer makes the first policy nearly uniform for observations of any scale.
POLICY_GAIN = 0.01


class Towers(nn.Module):
    """Two separate towers of the same shape, for the policy and for the value, on vectors `[..., obs]`.

    Source:
      MinionsRL (AAAI 2024): two hidden layers of 256 tanh units, critic of the same shape.
    """

    actions: int
    discrete: bool
    hidden: tuple[int, ...] = (256, 256)
    state_dependent_std: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[Categorical | DiagonalGaussian, jax.Array]:
        x = as_floats(x)
        two = self.state_dependent_std and not self.discrete
        output = _Tower(self.hidden, self.actions * (1 + two), POLICY_GAIN, name="policy")(x)
        value = _Tower(self.hidden, 1, 1.0, name="value")(x)[..., 0]
        if two:
            return DiagonalGaussian(*jnp.split(output, 2, axis=-1)), value
        return _distribution(self, output), value


class NatureCNN(nn.Module):
    """Three convolutions and a layer of 512, all relu, shared by policy and value, on images `[..., *shape]`.

    The channels are the smaller of the first and the last axis of an image; `[height, width]` is one channel.

    Source:
      Mnih et al. 2015, Human-level control through deep reinforcement learning.
    """

    shape: tuple[int, ...]
    actions: int
    discrete: bool

    @nn.compact
    def __call__(self, images: jax.Array) -> tuple[Categorical | DiagonalGaussian, jax.Array]:
        x = channels_last(as_floats(images), self.shape)
        for features, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = nn.relu(_hidden(features)(_patches(x, size, stride)))
        x = x.reshape(*x.shape[:-3], -1)
        x = nn.relu(_hidden(512)(x))
        output = nn.Dense(self.actions, kernel_init=_orthogonal(POLICY_GAIN), name="policy")(x)
        value = nn.Dense(1, kernel_init=_orthogonal(1.0), name="value")(x)[..., 0]
        return _distribution(self, output), value


class ConvolutionTowers(nn.Module):
    """Two separate towers of three relu convolutions, for the policy and for the value, on images `[..., *shape]`.

    The last convolution covers the whole remaining 11x11 map of an 84x84 image.

    Source:
      MinionsRL (AAAI 2024): kernels of 8x8, 4x4 and 11x11, critic of the same shape. The paper does not give channels
      and strides. We assume channels of 16, 32 and 256 and strides of 4, 2 and 1, Ray RLlib's defaults for this size.
    """

    shape: tuple[int, ...]
    actions: int
    discrete: bool

    @nn.compact
    def __call__(self, images: jax.Array) -> tuple[Categorical | DiagonalGaussian, jax.Array]:
        x = channels_last(as_floats(images), self.shape)
        output = _Convolutions(self.actions, POLICY_GAIN, name="policy")(x)
        value = _Convolutions(1, 1.0, name="value")(x)[..., 0]
        return _distribution(self, output), value


class Remembering(nn.Module):
    """A network with memory: tanh layers, a recurrent cell, and linear outputs for policy and value.

    Source:
      Espeholt et al. 2018, IMPALA, Figure 3: policy and value share all layers up to the output of the recurrent layer.
    """

    cell: nn.RNNCellBase
    actions: int
    discrete: bool
    hidden: tuple[int, ...] = (64,)

    @nn.nowrap
    def initial_memory(self) -> Any:
        """The cell's first carry, of one environment."""
        return self.cell.initialize_carry(jax.random.key(0), (1,))

    @nn.compact
    def __call__(self, observation: Any, memory: Any) -> tuple[Categorical | DiagonalGaussian, jax.Array, Any]:
        x = joined(observation)
        for width in self.hidden:
            x = nn.tanh(_hidden(width)(x))
        memory, features = self.cell(memory, x)
        output = nn.Dense(self.actions, kernel_init=_orthogonal(POLICY_GAIN), name="policy")(features)
        value = nn.Dense(1, kernel_init=_orthogonal(1.0), name="value")(features)[..., 0]
        return _distribution(self, output), value, memory


class _Convolutions(nn.Module):
    """Two convolutions, a third over the whole remaining map, and a linear output."""

    outputs: int
    output_gain: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features, size, stride in ((16, 8, 4), (32, 4, 2)):
            x = nn.relu(_hidden(features)(_patches(_padded(x, size, stride), size, stride)))
        x = nn.relu(_hidden(256)(x.reshape(*x.shape[:-3], -1)))
        return nn.Dense(self.outputs, kernel_init=_orthogonal(self.output_gain))(x)


def as_floats(x: jax.Array) -> jax.Array:
    """Converts to float32; bytes are divided by 255."""
    return x / jnp.float32(255) if x.dtype == jnp.uint8 else x.astype(jnp.float32)


def joined(observation: Any) -> jax.Array:
    """Flattens the arrays of observations `[n, *obs]`, and joins them as floats `[n, features]`.

    Example:
      >>> joined({"map": jnp.zeros((7, 2, 3), jnp.uint8), "speed": jnp.zeros(7)}).shape
      (7, 7)
    """
    rows = [as_floats(jnp.asarray(leaf)) for leaf in jax.tree.leaves(observation)]
    return jnp.concatenate([row.reshape(len(row), -1) for row in rows], axis=-1)


def channels_last(images: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Moves the channels of images `[..., *shape]` last: `[..., height, width, channels]`.

    Example:
      >>> channels_last(jnp.zeros((7, 4, 84, 84)), (4, 84, 84)).shape
      (7, 84, 84, 4)
      >>> channels_last(jnp.zeros((7, 84, 84)), (84, 84)).shape
      (7, 84, 84, 1)
    """
    if len(shape) == 2:
        return images[..., None]
    return jnp.moveaxis(images, -3, -1) if shape[0] < shape[-1] else images


def _patches(x: jax.Array, size: int, stride: int) -> jax.Array:
    """The patches under the kernel of a convolution without padding, `[..., rows, columns, size * size * channels]`.

    A dense layer on the patches equals the convolution. XLA's own convolution takes ten times as long on a CPU when it
    is differentiated within a loop or applied for several networks at once.

    Args:
      x: images `[..., height, width, channels]`.
      size: the kernel's size, a multiple of the stride. A patch is ordered by blocks of `stride` x `stride` pixels.
      stride: pixels from one position to the next.

    Example:
      >>> _patches(jnp.arange(16).reshape(4, 4, 1), size=2, stride=2)[1, 0].tolist()
      [8, 9, 12, 13]
    """
    *batch, height, width, channels = x.shape
    rows, columns = height // stride, width // stride
    x = x[..., : rows * stride, : columns * stride, :].reshape(*batch, rows, stride, columns, stride, channels)
    blocks = jnp.moveaxis(x, -3, -4).reshape(*batch, rows, columns, stride * stride * channels)
    across = size // stride
    down, along = rows - across + 1, columns - across + 1
    shifted = [blocks[..., i : i + down, j : j + along, :] for i in range(across) for j in range(across)]
    return jnp.concatenate(shifted, axis=-1)


def _padded(x: jax.Array, size: int, stride: int) -> jax.Array:
    """Images padded with zeros so that the kernel has `ceil(length / stride)` positions per axis ("same" padding)."""
    around = []
    for length in x.shape[-3:-1]:
        missing = max((-(-length // stride) - 1) * stride + size - length, 0)
        around.append((missing // 2, missing - missing // 2))
    return jnp.pad(x, [(0, 0)] * (x.ndim - 3) + [*around, (0, 0)])


def _hidden(width: int) -> nn.Dense:
    """A dense layer that is followed by a non-linearity."""
    return nn.Dense(width, kernel_init=_orthogonal(2**0.5))


class _Tower(nn.Module):
    """Hidden tanh layers and a linear output, orthogonally initialised."""

    hidden: tuple[int, ...]
    outputs: int
    output_gain: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.hidden:
            x = nn.tanh(_hidden(width)(x))
        return nn.Dense(self.outputs, kernel_init=_orthogonal(self.output_gain))(x)


def _distribution(
    module: Towers | NatureCNN | ConvolutionTowers | Remembering, output: jax.Array
) -> Categorical | DiagonalGaussian:
    """The distribution with `output` as logits or means; the deviations of continuous actions are parameters."""
    if module.discrete:
        return Categorical(output)
    # In float32 like flax's layers, also under x64: a file of the policy is then the same in both.
    log_std = module.param("log_std", nn.initializers.constant(INITIAL_LOG_STD, jnp.float32), (module.actions,))
    return DiagonalGaussian(output, jnp.broadcast_to(log_std, output.shape))


def _orthogonal(gain: float) -> Callable[..., jax.Array]:
    """Returns an initialiser of `gain` times a random orthogonal matrix, for kernels `[..., inputs, outputs]`.

    `jax.nn.initializers.orthogonal` calls the machine's LAPACK, whose results differ in the last bits between
    processors; after some updates the returns of a run would differ. Here the processor does not matter: the matrix is
    computed by elementwise operations in float64, and rounded to float32.
    """

    def initialise(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        sample = jax.random.normal(key, (max(rows, columns), min(rows, columns)), jnp.float32)
        with jax.enable_x64(True):
            matrix = _orthonormal(jax.lax.convert_element_type(sample, jnp.float64))
            matrix = jax.lax.convert_element_type(matrix, jnp.float32)
        return gain * (matrix if rows >= columns else matrix.T).reshape(shape).astype(dtype)

    return initialise


@jax.jit
def _orthonormal(x: jax.Array) -> jax.Array:
    """Returns the factor Q of `x = Q R` with a positive diagonal of R, by the modified Gram-Schmidt process."""
    later = jnp.arange(x.shape[1])

    def project_out(i: jax.Array, x: jax.Array) -> jax.Array:
        column = x[:, i] / jnp.sqrt(jnp.sum(jnp.square(x[:, i])))
        overlap = jnp.where(later > i, jnp.sum(column[:, None] * x, axis=0), 0.0)
        return (x - column[:, None] * overlap).at[:, i].set(column)

    q: jax.Array = jax.lax.fori_loop(0, x.shape[1], project_out, x)
    return q
