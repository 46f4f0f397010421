"""The containers of one function, the order in which idle ones are reused, and the free slots."""

import heapq
from typing import Any

from stellaris.runtime.delays import Constant, Stream, Uniform
from stellaris.runtime.engine.calls import Call, Container
from stellaris.runtime.functions import Function, FunctionSpec
from stellaris.runtime.state.registry import register_part

#: Subtracted from the turns of provisioned containers, and larger than any turn. A turn is an idle container's place in
#: the order of reuse. Provisioned containers are reused first, so that the other containers can expire.
_FIRST = 1 << 60
#: Stands for the `init` of containers that no program has used yet.
_ANYBODY = "anybody"
#: The heaps of idle containers are rebuilt once the entries of ended containers exceed the idle containers by more than
#: this number: for fewer entries, rebuilding would cost more than it saves.
_ENDED_AT_LEAST = 64


@register_part(
    "live",
    "idle",
    "busy",
    "waiting",
    "slots",
    "occupied",
    "prewarmed",
    "_warm",
    "_ended",
    "_turns",
    rebuilt=("name", "spec", "queueing", "cold_start", "initialisation", "compute", "latency", "jitter"),
)
class Pool:
    """The containers of one function."""

    def __init__(self, name: str, spec: FunctionSpec, seed: int) -> None:
        self.name = name
        self.spec = spec
        # Each purpose has a stream, so that its draws do not depend on the number of draws for other purposes.
        self.queueing = Stream(spec.queueing, seed, f"{name}/queueing")
        self.cold_start = Stream(spec.cold_start, seed, f"{name}/cold_start")
        self.initialisation = Stream(spec.initialisation, seed, f"{name}/initialisation")
        self.compute = Stream(spec.compute, seed, f"{name}/compute")
        self.latency = Stream(spec.transfer.latency if spec.transfer else Constant(0.0), seed, f"{name}/transfer")
        self.jitter = Stream(Uniform(0.0, 1.0), seed, f"{name}/retry")
        self.live: dict[int, Container] = {}
        self.idle: dict[int, Container] = {}  #: in the order in which they became idle.
        self.busy = 0  #: number of containers that have an invocation.
        self.waiting: list[tuple[float, int, Call]] = []  #: the queue of calls, a heap by submission; see `admission`.
        self.slots: list[int] = []  #: free slots below the highest in use, a heap.
        self.occupied = 0  #: number of slots without a live container in which a killed body still runs.
        self.prewarmed = 0  #: number of containers requested by `prewarm` so far.
        # Idle containers by their program's `init`, in heaps of `(turn, container)`; the lowest turn is reused first.
        # Entries of ended containers stay until they reach the top or `forget` removes them: removing an entry from the
        # middle of a heap costs a search.
        self._warm: dict[Any, list[tuple[int, Container]]] = {}
        self._ended = 0  # upper bound of the number of entries whose container has ended
        self._turns = 0  # number of times that a container became idle

    def take(self, program: Function) -> Container | None:
        """Removes and returns the idle container to reuse next, by the function's `reuse` rule; None if there is none.

        Only a container that this program initialised, or that no program has used yet, can be reused.
        """
        heap = self._live(program.init)
        anybody = self._live(_ANYBODY) if _ANYBODY in self._warm else None
        if anybody and (not heap or anybody[0][0] < heap[0][0]):
            heap = anybody
        if not heap:
            return None
        container = heapq.heappop(heap)[1]
        if not heap:
            del self._warm[_whose(container)]
        container.program = program  # set only now, because `_whose` finds the heap by the previous program
        del self.idle[container.number]
        container.idle_since = None
        return container

    def _live(self, whose: Any) -> list[tuple[int, Container]] | None:
        """Returns the heap of a program's idle containers, with a live container at its top; None if all have ended."""
        heap = self._warm.get(whose)
        if heap is None:
            return None
        while heap and not heap[0][1].alive:
            heapq.heappop(heap)
            self._ended -= 1
        return heap or None

    def forget(self, container: Container) -> None:
        """Removes a container that has ended from the idle ones, if it was idle."""
        if self.idle.pop(container.number, None) is None:
            return
        self._ended += 1
        # The heaps are rebuilt once most entries are of ended containers, so that they do not grow with the run.
        if self._ended > len(self.idle) + _ENDED_AT_LEAST:
            alive = {whose: [entry for entry in heap if entry[1].alive] for whose, heap in self._warm.items()}
            self._warm = {whose: heap for whose, heap in alive.items() if heap}
            for heap in self._warm.values():
                heapq.heapify(heap)
            self._ended = 0

    def free(self, slot: int) -> None:
        """Frees a slot."""
        heapq.heappush(self.slots, slot)

    def next_slot(self) -> int:
        """Takes and returns the lowest free slot."""
        # The lowest slot is taken, because systems make environments for every slot below a bound. If no slot below the
        # highest is free, the slots 0 to n - 1 are in use, each by a live container or a killed body that still runs.
        return heapq.heappop(self.slots) if self.slots else len(self.live) + self.occupied

    def give(self, container: Container, now: float) -> None:
        """Makes a container idle."""
        container.idle_since = now
        self.idle[container.number] = container
        self._turns += 1
        match self.spec.reuse:
            case "newest":
                turn = -container.number
            case "most_recent":
                turn = -self._turns
            case "least_recent":
                turn = self._turns
        heap = self._warm.setdefault(_whose(container), [])
        heapq.heappush(heap, (turn - _FIRST if container.provisioned else turn, container))


def _whose(container: Container) -> Any:
    return _ANYBODY if container.program is None else container.program.init
