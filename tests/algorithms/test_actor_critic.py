"""The losses' shared parts: any network, ratios, and the cap over held policies."""

import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import IMPACT, IMPALA, PPO
from stellaris.acting.networks import Towers
from stellaris.algorithms import actor_critic, gradient
from tests.algorithms.problems import ACTIONS, FEATURES, categorical, close, equal, gaussian
from tests.algorithms.test_impala import sample_trajectory


class Normal:
    """A user's distribution, neither a tree nor a class of the library."""

    def __init__(self, mean, log_std):
        self.mean, self.log_std = mean, log_std

    def log_prob(self, value):
        return jax.scipy.stats.norm.logpdf(value, self.mean, jnp.exp(self.log_std)).sum(-1)

    def entropy(self):
        each = 0.5 * jnp.log(2 * jnp.pi * jnp.e) + self.log_std
        return jnp.broadcast_to(each, self.mean.shape).sum(-1)


class Discrete:
    """The same for discrete actions."""

    def __init__(self, logits):
        self.log_probs = logits - jax.scipy.special.logsumexp(logits, axis=-1, keepdims=True)

    def log_prob(self, value):
        return jnp.sum(self.log_probs * jax.nn.one_hot(value, ACTIONS), axis=-1)

    def entropy(self):
        return -jnp.sum(jnp.exp(self.log_probs) * self.log_probs, axis=-1)


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


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_in_haste")
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


@pytest.mark.slow
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


def test_log_ratio_by_hand():
    """The difference of log-probabilities; 0 where a sample is invalid, whatever it holds, and no gradient either."""
    valid = jnp.array([True, True, False, False])
    log_prob, behaviour = jnp.array([-1.0, -2.0, jnp.nan, -1.0]), jnp.array([-1.5, -1.0, -1.0, -jnp.inf])
    batch = SimpleNamespace(action=None, log_prob=behaviour, valid=valid)

    def log_ratio(log_prob):
        distribution = SimpleNamespace(log_prob=lambda _: log_prob, entropy=lambda: None)
        return actor_critic.evaluate(lambda *_: (distribution, None), None, None, batch).log_ratio

    equal(log_ratio(log_prob), [0.5, -1.0, 0.0, 0.0])
    slope = jax.grad(lambda x: jnp.sum(log_ratio(x)))(log_prob)
    equal(slope, [1.0, 1.0, 0.0, 0.0])


def logits(params, observation):
    """A policy of two actions whose logits are its parameters, at every observation."""
    return jnp.broadcast_to(params, (len(observation), 2)), jnp.zeros(len(observation))


def test_the_cap_by_hand():
    """Action 0 has probability 1/2 under the behaviour policy, 3/4 under the learner's and 2/3 and 1/4 under peers'."""
    odds = {name: jnp.log(jnp.array([p, 1 - p])) for name, p in {"own": 3 / 4, "near": 2 / 3, "far": 1 / 4}.items()}
    observation = jnp.zeros((2, 1))
    action = jnp.array([0, 1])
    batch = SimpleNamespace(action=action, log_prob=jnp.log(jnp.array([0.5, 0.5])), valid=jnp.ones(2, bool))
    own = actor_critic.evaluate(logits, odds["own"], observation, batch).log_prob
    close(jnp.exp(own), [3 / 4, 1 / 4])

    def cap(*peers, rho=1.0):
        return actor_critic.held_cap(logits, tuple(odds[peer] for peer in peers), observation, batch, own, rho)

    assert cap() is cap("near", rho=math.inf) is None
    # Ratios of action 0: own 3/2, near 4/3, far 1/2. Of action 1: own 1/2, near 2/3, far 3/2: no peer is below it.
    close(cap("near"), [4 / 3, jnp.inf])
    close(cap("near", "far"), [1.0, jnp.inf])
    close(cap("near", "far", rho=1.2), [1.2, jnp.inf])
    close(cap("own"), [jnp.inf, jnp.inf])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_the_cap_acts_in_every_dtype(dtype):
    """The learner's ratio is 2.5, the peer's 0.4: rounding of narrow types is no reason to truncate nothing."""

    def narrow(params, observation):
        return tuple(x.astype(dtype) for x in logits(params, observation))

    observation = jnp.zeros((1, 1))
    own, peer = (jnp.log(jnp.array([p, 1 - p])) for p in (0.75, 0.12))
    batch = SimpleNamespace(
        action=jnp.array([0]), log_prob=jnp.log(jnp.array([0.3])).astype(dtype), valid=jnp.ones(1, bool)
    )
    log_prob = actor_critic.evaluate(narrow, own, observation, batch).log_prob
    cap = actor_critic.held_cap(narrow, (peer,), observation, batch, log_prob, 1.0)
    assert cap.astype(jnp.float32).tolist() == [1.0]


def test_the_cap_forgives_rounding():
    """A peer that differs by one rounding of its parameters truncates nothing; one that differs by more does."""
    observation, action = jnp.zeros((1, 1)), jnp.array([0])
    batch = SimpleNamespace(action=action, log_prob=jnp.log(jnp.array([0.1])), valid=jnp.ones(1, bool))
    params = jnp.array([1.0, 0.5])
    own = actor_critic.evaluate(logits, params, observation, batch).log_prob
    for step, truncates in ((1e-6, False), (1e-3, True)):
        cap = actor_critic.held_cap(logits, (params - jnp.array([step, 0.0]),), observation, batch, own, 1.0)
        assert bool(jnp.isfinite(cap[0])) is truncates


def test_the_last_bits_of_a_ratio_on_fresh_data_truncate_nothing():
    """Under `rho = 1` the cap of such a sample is 1, and its ratio is 1 but for rounding; 1.001 is truncated."""
    observation, action = jnp.zeros((1, 1)), jnp.array([0])
    params = jnp.array([1.0, 0.5])
    own = jax.nn.log_softmax(params)[:1]
    for apart, truncates in ((3e-7, False), (-3e-7, False), (1e-3, True)):
        batch = SimpleNamespace(action=action, log_prob=own - apart, valid=jnp.ones(1, bool))
        cap = actor_critic.held_cap(logits, (jnp.array([0.0, 2.0]),), observation, batch, own, 1.0)
        assert cap.tolist() == [1.0 if truncates else math.inf]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (jnp.zeros((2, 3)), "a .*Array.*"),
        ((jnp.zeros((2, 3)),), "1 values"),
        ((0, 0, 0), "3 values"),
        (None, "a NoneType"),
    ],
)
def test_a_network_returns_parameters_and_a_value(returned, said):
    """Two rows of parameters alone would be taken for parameters and a value."""
    batch = SimpleNamespace(action=jnp.array([0, 1]), log_prob=jnp.zeros(2), valid=jnp.ones(2, bool))
    with pytest.raises(TypeError, match=f"apply_fn returned {said}: expected \\(distribution parameters, value\\)"):
        actor_critic.evaluate(lambda *_: returned, {}, jnp.zeros((2, 1)), batch)
