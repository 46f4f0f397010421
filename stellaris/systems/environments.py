"""A workload's environments, which can be made anew: nobody can save what an environment holds."""

import functools

import numpy as np

from stellaris.acting import envs
from stellaris.systems.workload import Workload
from stellaris.types import NDArray, Tree


class Environments:
    """A vector environment for a run; restarting it makes all of it anew.

    Args:
      workload: which environment it is.
      slots: how many.
      seed: of the run; every restart has seeds of its own.
      threads: that step them.
    """

    def __init__(self, workload: Workload, slots: int, seed: int, threads: int) -> None:
        self._make = functools.partial(envs.make, workload.environment, slots=slots, threads=threads)
        self._seed = seed
        self._env = self._make(seed=seed)
        self.spec = self._env.spec

    def restart(self, number: int) -> None:
        """Closes them and makes them anew, for the `number`-th time (from 1)."""
        self._env.close()
        self._env = self._make(seed=int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0] >> 1))

    def reset(self, slots: NDArray) -> Tree:
        """Starts new episodes in `[n]` slots; returns `[n, *obs]`."""
        return self._env.reset(slots)

    def step(self, slots: NDArray, action: NDArray) -> envs.Step:
        """Steps `[n]` slots with `[n, *action]` actions."""
        return self._env.step(slots, action)

    def close(self) -> None:
        """Ends them."""
        self._env.close()
