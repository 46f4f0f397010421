"""A vector environment of single Gymnasium environments, registered or a user's own."""

import math
import threading
import warnings
from collections.abc import Callable
from numbers import Real
from typing import Any

import jax
import numpy as np

from stellaris.acting.spaces import arranged, spec_of, translation
from stellaris.acting.vector import Step, checked_slots, kind_of
from stellaris.types import NDArray, Tree

#: Seconds that `close` waits for a running call, so that a hanging environment does not block it for ever.
_PATIENCE = 1.0


class GymnasiumEnv:
    """Single environments stepped in turn; as in EnvPool, the step after an episode's end resets the environment.

    Args:
      name: the environment's name, for messages.
      new: a function that makes one environment; it is called once for each slot.
      slots: number of environments.
      seed: the seed of slot 0; slot `i` is seeded with `seed + i`.

    Raises:
      TypeError: if `new` makes something without the methods and spaces of `gymnasium.Env`. Later it is
        raised if the environment's `reset` does not return two values or its `step` does not return five, a reward is
        not one finite number, or a flag is not one bool; the message names the environment.
      ValueError: if a space is not supported, or `new` returns the same environment twice.
    """

    def __init__(self, name: str, new: Callable[[], Any], *, slots: int, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._envs: list[Any] = []
        self._seeds: list[int | None] = [seed + i for i in range(slots)]
        self._ended = [False] * slots
        try:
            for _ in range(slots):
                self._envs.append(self._checked(name, new()))
            action_space = self._envs[0].action_space
            self.spec = spec_of(name, self._envs[0].observation_space, action_space)
        except BaseException:
            self.close()
            raise
        self._own_actions = translation(self.spec, action_space.dtype)

    def reset(self, slots: NDArray) -> Tree:
        """Starts new episodes in `[n]` slots; see `VectorEnv.reset`."""
        slots = checked_slots(slots, len(self._envs), self.spec)
        with self._lock:
            return self._batched([self._reset(int(slot)) for slot in slots])

    def step(self, slots: NDArray, action: NDArray) -> Step:
        """Steps `[n]` slots; see `VectorEnv.step`."""
        slots = checked_slots(slots, len(self._envs), self.spec)
        action = self._own_actions(action)
        with self._lock:
            steps = [self._step(int(slot), act) for slot, act in zip(slots, action, strict=True)]
        observation, reward, terminated, truncated = zip(*steps, strict=True)
        return Step(
            self._batched(list(observation)), np.array(reward, np.float32), np.array(terminated), np.array(truncated)
        )

    def close(self) -> None:
        """Ends the environments. Closing twice does nothing; an environment that fails to close causes a warning."""
        if not self._lock.acquire(timeout=_PATIENCE):
            return  # a call hangs in one of the environments
        try:
            while self._envs:
                try:
                    self._envs.pop().close()
                except Exception as error:
                    warnings.warn(f"an environment failed to close: {type(error).__name__}: {error}", stacklevel=2)
        finally:
            self._lock.release()

    def _checked(self, name: str, env: Any) -> Any:
        """Returns the environment if it is a single `gymnasium.Env` that no other slot holds; raises otherwise."""
        lacks = [part for part in ("reset", "step", "action_space", "observation_space") if not hasattr(env, part)]
        if lacks:
            raise TypeError(
                f"environment {name} made {env!r}, which lacks {', '.join(lacks)}: expected a gymnasium.Env"
            )
        if hasattr(env, "single_observation_space"):
            raise TypeError(
                f"environment {name} made a vector environment, {env!r}: make one gymnasium.Env, or pass "
                "stellaris.acting.Vectorised(make)"
            )
        if any(env is other for other in self._envs):
            raise ValueError(
                f"environment {name} returns the same environment every time, but each slot needs a separate one: pass "
                "a callable that makes a new environment, such as its class"
            )
        return env

    def _batched(self, observations: list[Tree]) -> Tree:
        return jax.tree.map(lambda *arrays: np.stack(arrays), *observations)

    def _observed(self, observation: Any) -> Tree:
        """The observation in the structure of the environment's space, checked."""
        tree = arranged(self.spec.observation, observation)
        self.spec.check(tree)
        return tree

    def _reset(self, slot: int) -> Tree:
        # Only the first reset is seeded; later ones continue the environment's random stream.
        observation, _ = self._returned("reset", self._envs[slot].reset(seed=self._seeds[slot]), "observation, info")
        self._seeds[slot], self._ended[slot] = None, False
        return self._observed(observation)

    def _step(self, slot: int, action: Any) -> tuple[Tree, float, bool, bool]:
        if self._ended[slot]:
            return self._reset(slot), 0.0, False, False
        values = "observation, reward, terminated, truncated, info"
        observation, reward, terminated, truncated, _ = self._returned("step", self._envs[slot].step(action), values)
        ends = self._bool("terminated", terminated), self._bool("truncated", truncated)
        self._ended[slot] = any(ends)
        return self._observed(observation), self._number("reward", reward), *ends

    def _returned(self, method: str, returned: Any, values: str) -> Any:
        """Returns a method's result if it has as many values as `values` names; raises otherwise."""
        count = len(values.split())
        if not isinstance(returned, tuple | list) or len(returned) != count:
            given = f"{len(returned)} values" if isinstance(returned, tuple | list) else kind_of(returned)
            raise TypeError(f"{self.spec.name}: {method} returned {given}: expected {count}, ({values})")
        return returned

    def _bool(self, name: str, value: Any) -> bool:
        """The value as a bool; raises unless it is one bool of any library, because 0 or "no" may be a mistake."""
        if np.ndim(value) or np.asarray(value).dtype != bool:
            raise TypeError(f"{self.spec.name}: {name}={value!r} is not a bool: return True or False")
        return bool(value)

    def _number(self, name: str, value: Any) -> float:
        """The value as a float; raises unless it is one finite real number of any library."""
        real = isinstance(value, Real) or (np.ndim(value) == 0 and np.asarray(value).dtype.kind in "biuf")
        if not real or not math.isfinite(value):
            raise TypeError(f"{self.spec.name}: {name}={value!r} is not a finite real number: return a float")
        return float(value)
