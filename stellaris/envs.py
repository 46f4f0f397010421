"""Vector environments: one small contract, over EnvPool or Gymnasium.

A vector environment has a slot for every actor; any subset of slots can be stepped. An episode's end resets the slot on
the *next* step, whose action is ignored and whose reward is zero: that step is no transition.
"""

import threading
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from stellaris.types import NDArray


@dataclass(frozen=True)
class EnvSpec:
    """What a policy must know of an environment."""

    name: str
    observation_shape: tuple[int, ...]
    actions: int  #: dimensions of a continuous action, or number of discrete ones.
    discrete: bool
    low: float | None  #: bounds of a continuous action, to which it is clipped.
    high: float | None


class Step(NamedTuple):
    """What one step of `n` slots gave."""

    observation: NDArray  #: `[n, *obs]`; at an episode's end, its last.
    reward: NDArray  #: `[n]` float32; zero where the slot was reset.
    terminated: NDArray  #: `[n]` bool: the episode ended in a state of value zero.
    truncated: NDArray  #: `[n]` bool: the episode was cut off, by a time limit for instance.


@runtime_checkable
class VectorEnv(Protocol):
    """Environments in slots; a call may come from any thread."""

    spec: EnvSpec

    def reset(self, slots: NDArray) -> NDArray:
        """Starts new episodes in `[n]` slots; returns `[n, *obs]`."""

    def step(self, slots: NDArray, action: NDArray) -> Step:
        """Steps `[n]` slots with `[n, *action]` actions."""


def make(name: str, *, slots: int, seed: int = 0, threads: int = 1) -> VectorEnv:
    """A vector environment: EnvPool's where it has one of this name, Gymnasium's otherwise.

    Args:
      name: such as `"Hopper-v4"`.
      slots: number of environments, at least 1.
      seed: of slot 0; slot `i` is seeded with `seed + i`.
      threads: that step EnvPool's environments. Results do not depend on them.

    Returns:
      The environment; its slots must be reset before they are stepped.

    Raises:
      ValueError: if neither library knows the name, or a number is below 1.

    Example:
      >>> env = make("CartPole-v1", slots=3)
      >>> env.reset(np.arange(3)).shape
      (3, 4)
      >>> env.step(np.array([2, 0]), np.array([1, 1])).reward.tolist()
      [1.0, 1.0]
    """
    if slots < 1 or threads < 1:
        raise ValueError(f"slots={slots} and threads={threads} must be at least 1")
    import envpool

    if name in envpool.list_all_envs():
        return EnvPoolEnv(name, slots=slots, seed=seed, threads=threads)
    import gymnasium

    if name in gymnasium.registry:
        return GymnasiumEnv(name, slots=slots, seed=seed)
    known = sorted({*envpool.list_all_envs(), *gymnasium.registry})
    raise ValueError(f"unknown environment {name!r}: {_suggest(name, known)}")


class EnvPoolEnv:
    """EnvPool's environments, stepped in C++ threads."""

    def __init__(self, name: str, *, slots: int, seed: int = 0, threads: int = 1) -> None:
        import envpool

        with warnings.catch_warnings():
            # Gymnasium remarks on the float32 bounds of every space that EnvPool declares.
            warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
            self._pool = envpool.make_gymnasium(name, num_envs=slots, seed=seed, num_threads=min(threads, slots))
            self.spec = _spec(name, self._pool.observation_space, self._pool.action_space)
        # EnvPool is not reentrant: what one caller sends another could receive.
        self._lock, self._slots = threading.Lock(), slots

    def reset(self, slots: NDArray) -> NDArray:
        """Starts new episodes in `[n]` slots; returns `[n, *obs]`."""
        slots = self._checked(slots)
        with self._lock:
            observation: NDArray = self._pool.reset(slots)[0]
        return observation

    def step(self, slots: NDArray, action: NDArray) -> Step:
        """Steps `[n]` slots with `[n, *action]` actions."""
        action, slots = _to_bounds(self.spec, action), self._checked(slots)
        with self._lock:
            observation, reward, terminated, truncated, _ = self._pool.step(action, slots)
        return Step(observation, reward, terminated, truncated)

    def _checked(self, slots: NDArray) -> NDArray:
        # EnvPool itself does not look, and crashes the process.
        slots = np.asarray(slots, np.int32)
        if len(slots) and not 0 <= slots.min() <= slots.max() < self._slots:
            raise IndexError(f"slots={slots.tolist()}: {self.spec.name} was made with slots={self._slots}")
        return slots


class GymnasiumEnv:
    """Gymnasium's environments, one by one, with EnvPool's convention of resetting on the step after an end."""

    def __init__(self, name: str, *, slots: int, seed: int = 0) -> None:
        import gymnasium

        self._envs = [gymnasium.make(name) for _ in range(slots)]
        self._seeds: list[int | None] = [seed + i for i in range(slots)]
        self._ended = [False] * slots
        self.spec = _spec(name, self._envs[0].observation_space, self._envs[0].action_space)
        self._lock = threading.Lock()

    def reset(self, slots: NDArray) -> NDArray:
        """Starts new episodes in `[n]` slots; returns `[n, *obs]`."""
        with self._lock:
            return np.stack([self._reset(int(slot)) for slot in slots])

    def step(self, slots: NDArray, action: NDArray) -> Step:
        """Steps `[n]` slots with `[n, *action]` actions."""
        action = _to_bounds(self.spec, action)
        with self._lock:
            columns = zip(*(self._step(int(slot), act) for slot, act in zip(slots, action, strict=True)), strict=True)
        observation, reward, terminated, truncated = map(np.array, columns)
        return Step(observation, reward.astype(np.float32), terminated, truncated)

    def _reset(self, slot: int) -> Any:
        # The first reset seeds the slot; later episodes go on from there.
        observation = self._envs[slot].reset(seed=self._seeds[slot])[0]
        self._seeds[slot], self._ended[slot] = None, False
        return observation

    def _step(self, slot: int, action: Any) -> tuple[Any, float, bool, bool]:
        if self._ended[slot]:
            return self._reset(slot), 0.0, False, False
        observation, reward, terminated, truncated, _ = self._envs[slot].step(action)
        self._ended[slot] = terminated or truncated
        return observation, float(reward), bool(terminated), bool(truncated)


def _spec(name: str, observation_space: Any, action_space: Any) -> EnvSpec:
    if hasattr(action_space, "n"):
        return EnvSpec(name, tuple(observation_space.shape), int(action_space.n), True, None, None)
    low, high = float(np.min(action_space.low)), float(np.max(action_space.high))
    return EnvSpec(name, tuple(observation_space.shape), int(action_space.shape[0]), False, low, high)


def _to_bounds(spec: EnvSpec, action: NDArray) -> NDArray:
    return action if spec.discrete else np.clip(action, spec.low, spec.high)


def _suggest(name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else "see envpool.list_all_envs() and gymnasium.registry"
