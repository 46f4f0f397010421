"""The common parts of the replay benchmark's sides: the data, the timing and the output.

This module imports only NumPy, because the sides run in separate Python environments.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Load(NamedTuple):
    """The sizes of a table and of its batches."""

    name: str
    trajectories: int
    steps: int  #: steps of each trajectory.
    shape: tuple[int, ...]  #: shape of a step.
    dtype: str
    window: int  #: steps of each row of a batch.
    batch: int = 256

    @property
    def nbytes(self) -> int:
        """The number of bytes of a batch."""
        return self.batch * self.window * int(np.prod(self.shape)) * np.dtype(self.dtype).itemsize


LOADS = {
    "steps": Load("steps", 10_000, 1_000, (15,), "float32", 100),
    "frames": Load("frames", 2_000, 64, (84, 84), "uint8", 64),
    "weighted": Load("weighted", 1_000_000, 1, (), "float32", 1),
}
#: Seconds of a turn, and number of turns.
SECONDS, TURNS = 1.0, 5


def trajectories(load: Load, first: int, count: int) -> Any:
    """Returns some of a table's trajectories `[count, steps, ...]`: noise, which cannot be compressed."""
    generator = np.random.default_rng([first, load.trajectories])
    size = (count, load.steps, *load.shape)
    if load.dtype == "uint8":
        return generator.integers(0, 256, size, np.uint8)
    return generator.standard_normal(size, np.float32)


def timed(batch: Callable[[], Any]) -> list[float]:
    """Returns the seconds per batch of each turn.

    Args:
      batch: the function that samples a batch, and returns when the batch is complete.
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
    """Prints a side's measurements as its last line."""
    json.dump(found, sys.stdout)
    print(flush=True)
