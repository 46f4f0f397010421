"""Policies: values that act, with any network."""

import functools
import pickle
from dataclasses import dataclass

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris._core.describe import describe
from stellaris.acting.networks import NatureCNN, Towers
from stellaris.acting.normalisation import Normaliser
from stellaris.acting.policies import ActorCritic, Pixels, Policy, PolicyVersion
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
        Policy(HOPPER, Returns(value=(1,))),
    ]
    assert len({policy, again, *others}) == 1 + len(others)
    assert ActorCritic() == ActorCritic(hidden=(256, 256)) != SMALL
    assert (
        repr(SMALL) == "ActorCritic(hidden=(16, 8), state_dependent_std=False, normalise=True, scaling_discount=None)"
    )
    assert pickle.loads(pickle.dumps((SMALL, Pixels(), policy))) == (SMALL, Pixels(), policy)


@dataclass
class Thawed:
    """A dataclass that cannot be hashed."""

    width: int = 3

    def init(self, key, observation):
        return {}

    def apply(self, params, observation):
        return None


@pytest.mark.slow
@both
def test_the_network_sees_normalised_observations(spec):
    policy = SMALL(spec)
    version, x = version_of(policy, mean=2.5, scale=0.7), some_observations(spec, 6, 2)
    expected = policy.network.apply(version.params, jnp.asarray((x - 2.5) * 0.7, jnp.float32))
    chex.assert_trees_all_close(policy.apply(version, x), expected, rtol=1e-5, atol=1e-6)
    raw = Policy(spec, policy.network, normalise=False)
    chex.assert_trees_all_close(raw.apply(version, x), policy.network.apply(version.params, jnp.asarray(x)), rtol=1e-5)
    assert policy.statistics().mean.shape == spec.observation_shape
    assert jax.tree.leaves(raw.statistics()) == [0.0]  # a count, and nothing else


def test_first_parameters_come_from_a_batch_of_one():
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def own(observation):
    return EnvSpec("Own-v0", observation, 6, True)


def acting(spec, network):
    return lambda: Policy(spec, network).action


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (acting(CARTPOLE, jnp.tanh), TypeError, r"network=<.*tanh.* has no method init: expected init and apply"),
        (acting(CARTPOLE, None), TypeError, r"network=None has no method init"),
        (acting(CARTPOLE, Thawed()), TypeError, r"network=Thawed\(width=3\) cannot be hashed .*: make it a frozen dat"),
        # A value of shape [n, 1] would otherwise be stretched in silence.
        (acting(CARTPOLE, Returns(value=(1,))), ValueError, r"Returns on CartPole-v1: values have shape \(1, 1\)"),
        (acting(CARTPOLE, Returns((3,))), ValueError, r"logits have shape \(1, 3\): expected \(1, 2\)"),
        (acting(CARTPOLE, Returns(((2,), (2,)))), TypeError, "returned a DiagonalGaussian, but actions are discrete"),
        (acting(HOPPER, Returns((3,))), TypeError, r"a Categorical, but actions are continuous: .*\(mean, log_std\)"),
        (acting(HOPPER, Returns(((1,), (1,)))), ValueError, r"means have shape \(1, 1\): expected \(1, 3\)"),
        (acting(HOPPER, Odd()), TypeError, r"Odd on Hopper-v4: a Own lacks the method sample\(noise\)"),
        (acting(HOPPER, Odd(sampled=(2,))), ValueError, r"sampled actions have shape \(1, 2\): expected \(1, 3\)"),
        (acting(HOPPER, nn.Dense(3)), TypeError, r"Dense on Hopper-v4: the network returned a .*: expected a pair"),
        (
            lambda: ActorCritic()(own(array(84, 84, 4, dtype=np.uint8))),
            ValueError,
            r"^Own-v0: ActorCritic is for vectors, .*: pass policy=Pixels\(\) for images, or",
        ),
        *(
            (lambda shape=shape: ActorCritic()(own(shape)), ValueError, r"^Own-v0: .* vectors, .*: pass policy=lambda")
            for shape in (array(), array(5, 5), {"a": array(3)})  # too small for Pixels
        ),
        *(
            (lambda shape=shape: Pixels()(own(shape)), ValueError, r"^Own-v0: Pixels.* is for images of at least 36x36")
            for shape in (array(4), array(35, 84), array(3, 84, 84, 2), {"a": array(84, 84)})
        ),
        (lambda: ActorCritic(hidden=[8]), TypeError, r"hidden=\[8\] is not a tuple of widths, such as \(256, 256\)"),
        (lambda: ActorCritic(hidden=(8.0,)), TypeError, r"hidden\[0\]=8\.0 is not a whole number"),
        (lambda: ActorCritic(hidden=(8, 0)), ValueError, r"hidden\[1\]=0 is below 1"),
    ],
)
def test_policies_that_are_refused(make, error, message, unchecked):
    """The error names the environment, the network and what to pass instead, before anything is learned."""
    with pytest.raises(error, match=message):
        make()


@pytest.mark.slow
def test_actor_critic():
    assert ActorCritic()(HOPPER) == Policy(HOPPER, Towers(3, False, (256, 256)))
    assert SMALL(CARTPOLE) == Policy(CARTPOLE, Towers(2, True, (16, 8)))
    other = ActorCritic((8,), state_dependent_std=True, normalise=False)(HOPPER)
    assert other == Policy(HOPPER, Towers(3, False, (8,), state_dependent_std=True), normalise=False)
    for spec, kind in ((HOPPER, DiagonalGaussian), (CARTPOLE, Categorical)):
        policy = SMALL(spec)
        assert isinstance(policy.apply(version_of(policy), some_observations(spec, 2))[0], kind)
    assert (SMALL(HOPPER).action, SMALL(CARTPOLE).action) == (array(3), array(dtype=np.int32))
    memory = EnvSpec("Pong-ram-v5", array(128, dtype=np.uint8), 6, True)
    version = PolicyVersion(initial(SMALL(memory))(jax.random.key(0)), SMALL(memory).statistics().normaliser())
    assert SMALL(memory).apply(version, np.full((2, 128), 255, np.uint8))[1].shape == (2,)


def test_pixels():
    pong = EnvSpec("Pong-v5", array(4, 84, 84, dtype=np.uint8), 6, True)
    assert Pixels()(pong) == Policy(pong, NatureCNN((4, 84, 84), 6, True), normalise=False)
    assert Pixels()(pong).statistics().normaliser() == Normaliser((), ())
    assert Pixels()(pong).action == array(dtype=np.int32)
