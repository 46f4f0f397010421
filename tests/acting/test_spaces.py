"""Gymnasium's spaces: which there are, and how a policy's actions become the environment's own."""

import collections
import re

import numpy as np
import pytest
from gymnasium import spaces

from stellaris.acting.envs import EnvSpec, make
from stellaris.acting.spaces import arranged, spec_of
from tests.acting.environments import array, every_cartpole, new


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1, 1, (2, 3), np.float64), array(2, 3)),
        (spaces.Box(0, 255, (4, 84, 84), np.uint8), array(4, 84, 84, dtype=np.uint8)),
        (spaces.Discrete(5, start=2), array(dtype=np.int32)),
        (spaces.MultiBinary((2, 2)), array(2, 2, dtype=np.int8)),
        (spaces.MultiDiscrete([3, 4]), array(2, dtype=np.int32)),
        (
            spaces.Dict({"b": spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)]), "a": spaces.MultiBinary(3)}),
            {"a": array(3, dtype=np.int8), "b": (array(dtype=np.int32), array(1))},
        ),
    ],
    ids=lambda x: type(x).__name__,
)
def test_observation_spaces(space, expected):
    assert spec_of("Own-v0", space, spaces.Discrete(2)) == EnvSpec("Own-v0", expected, 2, True)


def test_observations_are_arranged_as_their_space():
    """Any mapping in any order, any sequence, numbers: dictionaries and tuples of arrays."""
    expected = {"a": 0, "b": (0, {"c": 0})}
    got = arranged(expected, collections.OrderedDict(b=[1, collections.UserDict(c=[2.0, 3.0])], a=np.ones(2)))
    assert (type(got), type(got["b"]), type(got["b"][1])) == (dict, tuple, dict)
    np.testing.assert_array_equal(got["a"], [1.0, 1.0])
    assert (got["b"][0].shape, got["b"][1]["c"].tolist()) == ((), [2.0, 3.0])


@pytest.mark.parametrize("start", [0, 1, -3])
def test_discrete_actions_start_where_the_environment_says(register, made, start):
    """A policy counts from 0, Discrete(3, start=1) from 1: all of its actions are met, and nothing else."""
    env = make(register("Own-v0", actions=spaces.Discrete(3, start=start)), slots=3)
    assert env.spec == EnvSpec("Own-v0", array(2), 3, True, start=start)
    env.reset(np.arange(3))
    for _ in range(2):
        env.step(np.arange(3), np.array([2, 0, 1], np.int32))
    assert [own.given for own in made] == [[start + 2] * 2, [start] * 2, [start + 1] * 2]
    assert all(own.action_space.contains(action) for own in made for action in own.given)


@every_cartpole
def test_discrete_actions_that_there_are_not(name):
    env = new(name, 2)
    env.reset(np.arange(2))
    for actions in ([0, 2], [-1, 1]):
        message = re.escape(f": action={actions} is not in [0, 2)")
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
def test_continuous_actions_keep_to_their_dimensions_bounds(register, made, low, high, dtype):
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
    for slot, own in enumerate(made[:2]):
        for given, asked in zip(own.given, flat[:, slot], strict=True):
            assert box.contains(np.asarray(given))
            expected = [min(max(x, a), b) for x, a, b in zip(asked, np.ravel(low), np.ravel(high), strict=True)]
            np.testing.assert_array_equal(np.ravel(given), np.array(expected, dtype))


def test_continuous_actions_of_another_shape(register):
    env = make(register("Own-v0", actions=spaces.Box(-1.0, 1.0, (3,))), slots=2)
    env.reset(np.arange(2))
    for shape in ((2, 1), (2,), (2, 3, 1)):
        with pytest.raises(ValueError, match=rf"Own-v0: action has shape {re.escape(str(shape))}: expected \(n, 3\)"):
            env.step(np.arange(2), np.zeros(shape))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Dict({"a": spaces.Box(0, 1), "b": spaces.Dict({"c": spaces.Sequence(spaces.Box(0, 1))})}),
        spaces.Dict({}),
        None,
    ],
    ids=lambda space: type(space).__name__,
)
def test_observation_spaces_that_are_not_supported(space):
    message = re.escape(f"Own-v0: observation space {space} is not supported: expected Box, Discrete, ")
    with pytest.raises(ValueError, match=f"^{message}"):
        spec_of("Own-v0", space, spaces.Discrete(2))


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiBinary(4),
        spaces.MultiDiscrete([2, 2]),
        spaces.Tuple([spaces.Discrete(2)]),
        spaces.Box(0, 5, (2,), np.int32),
        spaces.Box(-1.0, 1.0, (0,)),
    ],
    ids=lambda space: type(space).__name__,
)
def test_action_spaces_that_are_not_supported(register, made, space):
    message = f"Own-v0: action space {space} is not supported: expected Discrete or a Box of floats"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(register("Own-v0", actions=space), slots=2)
    assert [own.closed for own in made] == [1, 1]
