"""The protocol of vector environments: their specification, steps and methods.

A vector environment has one slot per actor; any subset of slots can be stepped. After an episode's end the *next* step
resets the slot. That step ignores its action and has reward zero, so it is not a transition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from stellaris.types import NDArray, Tree


@dataclass(frozen=True)
class EnvSpec:
    """The specification of an environment for a policy; specifications with equal fields are equal and hash alike.

    A policy's discrete actions count from 0 and its continuous actions are vectors; `step` converts them to the
    environment's.

    Args:
      name: the environment's name, for messages.
      observation: a tree (one leaf, or dictionaries and tuples of leaves) whose leaves have a shape and a dtype, such
        as `jax.ShapeDtypeStruct`. It is stored as `jax.ShapeDtypeStruct`, with the dtypes in which observations are
        recorded: at most 32 bits per number.
      actions: dimensions of a continuous action, or number of discrete actions.
      discrete: whether actions are discrete.
      low: lower bounds of a continuous action by dimension; actions are clipped to the bounds.
      high: upper bounds of a continuous action by dimension.
      start: the first of the environment's discrete actions.
      action_shape: the shape of the environment's continuous actions.

    Raises:
      TypeError: if a leaf of `observation` lacks a shape or a numeric dtype, or `observation` has no leaves.

    Example:
      >>> spec = EnvSpec("Maze-v0", {"map": np.zeros((8, 8), np.uint8), "position": np.zeros(2)}, 4, discrete=True)
      >>> spec.observation["position"]
      ShapeDtypeStruct(shape=(2,), dtype=float32)
    """

    name: str
    observation: Tree
    actions: int
    discrete: bool
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    start: int = 0
    action_shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        leaves = jax.tree.map(self._recorded, self.observation)
        if not jax.tree.leaves(leaves):
            raise TypeError(f"{self.name}: observation={self.observation!r} holds no array: pass at least one")
        object.__setattr__(self, "observation", leaves)

    def __hash__(self) -> int:
        # The generated method would fail on the dictionaries of the tree, which are unhashable.
        leaves, structure = jax.tree.flatten(self.observation)
        return hash((self.name, *leaves, structure, self.actions, self.discrete, self.start, self.action_shape))

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of an observation that is one array.

        Raises:
          ValueError: if it is a tree of several arrays.
        """
        if not isinstance(self.observation, jax.ShapeDtypeStruct):
            raise ValueError(f"{self.name}: an observation is not one array: {self.observation}")
        return tuple(self.observation.shape)

    def check(self, observation: Tree) -> None:
        """Raises unless `observation` is one observation of the environment, without a batch axis.

        Raises:
          ValueError: if its structure, or the shape or dtype of an array, differs; the message names the environment
            and the array.
        """
        expected: Any
        found: Any
        leaves, expected = jax.tree.flatten(self.observation)
        arrays, found = jax.tree.flatten(observation)
        if found != expected:
            raise ValueError(f"{self.name}: an observation has the structure {found}: its space says {expected}")
        for i, (leaf, x) in enumerate(zip(leaves, arrays, strict=True)):
            if np.shape(x) != leaf.shape or not np.can_cast(x.dtype, leaf.dtype, "same_kind"):
                path = jax.tree_util.keystr(jax.tree.leaves_with_path(self.observation)[i][0])
                raise ValueError(
                    f"{self.name}: observation{path} has shape {np.shape(x)} and type {x.dtype}: its space "
                    f"says {leaf.shape} and {leaf.dtype}"
                )

    def _recorded(self, leaf: Any) -> jax.ShapeDtypeStruct:
        """The shape and dtype in which an array is recorded: 32 bits are enough for a network."""
        shape = getattr(leaf, "shape", None)
        dtype = np.dtype(leaf.dtype) if getattr(leaf, "dtype", None) is not None else None
        if shape is None or dtype is None or dtype.kind not in "fiub":
            raise TypeError(f"{self.name}: observation has a leaf {leaf!r}: expected a shape and a numeric dtype")
        if dtype.kind in "fiu" and dtype.itemsize > 4:
            dtype = np.dtype(f"{dtype.kind}4")
        return array(shape, dtype)


def array(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array that does not exist yet."""
    return jax.ShapeDtypeStruct(tuple(shape), dtype)  # type: ignore[no-untyped-call]


class Step(NamedTuple):
    """The results of one step of `n` slots."""

    observation: Tree  #: `[n, *obs]`, a tree as in the specification; at an episode's end, its last observation.
    reward: NDArray  #: `[n]` float32, finite; zero where the slot was reset.
    terminated: NDArray  #: `[n]` bool: the episode ended in a state of value zero.
    truncated: NDArray  #: `[n]` bool: the episode was cut off, by a time limit for instance.


@runtime_checkable
class VectorEnv(Protocol):
    """Environments in slots; a call may come from any thread."""

    spec: EnvSpec

    def reset(self, slots: NDArray) -> Tree:
        """Starts new episodes in `[n]` slots; returns observations `[n, *obs]`."""

    def step(self, slots: NDArray, action: NDArray) -> Step:
        """Steps `[n]` slots with `[n]` discrete actions or `[n, actions]` continuous ones."""

    def close(self) -> None:
        """Ends the environments. Closing twice does nothing."""


def checked_step(step: Any, count: int, spec: EnvSpec) -> Step:
    """Returns a step with NumPy arrays and floating-point rewards; checks everything but the observation.

    Args:
      step: the result of an environment's `step`, perhaps of a user's environment.
      count: the number of slots that were stepped.
      spec: the environment's specification.

    Raises:
      TypeError: if `step` is not a `Step`, or the shape or dtype of an array is wrong; the message names the
        environment.
      ValueError: if a reward is not finite.
    """
    if not isinstance(step, Step):
        raise TypeError(f"{spec.name}: step returned {kind_of(step)}: expected a stellaris Step")
    reward, *ends = (np.asarray(column) for column in step[1:])
    for name, column, kinds, expected in (
        ("reward", reward, "fiub", "numbers"),
        ("terminated", ends[0], "b", "bool"),
        ("truncated", ends[1], "b", "bool"),
    ):
        if column.shape != (count,) or column.dtype.kind not in kinds:
            raise TypeError(
                f"{spec.name}: {name} has shape {column.shape} and type {column.dtype}: expected {(count,)} and "
                f"{expected}"
            )
    if reward.dtype.kind != "f":
        reward = reward.astype(np.float32)
    if not np.isfinite(reward).all():
        raise ValueError(f"{spec.name}: reward={reward.tolist()} is not finite")
    return Step(step.observation, reward, *ends)


def kind_of(value: Any) -> str:
    """Describes a value's type, for messages."""
    return "None" if value is None else f"a value of type {type(value).__name__}"


def checked_slots(slots: NDArray, count: int, spec: EnvSpec) -> NDArray:
    """Returns the slots as int32; checks that they exist, because EnvPool crashes the process otherwise.

    Raises:
      IndexError: if a slot is not in [0, count); a count of 0 means that the environments are closed.
    """
    slots = np.asarray(slots, np.int32)
    if len(slots) and not 0 <= slots.min() <= slots.max() < count:
        why = f"was made with slots={count}" if count else "is closed"
        raise IndexError(f"slots={slots.tolist()}: {spec.name} {why}")
    return slots
