"""The papers' testbeds: their machines and prices."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from stellaris.runtime.costs.price_sheets import Machine
from stellaris.runtime.costs.prices import machine
from stellaris.runtime.resources import Node

#: Number of learner functions that share a GPU. Source: the authors' demo of Stellaris (SC 2024).
LEARNERS_PER_GPU = 4
#: Slow-down of a shared GPU: `k` learner functions on it take `k ** GPU_SHARING` times as long, from 0 (they run in
#: parallel) to 1 (they take turns). Assumption: half-way, because no source states the exponent.
GPU_SHARING = 0.5


class Testbed(NamedTuple):
    """Machines and their prices."""

    nodes: tuple[Node, ...]
    machines: Mapping[str, Machine]  #: by kind; an entry sums the prices and the places of all machines of the kind.
    source: str


def stellaris_gpu() -> Testbed:
    """Returns the GPU testbed of Stellaris: 3 nodes, 128 cores of AMD EPYC 7R13, 2 V100.

    The paper names the cores, the GPUs and AWS EC2, but not the machines. The machines here match these numbers
    without the 16 virtual processors of the two p3 machines, which the paper does not count.

    Example:
      >>> [node.name for node in stellaris_gpu().nodes]
      ['c6a.32xlarge-0', 'p3.2xlarge-0', 'p3.2xlarge-1']
    """
    source = "Stellaris (SC 2024), slides: testbed clusters; machines inferred from cores and GPUs"
    return _testbed("aws_ec2", [("c6a.32xlarge", 1), ("p3.2xlarge", 2)], source)


def stellaris_hpc() -> Testbed:
    """Returns the HPC testbed of Stellaris: 7 nodes, 960 cores of AMD EPYC 9R14, 16 V100.

    The paper names the cores, the GPUs and AWS EC2, but not the machines. The machines here match these numbers
    without the 128 virtual processors of the two p3 machines.

    Example:
      >>> sum(node.gpus for node in stellaris_hpc().nodes)
      16
    """
    source = "Stellaris (SC 2024), slides: testbed clusters; machines inferred from cores and GPUs"
    return _testbed("aws_ec2", [("hpc7a.96xlarge", 5), ("p3.16xlarge", 2)], source)


def minionsrl_azure() -> Testbed:
    """Returns the reserved machines of MinionsRL's baselines: one with a V100 for the learner, four for 32 actors.

    Example:
      >>> round(sum(machine.per_second for machine in minionsrl_azure().machines.values()) * 3600, 3)
      7.092
    """
    source = "MinionsRL (AAAI 2024), testbeds"
    return _testbed("azure_vm", [("Standard_NC6s_v3", 1), ("Standard_E16-8s_v5", 4)], source)


#: Memory in GB, virtual processors and GPUs of a machine. Source: the providers' lists of machine types.
_SIZES = {
    "p3.2xlarge": (61.0, 8, 1),
    "p3.16xlarge": (488.0, 64, 8),
    "c6a.32xlarge": (256.0, 128, 0),
    "hpc7a.96xlarge": (768.0, 192, 0),
    "Standard_NC6s_v3": (112.0, 6, 1),
    "Standard_E16-8s_v5": (128.0, 8, 0),
}


def _testbed(provider: str, kinds: Sequence[tuple[str, int]], source: str) -> Testbed:
    nodes: list[Node] = []
    machines: dict[str, Machine] = {}
    for kind, count in kinds:
        memory, vcpus, gpus = _SIZES[kind]
        nodes += [
            Node(f"{kind}-{i}", memory, vcpus, gpus, slots_per_gpu=LEARNERS_PER_GPU, gpu_sharing=GPU_SHARING)
            for i in range(count)
        ]
        if gpus:
            one = machine(provider, kind, runs=("learner",), places=gpus * LEARNERS_PER_GPU)
        else:
            one = machine(provider, kind, runs=("actor",), places=vcpus)
        machines[kind] = replace(one, per_second=count * one.per_second, places=count * one.places)
    return Testbed(tuple(nodes), machines, source)
