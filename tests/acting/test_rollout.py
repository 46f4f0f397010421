"""Acting, on real environments."""

from contextlib import nullcontext
from dataclasses import dataclass

import chex
import jax
import numpy as np
import pytest

from stellaris.acting.envs import EnvSpec, Step, make
from stellaris.acting.normalisation import Normaliser
from stellaris.acting.policies import ActorCritic, Policy, PolicyVersion
from stellaris.acting.rollout import Actors, ActorState, fragment_bytes, start
from stellaris.types import Versioned, concatenate
from tests.acting.environments import Sensors, same

LENGTH = 64
both = pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v4"])
initialised = jax.jit(Policy.init, static_argnums=0)  # compiled once for equal policies


class Stage:
    """An environment with some slots, a small policy, and versions of it that differ in everything."""

    def __init__(self, name: str, *, slots: int = 1, length: int = LENGTH, **settings) -> None:
        self.name, self.slots = name, slots
        self.env = make(name, slots=slots, seed=11)
        self.policy = ActorCritic(hidden=(16,), **settings)(self.env.spec)
        self.actors = Actors(self.policy, self.env, length)
        self.states = [start(self.env, slot) for slot in range(slots)]

    def version(self, number: int) -> Versioned:
        params = jax.tree.map(lambda leaf: leaf * (1.0 + number), initialised(self.policy, jax.random.key(number)))
        if not self.env.spec.discrete:
            params["params"]["log_std"] = 0.3 * number + jax.numpy.zeros(self.env.spec.actions)
        shape = self.env.spec.observation_shape
        mean, scale = np.full(shape, 0.1 * number, np.float32), np.full(shape, 1.0 / (1 + number), np.float32)
        return Versioned(number, PolicyVersion(params, Normaliser(mean, scale)))

    def roll(self, versions, slots=None, seed=0):
        """One fragment for each of the slots, whose states go on; actor `i` has a key of its own."""
        slots = list(range(self.slots)) if slots is None else slots
        keys = jax.numpy.stack([jax.random.fold_in(jax.random.key(seed), slot) for slot in slots])
        fragments, states = self.actors.rollout(versions, slots, [self.states[slot] for slot in slots], keys)
        for slot, state in zip(slots, states, strict=True):
            self.states[slot] = state
        return fragments


@dataclass(frozen=True)
class Balance:
    """A controller that holds CartPole's pole up for as long as it is let; its value is where the cart stands."""

    def init(self, key, observation):
        return {}

    def apply(self, params, x):
        lean = x[..., 2] + 0.5 * x[..., 3] + 0.05 * x[..., 0] + 0.1 * x[..., 1]
        return 1e6 * jax.numpy.stack([-lean, lean], axis=-1), x[..., 0] + 7.0


@dataclass(frozen=True)
class Look:
    """A network for `Sensors`: it goes on as it began, more or less, and its value adds up all that it sees."""

    def init(self, key, observation):
        return {"gain": jax.random.uniform(key)}

    def apply(self, params, x):
        assert x["picture"].dtype == np.uint8
        logits = params["gain"] * jax.numpy.concatenate([-x["position"], x["position"]], axis=-1)
        columns = jax.numpy.sum(x["picture"] / 255 * jax.numpy.arange(9), axis=(-2, -1))
        return logits, columns + 10.0 * x["last"][0] + 100.0 * x["last"][1] + x["position"][..., 0]


def replay(name: str, slot: int, slots: int, actions) -> tuple:
    """The oracle: one's own environment, stepped with the recorded actions alone, one by one."""
    env = make(name, slots=slots, seed=11)
    steps = []
    observations = [env.reset(np.array([slot]))[0]]
    for action in actions:
        steps.append(env.step(np.array([slot]), action[None]))
        observations.append(steps[-1].observation[0])
    columns = [np.concatenate(column) for column in list(zip(*steps, strict=True))[1:]]
    return np.array(observations), *columns


@pytest.mark.slow
@both
@pytest.mark.parametrize("number", [0, 2])
def test_log_probabilities_and_values(name, number):
    """Those of the recorded raw observations and unclipped actions under the version, with the row that bootstraps."""
    stage = Stage(name)
    version = stage.version(number)
    trajectory = stage.roll([version])[0].trajectory
    distribution, value = stage.policy.apply(version.value, trajectory.observation)
    np.testing.assert_allclose(trajectory.value, value, rtol=1e-5, atol=1e-5)
    distribution, _ = stage.policy.apply(version.value, trajectory.observation[:-1])
    np.testing.assert_allclose(trajectory.log_prob, distribution.log_prob(trajectory.action), rtol=1e-5, atol=1e-5)
    assert len(np.unique(trajectory.value)) > LENGTH // 2
    if not stage.env.spec.discrete:
        assert np.max(np.abs(trajectory.action)) > max(stage.env.spec.high)


@pytest.mark.slow
@both
def test_actions_come_from_the_keys(name):
    """The same key gives the same fragment, another one another; each step has noise of its own."""
    first, same, other = (Stage(name).roll([Stage(name).version(0)], seed=seed)[0] for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, same)
    assert not np.array_equal(first.trajectory.action, other.trajectory.action)
    stage = Stage(name)
    distribution, _ = stage.policy.apply(stage.version(0).value, first.trajectory.observation[:-1])
    noise = stage.policy.noise(jax.random.fold_in(jax.random.key(0), 0), LENGTH)
    np.testing.assert_allclose(first.trajectory.action, distribution.sample(noise[:, None]), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@both
def test_fragments_continue_one_another(name):
    """Each starts where the last one stopped: 120 of a single step, some of which only reset."""
    stage = Stage(name, length=1)
    version = stage.version(1)
    fragments = [stage.roll([version], seed=seed)[0] for seed in range(120)]
    actions = np.concatenate([f.trajectory.action[:, 0] for f in fragments])
    seen, reward, terminated, truncated = replay(name, 0, 1, actions)
    ended = terminated | truncated
    assert ended.sum() > 2
    for t, fragment in enumerate(fragments):
        np.testing.assert_array_equal(fragment.trajectory.observation[:, 0], seen[t : t + 2].astype(np.float32))
        assert fragment.trajectory.valid.item() == (t == 0 or not ended[t - 1])
        assert fragment.trajectory.reward.item() == reward[t]
        assert fragment.trajectory.terminated.item() == terminated[t]
        assert len(fragment.episodes) == ended[t]
    returns = [episode.episode_return for f in fragments for episode in f.episodes]
    sums = [part.sum() for part in np.split(np.float64(reward), np.flatnonzero(ended) + 1)][:-1]
    np.testing.assert_allclose(returns, sums, rtol=1e-6)
    lengths = [episode.length for f in fragments for episode in f.episodes]
    assert np.cumsum(lengths).tolist() == [t + 1 - i for i, t in enumerate(np.flatnonzero(ended))]  # less the resets


@pytest.mark.slow
@both
def test_statistics(name):
    """An increment is NumPy's count, mean and variance of the raw observations that were acted on, each once."""
    stage = Stage(name, slots=3)
    fragments = [f for seed in range(2) for f in stage.roll([stage.version(1)] * 3, seed=seed)]
    for fragment in fragments:
        x = np.float64(fragment.trajectory.observation[:-1, 0])
        assert fragment.statistics.count == LENGTH
        np.testing.assert_allclose(fragment.statistics.mean, x.mean(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(fragment.statistics.m2, x.var(axis=0) * LENGTH, rtol=1e-4, atol=1e-6)
    pooled = np.concatenate([np.float64(f.trajectory.observation[:-1, 0]) for f in fragments])
    merged = stage.policy.statistics()
    for fragment in fragments:
        merged = merged.merge(fragment.statistics)
    np.testing.assert_allclose(merged.mean, pooled.mean(axis=0), rtol=1e-5, atol=1e-6)
    assert merged.count == len(pooled)
    if name == "CartPole-v1":  # whose observations are float32 to begin with
        np.testing.assert_allclose(merged.mean, pooled.mean(axis=0), rtol=1e-10)
        np.testing.assert_allclose(merged.m2, pooled.var(axis=0) * len(pooled), rtol=1e-10)


@pytest.mark.slow
@both
@pytest.mark.parametrize("length", [1, 40])
def test_statistics_of_returns(name, length):
    """R = 0.9 R + r over valid steps, by a plain loop: zero at first in an episode, kept between fragments."""
    stage = Stage(name, slots=2, length=length, scaling_discount=0.9, normalise=name == "CartPole-v1")
    merged, returns, sums, resets = stage.policy.statistics(), [], [0.0, 0.0], 0
    for seed in range(160 // length):
        for i, fragment in enumerate(stage.roll([stage.version(1)] * 2, seed=seed)):
            merged = merged.merge(fragment.statistics)
            for reward, valid in zip(fragment.trajectory.reward[:, 0], fragment.trajectory.valid[:, 0], strict=True):
                sums[i] = 0.9 * sums[i] + float(reward) if valid else 0.0
                returns += [sums[i]] * bool(valid)
                resets += not valid
    assert resets > 4
    assert merged.returns.count == len(returns) == 320 - resets
    np.testing.assert_allclose(merged.returns.mean, np.mean(returns), rtol=1e-10)
    np.testing.assert_allclose(merged.returns.m2, np.var(returns) * len(returns), rtol=1e-10)
    assert merged.count == (320 if name == "CartPole-v1" else 0)


@pytest.mark.slow
@both
@pytest.mark.parametrize(
    ("numbers", "slots"),
    [
        ([3, 1, 3, 2, 1], [0, 1, 2, 3, 4]),  # three versions, padded to four
        ([1, 0, 1], [4, 0, 2]),  # some of the slots, in any order
        ([0, 0, 0], [1, 2, 3]),  # one version, padded to four actors
        ([2], [3]),
    ],
)
def test_many_actors_agree_with_single_ones(name, numbers, slots):
    """Whoever shares the call, with whatever version: the same to 1e-5 over a short fragment."""
    together, alone = (Stage(name, slots=5, length=16) for _ in range(2))
    many = together.roll([together.version(n) for n in numbers], slots)
    for fragment, number, slot in zip(many, numbers, slots, strict=True):
        (single,) = alone.roll([alone.version(number)], [slot])
        assert np.all(fragment.trajectory.version == number)
        got, expected = (fragment, together.states[slot]), (single, alone.states[slot])
        chex.assert_trees_all_close(got, expected, rtol=1e-4, atol=1e-5)
    joined = concatenate([fragment.trajectory for fragment in many])
    assert joined.reward.shape == (16, len(slots))


def test_truncated_episodes_bootstrap():
    """A pole that is held up for 500 steps ends without terminating; the value there is of its last observation."""

    env = make("CartPole-v1", slots=1)
    balance = Policy(env.spec, Balance())
    state = start(env, 0)
    assert (state.ended, state.episode_return, state.episode_length) == (False, 0.0, 0)
    version = Versioned(4, PolicyVersion({}, Normaliser(np.zeros(4, np.float32), np.ones(4, np.float32))))
    with pytest.raises(ValueError, match="length=0 is below 1"):
        Actors(balance, env, 0)
    actors = Actors(balance, env, 510)
    (fragment,), (state,) = actors.rollout([version], [0], [state], jax.random.split(jax.random.key(0), 1))
    trajectory = fragment.trajectory
    assert not trajectory.terminated.any()
    assert np.flatnonzero(~trajectory.valid).tolist() == [500]
    assert fragment.episodes == ((500.0, 500),)
    assert fragment.resets == 1
    np.testing.assert_allclose(trajectory.value, trajectory.observation[..., 0] + 7.0, rtol=1e-5)
    assert (
        abs(trajectory.observation[500, 0, 0] - trajectory.observation[499, 0, 0]) < 0.05
    )  # the last, not the reset one
    assert state == ActorState(state.observation, False, 9.0, 9, 510)


def roll_sensors(actors: int = 3, length: int = 20, *, normalise: bool = True):
    """A fragment each of `Sensors`, by versions of their own; with the policy, the versions and the new states."""
    env = make(Sensors, slots=actors, seed=3)
    policy = Policy(env.spec, Look(), normalise)
    versions = [
        Versioned(i, PolicyVersion(policy.init(jax.random.key(i)), policy.statistics().normaliser()))
        for i in range(actors)
    ]
    states = [start(env, slot) for slot in range(actors)]
    keys = jax.random.split(jax.random.key(0), actors)
    fragments, states = Actors(policy, env, length).rollout(versions, range(actors), states, keys)
    return policy, versions, fragments, states


@pytest.mark.slow
def test_trees_of_observations():
    """Recorded in the types of the specification; what was acted on is what was recorded, and is acted on next."""
    policy, versions, fragments, states = roll_sensors()
    spec = policy.spec
    for fragment, version, state in zip(fragments, versions, states, strict=True):
        trajectory = fragment.trajectory
        observation = trajectory.observation
        expected = jax.tree.map(lambda leaf: ((21, 1, *leaf.shape), leaf.dtype), spec.observation)
        assert jax.tree.map(lambda column: (column.shape, column.dtype), observation) == expected
        distribution, value = policy.apply(version.value, observation)
        np.testing.assert_allclose(trajectory.value, value, rtol=1e-5)
        log_prob = type(distribution)(distribution.logits[:-1]).log_prob(trajectory.action)
        np.testing.assert_allclose(trajectory.log_prob, log_prob, rtol=1e-5, atol=1e-6)
        # What the sensors tell goes together: the picture shows the position, and the last action led there.
        position = observation["position"][:, 0, 0]
        np.testing.assert_array_equal(observation["picture"][:, 0, 0].argmax(axis=-1), position + 4)
        moved = trajectory.valid[:, 0]
        np.testing.assert_array_equal(observation["last"][0][1:, 0][moved], trajectory.action[:, 0][moved])
        np.testing.assert_array_equal(np.diff(position)[moved], 2 * trajectory.action[:, 0][moved] - 1)
        same(state.observation, jax.tree.map(lambda column: column[-1, 0], observation))
        assert all(leaf.base is None for leaf in jax.tree.leaves(state.observation))  # the record may go
    assert not all(fragment.trajectory.valid.all() for fragment in fragments)  # some steps only reset


@pytest.mark.parametrize("normalise", [True, False])
def test_the_size_that_is_declared(normalise):
    policy, _, fragments, _ = roll_sensors(normalise=normalise)
    for fragment in fragments:
        leaves = jax.tree.leaves((fragment.trajectory, fragment.statistics))
        assert sum(leaf.nbytes for leaf in leaves) == fragment_bytes(policy, 20)


class Counter:
    """A vector environment that shows a counter of 64 bits."""

    spec = EnvSpec("Counter-v0", np.zeros(2, np.int64), 2, True)

    def __init__(self, first):
        self.count = first

    def reset(self, slots):
        return np.full((len(slots), 2), self.count)

    def step(self, slots, action):
        self.count += 1
        n = len(slots)
        return Step(np.full((n, 2), self.count), np.ones(n, np.float32), np.zeros(n, bool), np.zeros(n, bool))


def test_integers_beyond_32_bits_are_refused():
    """Recorded in 32 bits they would wrap, and a network would see negative numbers."""
    for first, fits in ((2**31 - 3, True), (2**31 - 2, False)):
        env = Counter(first)
        policy = ActorCritic(hidden=(4,))(env.spec)
        version = Versioned(0, PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser()))
        with (
            nullcontext() if fits else pytest.raises(ValueError, match=r"Counter-v0: .* int64 up to 2147483648: int32")
        ):
            Actors(policy, env, 2).rollout([version], [0], [start(env, 0)], jax.random.split(jax.random.key(0), 1))


class Stretched:
    """A vector environment that returns fewer numbers than its specification says."""

    spec = EnvSpec("Own-v0", np.zeros(4), 2, True)

    def reset(self, slots):
        return np.zeros((len(slots), 1))


def test_a_first_observation_that_does_not_fit_is_named():
    """NumPy would stretch one number to four."""
    with pytest.raises(ValueError, match=r"Own-v0: observation has shape \(1,\) .*: its space says \(4,\) and float32"):
        start(Stretched(), 0)
