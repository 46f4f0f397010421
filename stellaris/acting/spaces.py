"""Conversion of Gymnasium's spaces to an `EnvSpec`, and of policies' actions to the environment's."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from stellaris._core.extras import needs
from stellaris.acting.vector import EnvSpec, array
from stellaris.types import NDArray, Tree


def spec_of(name: str, observation_space: Any, action_space: Any) -> EnvSpec:
    """Makes the specification of an environment with these spaces.

    Args:
      name: the environment's name.
      observation_space: `Box`, `Discrete`, `MultiBinary` or `MultiDiscrete`; or a `Dict` or `Tuple` of these.
      action_space: `Discrete`, or a `Box` of floats.

    Raises:
      ValueError: if a space is not supported; the message names the environment and the space.

    Example:
      >>> from gymnasium.spaces import Box, Discrete
      >>> spec = spec_of("Own-v0", Box(-1, 1, (3,)), Discrete(5))
      >>> spec.observation_shape, spec.actions
      ((3,), 5)
    """
    with needs(f"environment {name}"):
        from gymnasium.spaces import Box, Discrete

    observation = _arrays(
        observation_space,
        ValueError(
            f"{name}: observation space {observation_space} is not supported: expected Box, Discrete, MultiBinary, "
            "MultiDiscrete, or a Dict or Tuple of these"
        ),
    )
    if isinstance(action_space, Discrete):
        return EnvSpec(name, observation, int(action_space.n), discrete=True, start=int(action_space.start))
    if isinstance(action_space, Box) and np.issubdtype(action_space.dtype, np.floating) and action_space.low.size:
        shape = tuple(action_space.shape)
        low, high = (tuple(map(float, np.ravel(bound))) for bound in (action_space.low, action_space.high))
        return EnvSpec(name, observation, math.prod(shape), False, low, high, action_shape=shape)
    raise ValueError(f"{name}: action space {action_space} is not supported: expected Discrete or a Box of floats")


def _arrays(space: Any, unsupported: ValueError) -> Tree:
    """The shapes and dtypes of a space's arrays, in the structure of the space."""
    from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

    match space:
        case Dict() if space.spaces:
            return {name: _arrays(part, unsupported) for name, part in space.spaces.items()}
        case Tuple() if space.spaces:
            return tuple(_arrays(part, unsupported) for part in space.spaces)
        case Box() | Discrete() | MultiBinary() | MultiDiscrete():
            return array(space.shape, space.dtype)
    raise unsupported


def arranged(expected: Tree, observation: Any) -> Tree:
    """Converts an observation to the structure of its specification; a part that does not match becomes one array.

    Args:
      expected: the specification's tree, or a subtree. `EnvSpec.check` later refuses parts that do not match it.
      observation: as an environment returned it: mappings and sequences of any kind, arrays and numbers.

    Example:
      >>> import collections
      >>> arranged({"a": 0, "b": (0,)}, collections.OrderedDict(b=[3.0], a=np.ones(2)))
      {'a': array([1., 1.]), 'b': (array(3.),)}
    """
    if isinstance(expected, dict) and isinstance(observation, Mapping) and expected.keys() == observation.keys():
        return {name: arranged(part, observation[name]) for name, part in expected.items()}
    if isinstance(expected, tuple) and isinstance(observation, Sequence) and len(expected) == len(observation):
        return tuple(arranged(part, one) for part, one in zip(expected, observation, strict=True))
    return np.asarray(observation)


def translation(spec: EnvSpec, dtype: Any) -> Callable[[NDArray], NDArray]:
    """Makes a function that converts a policy's actions to the environment's.

    It adds `start` to discrete actions, and clips and reshapes continuous ones.
    """
    low, high = (np.array(bound, dtype) for bound in (spec.low, spec.high))

    def count(action: NDArray) -> NDArray:
        action = np.asarray(action)
        if len(action) and not 0 <= action.min() <= action.max() < spec.actions:
            raise ValueError(f"{spec.name}: action={action.tolist()} is not in [0, {spec.actions})")
        return action + spec.start if spec.start else action

    def clip(action: NDArray) -> NDArray:
        if np.shape(action)[1:] != low.shape:  # otherwise NumPy would broadcast it
            raise ValueError(f"{spec.name}: action has shape {np.shape(action)}: expected (n, {spec.actions})")
        return np.clip(action, low, high).astype(dtype, copy=False).reshape(-1, *spec.action_shape)

    return count if spec.discrete else clip
