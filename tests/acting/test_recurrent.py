"""Policies with memory act, record their memory, and compute values over whole sequences."""

import functools
from dataclasses import dataclass

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.acting import EquinoxMemory, FlaxMemory, Policy, PolicyVersion
from stellaris.acting.envs import EnvSpec, make
from stellaris.acting.rollout import Actors, fragment_bytes, join, start
from stellaris.lab import TMaze
from stellaris.memory import Sequences
from stellaris.types import Versioned
from tests.acting.environments import same

SPEC = EnvSpec("CartPole-v1", np.zeros(4), actions=2, discrete=True)
FACTORIES = {
    "flax gru": FlaxMemory(nn.GRUCell, 8, hidden=(8,)),
    "flax lstm": FlaxMemory(nn.OptimizedLSTMCell, 8, hidden=()),
    "equinox gru": EquinoxMemory(eqx.nn.GRUCell, 8, hidden=()),
    "equinox lstm": EquinoxMemory(eqx.nn.LSTMCell, 8, hidden=(8,)),
}
every_cell = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES)


def version_of(policy: Policy, number: int = 0) -> Versioned:
    params = jax.tree.map(lambda leaf: 2.0 * leaf, policy.init(jax.random.key(number)))
    return Versioned(number, PolicyVersion(params, policy.statistics().normaliser()))


@dataclass(frozen=True)
class Counter:
    """A network whose memory counts the steps of the episode, from 100, and whose value is the memory before a step."""

    first: int = 100

    def initial_memory(self):
        return jnp.int32(self.first)

    def init(self, key, observation, memory):
        return {"weight": jnp.zeros(())}

    def apply(self, params, observation, memory):
        return jnp.zeros((len(observation), 2)), memory.astype(jnp.float32), memory + 1


class Stage:
    """Actors of one policy in CartPole, whose random episodes are short."""

    def __init__(self, policy: Policy, length: int = 48, slots: int = 3) -> None:
        self.policy, self.env = policy, make("CartPole-v1", slots=slots, seed=3)
        self.actors = Actors(policy, self.env, length)
        self.slots = list(range(slots))
        self.states = [start(self.env, slot) for slot in self.slots]

    def roll(self, seed: int = 0, versions=None):
        keys = jax.random.split(jax.random.key(seed), len(self.slots))
        versions = versions or [version_of(self.policy)] * len(self.slots)
        fragments, self.states = self.actors.rollout(versions, self.slots, self.states, keys)
        return fragments


def test_the_memory_is_reset_with_the_episode_and_goes_on_in_the_next_fragment():
    stage = Stage(Policy(SPEC, Counter()), length=30)
    for _ in range(3):
        befores = [100 if state.memory is None else int(state.memory) for state in stage.states]
        for before, fragment in zip(befores, stage.roll(), strict=True):
            trajectory = fragment.trajectory
            assert trajectory.memory.shape == (1, 1)
            expected = [before]
            for valid in trajectory.valid[:, 0]:
                expected.append(expected[-1] + 1 if valid else 100)
            assert trajectory.memory[0, 0] == before
            assert trajectory.value[:, 0].tolist() == expected
        for state in stage.states:
            if not state.ended:
                assert int(state.memory) == 100 + state.episode_length


@pytest.mark.slow
@every_cell
def test_a_rollout_equals_its_own_recomputation_over_sequences(factory):
    """Log-probabilities and values recorded step by step are those of the pass that learners take."""
    stage = Stage(factory(SPEC))
    versions = [version_of(stage.policy, number) for number in (0, 1, 0)]
    stage.roll(versions=versions)
    for version, fragment in zip(versions, stage.roll(1, versions), strict=True):
        trajectory = fragment.trajectory
        assert not trajectory.valid.all()  # otherwise nothing was reset
        assert any(np.any(leaf) for leaf in jax.tree.leaves(trajectory.memory))
        distribution, value = stage.policy.apply(version.value, Sequences.of(trajectory))
        log_prob = distribution.logits[:-1] - jax.nn.logsumexp(distribution.logits[:-1], axis=-1, keepdims=True)
        chosen = np.take_along_axis(np.asarray(log_prob), trajectory.action[..., None], axis=-1)[..., 0]
        np.testing.assert_allclose(trajectory.log_prob, chosen, atol=1e-5)
        np.testing.assert_allclose(trajectory.value, value, atol=1e-5)


@pytest.mark.slow
@every_cell
def test_the_memory_matters(factory):
    policy = factory(SPEC)
    version, observation = version_of(policy).value, np.ones((1, 1, 4), np.float32)
    fresh = Sequences(observation, np.zeros((1, 1), bool), policy.initial_memory(1, 1))
    other = fresh._replace(memory=jax.tree.map(jnp.ones_like, fresh.memory))
    assert not np.allclose(policy.apply(version, fresh)[1], policy.apply(version, other)[1])
    again = other._replace(reset=np.ones((1, 1), bool))
    same(policy.apply(version, again), policy.apply(version, fresh))


def test_a_class_and_its_name_are_the_same_setting():
    assert FlaxMemory(nn.GRUCell, 8) == FlaxMemory("GRUCell", 8)
    assert EquinoxMemory(eqx.nn.LSTMCell, 8)(SPEC) == EquinoxMemory("LSTMCell", 8)(SPEC)
    assert repr(FlaxMemory(nn.GRUCell, 8)).startswith("FlaxMemory(cell='GRUCell', width=8")
    wide = functools.partial(nn.GRUCell, carry_init=nn.initializers.ones)
    assert FlaxMemory(wide, 3)(SPEC).initial_memory(2).tolist() == [[1.0] * 3] * 2


def test_pieces_are_joined_with_the_memory_of_the_first():
    stage = Stage(Policy(SPEC, Counter()), length=8)
    pieces = [stage.roll(seed)[0] for seed in range(3)]
    whole = join(pieces).trajectory
    assert whole.valid.shape == (24, 1)
    assert whole.value.shape == (25, 1)
    assert whole.memory.tolist() == [[100]]
    assert pieces[1].trajectory.memory[0, 0] > 100


@pytest.mark.slow
def test_continuous_actions():
    spec = EnvSpec("Aim", np.zeros(3), actions=2, discrete=False)
    for factory in FACTORIES.values():
        policy = factory(spec)
        sequences = Sequences(np.ones((5, 3, 3), np.float32), np.zeros((5, 3), bool), policy.initial_memory(1, 3))
        distribution, value = policy.apply(version_of(policy).value, sequences)
        assert distribution.log_prob(jnp.zeros((5, 3, 2))).shape == value.shape == (5, 3)


def test_the_memory_counts_as_bytes_of_a_fragment():
    small, large = (EquinoxMemory(eqx.nn.LSTMCell, width, ())(SPEC) for width in (8, 16))
    assert fragment_bytes(large, 10) - fragment_bytes(small, 10) == 2 * 8 * 4


class TestRefusals:
    def test_a_cell_is_no_network(self):
        with pytest.raises(
            TypeError, match=r"(?s)GRUCell.* is a recurrent cell.*pass policy=FlaxMemory\(cell, width\)"
        ):
            Policy(SPEC, nn.GRUCell(8))

    @pytest.mark.parametrize("cell", [nn.GRUCell(8), nn.OptimizedLSTMCell(8), nn.RNN(nn.SimpleCell(8))])
    def test_a_flax_network_that_starts_its_cell_at_every_step(self, cell):
        class Forgetful(nn.Module):
            cell: nn.Module

            @nn.compact
            def __call__(self, x):
                if isinstance(self.cell, nn.RNN):
                    y = self.cell(x[..., None, :])[..., 0, :]
                else:
                    _, y = self.cell(self.cell.initialize_carry(jax.random.key(0), x.shape), x)
                return nn.Dense(2)(y), nn.Dense(1)(y)[..., 0]

        with pytest.raises(TypeError, match=r"Forgetful on CartPole-v1 has a recurrent cell, \w+Cell, but the network"):
            Policy(SPEC, Forgetful(cell)).init(jax.random.key(0))

    @pytest.mark.slow
    def test_a_cell_may_read_an_axis_of_an_observation(self):
        class Reader(nn.Module):
            @nn.compact
            def __call__(self, frames):
                y = nn.RNN(nn.GRUCell(8))(frames)[..., -1, :]
                return nn.Dense(2)(y), nn.Dense(1)(y)[..., 0]

        frames = EnvSpec("Frames", np.zeros((6, 4)), actions=2, discrete=True)
        policy = Policy(frames, Reader())
        assert policy.apply(version_of(policy).value, np.ones((3, 6, 4), np.float32))[1].shape == (3,)

    def test_an_equinox_network_that_starts_its_cell_at_every_step(self):
        @dataclass(frozen=True)
        class Forgetful:
            def init(self, key, observation):
                return {"cell": eqx.filter(eqx.nn.GRUCell(4, 8, key=key), eqx.is_array)}

            def apply(self, params, observation):
                raise NotImplementedError

        with pytest.raises(TypeError, match="Forgetful on CartPole-v1 has a recurrent cell, GRUCell"):
            Policy(SPEC, Forgetful()).init(jax.random.key(0))

    def test_observations_without_a_memory(self):
        policy = FACTORIES["flax gru"](SPEC)
        with pytest.raises(TypeError, match=r"Remembering on CartPole-v1 has a memory.*stellaris.memory.Sequences"):
            policy.act(version_of(policy).value, np.zeros((1, 4)), policy.noise(jax.random.key(0), 1))

    @pytest.mark.parametrize("cell", [8, "Dense", "NoCell", nn.ConvLSTMCell, nn.GRUCell(8), nn.RNN])
    def test_what_is_no_cell_of_flax(self, cell):
        with pytest.raises(TypeError, match=r"(?s)cell=.* is not the class of a cell of flax\.linen on vectors"):
            FlaxMemory(cell)

    def test_settings_that_do_not_fit(self):
        with pytest.raises(TypeError, match=r"expected equinox\.nn\.GRUCell or"):
            EquinoxMemory(eqx.nn.Linear)
        with pytest.raises(TypeError, match="not a tuple of widths"):
            FlaxMemory("GRUCell", hidden=8)
        for memory in (FlaxMemory, EquinoxMemory):
            with pytest.raises(ValueError, match="width=0"):
                memory("GRUCell", 0)

    def test_a_network_that_returns_no_memory(self):
        class Two(Counter):
            def apply(self, params, observation, memory):
                return super().apply(params, observation, memory)[:2]

        with pytest.raises(TypeError, match="expected three results"):
            _ = Policy(SPEC, Two()).action


class TestTMaze:
    def test_only_the_turn_that_the_cue_says_pays(self):
        maze = TMaze(length=3, time_limit=6)
        cues = set()
        for seed in range(8):
            for turn in (1, 2):
                state, first = maze.reset(jax.random.key(seed))
                cues.add(float(first[0]))
                for action in (0, 2, 0, 0):
                    state, seen, reward, terminated, truncated = maze.step(state, jnp.int32(action), jax.random.key(0))
                    assert (float(reward), bool(terminated), bool(truncated)) == (0.0, False, False)
                assert seen.tolist() == [0.0, 1.0]
                *_, reward, terminated, truncated = maze.step(state, jnp.int32(turn), jax.random.key(0))
                assert float(reward) == (turn == (1 if first[0] < 0 else 2))
                assert (bool(terminated), bool(truncated)) == (True, False)
        assert cues == {-1.0, 1.0}

    def test_the_time_limit_truncates(self):
        maze = TMaze(length=3, time_limit=4)
        state, _ = maze.reset(jax.random.key(0))
        ends = []
        for _ in range(4):
            state, _, _, terminated, truncated = maze.step(state, jnp.int32(1), jax.random.key(0))
            ends.append((bool(terminated), bool(truncated)))
        assert ends == [(False, False)] * 3 + [(False, True)]

    def test_numbers_out_of_range(self):
        with pytest.raises(ValueError, match="length=0"):
            TMaze(length=0)
        with pytest.raises(ValueError, match="time_limit=10"):
            TMaze(length=10, time_limit=10)
