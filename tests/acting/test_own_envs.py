"""Environments of one's own: their spaces, the names they are found by, and their end."""

import os
import re
from typing import ClassVar

import envpool
import gymnasium
import jaxtyping
import numpy as np
import pytest
from gymnasium import spaces

from stellaris.acting import envs
from stellaris.acting.envs import EnvPoolEnv, EnvSpec, GymnasiumEnv, make
from tests.acting.test_envs import every_cartpole


class Own(gymnasium.Env):
    """An environment of one's own, with any spaces, that notes what it is given."""

    made: ClassVar[list] = []

    def __init__(self, actions, observations=spaces.Box(-1.0, 1.0, (2,))):  # noqa: B008
        self.action_space, self.observation_space = actions, observations
        self.given, self.closed = [], 0
        self.made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.given.append(action)
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def close(self):
        self.closed += 1


@pytest.fixture
def register(monkeypatch):
    """Registers `Own` with some spaces for a test."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    monkeypatch.setattr(Own, "made", [])

    def registered(name, **spaces_of_it):
        gymnasium.register(name, lambda: Own(**spaces_of_it), disable_env_checker=True)
        return name

    return registered


@pytest.mark.parametrize("start", [0, 1, -3])
def test_discrete_actions_start_where_the_environment_says(register, start):
    """A policy counts from 0, Discrete(3, start=1) from 1: all of its actions are met, and nothing else."""
    env = make(register("Own-v0", actions=spaces.Discrete(3, start=start)), slots=3)
    assert env.spec == EnvSpec("Own-v0", (2,), 3, True, start=start)
    env.reset(np.arange(3))
    for _ in range(2):
        env.step(np.arange(3), np.array([2, 0, 1], np.int32))
    assert [own.given for own in Own.made] == [[start + 2] * 2, [start] * 2, [start + 1] * 2]
    assert all(own.action_space.contains(action) for own in Own.made for action in own.given)


@every_cartpole
def test_discrete_actions_that_there_are_not(new):
    """EnvPool takes them in silence."""
    env = new(2)
    env.reset(np.arange(2))
    for actions in ([0, 2], [-1, 1]):
        message = re.escape(f"CartPole-v1: action={actions} is not in [0, 2)")
        with pytest.raises(ValueError, match=message):
            env.step(np.arange(2), np.array(actions))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("low", "high"),
    [
        ([-1.0, 0.0, -5.0], [1.0, 0.25, -4.0]),  # a dimension of its own each
        ([[-1.0, 0.0], [3.0, -np.inf]], [[1.0, 0.5], [np.inf, -2.0]]),
        (-2.0, 3.0),  # a scalar
    ],
)
def test_continuous_actions_keep_to_their_dimensions_bounds(register, low, high, dtype):
    """Each is clipped to its own, and comes in the space's shape and type; within them nothing changes."""
    box = spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)
    env = make(register("Own-v0", actions=box), slots=2)
    n = env.spec.actions
    assert (n, env.spec.action_shape) == (np.size(low), np.shape(low))
    assert env.spec.low == tuple(np.ravel(low))
    assert hash(env.spec) == hash(make("Own-v0", slots=1).spec)
    env.reset(np.arange(2))
    rng = np.random.default_rng(0)
    flat = rng.normal(0.0, 3.0, (40, 2, n)).astype(np.float32)
    for actions in flat:
        env.step(np.arange(2), actions)
    for slot, own in enumerate(Own.made[:2]):
        for given, asked in zip(own.given, flat[:, slot], strict=True):
            assert box.contains(np.asarray(given))
            expected = [min(max(x, a), b) for x, a, b in zip(asked, np.ravel(low), np.ravel(high), strict=True)]
            np.testing.assert_array_equal(np.ravel(given), np.array(expected, dtype))


def test_continuous_actions_of_another_shape(register):
    """NumPy would stretch one column to three."""
    env = make(register("Own-v0", actions=spaces.Box(-1.0, 1.0, (3,))), slots=2)
    env.reset(np.arange(2))
    for shape in ((2, 1), (2,), (2, 3, 1)):
        with pytest.raises(ValueError, match=rf"Own-v0: action has shape {re.escape(str(shape))}: expected \(n, 3\)"):
            env.step(np.arange(2), np.zeros(shape))


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiBinary(4),
        spaces.MultiDiscrete([2, 2]),
        spaces.Dict({"a": spaces.Discrete(2)}),
        spaces.Tuple([spaces.Discrete(2)]),
        spaces.Box(0, 5, (2,), np.int32),
        spaces.Box(-1.0, 1.0, (0,)),
        spaces.Text(3),
    ],
    ids=lambda space: type(space).__name__,
)
def test_action_spaces_that_are_not_supported(register, space):
    """One error, which names the environment and the space; the environments that were made are closed."""
    message = f"Own-v0: action space {space} is not supported: Discrete or a Box of floats"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(register("Own-v0", actions=space), slots=2)
    assert [own.closed for own in Own.made] == [1, 1]


@pytest.mark.parametrize(
    "space",
    [spaces.Dict({"a": spaces.Box(0, 1)}), spaces.Tuple([spaces.Box(0, 1)]), spaces.Text(3)],
    ids=lambda space: type(space).__name__,
)
def test_observation_spaces_that_are_not_supported(register, space):
    """Likewise."""
    message = f"Own-v0: observation space {space} is not supported: one array of numbers"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(register("Own-v0", actions=spaces.Discrete(2), observations=space), slots=1)


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
@pytest.mark.parametrize(
    ("name", "what"),
    [("Parking-v0", "observation space Dict"), ("LevelBasedForaging-v0", "observation space Dict")],
)
def test_pools_that_are_not_supported(name, what):
    """EnvPool has some of these."""
    with pytest.raises(ValueError, match=f"{name}: {what}.* is not supported"):
        make(name, slots=1)


def test_spaces_of_a_pool(monkeypatch):
    """What holds for Gymnasium's holds for EnvPool's: a start, a bound for each dimension, and one error."""

    class Pool:
        """A pool of environments, as EnvPool makes them."""

        observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3, start=1)

        def step(self, action, slots):
            return action, *(np.zeros(len(slots)),) * 3, {}

    monkeypatch.setattr(envpool, "make_gymnasium", lambda *args, **options: Pool())
    env = make("CartPole-v1", slots=3)
    assert (env.spec.actions, env.spec.start) == (3, 1)
    assert env.step(np.arange(3), np.array([0, 2, 1])).observation.tolist() == [1, 3, 2]
    Pool.action_space = spaces.Box(np.array([[-1.0], [0.0]]), np.array([[1.0], [5.0]]), dtype=np.float64)
    got = make("CartPole-v1", slots=1).step(np.array([0]), np.array([[-9.0, 9.0]])).observation
    assert (got.tolist(), got.dtype) == ([[[-1.0], [5.0]]], np.float64)
    Pool.action_space = spaces.MultiBinary(2)
    with pytest.raises(ValueError, match=r"CartPole-v1: action space MultiBinary\(2\) is not supported"):
        make("CartPole-v1", slots=1)


@pytest.mark.filterwarnings("ignore:.*Overriding environment")
def test_ones_own_comes_before_a_pool_of_the_same_name(register):
    """Whoever registers a name means it; what Gymnasium itself registers is EnvPool's as before."""
    assert type(make("CartPole-v1", slots=1)) is EnvPoolEnv
    env = make(register("CartPole-v1", actions=spaces.Discrete(7)), slots=1)
    assert type(env) is GymnasiumEnv
    assert env.spec.actions == 7
    gymnasium.register("Hopper-v5", f"{__name__}:Own", kwargs={"actions": spaces.Discrete(5)})
    assert make("Hopper-v5", slots=1).spec.actions == 5


def test_a_module_that_registers(register, tmp_path, monkeypatch):
    """`module:Name-v0` imports it first."""
    code = f"import gymnasium\ngymnasium.register('Elsewhere-v0', '{__name__}:Own', kwargs={{'actions': None}})\n"
    (tmp_path / "own_registrations.py").write_text(code.replace("None", "gymnasium.spaces.Discrete(4)"))
    monkeypatch.syspath_prepend(tmp_path)
    assert make("own_registrations:Elsewhere-v0", slots=1).spec.actions == 4
    with pytest.raises(ValueError, match=r"environment 'own_registrations:Other-v0' cannot be made: .*Other"):
        make("own_registrations:Other-v0", slots=1)
    with pytest.raises(ValueError, match=r"environment 'no_such_module:Own-v0' cannot be made: No module named"):
        make("no_such_module:Own-v0", slots=1)


@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_what_is_not_installed():
    """Says what to install, and what there is instead."""
    message = r"environment 'Hopper-v2' cannot be made: .*gymnasium-robotics.*did you mean Hopper-v\d or Hopper-v\d"
    with pytest.raises(ValueError, match=message):
        make("Hopper-v2", slots=1)


def test_a_name_is_a_string(monkeypatch):
    """An environment itself is none."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=r"name=.*Own.* is not a name: register the environment"):
        make(Own(spaces.Discrete(2)), slots=1)


# ---- closing --------------------------------------------------------------------------------------------------------


def test_close(register):
    """Every environment, once; one that fails does not keep the others open; there is nothing to step then."""
    env = make(register("Own-v0", actions=spaces.Discrete(2)), slots=3)
    Own.made[1].close = lambda: 1 / 0
    with pytest.warns(UserWarning, match="failed to close: ZeroDivisionError"):
        env.close()
    env.close()
    assert [own.closed for own in Own.made] == [1, 0, 1]
    with pytest.raises(IndexError, match=r"slots=\[0\]: Own-v0 is closed"):
        env.step(np.array([0]), np.array([0]))


def test_closing_ends_a_pools_threads():
    """Not only once somebody collects it: a loop that restarts environments would gather them."""
    before = len(os.listdir("/proc/self/task"))
    env = make("CartPole-v1", slots=8, threads=4)
    env.reset(np.arange(8))
    assert len(os.listdir("/proc/self/task")) >= before + 4
    env.close()
    env.close()
    assert len(os.listdir("/proc/self/task")) == before
    with pytest.raises(IndexError, match=r"slots=\[0\]: CartPole-v1 is closed"):
        env.reset(np.array([0]))


def test_closing_does_not_wait_for_what_hangs(register, monkeypatch):
    """A body that never returns holds its environment: it is left with it."""
    monkeypatch.setattr(envs, "_PATIENCE", 0.01)
    env = make(register("Own-v0", actions=spaces.Discrete(2)), slots=1)
    with env._lock:
        env.close()
    assert Own.made[0].closed == 0
