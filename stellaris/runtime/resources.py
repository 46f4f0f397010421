"""What containers need, and the machines that have it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """What a container occupies on its node for as long as it lives, busy or idle.

    Args:
      memory: GB.
      vcpus: may be a fraction.
      gpu_slots: places on one GPU, which may be shared by as many containers as it has slots.

    Raises:
      ValueError: if one is negative.

    Example:
      >>> Resources(memory=4.0, vcpus=2.0, gpu_slots=1)
      Resources(memory=4.0, vcpus=2.0, gpu_slots=1)
    """

    memory: float = 0.0
    vcpus: float = 0.0
    gpu_slots: int = 0

    def __post_init__(self) -> None:
        for name in ("memory", "vcpus", "gpu_slots"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)} is negative")


@dataclass(frozen=True)
class Node:
    """A machine that containers are placed on.

    Args:
      name: of the machine.
      memory: GB.
      vcpus: processors.
      gpus: how many it has.
      slots_per_gpu: containers' places on each.
      gpu_sharing: by how much invocations that run on one GPU at once slow each other down. With `k` of them, the one
        that starts included, it computes `k ** gpu_sharing` times as long: 0 if they fit side by side, 1 if they take
        turns. The slow-down is settled when an invocation starts, as all durations are.

    Raises:
      ValueError: if a number is out of its range.

    Example:
      >>> Node("p3.2xlarge", memory=61, vcpus=8, gpus=1, slots_per_gpu=4, gpu_sharing=0.5).slow_down(4)
      2.0
    """

    name: str
    memory: float = math.inf
    vcpus: float = math.inf
    gpus: int = 0
    slots_per_gpu: int = 1
    gpu_sharing: float = 0.0

    def __post_init__(self) -> None:
        for name in ("memory", "vcpus", "gpus", "gpu_sharing"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"node {self.name!r}: {name}={getattr(self, name)} is negative")
        if not self.slots_per_gpu >= 1:
            raise ValueError(f"node {self.name!r}: slots_per_gpu={self.slots_per_gpu} is below 1")
        if self.gpu_sharing > 1:
            raise ValueError(f"node {self.name!r}: gpu_sharing={self.gpu_sharing} is above 1, worse than taking turns")

    def slow_down(self, running: int) -> float:
        """By how much `running` invocations on one GPU slow each other down."""
        return float(running**self.gpu_sharing)
