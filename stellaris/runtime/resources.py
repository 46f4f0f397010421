"""The resources that containers occupy, and the machines on which they run."""

import math
from dataclasses import dataclass

from stellaris._core import checks


@dataclass(frozen=True)
class Resources:
    """The resources that a container occupies on its node as long as it lives, busy or idle.

    Args:
      memory: memory in GB.
      vcpus: number of processors, possibly a fraction.
      gpu_slots: number of slots that the container takes on one GPU; see `Node.slots_per_gpu`.

    Raises:
      TypeError: if an argument is not a number, or `gpu_slots` is not an integer.
      ValueError: if a number is negative or not finite.

    Example:
      >>> Resources(memory=4.0, vcpus=2.0, gpu_slots=1)
      Resources(memory=4.0, vcpus=2.0, gpu_slots=1)
    """

    memory: float = 0.0
    vcpus: float = 0.0
    gpu_slots: int = 0

    def __post_init__(self) -> None:
        checks.single(memory=self.memory, vcpus=self.vcpus, gpu_slots=self.gpu_slots)
        for name in ("memory", "vcpus", "gpu_slots"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} is negative or not finite: give 0 or more")
        checks.whole(at_least=0, gpu_slots=self.gpu_slots)


@dataclass(frozen=True)
class Node:
    """A machine on which containers are placed.

    Args:
      name: name of the machine.
      memory: memory in GB.
      vcpus: number of processors.
      gpus: number of GPUs.
      slots_per_gpu: number of container slots on each GPU.
      gpu_sharing: exponent of the slow-down of invocations that share a GPU. An invocation that starts while `k - 1`
        others run on the GPU computes `k ** gpu_sharing` times as long. The exponent is 0 if invocations do not slow
        each other down, and 1 if they take turns. As with all durations, the slow-down is fixed at the start.

    Raises:
      TypeError: if an argument but the name is not a number, or `gpus` or `slots_per_gpu` is not an integer.
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
        checks.single(
            memory=self.memory,
            vcpus=self.vcpus,
            gpus=self.gpus,
            slots_per_gpu=self.slots_per_gpu,
            gpu_sharing=self.gpu_sharing,
        )
        # The check has the form `not x >= 0`, so that NaN is refused as well.
        for name in ("memory", "vcpus", "gpus", "gpu_sharing"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"node {self.name!r}: {name}={getattr(self, name)} is negative: give 0 or more")
        if not self.slots_per_gpu >= 1:
            raise ValueError(
                f"node {self.name!r}: slots_per_gpu={self.slots_per_gpu} is below 1: give 1 or more, even with gpus=0"
            )
        checks.whole(at_least=0, gpus=self.gpus, slots_per_gpu=self.slots_per_gpu)
        if self.gpu_sharing > 1:
            raise ValueError(
                f"node {self.name!r}: gpu_sharing={self.gpu_sharing} is above 1, which would be slower than taking "
                "turns: give a number from 0 to 1"
            )

    def slow_down(self, running: int) -> float:
        """Returns the slow-down factor of an invocation that starts as the `running`-th on its GPU."""
        # The factor is a power, because a power covers both limits: exponent 0 for no slow-down, 1 for taking turns.
        return float(running**self.gpu_sharing)
