"""What is known of an environment, and what every vector environment does, on real ones."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from stellaris._core.describe import describe
from stellaris.acting.vector import EnvSpec, VectorEnv
from tests.acting.environments import array, every_cartpole, every_environment, new, random_actions, rows, same

SENSORS = {"position": array(1), "picture": array(2, 9, dtype=np.uint8)}


def test_a_specification_is_a_value():
    """Equal and of one hash if all is equal, whatever the order of a dictionary; whatever differs tells two apart."""
    spec = EnvSpec("Maze-v0", SENSORS, 4, True)
    same_again = EnvSpec("Maze-v0", dict(reversed(SENSORS.items())), 4, True)
    assert spec == same_again
    assert hash(spec) == hash(same_again)
    others = [
        EnvSpec("Maze-v1", SENSORS, 4, True),
        EnvSpec("Maze-v0", SENSORS, 5, True),
        EnvSpec("Maze-v0", SENSORS, 4, True, start=1),
        EnvSpec("Maze-v0", {**SENSORS, "position": array(2)}, 4, True),
        EnvSpec("Maze-v0", {**SENSORS, "position": array(1, dtype=np.int32)}, 4, True),
        EnvSpec("Maze-v0", (array(1), array(2, 9, dtype=np.uint8)), 4, True),
    ]
    assert len({spec, same_again, *others}) == 1 + len(others)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert describe(spec) == describe(same_again) != describe(others[3])


@pytest.mark.parametrize(
    ("given", "recorded"),
    [(float, np.float32), (int, np.int32), (np.uint64, np.uint32), *((t, t) for t in (np.float16, np.uint8, bool))],
)
def test_types_in_which_observations_are_recorded(given, recorded):
    """At most 32 bits for a number; bytes stay bytes."""
    assert EnvSpec("Own-v0", {"a": np.zeros((2, 3), given)}, 2, True).observation == {"a": array(2, 3, dtype=recorded)}


def own(observation):
    return EnvSpec("Own-v0", observation, 2, True)


FITS = {"position": np.zeros(1), "picture": np.zeros((2, 9), np.uint8)}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: own((4,)), TypeError, r"observation has a leaf 4: expected a shape and a numeric dtype"),
        (lambda: own({"a": "x"}), TypeError, r"observation has a leaf 'x'"),
        (lambda: own(np.zeros(2, object)), TypeError, r"observation has a leaf array"),
        (lambda: own(np.zeros(2, complex)), TypeError, r"observation has a leaf array"),
        (lambda: own({}), TypeError, r"observation={} holds no array"),
        (lambda: own(SENSORS).observation_shape, ValueError, r"an observation is not one array: {'picture'"),
        (
            lambda: own(SENSORS).check({"position": np.zeros(1)}),
            ValueError,
            r".*has the structure PyTreeDef\({'position': \*}\): its space says .*'picture'",
        ),
        (
            lambda: own(SENSORS).check(FITS | {"position": np.zeros(2)}),
            ValueError,
            r".*observation\['position'\] has shape \(2,\) and type float64: its space says \(1,\) and float32",
        ),
        (
            lambda: own(SENSORS).check(FITS | {"picture": np.zeros((2, 9))}),
            ValueError,
            r".*observation\['picture'\] has shape \(2, 9\) and type float64: its space says \(2, 9\) and uint8",
        ),
    ],
)
def test_observations_that_do_not_fit(make, error, message):
    own(SENSORS).check(FITS)
    with pytest.raises(error, match=f"^Own-v0: {message}"):
        make()


@every_environment
def test_shapes(name):
    """A row a slot that was asked for, as the specification says; rewards are float32, ends are booleans."""
    env, rng = new(name, 5), np.random.default_rng(0)
    assert isinstance(env, VectorEnv)
    env.spec.check(jax.tree.map(lambda column: column[4], env.reset(np.arange(5))))
    for slots in ([2], [4, 0, 3], [0, 1, 2, 3, 4]):
        step = env.step(np.array(slots), random_actions(env.spec, len(slots), rng))
        assert {len(column) for column in jax.tree.leaves(step.observation)} == {len(slots)}
        for i in range(len(slots)):
            env.spec.check(jax.tree.map(lambda column, i=i: column[i], step.observation))
        assert {column.shape for column in step[1:]} == {(len(slots),)}
        assert [column.dtype for column in step[1:]] == [np.float32, bool, bool]


@every_environment
def test_subsets_of_slots(name):
    """A slot's episode depends on its own steps alone: any subsets in any order agree with slots stepped one by one."""
    together, alone, rng = new(name, 4, seed=3), new(name, 4, seed=3), np.random.default_rng(1)
    singles = [alone.reset(np.array([slot])) for slot in (2, 0, 3, 1)]
    same(together.reset(np.array([2, 0, 3, 1])), rows(*singles))
    for _ in range(60):
        slots = rng.permutation(4)[: rng.integers(1, 5)]
        actions = random_actions(together.spec, len(slots), rng)
        step = together.step(slots, actions)
        singles = [alone.step(slots[i : i + 1], actions[i : i + 1]) for i in range(len(slots))]
        same(step, rows(*singles))


@every_environment
def test_what_a_call_gave_stays(name):
    """Later steps do not write into the observations of earlier ones."""
    env, rng = new(name, 2), np.random.default_rng(0)
    kept = [env.reset(np.arange(2))]
    copies = [jax.tree.map(np.copy, kept[0])]
    for _ in range(5):
        kept.append(env.step(np.arange(2), random_actions(env.spec, 2, rng)).observation)
        copies.append(jax.tree.map(np.copy, kept[-1]))
    same(kept, copies)
    if "taxi" not in name:  # which may stand still
        assert len({b"".join(x.tobytes() for x in jax.tree.leaves(observation)) for observation in copies}) > 3


@every_environment
def test_seeds(name):
    """Slot `i` has seed `seed + i`; equal seeds give equal episodes, and they differ from one another."""
    a, b, rng = new(name, 3, seed=7), new(name, 3, seed=8), np.random.default_rng(0)
    first, second = a.reset(np.arange(3)), b.reset(np.arange(3))
    same(jax.tree.map(lambda column: column[1:], first), jax.tree.map(lambda column: column[:2], second))
    if "taxi" not in name:
        assert any(not np.array_equal(column[0], column[1]) for column in jax.tree.leaves(first))
    for _ in range(50):
        actions = random_actions(a.spec, 3, rng)
        x, y = a.step(np.arange(3), actions), b.step(np.arange(3), np.roll(actions, -1, axis=0))
        same(jax.tree.map(lambda column: column[1:], x), jax.tree.map(lambda column: column[:2], y))
    if "taxi" not in name:  # its second episode is another one
        again = a.reset(np.array([0]))
        assert any(not np.array_equal(x[0], y[0]) for x, y in zip(*map(jax.tree.leaves, (again, first)), strict=True))


@every_environment
def test_calls_from_any_thread(name):
    """Threads that step slots of their own at the same time disturb neither each other nor the results."""

    def walk(env, slots):
        rng = np.random.default_rng(slots[0])
        return [env.step(slots, random_actions(env.spec, len(slots), rng)).observation for _ in range(60)]

    groups = np.array([0, 1]), np.array([2]), np.array([3, 4, 5])
    one, many = new(name, 6), new(name, 6, threads=2)
    one.reset(np.arange(6))
    many.reset(np.arange(6))
    expected = [walk(one, slots) for slots in groups]
    with ThreadPoolExecutor(3) as pool:
        got = list(pool.map(lambda slots: walk(many, slots), groups))
    same(expected, got)


@every_cartpole
def test_termination_and_reset(name):
    """A pole that is pushed one way falls; the step after its end only resets, pays nothing and ignores its action."""
    env, same = new(name, 2), new(name, 2)
    for e in (env, same):
        e.reset(np.arange(2))
    for episode in range(2):
        for length in range(1, 30):  # noqa: B007
            step = env.step(np.array([0]), np.array([1]))
            same.step(np.array([0]), np.array([1]))
            assert step.reward.tolist() == [1.0]
            if step.terminated[0]:
                break
        assert 7 < length < 13
        assert not step.truncated[0]
        assert abs(step.observation[0, 2]) > 0.2095  # the observation at the end is its last, fallen over
        resets = env.step(np.array([0]), np.array([0])), same.step(np.array([0]), np.array([1]))
        for reset in resets:
            assert [column.tolist() for column in reset[1:]] == [[0.0], [False], [False]]
            assert np.all(np.abs(reset.observation) <= 0.05), episode
        np.testing.assert_array_equal(resets[0].observation, resets[1].observation)


def balance(observation: np.ndarray) -> np.ndarray:
    """A controller that holds CartPole's pole up for as long as it is let."""
    position, velocity, angle, rotation = observation.T
    return (angle + 0.5 * rotation + 0.05 * position + 0.1 * velocity > 0).astype(np.int32)


@every_cartpole
def test_truncation(name):
    """A pole held up is cut off after 500 steps, which is no termination; the next step resets."""
    env = new(name, 3)
    observation = env.reset(np.arange(3))
    for t in range(1, 502):
        step = env.step(np.arange(3), balance(observation))
        observation = step.observation
        assert not step.terminated.any()
        assert step.truncated.tolist() == [t == 500] * 3
        assert step.reward.tolist() == [float(t <= 500)] * 3
    assert np.all(np.abs(observation) <= 0.05)


@every_cartpole
def test_reset_in_the_middle(name):
    """A slot that is reset by hand starts an episode anew, also where the last one had just ended; others go on."""
    env, undisturbed = new(name, 2), new(name, 2)
    for e in (env, undisturbed):
        e.reset(np.arange(2))
    for pushes in (3, 30):
        for _ in range(pushes):
            if env.step(np.array([0]), np.array([1])).terminated[0]:
                break
        fresh = env.reset(np.array([0]))
        assert np.all(np.abs(fresh) <= 0.05)
        step = env.step(np.array([0]), np.array([1]))
        assert step.reward.tolist() == [1.0]  # a transition, no reset
        assert not np.array_equal(step.observation, fresh)
    other, expected = (e.step(np.array([1]), np.array([1])) for e in (env, undisturbed))
    assert other.reward.tolist() == [1.0]
    np.testing.assert_array_equal(other.observation, expected.observation)


@pytest.mark.parametrize(("name", "bound"), [("pool hopper", 1.0), ("gym pendulum", 2.0)])
def test_actions_are_clipped(name, bound):
    """Beyond a bound is at the bound, in what happens and in what it costs; within them nothing changes."""
    results = []
    for factor in (1.0, 7.0, 0.5):
        env = new(name, 2)
        env.reset(np.arange(2))
        extreme = np.full((2, env.spec.actions), factor * bound) * np.array([[1.0], [-1.0]])
        for _ in range(3):
            step = env.step(np.arange(2), extreme)
        results.append((step.observation, step.reward))
        assert (np.abs(extreme) == factor * bound).all()  # the caller's array is left as it was
    for column in range(2):
        np.testing.assert_array_equal(results[0][column], results[1][column])
        assert not np.array_equal(results[0][column], results[2][column])
