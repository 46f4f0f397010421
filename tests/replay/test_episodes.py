"""From fragments to whole episodes, by hand and on runs of systems."""

from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stellaris.acting.normalisation import Statistics
from stellaris.acting.policies import ActorCritic, Policy
from stellaris.acting.rollout import Fragment
from stellaris.acting.vector import EnvSpec
from stellaris.replay import Episodes, check, columns_of, init, insert
from stellaris.runtime import Faults, Retry, SimulatedPlatform
from stellaris.runtime.delays import Constant
from stellaris.systems import Budget, Stellaris, Synchronous, train
from stellaris.types import Trajectory
from tests.systems import tiny

RESET = 0.0  # the reward of a step that only resets


def fragment(rewards, *, slot=0, first=0, environment=7, version=0, terminated=(), unfinished=0):
    """Of these rewards, where 0 resets; an observation is its step's reward, negative, and the last is -99."""
    reward = np.array(rewards, np.float32)[:, None]
    ended = np.zeros(reward.shape, bool)
    ended[list(terminated)] = True
    return Fragment(
        Trajectory(
            observation=np.append(-reward, [[-99.0]], axis=0)[..., None].astype(np.float32),
            action=(10 * reward).astype(np.int32),
            reward=reward,
            terminated=ended,
            valid=reward != RESET,
            log_prob=reward / 2,
            value=np.zeros((len(reward) + 1, 1), np.float32),
            version=np.full(reward.shape, version, np.int32),
        ),
        Statistics.empty(()),
        (),
        slot=slot,
        first=first,
        environment=environment,
        unfinished=unfinished,
    )


def rewards(batch):
    return [row[:length].tolist() for row, length in zip(batch.columns["reward"], batch.length.tolist(), strict=True)]


def taken(episodes):
    return rewards(episodes.take(len(episodes))) if len(episodes) else []


def test_an_episode_across_borders():
    """Three fragments, of three versions: an episode ends within the second, the next one at the end of the third."""
    episodes = Episodes(length=6)
    episodes.add(fragment([1, 2, 3], version=4, unfinished=3))
    assert len(episodes) == 0
    episodes.add(fragment([5, RESET, 6], first=3, version=5, terminated=[0], unfinished=1))
    assert len(episodes) == 1
    episodes.add(fragment([7, 8, 9], first=6, version=6))
    batch = episodes.take(2)
    assert batch.columns["reward"].tolist() == [[1, 2, 3, 5, 0, 0], [6, 7, 8, 9, 0, 0]]
    assert batch.columns["observation"][..., 0].tolist() == [[-1, -2, -3, -5, 0, 0], [-6, -7, -8, -9, 0, 0]]
    assert batch.columns["action"].tolist() == [[10, 20, 30, 50, 0, 0], [60, 70, 80, 90, 0, 0]]
    assert batch.columns["log_prob"].tolist() == [[0.5, 1, 1.5, 2.5, 0, 0], [3, 3.5, 4, 4.5, 0, 0]]
    # The first was terminated, the second only cut off.
    assert batch.columns["terminated"].tolist() == [[False, False, False, True, False, False], [False] * 6]
    assert batch.length.tolist() == [4, 4]
    assert batch.version.tolist() == [4, 5]
    assert batch.columns["observation"].dtype == np.float32
    assert batch.columns["action"].dtype == np.int32
    assert len(episodes) == 0


#: Fragments, and the complete episodes of at most five steps in them.
WHOLE = {
    # The step that resets may be the first of the next fragment, or the last of this one.
    "an end at a border": (
        (
            fragment([1, 2]),
            fragment([RESET, 3], first=2, unfinished=1),
            fragment([4, RESET], first=4),
            fragment([5, 6], first=6),
        ),
        [[1, 2], [3, 4], [5, 6]],
    ),
    "several slots": (
        (
            fragment([1, 2], slot=0, unfinished=2),
            fragment([11, 12], slot=3, unfinished=2),
            fragment([13, RESET], slot=3, first=2),
            fragment([3, 4], slot=0, first=2),
        ),
        [[11, 12, 13], [1, 2, 3, 4]],
    ),
    "an episode that is too long": (
        (fragment([1, 2, 3, 4], unfinished=4), fragment([5, 6, RESET, 7, 8], first=4)),
        [[7, 8]],
    ),
    # The environment that takes its slot begins with an episode of its own.
    "an environment that was lost": (
        (
            fragment([1, 2], unfinished=2),
            fragment([3, 4, RESET, 5], environment=8, unfinished=1),
            fragment([6, 7], environment=8, first=4),
        ),
        [[3, 4], [5, 6, 7]],
    ),
    # Of a run that was resumed, and behind a fragment that is missing: 68 was due.
    "a beginning that nobody has seen": (
        (
            fragment([1, 2, RESET, 3], first=64, unfinished=1),
            fragment([4, RESET, 5, 6], first=70, unfinished=2),
            fragment([7, 8], first=74),
        ),
        [[5, 6, 7, 8]],
    ),
    "fragments that restart": (
        (fragment([1, 2, 3], environment=0, unfinished=1), fragment([4, RESET, 5], environment=0, unfinished=1)),
        [[4]],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_episodes_by_hand(name):
    episodes, (fragments, whole) = Episodes(length=5), WHOLE[name]
    for one in fragments:
        episodes.add(one)
    assert taken(episodes) == whole
    assert episodes.too_long == (name == "an episode that is too long")


def test_batches_have_one_shape():
    episodes = Episodes(length=4)
    episodes.add(fragment([1, RESET, 2, RESET, 3]))
    assert rewards(episodes.take(2)) == [[1], [2]]
    assert episodes.take(2) is None
    assert rewards(episodes.take(1)) == [[3]]


@pytest.mark.parametrize("make", [lambda: Episodes(length=0), lambda: Episodes(length=3).take(0)])
def test_numbers_below_one(make):
    with pytest.raises(ValueError, match=r"(length|batch)=0"):
        make()


def test_fragments_are_not_kept():
    episodes = Episodes(length=4)
    one = fragment([1, 2])
    episodes.add(one)
    one.trajectory.reward[:] = 5
    assert taken(episodes) == [[1, 2]]


@given(
    lengths=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=3),
    steps=st.integers(1, 7),
    order=st.randoms(use_true_random=False),
)
def test_however_it_is_cut(lengths, steps, order):
    """Environments' streams of episodes, cut into fragments and delivered in any order of the environments."""
    queues, expected, too_long = [], [], 0
    for slot, of_slot in enumerate(lengths):
        whole = [[100.0 * slot + 10 * i + t + 1 for t in range(n)] for i, n in enumerate(of_slot)]
        stream = [reward for episode in whole for reward in (*episode, RESET)]
        under_way = -len(stream) % steps  # steps of an episode that does not end
        stream += [1.0] * under_way
        too_long += sum(n > 4 for n in (*of_slot, under_way))
        expected += [episode for episode in whole if len(episode) <= 4]
        queue = []
        for first in range(0, len(stream), steps):
            part = stream[first : first + steps]
            after = [*part, *stream[first + steps : first + steps + 1]]
            ended = part[-1] == RESET or after[-1] == RESET
            queue.append(fragment(part, slot=slot, first=first, unfinished=0 if ended else 1))
        queues.append(queue)
    episodes = Episodes(length=4)
    while any(queues):
        episodes.add(order.choice([queue for queue in queues if queue]).pop(0))
    assert sorted(taken(episodes)) == sorted(expected)
    assert episodes.too_long == too_long


def test_a_tree_of_observations():
    spec = EnvSpec("Maze", {"map": np.zeros((2, 2), np.uint8), "at": (np.zeros(3, np.float32),)}, 4, discrete=True)

    class Network:
        def init(self, key, observation):
            return {}

        def apply(self, params, observation):
            batch = observation["map"].shape[:-2]
            return jnp.zeros((*batch, 4)), jnp.zeros(batch)

    columns = columns_of(Policy(spec, Network()))
    assert {name: (column.shape, column.dtype.name) for name, column in columns.items()} == {
        "observation.at.0": ((3,), "float32"),
        "observation.map": ((2, 2), "uint8"),
        "action": ((), "int32"),
        "reward": ((), "float32"),
        "terminated": ((), "bool"),
        "log_prob": ((), "float32"),
    }
    episodes = Episodes(length=2)
    one = fragment([1, 2])
    observation = {"map": np.ones((3, 1, 2, 2), np.uint8), "at": (np.full((3, 1, 3), 5, np.float32),)}
    episodes.add(one._replace(trajectory=one.trajectory._replace(observation=observation)))
    batch = episodes.take(1)
    assert batch.columns["observation.at.0"].tolist() == [[[5.0] * 3] * 2]
    table = insert(init(columns, capacity=1, length=2), **batch._asdict())
    assert table.columns["observation.map"].shape == (1, 2, 2, 2)


@pytest.mark.parametrize("dtype", [np.float64, jnp.bfloat16])
def test_log_probabilities_of_any_precision(dtype):
    """They fit the columns of a policy, also those of continuous actions, which are float64 with x64."""
    one = fragment([1, 2])
    episodes = Episodes(length=2)
    with jax.enable_x64(True):
        spec = EnvSpec("Pendulum-v1", np.zeros(1, np.float32), 1, discrete=False)
        columns = columns_of(ActorCritic(hidden=(8,))(spec))
        action = np.ones((2, 1, 1), columns["action"].dtype)
        log_prob = one.trajectory.log_prob.astype(dtype)
        episodes.add(one._replace(trajectory=one.trajectory._replace(action=action, log_prob=log_prob)))
        table = insert(init(columns, capacity=1, length=2), **episodes.take(1)._asdict())
        assert table.columns["log_prob"].tolist() == [[0.5, 1.0]]


SYSTEMS = {
    "synchronous": (Synchronous(tiny.PPO_CONFIG), {}),
    "stellaris": (Stellaris(tiny.PPO_CONFIG, learners=2), {}),
    "in pieces": (Stellaris(tiny.PPO_CONFIG, learners=2), {"refresh": 4}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_run_fills_a_table(name):
    """With all of its episodes, as its trace has them, in the columns that its policy says."""
    system, changes = SYSTEMS[name]
    workload = replace(tiny.WORKLOAD, **changes)
    episodes, functions = Episodes(length=500), tiny.deployment()
    result = tiny.run(system, functions, workload=workload, budget=Budget(steps=20 * 32), on_fragment=episodes.add)
    lengths = result.trace.select("episode_length").value
    assert len(episodes) == len(lengths) > 5
    batch = episodes.take(len(episodes))
    assert sorted(batch.length.tolist()) == sorted(lengths.tolist())
    np.testing.assert_array_equal(batch.columns["reward"].sum(1), batch.length)  # CartPole's is 1 a step
    assert 0 == batch.version.min() < batch.version.max() <= result.history[-1]["version"]
    columns = columns_of(ActorCritic(hidden=(8,))(EnvSpec("CartPole-v1", np.zeros(4, np.float32), 2, discrete=True)))
    table = insert(init(columns, capacity=len(lengths), length=500), **batch._asdict())
    check(table)
    np.testing.assert_array_equal(table.columns["terminated"].sum(1), 1)
    np.testing.assert_array_equal(table.length, batch.length)


@pytest.mark.slow
@pytest.mark.parametrize("lose", [0.0, 0.2])
def test_containers_that_die(lose):
    """What is not whole is left out, as a container has died or a fragment was lost; the rest is there."""
    episodes = Episodes(length=500)
    faults = Faults(crash_during=0.1, lose=lose, duplicate=lose, notice_after=Constant(0.5))
    functions, system = tiny.deployment(retry=Retry(limit=99)), Synchronous(tiny.PPO_CONFIG)
    with SimulatedPlatform(functions, threads=1, faults={"actor": faults}) as platform:
        how = {"platform": platform, "budget": Budget(steps=40 * 32), "on_fragment": episodes.add}
        result = train(system, tiny.WORKLOAD, **how)
    known = Counter(result.trace.select("episode_length").value.astype(int).tolist())
    batch = episodes.take(len(episodes))
    found = Counter(batch.length.tolist())
    assert len(result.trace.select("lost_episode").value) > 0
    if lose:  # the trace counts an episode, too, of which a fragment was lost
        assert len(known) / 2 < len(found)
        assert found < known
    else:
        assert found == known
    np.testing.assert_array_equal(batch.columns["terminated"].sum(1), 1)
