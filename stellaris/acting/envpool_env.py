"""A vector environment of EnvPool's environments."""

import threading
import warnings
from typing import Any

from stellaris._core.extras import needs
from stellaris.acting.spaces import spec_of, translation
from stellaris.acting.vector import Step, checked_slots
from stellaris.types import NDArray, Tree


class EnvPoolEnv:
    """EnvPool's environments, stepped in C++ threads.

    Args:
      name: one of `envpool.list_all_envs()`.
      slots: number of environments.
      seed: the seed of slot 0; slot `i` is seeded with `seed + i`.
      threads: number of threads that step the environments. Results do not depend on their number.
      **options: options of EnvPool, such as `stack_num=3`.

    Raises:
      ModuleNotFoundError: without EnvPool.
      ValueError: if a space is not supported or EnvPool does not know an option; the message names the space or the
        options.
    """

    def __init__(self, name: str, *, slots: int, seed: int = 0, threads: int = 1, **options: Any) -> None:
        with needs(f"EnvPool's {name}"):
            import envpool

        with warnings.catch_warnings():
            # Gymnasium warns about the float32 bounds of every space that EnvPool declares.
            warnings.filterwarnings("ignore", message=".*precision lowered by casting.*")
            try:
                self._pool: Any = envpool.make_gymnasium(
                    name, num_envs=slots, seed=seed, num_threads=min(threads, slots), **options
                )
            except TypeError as error:
                raise ValueError(
                    f"{name}: EnvPool does not take the options {options} ({error}): pass options of envpool.make"
                ) from error
            self.spec = spec_of(name, self._pool.observation_space, self._pool.action_space)
        self._own_actions = translation(self.spec, self._pool.action_space.dtype)
        # EnvPool is not reentrant: without the lock, one caller could receive the results of another.
        self._lock = threading.Lock()
        self._slots = slots

    def reset(self, slots: NDArray) -> Tree:
        """Starts new episodes in `[n]` slots; see `VectorEnv.reset`."""
        slots = checked_slots(slots, self._slots, self.spec)
        with self._lock:
            return self._pool.reset(slots)[0]

    def step(self, slots: NDArray, action: NDArray) -> Step:
        """Steps `[n]` slots; see `VectorEnv.step`."""
        slots = checked_slots(slots, self._slots, self.spec)
        action = self._own_actions(action)
        with self._lock:
            observation, reward, terminated, truncated, _ = self._pool.step(action, slots)
        return Step(observation, reward, terminated, truncated)

    def close(self) -> None:
        """Ends the environments and the threads that step them. Closing twice does nothing."""
        self._slots = 0
        self._pool = None  # EnvPool stops its threads when the last running call releases the pool
