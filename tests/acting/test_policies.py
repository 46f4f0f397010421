"""Policies: values that act, with any network."""

import functools
import pickle
from dataclasses import dataclass
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris._core.describe import describe
from stellaris.acting.networks import NatureCNN, Towers
from stellaris.acting.normalisation import Normaliser
from stellaris.acting.policies import ActorCritic, Network, Pixels, Policy, PolicyVersion
from stellaris.acting.vector import EnvSpec
from stellaris.distributions import Categorical, DiagonalGaussian
from tests.acting.environments import array

HOPPER = EnvSpec("Hopper-v4", array(11), 3, False, (-1.0,) * 3, (1.0,) * 3, action_shape=(3,))
CARTPOLE = EnvSpec("CartPole-v1", array(4), 2, True)
MAZE = EnvSpec("Maze-v0", {"map": array(8, 8, dtype=np.uint8), "position": array(2)}, 4, True)
#: Narrow towers compile faster.
SMALL = ActorCritic(hidden=(16, 8))
both = pytest.mark.parametrize("spec", [HOPPER, CARTPOLE], ids=lambda spec: spec.name)


@dataclass(frozen=True)
class Returns:
    """A network that returns what it is told, for a batch of any size: the shapes of its outputs are its settings."""

    parameters: tuple = (2,)  # without the batch; a pair of them is a mean and a deviation
    value: tuple = ()

    def init(self, key, observation):
        return {}

    def apply(self, params, observation):
        batch = jax.tree.leaves(observation)[0].shape[:1]
        pair = isinstance(self.parameters[0], tuple)
        zeros = [jnp.zeros((*batch, *shape)) for shape in (self.parameters if pair else [self.parameters])]
        return (tuple(zeros) if pair else zeros[0]), jnp.zeros((*batch, *self.value))


@functools.cache
def initial(policy):
    """Its `init`, compiled."""
    return jax.jit(policy.init)


def version_of(policy, seed=0, mean=0.0, scale=1.0) -> PolicyVersion:
    """Fresh parameters, and a normaliser that is the same for every feature."""
    shape = policy.spec.observation_shape
    normaliser = Normaliser(np.full(shape, mean, np.float32), np.full(shape, scale, np.float32))
    return PolicyVersion(initial(policy)(jax.random.key(seed)), normaliser)


def some_observations(spec, *shape) -> np.ndarray:
    """Raw observations around 3."""
    return 3.0 + np.random.default_rng(0).standard_normal((*shape, *spec.observation_shape))


# ---- values ---------------------------------------------------------------------------------------------------------


def test_policies_are_values():
    """Made twice they are equal, of one hash and one description: what is compiled for one is compiled once."""
    policy, again = ActorCritic()(HOPPER), ActorCritic()(EnvSpec(**vars(HOPPER)))
    assert policy == again
    assert hash(policy) == hash(again)
    assert describe(policy) == describe(again)
    assert "hidden = (256, 256)" in repr(policy)
    others = [
        ActorCritic()(CARTPOLE),
        SMALL(HOPPER),
        Policy(HOPPER, policy.network, normalise=False),
        Policy(HOPPER, Returns()),
        Policy(HOPPER, Returns(value=(1,))),
    ]
    assert len({policy, again, *others}) == 1 + len(others)
    assert ActorCritic() == ActorCritic(hidden=(256, 256)) != SMALL
    assert repr(SMALL) == "ActorCritic(hidden=(16, 8))"
    assert pickle.loads(pickle.dumps((SMALL, Pixels(), policy))) == (SMALL, Pixels(), policy)


class Transformed(NamedTuple):
    """As Haiku returns it."""

    init: object
    apply: object


def test_networks():
    """A flax module, a pair of functions and a frozen dataclass are networks as they are."""
    for network in (nn.Dense(3), Transformed(lambda *_: {}, lambda *_: None), Returns(), Towers(2, True)):
        assert isinstance(network, Network)
        Policy(CARTPOLE, network)


@dataclass
class Thawed:
    """A dataclass that cannot be hashed."""

    width: int = 3

    def init(self, key, observation):
        return {}

    def apply(self, params, observation):
        return None


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (jnp.tanh, r"network=<.*tanh.* has no method init: expected init and apply"),
        (None, r"network=None has no method init"),
        (Thawed(), r"network=Thawed\(width=3\) cannot be hashed \(.*unhashable.*\): make it a frozen dataclass"),
    ],
)
def test_what_is_no_network(network, message, unchecked):
    """Said when the policy is made."""
    with pytest.raises(TypeError, match=message):
        Policy(CARTPOLE, network)


# ---- acting ---------------------------------------------------------------------------------------------------------


@both
def test_the_network_sees_normalised_observations(spec):
    """By the version's statistics; or raw, if the policy says so."""
    policy = SMALL(spec)
    version, x = version_of(policy, mean=2.5, scale=0.7), some_observations(spec, 6, 2)
    expected = policy.network.apply(version.params, jnp.asarray((x - 2.5) * 0.7, jnp.float32))
    chex.assert_trees_all_close(policy.apply(version, x), expected, rtol=1e-5, atol=1e-6)
    raw = Policy(spec, policy.network, normalise=False)
    chex.assert_trees_all_close(raw.apply(version, x), policy.network.apply(version.params, jnp.asarray(x)), rtol=1e-5)
    assert policy.statistics().mean.shape == spec.observation_shape
    assert jax.tree.leaves(raw.statistics()) == [0.0]  # a count, and nothing else


def test_first_parameters_come_from_a_batch_of_one():
    """In the structure and the types that the network will see."""
    seen = []

    class Noting(Returns):
        def init(self, key, observation):
            seen.append(jax.tree.map(lambda x: (x.shape, x.dtype), observation))
            return {}

    half = EnvSpec("Own-v0", (np.zeros(3, np.float16), np.int64(0)), 2, True)
    for spec, normalise in ((MAZE, True), (half, True), (half, False)):
        Policy(spec, Noting(), normalise).init(jax.random.key(0))
    assert seen == [
        {"map": ((1, 8, 8), np.uint8), "position": ((1, 2), np.float32)},
        (((1, 3), np.float32), ((1,), np.int32)),
        (((1, 3), np.float16), ((1,), np.int32)),
    ]


@both
def test_noise(spec):
    """`n` rows for `n` actions, by the key alone; sampling from it has the distribution that log_prob says."""
    policy = SMALL(spec)
    noise = policy.noise(jax.random.key(0), 4000)
    assert noise.shape == (4000, spec.actions)
    np.testing.assert_array_equal(noise, policy.noise(jax.random.key(0), 4000))
    assert not np.array_equal(noise, policy.noise(jax.random.key(1), 4000))
    x = np.broadcast_to(some_observations(spec), (4000, *spec.observation_shape))
    version = version_of(policy)
    action, log_prob = policy.act(version, x, noise)
    distribution, _ = policy.apply(version, x)
    np.testing.assert_array_equal(action, distribution.sample(noise))
    np.testing.assert_array_equal(log_prob, distribution.log_prob(action))
    # The mean of -log p(a) over samples is the entropy.
    np.testing.assert_allclose(-np.mean(log_prob), distribution.entropy()[0], rtol=0.02)


@both
def test_values_are_not_computed_to_act(spec):
    """Nothing of the value's tower is left in the program."""
    policy = SMALL(spec)
    version, x = version_of(policy), some_observations(spec, 3)
    noise = policy.noise(jax.random.key(0), 3)

    def products(function, *arguments):
        return jax.jit(function).lower(version, *arguments).compile().as_text().count(" dot(")

    assert products(policy.act, x, noise) == 3
    assert products(policy.apply, x) == 6


@both
def test_under_jit_and_vmap(spec):
    """Versions are trees: stacked ones give what each gives alone."""
    policy = SMALL(spec)
    versions = [version_of(policy, seed=seed, mean=seed) for seed in range(3)]
    x = some_observations(spec, 3, 5)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *versions)
    together = jax.jit(jax.vmap(policy.apply))(stacked, x)
    for i, version in enumerate(versions):
        alone = policy.apply(version, x[i])
        row = jax.tree.map(lambda leaf, i=i: leaf[i], together)
        chex.assert_trees_all_close(row, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("policy", "action"),
    [
        (SMALL(HOPPER), array(3)),
        (SMALL(CARTPOLE), array(dtype=np.int32)),
        (Policy(MAZE, Returns((4,))), array(dtype=np.int32)),
    ],
)
def test_actions(policy, action):
    """Their shape and type, without computing any."""
    assert policy.action == action


# ---- networks that do not fit ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Odd(Returns):
    """Its distribution is of the user's own kind, and samples actions of some shape, or none."""

    sampled: tuple | None = None

    def apply(self, params, observation):
        sampled, batch = self.sampled, observation.shape[:1]

        class Own:
            def log_prob(self, value):
                return jnp.zeros(batch)

            def entropy(self):
                return jnp.zeros(batch)

            if sampled is not None:

                def sample(self, noise):
                    return jnp.zeros((*batch, *sampled))

        return Own(), jnp.zeros(batch)


@pytest.mark.parametrize(
    ("spec", "network", "error", "message"),
    [
        (
            CARTPOLE,
            Returns(value=(1,)),
            ValueError,
            r"Returns on CartPole-v1: values have shape \(1, 1\)",
        ),
        (CARTPOLE, Returns((3,)), ValueError, r"the network's logits have shape \(1, 3\): expected \(1, 2\)"),
        (CARTPOLE, Returns(((2,), (2,))), TypeError, r"returned a DiagonalGaussian, but actions are discrete"),
        (HOPPER, Returns((3,)), TypeError, r"returned a Categorical, but actions are continuous: .*\(mean, log_std\)"),
        (HOPPER, Returns(((1,), (1,))), ValueError, r"the network's means have shape \(1, 1\): expected \(1, 3\)"),
        (HOPPER, Odd(), TypeError, r"Odd on Hopper-v4: a Own lacks the method sample\(noise\)"),
        (HOPPER, Odd(sampled=(2,)), ValueError, r"sampled actions have shape \(1, 2\): expected \(1, 3\)"),
        (HOPPER, nn.Dense(3), TypeError, r"Dense on Hopper-v4: the network returned a .*: expected a pair"),
    ],
)
def test_networks_that_do_not_fit(spec, network, error, message):
    """Said when the deployment is made, before anything is learned: a value `[n, 1]` would be stretched in silence."""
    with pytest.raises(error, match=message):
        _ = Policy(spec, network).action


def test_a_distribution_of_ones_own():
    """What has log_prob, entropy and sample(noise) will do."""
    assert Policy(HOPPER, Odd(sampled=(3,))).action == array(3)


def test_divergence():
    """The mean over observations, and normalisers count; it is not known of a distribution that cannot tell."""
    policy = SMALL(CARTPOLE)
    version, seen = version_of(policy), some_observations(CARTPOLE, 5)
    other = version._replace(params=policy.init(jax.random.key(1)))
    one, two = policy.apply(version, seen)[0], policy.apply(other, seen)[0]
    np.testing.assert_allclose(policy.divergence(version, other, seen), one.kl_divergence(two).mean())
    assert policy.divergence(version, other, seen) > 0
    assert policy.divergence(version, version, seen) == 0
    odd = Policy(HOPPER, Odd(sampled=(3,)))
    of_odd = PolicyVersion((), odd.statistics().normaliser())
    assert np.isnan(odd.divergence(of_odd, of_odd, some_observations(HOPPER, 5)))


# ---- the papers' policies -------------------------------------------------------------------------------------------


def test_actor_critic():
    """Two towers for vectors, whatever their type."""
    assert ActorCritic()(HOPPER) == Policy(HOPPER, Towers(3, False, (256, 256)))
    assert SMALL(CARTPOLE) == Policy(CARTPOLE, Towers(2, True, (16, 8)))
    for spec, kind in ((HOPPER, DiagonalGaussian), (CARTPOLE, Categorical)):
        policy = SMALL(spec)
        assert isinstance(policy.apply(version_of(policy), some_observations(spec, 2))[0], kind)
    memory = EnvSpec("Pong-ram-v5", array(128, dtype=np.uint8), 6, True)
    version = PolicyVersion(initial(SMALL(memory))(jax.random.key(0)), SMALL(memory).statistics().normaliser())
    assert SMALL(memory).apply(version, np.full((2, 128), 255, np.uint8))[1].shape == (2,)


def test_pixels():
    """The Nature CNN for images, without statistics."""
    pong = EnvSpec("Pong-v5", array(4, 84, 84, dtype=np.uint8), 6, True)
    assert Pixels()(pong) == Policy(pong, NatureCNN((4, 84, 84), 6, True), normalise=False)
    assert Pixels()(pong).statistics().normaliser() == Normaliser((), ())
    assert Pixels()(pong).action == array(dtype=np.int32)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (
            array(84, 84, 4, dtype=np.uint8),
            r"ActorCritic is for vectors, .*: pass policy=Pixels\(\) for images, or",
        ),
        (array(), r"ActorCritic is for vectors, .*: pass policy=lambda spec: Policy\(spec, network\)"),
        (array(5, 5), r"ActorCritic is for vectors, .*: pass policy=lambda"),  # too small for Pixels
        ({"a": array(3)}, r"ActorCritic is for vectors, but an observation is {a: float32\[3\]}: pass policy=lambda"),
    ],
)
def test_observations_that_are_no_vectors(observation, message):
    """The environment is named, and what to pass instead."""
    with pytest.raises(ValueError, match=f"^Own-v0: {message}"):
        ActorCritic()(EnvSpec("Own-v0", observation, 6, True))


@pytest.mark.parametrize("observation", [array(4), array(35, 84), array(3, 84, 84, 2), {"a": array(84, 84)}])
def test_observations_that_are_no_images(observation):
    """Nor do small ones: the convolutions would have nothing to see."""
    with pytest.raises(
        ValueError, match=r"^Own-v0: Pixels\(.*\) is for images of at least 36x36, but .*: pass policy="
    ):
        Pixels()(EnvSpec("Own-v0", observation, 6, True))


@pytest.mark.parametrize(
    ("hidden", "error", "message"),
    [
        ([8], TypeError, r"hidden=\[8\] is not a tuple of widths, such as \(256, 256\)"),
        (8, TypeError, r"hidden=8 is not a tuple"),
        ((8.0,), TypeError, r"hidden\[0\]=8\.0 is not a whole number"),
        ((8, 0), ValueError, r"hidden\[1\]=0 is below 1"),
    ],
)
def test_widths(hidden, error, message, unchecked):
    """Looked at early, and named."""
    with pytest.raises(error, match=message):
        ActorCritic(hidden=hidden)
