"""What the sides of the replay benchmark have in common: the data, what is timed, and what they print.

It imports NumPy alone, because each side runs in an environment of its own.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Load(NamedTuple):
    """A table, and the batches that are taken from it."""

    name: str
    trajectories: int
    steps: int  #: of each trajectory.
    shape: tuple[int, ...]  #: of a step.
    dtype: str
    window: int  #: steps of each row of a batch.
    batch: int = 256

    @property
    def nbytes(self) -> int:
        """Of a batch."""
        return self.batch * self.window * int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


LOADS = {
    "steps": Load("steps", 10_000, 1_000, (15,), "float32", 100),
    "frames": Load("frames", 2_000, 64, (84, 84), "uint8", 64),
    "weighted": Load("weighted", 1_000_000, 1, (), "float32", 1),
}
#: Seconds that are timed, of so many turns each.
SECONDS, TURNS = 1.0, 5


def trajectories(load: Load, first: int, count: int) -> Any:
    """Some of a table's trajectories `[count, steps, ...]`: noise, which no compression makes smaller."""
    generator = np.random.default_rng([first, load.trajectories])
    size = (count, load.steps, *load.shape)
    if load.dtype == "uint8":
        return generator.integers(0, 256, size, np.uint8)
    return generator.standard_normal(size, np.float32)


def timed(batch: Callable[[], Any]) -> list[float]:
    """Seconds a batch, of each turn.

    Args:
      batch: takes a batch, and returns when it is there.
    """
    for _ in range(3):
        batch()
    turns = []
    for _ in range(TURNS):
        began = time.perf_counter()
        batches = 0
        while time.perf_counter() - began < SECONDS:
            batch()
            batches += 1
        turns.append((time.perf_counter() - began) / batches)
    return turns


def say(**found: Any) -> None:
    """Prints a side's finding, which is its last line."""
    json.dump(found, sys.stdout)
    print(flush=True)
