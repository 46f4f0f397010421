"""The environments of a run. They cannot be saved, so checkpoints restart them."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stellaris.acting import envs
from stellaris.acting.jax_env import JaxVectorEnv
from stellaris.acting.vector import VectorEnv, checked_slots
from stellaris.systems.workload import Workload
from stellaris.types import NDArray, Tree


def first_seed(*numbers: int) -> int:
    """Returns the seed of the first of several environments; the environment in slot i has this seed plus i.

    If the first had the run's seed, actor i of a run would play the episodes of actor i + 1 of the run with the seed
    before, so that runs of consecutive seeds would not be independent.

    Args:
      numbers: the seed of the run, then what tells its environments apart, such as the number of a restart.

    Returns:
      A number of 30 bits: the seeds of some environments are signed 32-bit integers, and slots are added.
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 2)


class Environments:
    """A vector environment that can be restarted, and that may make its environments when they are first needed.

    Args:
      workload: the workload, which names the environment.
      slots: the number of environments.
      seed: seed of the run, from which the seeds of each restart follow.
      threads: number of threads that step the environments.
      grows: whether environments are made when they are first reset, in blocks of 1, 1, 2, 4, and so on. Use it for a
        run that may never use most environments. Otherwise all are made at once, in one block, which steps faster.
      spare: the number of further environments, in slots from `slots` on, which are always made when they are needed.
    """

    def __init__(
        self, workload: Workload, slots: int, seed: int, threads: int, *, grows: bool = False, spare: int = 0
    ) -> None:
        self._seed = seed
        # In an environment written in JAX each start follows from a number that the run's key gives, here and in the
        # lab, so slots may have the run's seed. Other environments draw all episodes from the slot's seed, as do those
        # in JAX if every fragment starts a new episode: their slots count these starts.
        numbered = envs.is_jax(workload.environment) and not workload.restart
        self._first_seed = seed if numbered else first_seed(seed, 0)
        self._new: Callable[..., VectorEnv]
        if envs.is_jax(workload.environment):
            # Not by `envs.make`, which refuses the seeds of slots that follow the largest seed of a run.
            self._new = functools.partial(JaxVectorEnv, envs.as_jax(workload.environment))
        else:
            self._new = functools.partial(envs.make, workload.environment, threads=threads)
        self._lock = threading.Lock()
        # The list has the first slot of each block, and the end of the last block. Spare environments have blocks of
        # their own, so that the other blocks do not depend on their number.
        first = _doubling(slots) if grows else [0]
        self._starts = [*first, *(slots + start for start in _doubling(spare)), slots + spare]
        self._blocks: dict[int, VectorEnv] = {}
        self._closed = False
        self._seed_now = self._first_seed
        self.spec = self._block(0).spec

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state from which another process makes the environments, one in each block."""
        kept = {name: self.__dict__[name] for name in ("_new", "_seed", "_first_seed", "spec")}
        return {**kept, "_slots": self._starts[-1]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
        # A process of the cluster holds few containers, so it makes one environment per block.
        self._starts = list(range(self.__dict__.pop("_slots") + 1))
        self._blocks = {}
        self._closed = False
        self._seed_now = self._first_seed

    def restart(self, number: int) -> None:
        """Closes the environments and makes new ones, for the `number`-th time (from 1)."""
        self.close()
        self._blocks = {}
        self._closed = False
        # The seed follows from the run's seed and the number, so that a resumed run restarts as the uninterrupted run.
        self._seed_now = first_seed(self._seed, number)
        self._block(0)

    def reset(self, slots: NDArray) -> Tree:
        """Starts new episodes in `[n]` slots; returns `[n, *obs]`."""
        return self._by_block(slots, lambda block, own, where: block.reset(own))

    def begin(self, slots: NDArray, numbers: NDArray) -> Tree:
        """Starts new episodes in `[n]` slots; returns `[n, *obs]`.

        In a JAX environment, each episode follows from its number in `numbers`, `[n]`. Other environments ignore
        `numbers`.
        """

        def start(block: Any, own: NDArray, where: Any) -> Tree:
            return block.begin(own, numbers[where]) if isinstance(block, JaxVectorEnv) else block.reset(own)

        return self._by_block(slots, start)

    def step(self, slots: NDArray, action: NDArray) -> envs.Step:
        """Steps `[n]` slots with `[n, *action]` actions."""
        step: envs.Step = self._by_block(slots, lambda block, own, where: block.step(own, action[where]))
        return step

    def close(self) -> None:
        """Closes all environments."""
        self._closed = True
        for block in self._blocks.values():
            block.close()

    def _block(self, number: int) -> VectorEnv:
        """Returns a block of environments, made at its first use; slot `i` has slot 0's seed + i, in any block."""
        with self._lock:  # bodies may step environments in several threads
            if number not in self._blocks:
                if self._closed:
                    raise IndexError(f"{self.spec.name} is closed: step it before the run ends")
                first, end = self._starts[number : number + 2]
                self._blocks[number] = self._new(slots=end - first, seed=self._seed_now + first)
            return self._blocks[number]

    def _by_block(self, slots: NDArray, do: Callable[[VectorEnv, NDArray, Any], Tree]) -> Tree:
        """Calls `do(block, slots, where)` for each block, and joins the results in the order of the argument `slots`.

        In a call, slots are counted from the first slot of the block, and `where` has their indices in the argument.
        """
        if len(self._starts) == 2:  # a single block, which checks the slots itself
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
        # The results are in the order of the blocks, and are put into the order of `slots`.
        order = np.argsort(np.concatenate(places))
        return jax.tree.map(lambda *arrays: np.concatenate(arrays)[order], *parts)


def _doubling(slots: int) -> list[int]:
    """Returns the first slots of blocks of 1, 1, 2, 4, and so on.

    Doubling keeps low both the number of blocks, which are stepped one after the other, and the number of environments
    that are never used.
    """
    return [start for start in (0, *(1 << i for i in range(slots.bit_length()))) if start < slots]
