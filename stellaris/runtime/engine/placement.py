"""The placement of containers on nodes with memory, processors and GPUs."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from stellaris.runtime.resources import Node, Resources
from stellaris.runtime.state.registry import register_part

#: The rule that chooses the node of a container: `"pack"` takes the first node with room, so that later nodes stay
#: free; `"spread"` takes the emptiest node.
Placement: TypeAlias = Literal["pack", "spread"]


class Place(NamedTuple):
    """The indices of a container's node and GPU: `node` is -1 if there are no nodes, `gpu` is -1 without GPU slots."""

    node: int
    gpu: int


#: The place of every container on a platform without nodes.
NOWHERE = Place(-1, -1)
#: Tolerance when a container is fitted into a node: sums of fractions are rounded, and ten times 0.1 must fit into 1.
_ROUNDING = 1e-9


@register_part("_memory", "_vcpus", "_slots", "_running", "_closed", rebuilt=("nodes", "_spread"))
class Nodes:
    """The free memory, processors and GPU slots of nodes; without nodes there is room for everything.

    Args:
      nodes: the machines.
      placement: `"pack"` or `"spread"`.

    Raises:
      ValueError: if `placement` is unknown.

    Example:
      >>> cluster = Nodes([Node("small", memory=2.0), Node("large", memory=8.0)])
      >>> cluster.place(Resources(memory=1.5)), cluster.place(Resources(memory=1.5))
      (Place(node=0, gpu=-1), Place(node=1, gpu=-1))
    """

    def __init__(self, nodes: Sequence[Node], placement: Placement = "pack") -> None:
        if placement not in ("pack", "spread"):
            raise ValueError(f"placement={placement!r} is neither 'pack' nor 'spread': choose one of them")
        self.nodes = tuple(nodes)
        self._spread = placement == "spread"
        # Each list has the free amount of a resource by node; GPU slots are by node and GPU.
        self._memory = [float(node.memory) for node in nodes]
        self._vcpus = [float(node.vcpus) for node in nodes]
        self._slots = [[node.slots_per_gpu] * node.gpus for node in nodes]
        self._running = [[0] * node.gpus for node in nodes]  # invocations, by node and GPU
        # Lost nodes stay in the lists, because places refer to nodes by their index.
        self._closed: set[int] = set()

    def could_ever_hold(self, need: Resources) -> bool:
        """Returns whether any node has room for `need` when the node is empty."""
        # All GPU slots of a container are on one GPU, so more GPUs on a node do not help. `_ROUNDING` is not needed,
        # because nothing was subtracted from an empty node.
        return not self.nodes or any(
            node.memory >= need.memory
            and node.vcpus >= need.vcpus
            and (not need.gpu_slots or (node.gpus > 0 and node.slots_per_gpu >= need.gpu_slots))
            for node in self.nodes
        )

    def find(self, need: Resources, *, freed: Sequence[tuple[Place, Resources]] = ()) -> Place | None:
        """Finds a place with room, without taking it; returns None if every node is full.

        Args:
          need: the resources of a container.
          freed: places and resources that would be freed before the container is placed.
        """
        if not self.nodes:
            return NOWHERE
        # The amounts are copied, because evictions are tried out here before any container ends.
        memory = list(self._memory)
        vcpus = list(self._vcpus)
        slots = [list(gpus) for gpus in self._slots]
        for place, back in freed:
            memory[place.node] += back.memory
            vcpus[place.node] += back.vcpus
            if place.gpu >= 0:
                slots[place.node][place.gpu] += back.gpu_slots
        rooms: list[tuple[float, Place]] = []
        for i, node in enumerate(self.nodes):
            if i in self._closed or memory[i] < need.memory - _ROUNDING or vcpus[i] < need.vcpus - _ROUNDING:
                continue
            gpu = -1
            if need.gpu_slots:
                # Even `"pack"` takes the least used GPU, because invocations on one GPU slow each other down.
                gpu = max(range(node.gpus), key=lambda g: (slots[i][g], -g), default=-1)
                if gpu < 0 or slots[i][gpu] < need.gpu_slots:
                    continue
            if not self._spread:
                return Place(i, gpu)
            used = _used(memory[i], node.memory) + _used(vcpus[i], node.vcpus)
            rooms.append((used + _used(sum(slots[i]), node.gpus * node.slots_per_gpu), Place(i, gpu)))
        return min(rooms, default=(0.0, None))[1]  # places break ties, so the first of equally empty nodes is taken

    def place(self, need: Resources) -> Place | None:
        """Finds and takes a place with room; returns None if every node is full."""
        place = self.find(need)
        if place is not None and place.node >= 0:
            self._take(place, need, 1)
        return place

    def free(self, place: Place, need: Resources) -> None:
        """Frees a place."""
        if place.node >= 0:
            self._take(place, need, -1)

    def close(self, node: int) -> None:
        """Stops placing containers on a node, because the node was lost."""
        self._closed.add(node)

    def begin(self, place: Place) -> float:
        """Starts an invocation at a place; returns the factor by which other invocations on its GPU slow it down."""
        if place.gpu < 0:
            return 1.0
        running = self._running[place.node]
        running[place.gpu] += 1
        return self.nodes[place.node].slow_down(running[place.gpu])

    def end(self, place: Place) -> None:
        """Ends an invocation that `begin` started."""
        if place.gpu >= 0:
            self._running[place.node][place.gpu] -= 1

    def _take(self, place: Place, need: Resources, sign: int) -> None:
        """Takes (`sign=1`) or frees (`sign=-1`) the resources of a container."""
        self._memory[place.node] -= sign * need.memory
        self._vcpus[place.node] -= sign * need.vcpus
        if place.gpu >= 0:
            self._slots[place.node][place.gpu] -= sign * need.gpu_slots


def _used(free: float, total: float) -> float:
    """Returns the used share of a resource; 0 if the resource is unlimited, or the node does not have it."""
    return 0.0 if math.isinf(total) or not total else 1 - free / total
