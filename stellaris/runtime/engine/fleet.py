"""All containers of a platform: made, placed, kept warm, evicted and lost, within the limits on their number."""

import math
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from stellaris.runtime.delays import Delay, Stream
from stellaris.runtime.engine.agenda import ACQUIRE, END, EXPIRE, Agenda
from stellaris.runtime.engine.calls import Call, Container
from stellaris.runtime.engine.containers import Pool
from stellaris.runtime.engine.placement import NOWHERE, Nodes
from stellaris.runtime.functions import Function, FunctionSpec
from stellaris.runtime.simulated.bodies import BodyRunner
from stellaris.runtime.state.registry import register_part
from stellaris.runtime.trace.trace import Trace


@register_part(
    "_shared_busy",
    "_made",
    rebuilt=(
        "_pools",
        "_cluster",
        "_agenda",
        "_rows",
        "_bodies",
        "_returned",
        "_hang_after",
        "on_room",
        "on_lost",
        "_shared",
        "_lifetimes",
    ),
    steps=("_warm", "lose", "lose_newest", "_ready", "_expire", "_replace", "_give_up"),
)
class Fleet:
    """All containers of a platform.

    Args:
      pools: by function.
      cluster: on which they are placed.
      limit: the most invocations at once of all functions together, or None.
      agenda: to which their events are added.
      trace: the record.
      bodies: which really make and end containers, where these are more than a place in this process.
      returned: where they say that one has been made.
      hang_after: seconds after which one that is still being made is given up on.
      seed: of their lifetimes.
      lifetimes: seconds after which a container is lost, of the functions whose containers are.

    Raises:
      ValueError: if a limit cannot be met.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        cluster: Nodes,
        limit: int | None,
        *,
        agenda: Agenda,
        trace: Trace,
        bodies: BodyRunner,
        returned: "SimpleQueue[Any]",
        hang_after: float,
        seed: int,
        lifetimes: Mapping[str, Delay],
    ) -> None:
        self._pools = pools
        self._cluster = cluster
        self._agenda = agenda
        self._rows = trace.newest
        self._bodies = bodies
        self._returned = returned
        self._hang_after = hang_after
        #: Called with the time whenever room may have been freed; set by `Admission`, which keeps the queues.
        self.on_room: Callable[[float], None] = _nobody_waits
        #: Called with a call whose container is lost, and the time; what it returns is handed out. Set by `Departures`.
        self.on_lost: Callable[[Call, float], Call | None] = _nobody_runs
        reserved = [pool.spec.reserved_concurrency or 0 for pool in pools.values()]
        if limit is not None and sum(reserved) + (0 in reserved) > limit:
            raise ValueError(f"max_concurrency={limit} is too small: {sum(reserved)} are reserved by functions")
        for name, pool in pools.items():
            if not cluster.could_ever_hold(pool.spec.resources):
                raise ValueError(f"function {name!r}: no node could ever hold its {pool.spec.resources}")
        self._shared = math.inf if limit is None else limit - sum(reserved)  # invocations at once, beside the reserved
        self._shared_busy = 0
        self._made = 0  # containers, which are numbered in the order in which they are made
        self._lifetimes = {name: Stream(delay, seed, f"{name}/lifetime") for name, delay in lifetimes.items()}

    # ---- what an invocation does with them ----------------------------------------------------------------------

    def acquire(self, call: Call, now: float) -> tuple[Container, float] | None:
        """Gives an invocation an idle container, or else a new one.

        Returns:
          The container, and the seconds until it is ready (0 if it is warm); None if there is no room.
        """
        pool: Pool = call.pool
        if not self.may_have_room(pool):
            return None
        wait = 0.0
        container = pool.take(call.program)
        if container is None:
            container = self._make(pool, call.program, now)
            if container is None:
                return None
            call.cold = True
            wait = self._start_up(container, now)
        container.call = call
        pool.busy += 1
        if pool.spec.reserved_concurrency is None:
            self._shared_busy += 1
        return container, wait

    def may_have_room(self, pool: Pool) -> bool:
        """Whether the limits admit one more invocation; a node may still lack the room."""
        limit = pool.spec.max_concurrency
        if limit is not None and not pool.idle and len(pool.live) >= limit:
            return False
        if pool.spec.reserved_concurrency is not None:
            return pool.busy < pool.spec.reserved_concurrency
        return self._shared_busy < self._shared

    def begin(self, container: Container) -> float:
        """Its invocation starts; returns how many times as long it computes, with others on the same GPU."""
        return self._cluster.begin(container.place)

    def release(self, container: Container, now: float, *, started: bool, dies: bool) -> None:
        """Its invocation has ended: the container becomes idle, or ends as well."""
        pool = self._pools[container.function]
        container.call = None
        pool.busy -= 1
        if pool.spec.reserved_concurrency is None:
            self._shared_busy -= 1
        if started and container.place is not NOWHERE:
            self._cluster.end(container.place)
        if dies:
            self.end(container, now)
        else:
            self._make_idle(pool, container, now)
        self.on_room(now)

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

    def warm_at(self, time: float, pool: Pool, count: int) -> None:
        """Has so many containers of a function made at an instant, ahead of the invocations."""
        pool.prewarmed += count
        for _ in range(count):
            # Number -1, so that they are made before any call that arrives at that instant looks for room.
            self._agenda.add(time, ACQUIRE, -1, self._warm, pool)

    def _warm(self, pool: Pool, now: float) -> None:
        """Makes a container ahead of the invocations, if there is room; it becomes idle when it is ready."""
        container = self._make(pool, None, now)
        if container is not None:
            self._agenda.add(now + self._start_up(container, now), END, -1, self._ready, container)

    def lose(self, container: Container, now: float) -> Call | None:
        """A container is lost with its state; returns the call that crashes with it, if it runs one."""
        if not container.alive:
            return None
        self._rows.append((now, "container_lost", container.function, -1, container.number, container.slot))
        for node in self._bodies.lost_nodes():
            self._cluster.close(node)
        if container.call is not None:
            return self.on_lost(container.call, now)
        self.end(container, now)
        self.on_room(now)
        return None

    def lose_newest(self, name: str, now: float) -> Call | None:
        """A function's newest container is lost, if there is one; likewise."""
        live = self._pools[name].live
        return self.lose(live[max(live)], now) if live else None

    def end(self, container: Container, now: float) -> None:
        """Ends a container; a provisioned one is replaced."""
        pool = self._pools[container.function]
        container.alive = False
        container.state = None
        self._bodies.end(container)
        pool.forget(container)
        del pool.live[container.number]
        if container.occupied:
            pool.occupied += 1
        else:
            pool.free(container.slot)
        self._cluster.free(container.place, pool.spec.resources)
        self._rows.append((now, "container_ended", pool.name, -1, container.number, container.slot))
        if container.provisioned:
            # Not at once: the caller may be ending it to make room for another. Yet before the calls of this instant.
            self._agenda.add(now, ACQUIRE, -1, self._replace, pool)

    def wait_for(self, container: Container, now: float) -> None:
        """Its drawn cold start is over, but it is still really being made: what is to happen then waits for that."""
        container.awaited = True
        self._agenda.add(now + self._hang_after, EXPIRE, container.number, self._give_up, container)

    def made(self, container: Container, now: float) -> bool:
        """It has really been made, or could not be; whether a call that has it can start now."""
        container.starting = False
        if not container.alive:
            return False
        if (error := self._bodies.made(container)) is not None:
            if container.call is not None:
                container.call.error = error
            self._agenda.add(now, EXPIRE, container.number, self.lose, container)
            return False
        if container.awaited and container.call is None:
            self._agenda.add(now, END, -1, self._ready, container)
        return container.awaited

    def _give_up(self, container: Container, now: float) -> Call | None:
        """A container that is still being made is taken for lost."""
        return self.lose(container, now) if container.starting else None

    def vacate(self, container: Container) -> None:
        """A killed body that ran on in the slot of this ended container has returned: the slot is free."""
        pool = self._pools[container.function]
        container.occupied = False
        pool.occupied -= 1
        pool.free(container.slot)

    def end_all(self, now: float) -> None:
        """Ends every container, because the platform closes."""
        for pool in self._pools.values():
            for container in list(pool.live.values()):
                container.provisioned = False  # so that it is not replaced
                self.end(container, now)

    def _make(self, pool: Pool, program: Function | None, now: float) -> Container | None:
        """A new container, if there is room.

        If it is made for a call's program, and not ahead of calls, idle containers are evicted to make room for it:
        those of its own function that another program has initialised, and those of any function on a full node.
        """
        spec = pool.spec
        provisioned = False
        if spec.max_concurrency is not None and len(pool.live) >= spec.max_concurrency:
            if program is None:
                return None
            # That unused for longest, but a provisioned one only if there is no other; the new one is then provisioned.
            unused = min(pool.idle.values(), key=lambda c: c.provisioned, default=None)
            if unused is None:
                return None
            provisioned = unused.provisioned
            unused.provisioned = False
            self.end(unused, now)
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
        self._bodies.make(container, spec, self._returned.put)
        if pool.name in self._lifetimes:
            until = now + self._lifetimes[pool.name].draw()
            self._agenda.add(until, EXPIRE, container.number, self.lose, container)
        return container

    def _evict_for(self, spec: FunctionSpec, now: float) -> bool:
        """Ends idle containers, those unused for longest first, if that makes room on a node; says whether it did.

        Provisioned ones are spared. None ends before it is known that there will be room, and then only those on the
        node that gets the room: evicting the others would help nobody.
        """
        pools = self._pools
        idle = [c for pool in pools.values() for c in pool.idle.values() if not c.provisioned]
        idle.sort(key=lambda c: (c.idle_since, c.number))  # by number, so that ties do not depend on the pools' order
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
        """Ends a container that has been idle for too long; checks again later if it was used in between.

        One event per container at a time, instead of one per use: most containers are used often before they expire.
        """
        container.expiring = False
        if not container.alive or container.idle_since is None:
            return
        due = container.idle_since + self._pools[container.function].spec.keep_alive
        if due > now:
            container.expiring = True
            self._agenda.add(due, EXPIRE, container.number, self._expire, container)
        else:
            self.end(container, now)
            self.on_room(now)

    def _ready(self, container: Container, now: float) -> None:
        """A container that was made ahead of calls can be used."""
        if container.starting:
            self.wait_for(container, now)
        elif container.alive:
            self._rows.append((now, "container_ready", container.function, -1, container.number, container.slot))
            self._make_idle(self._pools[container.function], container, now)
            self.on_room(now)

    def _replace(self, pool: Pool, now: float) -> None:
        """Makes a provisioned container in place of one that ended, if there is room."""
        container = self._make(pool, None, now)
        if container is not None:
            container.provisioned = True
            self._agenda.add(now + self._start_up(container, now), END, -1, self._ready, container)

    def _start_up(self, container: Container, now: float) -> float:
        """Seconds until a new container is ready."""
        pool = self._pools[container.function]
        cold_start = pool.cold_start.draw()
        initialisation = pool.initialisation.draw()
        if initialisation:
            self._rows.append((now, "initialisation", container.function, -1, container.number, initialisation))
        return cold_start + initialisation


def _nobody_waits(now: float) -> None:
    """Stands for `Admission.wake` until that is set."""


def _nobody_runs(call: Call, now: float) -> None:
    """Stands for the end of a call until that is set."""
