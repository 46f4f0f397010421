"""The papers' actor-critics."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.acting.envs import EnvSpec
from stellaris.acting.normalisation import Normaliser
from stellaris.acting.policies import PolicyVersion, actor_critic
from stellaris.distributions import Categorical, DiagonalGaussian

HOPPER = EnvSpec("Hopper-v4", (11,), 3, False, (-1.0,) * 3, (1.0,) * 3, action_shape=(3,))
CARTPOLE = EnvSpec("CartPole-v1", (4,), 2, True)
#: Narrow towers compile faster.
HIDDEN = (16, 8)
both = pytest.mark.parametrize("spec", [HOPPER, CARTPOLE], ids=lambda spec: spec.name)


@functools.cache
def initial(policy):
    """Its `init`, compiled."""
    return jax.jit(policy.init)


def version_of(policy, spec, seed=0, mean=0.0, scale=1.0) -> PolicyVersion:
    """Fresh parameters, and a normaliser that is the same for every feature."""
    shape = spec.observation_shape
    normaliser = Normaliser(np.full(shape, mean, np.float32), np.full(shape, scale, np.float32))
    return PolicyVersion(initial(policy)(jax.random.key(seed)), normaliser)


def some_observations(spec, *shape) -> np.ndarray:
    """Raw observations around 3."""
    return 3.0 + np.random.default_rng(0).standard_normal((*shape, *spec.observation_shape))


def tower(params, x) -> np.ndarray:
    """The oracle: tanh layers and a linear one, in NumPy's float64."""
    layers = [params[name] for name in sorted(params)]
    for layer in layers[:-1]:
        x = np.tanh(x @ np.float64(layer["kernel"]) + np.float64(layer["bias"]))
    return x @ np.float64(layers[-1]["kernel"]) + np.float64(layers[-1]["bias"])


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        # policy 11·256+256 + 256·256+256 + 256·3+3, and 3 log std; value 3072 + 65792 + 256+1
        (HOPPER, 3072 + 65792 + 771 + 3 + 3072 + 65792 + 257),
        # policy 4·256+256 + 65792 + 256·2+2; value 1280 + 65792 + 257
        (CARTPOLE, 1280 + 65792 + 514 + 1280 + 65792 + 257),
    ],
    ids=["Hopper", "CartPole"],
)
def test_number_of_parameters(spec, count):
    """Two towers of 2x256, counted by hand; all float32."""
    leaves = jax.tree.leaves(jax.eval_shape(actor_critic(spec).init, jax.random.key(0)))
    assert sum(leaf.size for leaf in leaves) == count
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}


@both
def test_against_numpy(spec):
    """Normalise, then each head from its own tower of tanh layers: against a forward pass in NumPy."""
    policy = actor_critic(spec, hidden=HIDDEN)
    version = version_of(policy, spec, mean=2.5, scale=0.7)
    x = some_observations(spec, 6, 2)
    distribution, value = policy.apply(version, x)
    params = version.params["params"]
    normal = (x - 2.5) * 0.7
    output = distribution.logits if spec.discrete else distribution.mean
    np.testing.assert_allclose(output, tower(params["policy"], normal), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(value, tower(params["value"], normal)[..., 0], rtol=1e-4, atol=1e-5)
    assert value.shape == (6, 2)
    assert output.shape == (6, 2, spec.actions)


def test_heads():
    """Categorical for discrete actions; for continuous ones a Gaussian whose deviation is a parameter of its own."""
    for spec, kind in [(HOPPER, DiagonalGaussian), (CARTPOLE, Categorical)]:
        policy = actor_critic(spec, hidden=HIDDEN)
        version = version_of(policy, spec)
        distribution, _ = policy.apply(version, some_observations(spec, 5))
        assert isinstance(distribution, kind)
        assert distribution.entropy().shape == (5,)
        assert version.params["params"].keys() == {"policy", "value"} | (
            {"log_std"} if kind is DiagonalGaussian else set()
        )
    log_std = jnp.array([0.0, 1.0, -2.0])
    policy = actor_critic(HOPPER, hidden=HIDDEN)
    version = version_of(policy, HOPPER)
    assert len(np.unique(version.params["params"]["log_std"])) == 1
    version.params["params"]["log_std"] = log_std
    distribution, _ = policy.apply(version, some_observations(HOPPER, 5))
    np.testing.assert_array_equal(distribution.log_std, np.tile(log_std, (5, 1)))


def test_equal_arguments_give_the_same_policy():
    """So that what is compiled for one is compiled once."""
    assert actor_critic(HOPPER) is actor_critic(
        EnvSpec("Hopper-v4", (11,), 3, False, (-1.0,) * 3, (1.0,) * 3, action_shape=(3,))
    )
    assert len({actor_critic(HOPPER), actor_critic(CARTPOLE), actor_critic(HOPPER, hidden=HIDDEN)}) == 3


@both
def test_towers_are_separate(spec):
    """No parameter serves both heads."""
    policy = actor_critic(spec, hidden=HIDDEN)
    version, x = version_of(policy, spec), some_observations(spec, 4)

    def total(params, head):
        distribution, value = policy.apply(version._replace(params=params), x)
        return jnp.sum(value) if head == "value" else jnp.sum(jnp.square(distribution[0]))

    for head, other in [("value", "policy"), ("policy", "value")]:
        gradient = jax.grad(total)(version.params, head)["params"]
        assert all(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(gradient[head]))
        assert not any(bool(jnp.any(leaf != 0)) for leaf in jax.tree.leaves(gradient[other]))


@both
def test_initialisation(spec):
    """Near uniform whatever the observations; values of order one; seeds decide, and differ; biases are zero."""
    policy = actor_critic(spec, hidden=HIDDEN)
    x = some_observations(spec, 200)
    distribution, value = policy.apply(version_of(policy, spec, mean=3.0), x)
    assert np.max(np.abs(distribution[0])) < 0.1
    assert 0.1 < np.std(value) < 10
    first, same, other = (version_of(policy, spec, seed=seed).params["params"] for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, same)
    for name in ("policy", "value"):
        for layer, (mine, others) in enumerate(zip(same[name].values(), other[name].values(), strict=True)):
            assert not np.array_equal(mine["kernel"], others["kernel"])
            np.testing.assert_array_equal(mine["bias"], 0.0)
            gain = [2**0.5, 2**0.5, 0.01 if name == "policy" else 1.0][layer]
            np.testing.assert_allclose(np.linalg.svd(mine["kernel"])[1], gain, rtol=1e-3)  # orthogonal


@both
def test_noise(spec):
    """`n` rows for `n` actions, by the key alone; sampling from it has the distribution that log_prob says."""
    policy = actor_critic(spec, hidden=HIDDEN)
    noise = policy.noise(jax.random.key(0), 4000)
    assert noise.shape == (4000, spec.actions)
    np.testing.assert_array_equal(noise, policy.noise(jax.random.key(0), 4000))
    assert not np.array_equal(noise, policy.noise(jax.random.key(1), 4000))
    x = np.broadcast_to(some_observations(spec), (4000, *spec.observation_shape))
    distribution, _ = policy.apply(version_of(policy, spec), x)
    action = distribution.sample(noise)
    # The mean of -log p(a) over samples is the entropy.
    np.testing.assert_allclose(-np.mean(distribution.log_prob(action)), distribution.entropy()[0], rtol=0.02)


@both
def test_under_jit_and_vmap(spec):
    """Versions are trees: stacked ones give what each gives alone."""
    policy = actor_critic(spec, hidden=HIDDEN)
    versions = [version_of(policy, spec, seed=seed, mean=seed) for seed in range(3)]
    x = some_observations(spec, 3, 5)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *versions)
    together = jax.jit(jax.vmap(policy.apply))(stacked, x)
    for i, version in enumerate(versions):
        alone = policy.apply(version, x[i])
        row = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        chex.assert_trees_all_close(row, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(84, 84, 4), ()])
def test_observations_that_are_no_vectors(shape):
    """Images need another network: the environment and the shape are named."""
    with pytest.raises(ValueError, match=r"Pong-v5: observations of shape \(.*\) are not vectors"):
        actor_critic(EnvSpec("Pong-v5", shape, 6, True))
