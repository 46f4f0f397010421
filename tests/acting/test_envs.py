"""Vector environments, on real ones."""

from concurrent.futures import ThreadPoolExecutor

import envpool
import gymnasium
import jaxtyping
import numpy as np
import pytest

from stellaris.acting.envs import EnvPoolEnv, EnvSpec, GymnasiumEnv, VectorEnv, make

#: CartPole and Hopper by EnvPool, CartPole and Pendulum by Gymnasium, and Taxi, which Gymnasium alone has.
ENVIRONMENTS = {
    "pool cartpole": lambda slots, seed=0, threads=1: make("CartPole-v1", slots=slots, seed=seed, threads=threads),
    "pool hopper": lambda slots, seed=0, threads=1: make("Hopper-v4", slots=slots, seed=seed, threads=threads),
    "gym cartpole": lambda slots, seed=0, threads=1: GymnasiumEnv("CartPole-v1", slots=slots, seed=seed),
    "gym pendulum": lambda slots, seed=0, threads=1: GymnasiumEnv("Pendulum-v1", slots=slots, seed=seed),
    "gym taxi": lambda slots, seed=0, threads=1: make("Taxi-v4", slots=slots, seed=seed, threads=threads),
}
every_environment = pytest.mark.parametrize("new", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
every_cartpole = pytest.mark.parametrize("new", [ENVIRONMENTS[f"{library} cartpole"] for library in ("pool", "gym")])


def random_actions(spec: EnvSpec, n: int, rng) -> np.ndarray:
    """Any `n` actions, some of them out of bounds."""
    return rng.integers(spec.actions, size=n) if spec.discrete else rng.normal(0.0, 2.0, (n, spec.actions))


def balance(observation: np.ndarray) -> np.ndarray:
    """A controller that holds CartPole's pole up for as long as it is let."""
    position, velocity, angle, rotation = observation.T
    return (angle + 0.5 * rotation + 0.05 * position + 0.1 * velocity > 0).astype(np.int32)


@pytest.mark.parametrize(
    ("name", "kind", "spec"),
    [
        ("CartPole-v1", EnvPoolEnv, EnvSpec("CartPole-v1", (4,), 2, True)),
        ("Hopper-v4", EnvPoolEnv, EnvSpec("Hopper-v4", (11,), 3, False, (-1.0,) * 3, (1.0,) * 3, action_shape=(3,))),
        ("Taxi-v4", GymnasiumEnv, EnvSpec("Taxi-v4", (), 6, True)),
    ],
)
def test_make(name, kind, spec):
    """EnvPool's where it has one of this name, Gymnasium's otherwise; with what a policy must know of it."""
    env = make(name, slots=2)
    assert type(env) is kind
    assert isinstance(env, VectorEnv)
    assert env.spec == spec
    pendulum = EnvSpec("Pendulum-v1", (3,), 1, False, (-2.0,), (2.0,), action_shape=(1,))
    assert GymnasiumEnv("Pendulum-v1", slots=1).spec == pendulum
    assert hash(GymnasiumEnv("Pendulum-v1", slots=2).spec) == hash(pendulum)  # policies are looked up by it


@every_environment
def test_shapes(new):
    """A row a slot that was asked for, in the order of asking; rewards are float32, ends are booleans."""
    env, rng = new(5), np.random.default_rng(0)
    assert env.reset(np.arange(5)).shape == (5, *env.spec.observation_shape)
    for slots in ([2], [4, 0, 3], [0, 1, 2, 3, 4]):
        step = env.step(np.array(slots), random_actions(env.spec, len(slots), rng))
        assert step.observation.shape == (len(slots), *env.spec.observation_shape)
        assert {column.shape for column in step[1:]} == {(len(slots),)}
        assert [column.dtype for column in step[1:]] == [np.float32, bool, bool]


@every_environment
def test_subsets_of_slots(new):
    """A slot's episode depends on its own steps alone: any subsets in any order agree with slots stepped one by one."""
    together, alone, rng = new(4, seed=3), new(4, seed=3), np.random.default_rng(1)
    np.testing.assert_array_equal(
        together.reset(np.array([2, 0, 3, 1])),
        np.concatenate([alone.reset(np.array([slot])) for slot in (2, 0, 3, 1)]),
    )
    for _ in range(60):
        slots = rng.permutation(4)[: rng.integers(1, 5)]
        actions = random_actions(together.spec, len(slots), rng)
        step = together.step(slots, actions)
        singles = [alone.step(slots[i : i + 1], actions[i : i + 1]) for i in range(len(slots))]
        for column, parts in zip(step, zip(*singles, strict=True), strict=True):
            np.testing.assert_array_equal(column, np.concatenate(parts))


@every_environment
def test_what_a_call_gave_stays(new):
    """Later steps do not write into the observations of earlier ones."""
    env, rng = new(2), np.random.default_rng(0)
    kept = [env.reset(np.arange(2))]
    copies = [kept[0].copy()]
    for _ in range(5):
        kept.append(env.step(np.arange(2), random_actions(env.spec, 2, rng)).observation)
        copies.append(kept[-1].copy())
    np.testing.assert_array_equal(kept, copies)
    if env.spec.observation_shape:
        assert len({observation.tobytes() for observation in copies}) == 6


@every_environment
def test_seeds(new):
    """Slot `i` has seed `seed + i`; equal seeds give equal episodes, and they differ from one another."""
    a, b, rng = new(3, seed=7), new(3, seed=8), np.random.default_rng(0)
    first, second = a.reset(np.arange(3)), b.reset(np.arange(3))
    np.testing.assert_array_equal(first[1:], second[:2])
    if a.spec.observation_shape:
        assert not np.array_equal(first[0], first[1])
    for _ in range(50):
        actions = random_actions(a.spec, 3, rng)
        x, y = a.step(np.arange(3), actions), b.step(np.arange(3), np.roll(actions, -1, axis=0))
        for column, other in zip(x, y, strict=True):
            np.testing.assert_array_equal(column[1:], other[:2])
    if a.spec.observation_shape:
        assert not np.array_equal(a.reset(np.array([0])), first[:1])  # its second episode is another one


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
def test_seeds_are_the_libraries_own():
    """The first slot's first episode is that of the library under the same seed."""
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=1, seed=7).reset()[0]
    np.testing.assert_array_equal(make("CartPole-v1", slots=2, seed=7).reset(np.array([0])), pool)
    single = gymnasium.make("Taxi-v4").reset(seed=7)[0]
    assert make("Taxi-v4", slots=2, seed=7).reset(np.array([0])).tolist() == [single]


@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v4"])
def test_threads_do_not_matter(name):
    """EnvPool's threads, more than there are slots even, give the same bytes."""
    runs = []
    for threads in (1, 3, 9):
        env, rng = make(name, slots=6, seed=2, threads=threads), np.random.default_rng(5)
        run = [env.reset(np.arange(6))]
        for _ in range(40):
            slots = rng.permutation(6)[: rng.integers(1, 7)]
            run.extend(env.step(slots, random_actions(env.spec, len(slots), rng)))
        runs.append([column.tobytes() for column in run])
    assert runs[0] == runs[1] == runs[2]


@every_environment
def test_calls_from_any_thread(new):
    """Threads that step slots of their own at the same time disturb neither each other nor the results."""

    def walk(env, slots):
        rng = np.random.default_rng(slots[0])
        return [env.step(slots, random_actions(env.spec, len(slots), rng)).observation for _ in range(60)]

    groups = np.array([0, 1]), np.array([2]), np.array([3, 4, 5])
    one, many = new(6), new(6, threads=2)
    one.reset(np.arange(6))
    many.reset(np.arange(6))
    expected = [walk(one, slots) for slots in groups]
    with ThreadPoolExecutor(3) as pool:
        got = list(pool.map(lambda slots: walk(many, slots), groups))
    for a, b in zip(expected, got, strict=True):
        np.testing.assert_array_equal(a, b)


@every_cartpole
def test_termination_and_reset(new):
    """A pole that is pushed one way falls; the step after its end only resets, pays nothing and ignores its action."""
    env, same = new(2), new(2)
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


@every_cartpole
def test_truncation(new):
    """A pole held up is cut off after 500 steps, which is no termination; the next step resets."""
    env = new(3)
    observation = env.reset(np.arange(3))
    for t in range(1, 502):
        step = env.step(np.arange(3), balance(observation))
        observation = step.observation
        assert not step.terminated.any()
        assert step.truncated.tolist() == [t == 500] * 3
        assert step.reward.tolist() == [float(t <= 500)] * 3
    assert np.all(np.abs(observation) <= 0.05)


def test_the_time_limit_of_gymnasium():
    """A taxi that only drives south never arrives: 200 steps at -1, one reset, and again."""
    env = make("Taxi-v4", slots=2)
    env.reset(np.arange(2))
    steps = [env.step(np.arange(2), np.zeros(2, int)) for _ in range(402)]
    cut = [t for t, step in enumerate(steps) if step.truncated.all()]
    assert cut == [199, 400]
    assert sum(int(step.truncated.sum() + step.terminated.sum()) for step in steps) == 4
    np.testing.assert_array_equal([step.reward[0] for step in steps], [-1.0] * 200 + [0.0] + [-1.0] * 200 + [0.0])


def test_hopper_falls():
    """Under a constant push it terminates, the reward of an episode's last step counts, and its reset pays nothing."""
    env = make("Hopper-v4", slots=1)
    env.reset(np.array([0]))
    steps = [env.step(np.array([0]), np.ones((1, 3))) for _ in range(200)]
    ends = [t for t, step in enumerate(steps) if step.terminated[0]]
    assert len(ends) > 3
    assert not any(step.truncated[0] for step in steps)
    assert [t for t, step in enumerate(steps) if step.reward[0] == 0] == [t + 1 for t in ends if t < 199]


@every_cartpole
def test_reset_in_the_middle(new):
    """A slot that is reset by hand starts an episode anew, also where the last one had just ended; others go on."""
    env, undisturbed = new(2), new(2)
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
        env = ENVIRONMENTS[name](2)
        env.reset(np.arange(2))
        extreme = np.full((2, env.spec.actions), factor * bound) * np.array([[1.0], [-1.0]])
        for _ in range(3):
            step = env.step(np.arange(2), extreme)
        results.append((step.observation, step.reward))
        assert (np.abs(extreme) == factor * bound).all()  # the caller's array is left as it was
    for column in range(2):
        np.testing.assert_array_equal(results[0][column], results[1][column])
        assert not np.array_equal(results[0][column], results[2][column])


def test_unknown_names():
    """With what may have been meant, each name once."""
    with pytest.raises(ValueError, match="unknown environment 'Hoper-v4': did you mean Hopper-v4 or ") as error:
        make("Hoper-v4", slots=1)
    suggestions = str(error.value).split("did you mean ")[1].rstrip("?").split(" or ")
    assert len(suggestions) == len(set(suggestions)) > 1
    with pytest.raises(ValueError, match=r"unknown environment '\?': see envpool.list_all_envs\(\)"):
        make("?", slots=1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"slots": 0}, ValueError, "slots=0 is below 1"),
        ({"slots": 1, "threads": 0}, ValueError, "threads=0 is below 1"),
        ({"slots": 2.0}, TypeError, r"slots=2\.0 is not a whole number"),
        ({"slots": 1, "seed": -1}, ValueError, "seed=-1 is below 0"),
        ({"slots": 1, "seed": 2**31}, ValueError, r"seed=2147483648 is not below 2\*\*31"),
        ({"slots": 1, "seed": "1"}, TypeError, "seed='1' is not a whole number"),
    ],
)
@pytest.mark.parametrize("name", ["CartPole-v1", "Taxi-v4"])
def test_numbers_out_of_range(name, arguments, error, message, monkeypatch):
    """There is no environment without a slot, no step without a thread; and no seed that one library alone takes."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(error, match=message):
        make(name, **arguments)


@pytest.mark.parametrize("name", ["CartPole-v1", "Taxi-v4"])
def test_seeds_at_the_ends_of_their_range(name):
    """Both libraries take them."""
    for seed in (0, 2**31 - 1):
        assert len(make(name, slots=2, seed=seed).reset(np.arange(2))) == 2
