"""Vector environments: one small contract, over EnvPool or Gymnasium.

A vector environment has a slot for every actor; any subset of slots can be stepped. An episode's end resets the slot on
the *next* step, whose action is ignored and whose reward is zero: that step is no transition.
"""

import math
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from stellaris import checks
from stellaris.types import NDArray

#: Seconds that `close` waits for a call that is under way; a body that hangs would be waited for without end.
_PATIENCE = 1.0


@dataclass(frozen=True)
class EnvSpec:
    """What a policy must know of an environment.

    A policy's discrete actions count from 0, its continuous ones are vectors; `step` makes them the environment's own.
    """

    name: str
    observation_shape: tuple[int, ...]
    actions: int  #: dimensions of a continuous action, or number of discrete ones.
    discrete: bool
    low: tuple[float, ...] = ()  #: bounds of a continuous action by dimension, to which it is clipped.
    high: tuple[float, ...] = ()
    start: int = 0  #: the first of the environment's discrete actions.
    action_shape: tuple[int, ...] = ()  #: of the environment's continuous actions.


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
        """Steps `[n]` slots with `[n]` discrete actions or `[n, actions]` continuous ones."""

    def close(self) -> None:
        """Ends the environments. Closing twice does nothing."""


def make(name: str, *, slots: int, seed: int = 0, threads: int = 1) -> VectorEnv:
    """A vector environment: EnvPool's where it has one of this name, Gymnasium's otherwise.

    What was registered with Gymnasium and is not Gymnasium's own, by the module of its entry point, comes before
    EnvPool's of the same name.

    Args:
      name: such as `"Hopper-v4"`, or `"module:Name-v0"` for one that importing a module registers.
      slots: number of environments, at least 1.
      seed: of slot 0; slot `i` is seeded with `seed + i`.
      threads: that step EnvPool's environments. Results do not depend on them.

    Returns:
      The environment; its slots must be reset before they are stepped.

    Raises:
      TypeError: if the name is no string, or a number is not whole.
      ValueError: if neither library knows the name, what it needs is not installed, its observations are no array, its
        actions are neither discrete nor a box of floats, or a number is out of its range.

    Example:
      >>> env = make("CartPole-v1", slots=3)
      >>> env.reset(np.arange(3)).shape
      (3, 4)
      >>> env.step(np.array([2, 0]), np.array([1, 1])).reward.tolist()
      [1.0, 1.0]
    """
    if not isinstance(name, str):
        raise TypeError(f"name={name!r} is not a name: register the environment with gymnasium.register, and name it")
    checks.whole(at_least=1, slots=slots, threads=threads)
    checks.seed(seed=seed)
    import envpool
    import gymnasium

    pools = envpool.list_all_envs()
    try:
        if name in pools and not _is_own(gymnasium.registry.get(name)):
            return EnvPoolEnv(name, slots=slots, seed=seed, threads=threads)
        if name in gymnasium.registry or ":" in name:
            return GymnasiumEnv(name, slots=slots, seed=seed)
    except (ImportError, gymnasium.error.Error) as error:
        raise ValueError(f"environment {name!r} cannot be made: {error} ({_suggest(name, pools)})") from error
    raise ValueError(f"unknown environment {name!r}: {_suggest(name, [*pools, *gymnasium.registry])}")


def _is_own(registered: Any) -> bool:
    """Whether an entry of Gymnasium's registry is not one that Gymnasium itself makes."""
    if registered is None:
        return False
    entry = registered.entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    return str(module).partition(".")[0] != "gymnasium"


class EnvPoolEnv:
    """EnvPool's environments, stepped in C++ threads."""

    def __init__(self, name: str, *, slots: int, seed: int = 0, threads: int = 1) -> None:
        import envpool

        with warnings.catch_warnings():
            # Gymnasium remarks on the float32 bounds of every space that EnvPool declares.
            warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
            self._pool: Any = envpool.make_gymnasium(name, num_envs=slots, seed=seed, num_threads=min(threads, slots))
            self.spec = _spec(name, self._pool.observation_space, self._pool.action_space)
        self._own_actions = _translation(self.spec, self._pool.action_space.dtype)
        # EnvPool is not reentrant: what one caller sends another could receive.
        self._lock, self._slots = threading.Lock(), slots

    def reset(self, slots: NDArray) -> NDArray:
        """Starts new episodes in `[n]` slots; returns `[n, *obs]`."""
        slots = _checked(slots, self._slots, self.spec)
        with self._lock:
            observation: NDArray = self._pool.reset(slots)[0]
        return observation

    def step(self, slots: NDArray, action: NDArray) -> Step:
        """Steps `[n]` slots with `[n]` discrete actions or `[n, actions]` continuous ones."""
        slots = _checked(slots, self._slots, self.spec)
        action = self._own_actions(action)
        with self._lock:
            observation, reward, terminated, truncated, _ = self._pool.step(action, slots)
        return Step(observation, reward, terminated, truncated)

    def close(self) -> None:
        """Ends the environments and the threads that step them. Closing twice does nothing."""
        self._slots = 0
        self._pool = None  # its threads end with the last call that still holds it


class GymnasiumEnv:
    """Gymnasium's environments, one by one, with EnvPool's convention of resetting on the step after an end."""

    def __init__(self, name: str, *, slots: int, seed: int = 0) -> None:
        import gymnasium

        self._lock = threading.Lock()
        self._envs: list[Any] = []
        self._seeds: list[int | None] = [seed + i for i in range(slots)]
        self._ended = [False] * slots
        try:
            for _ in range(slots):
                self._envs.append(gymnasium.make(name))
            action_space = self._envs[0].action_space
            self.spec = _spec(name, self._envs[0].observation_space, action_space)
        except BaseException:
            self.close()
            raise
        self._own_actions = _translation(self.spec, action_space.dtype)

    def reset(self, slots: NDArray) -> NDArray:
        """Starts new episodes in `[n]` slots; returns `[n, *obs]`."""
        slots = _checked(slots, len(self._envs), self.spec)
        with self._lock:
            return np.stack([self._reset(int(slot)) for slot in slots])

    def step(self, slots: NDArray, action: NDArray) -> Step:
        """Steps `[n]` slots with `[n]` discrete actions or `[n, actions]` continuous ones."""
        slots = _checked(slots, len(self._envs), self.spec)
        action = self._own_actions(action)
        with self._lock:
            columns = zip(*(self._step(int(slot), act) for slot, act in zip(slots, action, strict=True)), strict=True)
        observation, reward, terminated, truncated = map(np.array, columns)
        return Step(observation, reward.astype(np.float32), terminated, truncated)

    def close(self) -> None:
        """Ends the environments. Closing twice does nothing; what fails to close is warned of, and left."""
        if not self._lock.acquire(timeout=_PATIENCE):
            return  # a body that hangs is in one of them
        try:
            while self._envs:
                try:
                    self._envs.pop().close()
                except Exception as error:
                    warnings.warn(f"an environment failed to close: {type(error).__name__}: {error}", stacklevel=2)
        finally:
            self._lock.release()

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
    from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

    if not isinstance(observation_space, Box | Discrete | MultiBinary | MultiDiscrete):
        raise ValueError(f"{name}: observation space {observation_space} is not supported: one array of numbers")
    observation_shape = tuple(observation_space.shape)
    if isinstance(action_space, Discrete):
        start = int(action_space.start)
        return EnvSpec(name, observation_shape, int(action_space.n), discrete=True, start=start)
    if isinstance(action_space, Box) and np.issubdtype(action_space.dtype, np.floating) and action_space.low.size:
        shape = tuple(action_space.shape)
        low, high = (tuple(map(float, np.ravel(bound))) for bound in (action_space.low, action_space.high))
        return EnvSpec(name, observation_shape, math.prod(shape), False, low, high, action_shape=shape)
    raise ValueError(f"{name}: action space {action_space} is not supported: Discrete or a Box of floats")


def _translation(spec: EnvSpec, dtype: Any) -> Callable[[NDArray], NDArray]:
    """What makes a policy's actions the environment's own: counted from its start, or clipped and in its shape."""
    low, high = (np.array(bound, dtype) for bound in (spec.low, spec.high))

    def count(action: NDArray) -> NDArray:
        action = np.asarray(action)
        if len(action) and not 0 <= action.min() <= action.max() < spec.actions:
            raise ValueError(f"{spec.name}: action={action.tolist()} is not in [0, {spec.actions})")
        return action + spec.start if spec.start else action

    def clip(action: NDArray) -> NDArray:
        if np.shape(action)[1:] != low.shape:  # else NumPy would stretch it
            raise ValueError(f"{spec.name}: action has shape {np.shape(action)}: expected (n, {spec.actions})")
        return np.clip(action, low, high).astype(dtype, copy=False).reshape(-1, *spec.action_shape)

    return count if spec.discrete else clip


def _checked(slots: NDArray, count: int, spec: EnvSpec) -> NDArray:
    """The slots, all of which there are: EnvPool itself does not look, and crashes the process."""
    slots = np.asarray(slots, np.int32)
    if len(slots) and not 0 <= slots.min() <= slots.max() < count:
        why = f"was made with slots={count}" if count else "is closed"
        raise IndexError(f"slots={slots.tolist()}: {spec.name} {why}")
    return slots


def _suggest(name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, sorted(set(known)), n=3)
    return f"did you mean {' or '.join(close)}?" if close else "see envpool.list_all_envs() and gymnasium.registry"
