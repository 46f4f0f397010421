"""The papers' networks, against passes in NumPy."""

import functools
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.acting.networks import ConvolutionTowers, NatureCNN, Towers, _orthogonal
from stellaris.distributions import Categorical, DiagonalGaussian
from tests.acting.environments import array

#: Narrow towers compile faster.
HIDDEN = (16, 8)
FEATURES, ACTIONS = 5, 3
both = pytest.mark.parametrize("discrete", [True, False], ids=["discrete", "continuous"])


@functools.partial(jax.jit, static_argnums=0)
def initial(network, seed=0):
    """Fresh parameters, from one observation: a program for every network, whatever it is applied to later."""
    one = jnp.zeros((1, *network.shape), jnp.uint8) if isinstance(network, NatureCNN) else jnp.zeros((1, FEATURES))
    return network.init(jax.random.key(seed), one)


@functools.partial(jax.jit, static_argnums=0)
def applied(network, params, x):
    return network.apply(params, x)


def vectors(*shape) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal((*shape, FEATURES)), jnp.float32)


def images(*shape) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).integers(0, 256, shape, np.uint8))


def dense(layer, x) -> np.ndarray:
    """A linear layer in NumPy's float64."""
    return x @ np.float64(layer["kernel"]) + np.float64(layer["bias"])


def tower(params, x) -> np.ndarray:
    layers = [params[name] for name in sorted(params)]
    for layer in layers[:-1]:
        x = np.tanh(dense(layer, x))
    return dense(layers[-1], x)


CNN = (8 * 8 * 4 * 32 + 32) + (4 * 4 * 32 * 64 + 64) + (3 * 3 * 64 * 64 + 64)  # 84 -> 20 -> 9 -> 7
MINIONS = (8 * 8 * 3 * 16 + 16) + (4 * 4 * 16 * 32 + 32) + (11 * 11 * 32 * 256 + 256)  # 84 -> 21 -> 11 -> 1


@pytest.mark.parametrize(
    ("network", "one", "count"),
    [
        # policy 11·256+256 + 256·256+256 + 256·3+3, and 3 log std; value 3072 + 65792 + 256+1
        (Towers(3, False), array(1, 11), 3072 + 65792 + 771 + 3 + 3072 + 65792 + 257),
        # the policy's tower has two outputs per action, and there is no other deviation
        (Towers(3, False, state_dependent_std=True), array(1, 11), 3072 + 65792 + 2 * 771 + 3072 + 65792 + 257),
        # policy 4·256+256 + 65792 + 256·2+2; value 1280 + 65792 + 257
        (Towers(2, True), array(1, 4), 1280 + 65792 + 514 + 1280 + 65792 + 257),
        (
            NatureCNN((4, 84, 84), 6, True),
            array(1, 4, 84, 84, dtype=np.uint8),
            CNN + (7 * 7 * 64 * 512 + 512) + (512 * 6 + 6) + (512 + 1),
        ),
        (
            ConvolutionTowers((3, 84, 84), 6, True),
            array(1, 3, 84, 84, dtype=np.uint8),
            2 * MINIONS + (256 * 6 + 6) + (256 + 1),
        ),
    ],
    ids=["Hopper", "Hopper, deviations of the state", "CartPole", "Nature CNN", "MinionsRL's"],
)
def test_number_of_parameters(network, one, count):
    """Counted by hand; all float32."""
    leaves = jax.tree.leaves(jax.eval_shape(network.init, jax.random.key(0), one))
    assert sum(leaf.size for leaf in leaves) == count
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}


@pytest.mark.slow
@both
def test_towers_against_numpy(discrete):
    """Each head from its own tower of tanh layers, with any batch axes."""
    network, x = Towers(ACTIONS, discrete, HIDDEN), vectors(6, 2)
    params = initial(network)
    distribution, value = applied(network, params, x)
    output = distribution.logits if discrete else distribution.mean
    np.testing.assert_allclose(output, tower(params["params"]["policy"], x), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(value, tower(params["params"]["value"], x)[..., 0], rtol=1e-4, atol=1e-5)
    assert value.shape == (6, 2)
    assert output.shape == (6, 2, ACTIONS)
    assert isinstance(distribution, Categorical if discrete else DiagonalGaussian)
    if not discrete:  # the deviation is a parameter of its own
        moved = {"params": {**params["params"], "log_std": jnp.array([0.0, 1.0, -2.0])}}
        np.testing.assert_array_equal(applied(network, moved, x)[0].log_std, np.tile([0.0, 1.0, -2.0], (6, 2, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (2, 2, 3, 8), (3, 1)])
def test_orthogonal_matrices(shape):
    """As by LAPACK's QR decomposition of the same sample, with its signs chosen so that the diagonal is positive."""
    got = _orthogonal(3.0)(jax.random.key(7), shape)
    rows, columns = math.prod(shape[:-1]), shape[-1]
    sample = jax.random.normal(jax.random.key(7), (max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(np.asarray(sample, np.float64))
    q *= np.sign(np.diag(r))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, 3.0 * (q if rows >= columns else q.T).reshape(shape), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_initial_weights_do_not_depend_on_the_blas_kernel():
    """OpenBLAS chooses its kernels by the processor, or by this variable; they round differently."""
    code = (
        "import sys, jax, numpy as np; from stellaris.acting.networks import Towers; "
        "params = Towers(3, False, (64, 64)).init(jax.random.key(0), np.zeros((1, 11), np.float32)); "
        "sys.stdout.buffer.write(b''.join(np.asarray(x).tobytes() for x in jax.tree.leaves(params)))"
    )
    several = [
        subprocess.run([sys.executable, "-c", code], env=os.environ | {"OPENBLAS_CORETYPE": of}, capture_output=True)
        for of in ("Haswell", "Prescott")
    ]
    assert several[0].stdout == several[1].stdout
    assert len(several[0].stdout) > 4 * 2 * 64 * 64, several[0].stderr


@pytest.mark.slow
def test_deviations_that_depend_on_the_state():
    """The second half of the policy's outputs; about 1 at first. Discrete actions have none."""
    network, x = Towers(ACTIONS, False, HIDDEN, state_dependent_std=True), vectors(6, 2)
    params = initial(network)
    distribution, value = applied(network, params, x)
    output = tower(params["params"]["policy"], x)
    np.testing.assert_allclose(jnp.concatenate(distribution, axis=-1), output, rtol=1e-4, atol=1e-6)
    assert distribution.log_std.shape == (6, 2, ACTIONS)
    assert np.abs(distribution.log_std).max() < 0.1
    np.testing.assert_allclose(value, tower(params["params"]["value"], x)[..., 0], rtol=1e-4, atol=1e-5)
    discrete = (Towers(ACTIONS, True, HIDDEN, state_dependent_std=choice) for choice in (False, True))
    one, other = (applied(each, initial(each), x)[0].logits for each in discrete)
    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@both
def test_initialisation_of_towers(discrete):
    """Near uniform whatever the observations; values of order one; seeds decide, and differ; biases are zero."""
    network, x = Towers(ACTIONS, discrete, HIDDEN), vectors(200)
    distribution, value = applied(network, initial(network), x)
    assert np.max(np.abs(distribution[0])) < 0.1
    assert 0.1 < np.std(value) < 10
    first, same, other = (initial(network, seed)["params"] for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, same)
    for name in ("policy", "value"):
        for layer, (mine, others) in enumerate(zip(same[name].values(), other[name].values(), strict=True)):
            assert not np.array_equal(mine["kernel"], others["kernel"])
            np.testing.assert_array_equal(mine["bias"], 0.0)
            gain = [2**0.5, 2**0.5, 0.01 if name == "policy" else 1.0][layer]
            np.testing.assert_allclose(np.linalg.svd(mine["kernel"])[1], gain, rtol=1e-3)  # orthogonal


def convolution(layer, x, stride) -> np.ndarray:
    """A convolution of `[n, height, width, channels]` without padding, patch by patch, and relu."""
    kernel, bias = np.float64(layer["kernel"]), np.float64(layer["bias"])
    size = kernel.shape[0]
    steps = range(0, x.shape[1] - size + 1, stride), range(0, x.shape[2] - size + 1, stride)
    patches = np.array([[x[:, i : i + size, j : j + size] for j in steps[1]] for i in steps[0]])
    return np.maximum(np.einsum("ijnabc,abcd->nijd", patches, kernel) + bias, 0.0)


def kernel_of(layer, size, stride):
    """A dense layer on patches, as the kernel of the convolution that it is: blocks are put where they belong."""
    across = size // stride
    kernel = np.asarray(layer["kernel"]).reshape(across, across, stride, stride, -1, layer["bias"].size)
    return {"kernel": kernel.transpose(0, 2, 1, 3, 4, 5).reshape(size, size, *kernel.shape[-2:]), "bias": layer["bias"]}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 44, 36), (44, 36, 3), (44, 36)])
def test_the_cnn_against_numpy(shape):
    """Bytes as fractions of 255, three convolutions, one layer, two heads; channels first, last, or none."""
    network, x = NatureCNN(shape, ACTIONS, True), images(5, *shape)
    params = initial(network)
    distribution, value = applied(network, params, x)
    layers = params["params"]
    y = np.float64(x) / 255
    y = y[..., None] if len(shape) == 2 else np.moveaxis(y, 1, -1) if shape[0] == 3 else y
    for i, (size, stride) in enumerate(((8, 4), (4, 2), (3, 1))):
        y = convolution(kernel_of(layers[f"Dense_{i}"], size, stride), y, stride)
    y = np.maximum(dense(layers["Dense_3"], y.reshape(5, -1)), 0.0)
    np.testing.assert_allclose(distribution.logits, dense(layers["policy"], y), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(value, dense(layers["value"], y)[:, 0], rtol=1e-3, atol=1e-5)
    more = applied(network, params, jnp.stack([x] * 3))[1]  # any batch axes
    np.testing.assert_allclose(more, np.tile(value, (3, 1)), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_minionsrls_convolutions_against_numpy():
    """Two towers: images are padded with zeros to whole strides, by two and two pixels, and then by one and two."""
    network, x = ConvolutionTowers((2, 84, 84), ACTIONS, True), images(2, 2, 84, 84)
    params = jax.jit(network.init)(jax.random.key(1), x[:1])
    distribution, value = jax.jit(network.apply)(params, x)
    for tower, got in (("policy", distribution.logits), ("value", value[:, None])):
        layers = params["params"][tower]
        y = np.moveaxis(np.float64(x) / 255, 1, -1)
        for i, (size, stride, before, after) in enumerate(((8, 4, 2, 2), (4, 2, 1, 2), (11, 1, 0, 0))):
            y = np.pad(y, ((0, 0), (before, after), (before, after), (0, 0)))
            y = convolution(kernel_of(layers[f"Dense_{i}"], size, stride), y, stride)
        assert y.shape == (2, 1, 1, 256)
        np.testing.assert_allclose(got, dense(layers["Dense_3"], y[:, 0, 0]), rtol=1e-3, atol=1e-5)
