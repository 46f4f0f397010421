"""A workload's environments, which can be made anew: nobody can save what an environment holds."""

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stellaris.acting import envs
from stellaris.acting.vector import VectorEnv, checked_slots
from stellaris.systems.workload import Workload
from stellaris.types import NDArray, Tree


class Environments:
    """A vector environment for a run; restarting it makes all of it anew.

    Args:
      workload: which environment it is.
      slots: how many.
      seed: of the run; every restart has seeds of its own.
      threads: that step them.
      grows: whether environments are made when they are first reset, one, one more, two, four, and so on, for a run
        that may never use most of them. Otherwise all are made at once, and stepped together: that is faster.
    """

    def __init__(self, workload: Workload, slots: int, seed: int, threads: int, *, grows: bool = False) -> None:
        self._new = functools.partial(envs.make, workload.environment, threads=threads)
        self._seed = seed
        self._lock = threading.Lock()
        # Where each block of environments begins, and the last ends.
        doubling = itertools.takewhile(lambda start: start < slots, (1 << i for i in itertools.count()))
        self._starts = [0, *(doubling if grows else ()), slots]
        self._blocks: dict[int, VectorEnv] = {}
        self._closed = False
        self._seed_now = seed
        self.spec = self._block(0).spec

    def __getstate__(self) -> dict[str, Any]:
        """What another process makes them of: each by itself there, when it is first used, as few of them are."""
        return {"_new": self._new, "_seed": self._seed, "spec": self.spec, "_slots": self._starts[-1]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._starts = list(range(self.__dict__.pop("_slots") + 1))
        self._blocks = {}
        self._closed = False
        self._seed_now = self._seed

    def restart(self, number: int) -> None:
        """Closes them and makes them anew, for the `number`-th time (from 1)."""
        self.close()
        self._blocks = {}
        self._closed = False
        self._seed_now = int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0] >> 1)
        self._block(0)

    def reset(self, slots: NDArray) -> Tree:
        """Starts new episodes in `[n]` slots; returns `[n, *obs]`."""
        return self._by_block(slots, lambda block, own, where: block.reset(own))

    def step(self, slots: NDArray, action: NDArray) -> envs.Step:
        """Steps `[n]` slots with `[n, *action]` actions."""
        step: envs.Step = self._by_block(slots, lambda block, own, where: block.step(own, action[where]))
        return step

    def close(self) -> None:
        """Ends them."""
        self._closed = True
        for block in self._blocks.values():
            block.close()

    def _block(self, number: int) -> VectorEnv:
        """A block of environments, which is made if it is not there yet; slot `i` has the seed that is `i` greater."""
        with self._lock:
            if number not in self._blocks:
                if self._closed:
                    raise IndexError(f"{self.spec.name} is closed")
                first, end = self._starts[number : number + 2]
                self._blocks[number] = self._new(slots=end - first, seed=self._seed_now + first)
            return self._blocks[number]

    def _by_block(self, slots: NDArray, do: Callable[[VectorEnv, NDArray, Any], Tree]) -> Tree:
        """What blocks give for their slots `[n]`, in the order of all; `do` is told their places among these, too."""
        if len(self._starts) == 2:
            return do(self._block(0), slots, slice(None))
        slots = checked_slots(slots, self._starts[-1], self.spec)
        block = np.searchsorted(self._starts, slots, side="right") - 1
        places = [np.flatnonzero(block == number) for number in np.unique(block)]
        parts = [
            do(self._block(number), slots[where] - self._starts[number], where)
            for number, where in zip(np.unique(block).tolist(), places, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        order = np.argsort(np.concatenate(places))
        return jax.tree.map(lambda *arrays: np.concatenate(arrays)[order], *parts)
