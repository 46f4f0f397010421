"""Any network: what `apply_fn` may return, and that the losses do not care which library made it."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import IMPACT, IMPALA, PPO, Categorical, DiagonalGaussian
from stellaris.acting.networks import Towers
from stellaris.algorithms import gradient
from stellaris.distributions import as_distribution
from tests.algorithms.test_impala import sample_trajectory
from tests.algorithms.test_ppo import ACTIONS, FEATURES, categorical, close, equal, gaussian


class Normal:
    """A distribution of the user's own: no tree, and no class of ours."""

    def __init__(self, mean, log_std):
        self.mean, self.log_std = mean, log_std

    def log_prob(self, value):
        return jax.scipy.stats.norm.logpdf(value, self.mean, jnp.exp(self.log_std)).sum(-1)

    def entropy(self):
        each = 0.5 * jnp.log(2 * jnp.pi * jnp.e) + self.log_std
        return jnp.broadcast_to(each, self.mean.shape).sum(-1)


class Discrete:
    """The same, of actions that are numbers."""

    def __init__(self, logits):
        self.log_probs = logits - jax.scipy.special.logsumexp(logits, axis=-1, keepdims=True)

    def log_prob(self, value):
        return jnp.sum(self.log_probs * jax.nn.one_hot(value, ACTIONS), axis=-1)

    def entropy(self):
        return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, axis=-1)


class Pair(NamedTuple):
    """A pair with names."""

    mean: jax.Array
    log_std: jax.Array


# ---- as_distribution ------------------------------------------------------------------------------------------------


def test_logits_are_categorical():
    """Of JAX and of NumPy, traced or not."""
    logits = np.array([[0.0, 1.0, 2.0]], np.float32)
    for parameters in (jnp.asarray(logits), logits):
        got = as_distribution(parameters)
        assert isinstance(got, Categorical)
        equal(got.logits, logits)
    action = jnp.array([2])
    expected = Categorical(jnp.asarray(logits)).log_prob(action)
    close(jax.jit(lambda x: as_distribution(x).log_prob(action))(logits), expected)
    close(jax.vmap(lambda x: as_distribution(x).log_prob(action[0]))(logits), expected)


@pytest.mark.parametrize("make", [tuple, lambda x: Pair(*x)])
def test_a_pair_is_gaussian(make):
    """A mean and a logarithm of a deviation, in that order."""
    got = as_distribution(make((jnp.array([[1.0, 2.0]]), jnp.array([0.5, -0.5]))))
    assert isinstance(got, DiagonalGaussian)
    equal((got.mean, got.log_std), (np.array([[1.0, 2.0]]), np.array([0.5, -0.5])))


def test_a_distribution_is_itself():
    """Ours, which are tuples, too, and the user's."""
    mean = jnp.zeros(2)
    for distribution in (Categorical(mean), DiagonalGaussian(mean, mean), Normal(mean, mean), Discrete(mean)):
        assert as_distribution(distribution) is distribution


class Half:
    """No distribution: it has no entropy."""

    def log_prob(self, value):
        return value


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        (None, "NoneType"),
        (1.0, "float"),
        ("logits", "str"),
        ({"logits": jnp.zeros(2)}, "dict"),
        ([jnp.zeros(2)] * 3, "list"),
        ((jnp.zeros(2),), "tuple"),
        ((jnp.zeros(2),) * 3, "tuple"),
        (Half(), "Half"),
    ],
)
def test_anything_else_is_an_error(parameters, name):
    """It says what came and what is expected."""
    message = (
        f"apply_fn returned a {name} .* expected logits, .*mean, log_std.*, or an object with log_prob and entropy"
    )
    with pytest.raises(TypeError, match=message):
        as_distribution(parameters)
    apply_fn = lambda params, observation: (parameters, jnp.zeros(3))  # noqa: E731
    batch = PPO().prepare(sample_trajectory(gaussian))
    with pytest.raises(TypeError, match=message):
        PPO().loss(apply_fn, {}, batch)


# ---- networks -------------------------------------------------------------------------------------------------------


def bare(params, observation, discrete):
    """The parameters of flax's network, as plain matrices: the heads' output and the value."""
    params = params["params"]

    def tower(layers):
        hidden = jnp.tanh(observation @ layers["Dense_0"]["kernel"] + layers["Dense_0"]["bias"])
        return hidden @ layers["Dense_1"]["kernel"] + layers["Dense_1"]["bias"]

    policy, value = tower(params["policy"]), tower(params["value"])[..., 0]
    return (policy if discrete else (policy, params["log_std"])), value


@functools.lru_cache
def networks(discrete):
    """flax's network, parameters for it, and functions of the same parameters that return other things."""
    network = Towers(ACTIONS, discrete, (8,))
    params = jax.jit(network.init)(jax.random.key(0), jnp.zeros((1, FEATURES)))

    def own(params, observation):
        parameters, value = bare(params, observation, discrete)
        return (Discrete(parameters) if discrete else Normal(*parameters)), value

    return params, {"flax": network.apply, "bare": functools.partial(bare, discrete=discrete), "own": own}


@pytest.mark.parametrize(
    ("algorithm", "discrete"),
    [
        (PPO(entropy_coefficient=0.1), False),
        (PPO(entropy_coefficient=0.1), True),
        (IMPALA(), True),
        (IMPACT(entropy_coefficient=0.1), False),
    ],
)
def test_the_network_is_the_users(algorithm, discrete):
    """flax, bare arrays and a distribution of one's own, all of the same function: loss, metrics and gradient."""
    trajectory = sample_trajectory(categorical if discrete else gaussian)
    params, functions = networks(discrete)
    peer = jax.tree.map(lambda p: 0.9 * p, params)
    target = jax.tree.map(lambda p: 1.1 * p, params)

    def learn(apply_fn):
        batch = algorithm.prepare(trajectory, apply_fn, target)
        return gradient(algorithm, apply_fn, params, batch, (peer,))

    learned = {name: jax.jit(functools.partial(learn, apply_fn))() for name, apply_fn in functions.items()}
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(learned["flax"][0])) > 1e-3
    for name in ("bare", "own"):
        close(learned[name], learned["flax"], 1e-4)


@pytest.mark.parametrize("where", ["parameters", "peer"])
def test_numpy_parameters(where):
    """Parameters on the host, and a trajectory on the host: a bare network's logits are NumPy's, and as good."""
    trajectory = jax.tree.map(np.asarray, sample_trajectory(categorical))
    apply_fn = lambda p, observation: (observation @ p["policy"], observation @ p["value"])  # noqa: E731
    host = {
        "policy": np.linspace(-1, 1, FEATURES * ACTIONS, dtype=np.float32).reshape(FEATURES, ACTIONS),
        "value": np.ones(FEATURES, np.float32),
    }
    device = jax.tree.map(jnp.asarray, host)
    params, peer = (host, device) if where == "parameters" else (device, host)
    got = IMPALA().loss(apply_fn, params, trajectory, (peer,))
    close(got, IMPALA().loss(apply_fn, device, trajectory, (device,)))
