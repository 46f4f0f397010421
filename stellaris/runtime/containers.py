"""Containers: made, kept warm, reused, evicted, lost; and the limits on how many there may be."""

import heapq
import math
from collections.abc import Callable, Mapping
from typing import Any

from stellaris.runtime.agenda import ACQUIRE, END, EXPIRE, Agenda
from stellaris.runtime.delays import Constant, Delay, Stream, Uniform
from stellaris.runtime.functions import Container, Function, FunctionSpec, Invocation
from stellaris.runtime.placement import NOWHERE, Cluster
from stellaris.runtime.trace import Trace

#: Provisioned containers are taken before others.
_FIRST = 1 << 60
#: Entries of ended containers that are not worth a look.
_ENDED_AT_LEAST = 64


class Pool:
    """The containers of one function."""

    def __init__(self, name: str, spec: FunctionSpec, seed: int) -> None:
        self.name, self.spec = name, spec
        delays = {"queueing": spec.queueing, "cold_start": spec.cold_start, "initialisation": spec.initialisation}
        self.queueing, self.cold_start, self.initialisation = (
            Stream(delay, seed, f"{name}/{purpose}") for purpose, delay in delays.items()
        )
        self.compute = Stream(spec.compute, seed, f"{name}/compute")
        self.latency = Stream(spec.transfer.latency if spec.transfer else Constant(0.0), seed, f"{name}/transfer")
        self.jitter = Stream(Uniform(0.0, 1.0), seed, f"{name}/retry")
        self.live: dict[int, Container] = {}
        self.idle: dict[int, Container] = {}  #: in order of when they became idle.
        self.busy = 0  #: containers that an invocation has.
        self.waiting: list[tuple[float, int, Invocation]] = []  #: a heap, by submission.
        self.slots: list[int] = []  #: free ones below the highest in use, a heap.
        self.occupied = 0  #: slots without a live container, in which a killed body still runs.
        self.prewarmed = 0  #: containers that were asked for ahead of invocations, so far.
        self._warm: dict[Any, list[tuple[int, Container]]] = {}  # idle ones by `init`, a heap each; some have ended
        self._ended = 0  # entries of those heaps whose container has ended, at most
        self._turns = 0

    def take(self, program: Function) -> Container | None:
        """Removes and returns the idle container to reuse next, by the function's `reuse` rule.

        It is one of those that this program initialised, or that no program has used yet; None if there is none.
        """
        heap, anybody = self._live(program.init), self._live(_ANYBODY)
        if anybody and (not heap or anybody[0][0] < heap[0][0]):
            heap = anybody
        if not heap:
            return None
        container = heapq.heappop(heap)[1]
        if not heap:
            del self._warm[_whose(container)]
        container.program = program
        del self.idle[container.number]
        container.idle_since = None
        return container

    def _live(self, whose: Any) -> list[tuple[int, Container]] | None:
        """The heap of some idle containers, whose first is alive; None if all have ended."""
        heap = self._warm.get(whose)
        if heap is None:
            return None
        while heap and not heap[0][1].alive:
            heapq.heappop(heap)
            self._ended -= 1
        return heap or None

    def forget(self, container: Container) -> None:
        """Drops an idle container that has ended.

        Its entry stays in its heap until it comes up. Once there are more entries of ended containers than of idle
        ones, they are all removed, so that the heaps do not grow with the run.
        """
        if self.idle.pop(container.number, None) is None:
            return
        self._ended += 1
        if self._ended > len(self.idle) + _ENDED_AT_LEAST:
            alive = {whose: [entry for entry in heap if entry[1].alive] for whose, heap in self._warm.items()}
            self._warm = {whose: heap for whose, heap in alive.items() if heap}
            for heap in self._warm.values():
                heapq.heapify(heap)
            self._ended = 0

    def next_slot(self) -> int:
        """The lowest free slot, taken."""
        return heapq.heappop(self.slots) if self.slots else len(self.live) + self.occupied

    def give(self, container: Container, now: float) -> None:
        """Makes a container idle."""
        container.idle_since = now
        self.idle[container.number] = container
        reuse = self.spec.reuse
        self._turns += 1
        turn = -container.number if reuse == "newest" else -self._turns if reuse == "most_recent" else self._turns
        heap = self._warm.setdefault(_whose(container), [])
        heapq.heappush(heap, (turn - _FIRST if container.provisioned else turn, container))


def _ANYBODY() -> None:
    """Stands for the `init` of containers that no program has used yet; a function, so that it can be saved."""


def _whose(container: Container) -> Any:
    return _ANYBODY if container.program is None else container.program.init


class Fleet:
    """All containers of a platform.

    Args:
      pools: by function.
      cluster: where they are placed.
      limit: invocations at once of all functions together, or None.
      agenda: where their ends are put down.
      trace: where they are recorded.
      seed: of how long they take to be made.
      lifetimes: of the functions whose containers are lost at times.
      on_room: called with the time when something that waits may find room.
      on_lost: called with an invocation whose container was lost, and the time; what it returns is handed out.

    Raises:
      ValueError: if a limit cannot be met.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        cluster: Cluster,
        limit: int | None,
        *,
        agenda: Agenda,
        trace: Trace,
        seed: int,
        lifetimes: Mapping[str, Delay],
        on_room: Callable[[float], None],
        on_lost: Callable[[Invocation, float], Invocation | None],
    ) -> None:
        self._pools, self._cluster, self._agenda, self._rows = pools, cluster, agenda, trace.newest
        self._on_room, self._on_lost = on_room, on_lost
        reserved = [pool.spec.reserved_concurrency or 0 for pool in pools.values()]
        if limit is not None and sum(reserved) + (0 in reserved) > limit:
            raise ValueError(f"max_concurrency={limit} is too small: {sum(reserved)} are reserved by functions")
        for name, pool in pools.items():
            if not cluster.could_ever_hold(pool.spec.resources):
                raise ValueError(f"function {name!r}: no node could ever hold its {pool.spec.resources}")
        self._shared = math.inf if limit is None else limit - sum(reserved)
        self._shared_busy = 0
        self._made = 0
        self._lifetimes = {name: Stream(delay, seed, f"{name}/lifetime") for name, delay in lifetimes.items()}

    # ---- what an invocation does with them ----------------------------------------------------------------------

    def acquire(self, invocation: Invocation, now: float) -> tuple[Container, float] | None:
        """Gives an invocation a container, an idle one or a new one.

        Returns:
          The container, and the seconds that it takes to be made (0 if it is warm); None if there is no room.
        """
        pool: Pool = invocation.pool
        if not self.may_have_room(pool):
            return None
        wait, container = 0.0, pool.take(invocation.program)
        if container is None:
            container = self._make(pool, invocation.program, now)
            if container is None:
                return None
            invocation.cold = True
            wait = self._start_up(container, now)
        container.invocation = invocation
        pool.busy += 1
        if pool.spec.reserved_concurrency is None:
            self._shared_busy += 1
        return container, wait

    def may_have_room(self, pool: Pool) -> bool:
        """Whether the limits let one more invocation begin; whether a node has room is not asked."""
        limit = pool.spec.max_concurrency
        if limit is not None and not pool.idle and len(pool.live) >= limit:
            return False
        if pool.spec.reserved_concurrency is not None:
            return pool.busy < pool.spec.reserved_concurrency
        return self._shared_busy < self._shared

    def begin(self, container: Container) -> float:
        """Its invocation starts; returns by how much it is slowed down by others on the same GPU."""
        return self._cluster.begin(container.place)

    def release(self, container: Container, now: float, *, started: bool, dies: bool) -> None:
        """Its invocation has ended: the container is idle, or ends as well."""
        pool = self._pools[container.function]
        container.invocation = None
        pool.busy -= 1
        if pool.spec.reserved_concurrency is None:
            self._shared_busy -= 1
        if started and container.place is not NOWHERE:
            self._cluster.end(container.place)
        if dies:
            self.end(container, now)
        else:
            self._make_idle(pool, container, now)
        self._on_room(now)

    # ---- their lives --------------------------------------------------------------------------------------------

    def provision(self, now: float) -> None:
        """Makes the provisioned containers, which are ready at once: they were made before."""
        for pool in self._pools.values():
            for _ in range(pool.spec.provisioned):
                container = self._make(pool, None, now)
                if container is None:
                    raise ValueError(f"function {pool.name!r}: no room for provisioned={pool.spec.provisioned}")
                container.provisioned = True
                self._ready(container, now)

    def warm(self, pool: Pool, now: float) -> None:
        """Makes a container ahead of the invocations, if there is room; it is idle once it is ready."""
        container = self._make(pool, None, now)
        if container is not None:
            self._agenda.add(now + self._start_up(container, now), END, -1, self._ready, container)

    def lose(self, container: Container, now: float) -> Invocation | None:
        """A container is lost with its state; returns the invocation that it takes along, if one has it."""
        if not container.alive:
            return None
        self._rows.append((now, "container_lost", container.function, -1, container.number, container.slot))
        if container.invocation is not None:
            return self._on_lost(container.invocation, now)
        self.end(container, now)
        self._on_room(now)
        return None

    def end(self, container: Container, now: float) -> None:
        """A container ends; a provisioned one is replaced."""
        pool = self._pools[container.function]
        container.alive, container.state = False, None
        pool.forget(container)
        del pool.live[container.number]
        if container.occupied:
            pool.occupied += 1
        else:
            heapq.heappush(pool.slots, container.slot)
        self._cluster.free(container.place, pool.spec.resources)
        self._rows.append((now, "container_ended", pool.name, -1, container.number, container.slot))
        if container.provisioned:
            self._agenda.add(now, ACQUIRE, -1, self._replace, pool)

    def vacate(self, container: Container) -> None:
        """The killed body has ended that still ran in this container's slot: the slot is free."""
        pool = self._pools[container.function]
        container.occupied = False
        pool.occupied -= 1
        heapq.heappush(pool.slots, container.slot)

    def end_all(self, now: float) -> None:
        """The platform closes."""
        for pool in self._pools.values():
            for container in list(pool.live.values()):
                container.provisioned = False
                self.end(container, now)

    def _make(self, pool: Pool, program: Function | None, now: float) -> Container | None:
        """A new container, if there is room; for a program, idle ones that are no use to it make room."""
        spec = pool.spec
        provisioned = False
        if spec.max_concurrency is not None and len(pool.live) >= spec.max_concurrency:
            if program is None:
                return None
            unused = min(pool.idle.values(), key=lambda c: c.provisioned, default=None)  # the first of its kind
            if unused is None:
                return None
            provisioned, unused.provisioned = unused.provisioned, False
            self.end(unused, now)  # its state is another program's; its place is needed
        place = self._cluster.place(spec.resources)
        if place is None and program is not None and self._evict_for(spec, now):
            place = self._cluster.place(spec.resources)
        if place is None:
            return None
        slot = pool.next_slot()
        container = Container(self._made, pool.name, slot, program, place, provisioned)
        self._made += 1
        pool.live[container.number] = container
        self._rows.append((now, "container_created", pool.name, -1, container.number, slot))
        if pool.name in self._lifetimes:
            until = now + self._lifetimes[pool.name].draw()
            self._agenda.add(until, EXPIRE, container.number, self.lose, container)
        return container

    def _evict_for(self, spec: FunctionSpec, now: float) -> bool:
        """Ends idle containers, those unused for longest first, if that makes room on a node."""
        pools = self._pools
        idle = [c for pool in pools.values() for c in pool.idle.values() if not c.provisioned]
        idle.sort(key=lambda c: (c.idle_since, c.number))
        gone: list[Container] = []
        for container in idle:
            gone.append(container)
            freed = [(c.place, pools[c.function].spec.resources) for c in gone]
            place = self._cluster.find(spec.resources, freed=freed)
            if place is not None:
                for unused in gone:
                    if unused.place.node == place.node:
                        self.end(unused, now)
                return True
        return False

    def _make_idle(self, pool: Pool, container: Container, now: float) -> None:
        pool.give(container, now)
        keep_alive = pool.spec.keep_alive
        if keep_alive != math.inf and not (container.expiring or container.provisioned):
            container.expiring = True
            self._agenda.add(now + keep_alive, EXPIRE, container.number, self._expire, container)

    def _expire(self, container: Container, now: float) -> None:
        """Ends a container that has been idle for too long; looks again later if it was used in between."""
        container.expiring = False
        if not container.alive or container.idle_since is None:
            return
        due = container.idle_since + self._pools[container.function].spec.keep_alive
        if due > now:
            container.expiring = True
            self._agenda.add(due, EXPIRE, container.number, self._expire, container)
        else:
            self.end(container, now)
            self._on_room(now)

    def _ready(self, container: Container, now: float) -> None:
        if container.alive:
            self._rows.append((now, "container_ready", container.function, -1, container.number, container.slot))
            self._make_idle(self._pools[container.function], container, now)
            self._on_room(now)

    def _replace(self, pool: Pool, now: float) -> None:
        container = self._make(pool, None, now)
        if container is not None:
            container.provisioned = True
            self._agenda.add(now + self._start_up(container, now), END, -1, self._ready, container)

    def _start_up(self, container: Container, now: float) -> float:
        pool = self._pools[container.function]
        cold_start, initialisation = pool.cold_start.draw(), pool.initialisation.draw()
        if initialisation:
            self._rows.append((now, "initialisation", container.function, -1, container.number, initialisation))
        return cold_start + initialisation
