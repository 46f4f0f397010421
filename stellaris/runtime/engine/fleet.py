"""The containers of a platform, from their making to their end, within the limits on their number."""

import math
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from stellaris.runtime.delays import Delay, Stream
from stellaris.runtime.engine.agenda import ACQUIRE, END, EXPIRE, Agenda
from stellaris.runtime.engine.bodies import BodyRunner
from stellaris.runtime.engine.calls import Call, Container
from stellaris.runtime.engine.containers import Pool
from stellaris.runtime.engine.placement import NOWHERE, Nodes
from stellaris.runtime.functions import Function, FunctionSpec
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
    """The containers of all functions of a platform.

    Args:
      pools: the pool of each function.
      cluster: the nodes on which containers are placed.
      limit: the most invocations at once, of all functions together; None for no limit.
      agenda: receives the events of containers.
      trace: the event log.
      bodies: the body runner, which makes and ends containers that are real, such as processes.
      returned: the queue into which `bodies` puts containers that are ready or could not be made.
      hang_after: seconds after which a container that is still being made is given up on.
      seed: seed of the draws of lifetimes.
      lifetimes: seconds after which a container is lost, by function.

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
        # `Admission` and `Departures` are made after the fleet, because they need it; they replace these two defaults.
        #: Called with the time whenever room may have been freed.
        self.on_room: Callable[[float], None] = _nobody_waits
        #: Called with a call whose container is lost, and the time; returns the call to be handed out, if any.
        self.on_lost: Callable[[Call, float], Call | None] = _nobody_runs
        reserved = [pool.spec.reserved_concurrency or 0 for pool in pools.values()]
        # Functions without a reservation need one place that is not reserved: they could never run otherwise.
        if limit is not None and sum(reserved) + (0 in reserved) > limit:
            raise ValueError(
                f"max_concurrency={limit} is too small: functions reserve {sum(reserved)}, and functions without a "
                "reservation need at least one place; raise it, or reserve less"
            )
        for name, pool in pools.items():
            # Nodes are checked here, because a call that fits on no node would wait forever.
            if not cluster.could_ever_hold(pool.spec.resources):
                raise ValueError(
                    f"function {name!r}: no node could ever hold its {pool.spec.resources}; add a larger node"
                )
        self._shared = math.inf if limit is None else limit - sum(reserved)  # places that no function has reserved
        self._shared_busy = 0
        self._made = 0  # number of containers so far; they are numbered in the order in which they are made
        self._lifetimes = {name: Stream(delay, seed, f"{name}/lifetime") for name, delay in lifetimes.items()}

    # ---- giving containers to invocations, and taking them back -------------------------------------------------

    def acquire(self, call: Call, now: float) -> tuple[Container, float] | None:
        """Gives an invocation an idle container, or else a new one.

        Returns:
          The container and the seconds until it is ready (0 if it is warm); None if there is no room for a container.
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
        """Returns whether the limits admit one more invocation. The nodes may still be full."""
        limit = pool.spec.max_concurrency
        # At the limit an idle container still makes room: it is reused, or evicted for a container of another program.
        if limit is not None and not pool.idle and len(pool.live) >= limit:
            return False
        # A reservation is also a limit, as on AWS Lambda: the function does not use shared places in addition.
        if pool.spec.reserved_concurrency is not None:
            return pool.busy < pool.spec.reserved_concurrency
        return self._shared_busy < self._shared

    def begin(self, container: Container) -> float:
        """Starts a container's invocation; returns the factor by which other invocations on its GPU slow it down."""
        return self._cluster.begin(container.place)

    def release(self, container: Container, now: float, *, started: bool, dies: bool) -> None:
        """Makes a container idle, or ends it, after its invocation has ended."""
        pool = self._pools[container.function]
        container.call = None
        pool.busy -= 1
        if pool.spec.reserved_concurrency is None:
            self._shared_busy -= 1
        # An invocation occupies a share of its GPU only from its start on.
        if started and container.place is not NOWHERE:
            self._cluster.end(container.place)
        if dies:
            self.end(container, now)
        else:
            self._make_idle(pool, container, now)
        self.on_room(now)

    # ---- making, losing and ending containers -------------------------------------------------------------------

    def provision(self, now: float) -> None:
        """Makes the provisioned containers. They are ready at once, because they were made before the run."""
        for pool in self._pools.values():
            for _ in range(pool.spec.provisioned):
                container = self._make(pool, None, now)
                if container is None:
                    raise ValueError(
                        f"function {pool.name!r}: no room for provisioned={pool.spec.provisioned}; add nodes, or "
                        "provision fewer"
                    )
                container.provisioned = True
                self._ready(container, now)

    def warm_at(self, time: float, pool: Pool, count: int) -> None:
        """Schedules the making of `count` containers of a function, ahead of its invocations."""
        pool.prewarmed += count  # counted now, because `slots` includes containers that are still to be made
        for _ in range(count):
            # With number -1, containers are made before any call that arrives at that instant looks for room.
            self._agenda.add(time, ACQUIRE, -1, self._warm, pool)

    def _warm(self, pool: Pool, now: float) -> None:
        """Makes a container ahead of invocations, if there is room; the container becomes idle when it is ready."""
        container = self._make(pool, None, now)
        if container is not None:
            self._agenda.add(now + self._start_up(container, now), END, -1, self._ready, container)

    def lose(self, container: Container, now: float) -> Call | None:
        """Loses a container with its state; returns the call that crashes with the container, if any."""
        if not container.alive:
            return None
        self._rows.append((now, "container_lost", container.function, -1, container.number, container.slot))
        # The body runner is asked for lost nodes only after a loss, because asking a real cluster takes time. The nodes
        # are closed before the container is replaced, so that the replacement is not placed on a lost node.
        for node in self._bodies.lost_nodes():
            self._cluster.close(node)
        if container.call is not None:
            return self.on_lost(container.call, now)
        self.end(container, now)
        self.on_room(now)
        return None

    def lose_newest(self, name: str, now: float) -> Call | None:
        """Loses the newest container of a function, if any; returns the call that crashes with it, if any."""
        # The highest number is the newest, because containers are numbered in the order in which they are made.
        live = self._pools[name].live
        return self.lose(live[max(live)], now) if live else None

    def end(self, container: Container, now: float) -> None:
        """Ends a container; a provisioned container is replaced."""
        pool = self._pools[container.function]
        container.alive = False
        container.state = None
        self._bodies.end(container)
        pool.forget(container)
        del pool.live[container.number]
        if container.occupied:
            pool.occupied += 1  # a killed body still runs in the slot, and `vacate` frees it later
        else:
            pool.free(container.slot)
        self._cluster.free(container.place, pool.spec.resources)
        self._rows.append((now, "container_ended", pool.name, -1, container.number, container.slot))
        if container.provisioned:
            # The replacement is an event, because the caller may be ending the container to make room for another. With
            # number -1 it precedes the calls that arrive at this instant.
            self._agenda.add(now, ACQUIRE, -1, self._replace, pool)

    def wait_for(self, container: Container, now: float) -> None:
        """Defers the next step after a container's drawn cold start until the container is really ready."""
        container.awaited = True
        # The wait is limited, because a process that never starts would keep its call pending forever.
        self._agenda.add(now + self._hang_after, EXPIRE, container.number, self._give_up, container)

    def made(self, container: Container, now: float) -> bool:
        """Takes note that a container is ready or could not be made; returns whether its call can start now."""
        container.starting = False
        if not container.alive:
            return False  # the container was given up on, or its call was cancelled
        if (error := self._bodies.made(container)) is not None:
            if container.call is not None:
                container.call.error = error
            # The loss is an event, because only a driver hands out the call that crashes with the container.
            self._agenda.add(now, EXPIRE, container.number, self.lose, container)
            return False
        if container.awaited and container.call is None:
            self._agenda.add(now, END, -1, self._ready, container)
        # If the drawn cold start is not over, the event that starts the call is still to come.
        return container.awaited

    def _give_up(self, container: Container, now: float) -> Call | None:
        """Treats a container that is still being made as lost."""
        return self.lose(container, now) if container.starting else None

    def vacate(self, container: Container) -> None:
        """Frees the slot of an ended container, because the killed body that still ran in it has returned."""
        pool = self._pools[container.function]
        container.occupied = False
        pool.occupied -= 1
        pool.free(container.slot)

    def end_all(self, now: float) -> None:
        """Ends every container, because the platform closes."""
        for pool in self._pools.values():
            for container in list(pool.live.values()):
                container.provisioned = False  # so that `end` does not replace it
                self.end(container, now)

    def _make(self, pool: Pool, program: Function | None, now: float) -> Container | None:
        """Makes a container if there is room; returns None otherwise.

        A container for a call's program may evict idle containers: at the function's limit a container that another
        program has initialised, and on a full node containers of any function. Provisioned containers are evicted last,
        and only for their own function; the new container is then provisioned in place of the old one. A container made
        ahead of calls evicts no other.
        """
        spec = pool.spec
        provisioned = False
        if spec.max_concurrency is not None and len(pool.live) >= spec.max_concurrency:
            if program is None:
                return None
            # `idle` begins with the container unused for longest, and `min` takes the first.
            unused = min(pool.idle.values(), key=lambda c: c.provisioned, default=None)
            if unused is None:
                return None
            provisioned = self._give_way(unused, now)
        place = self._cluster.place(spec.resources)
        if place is None and program is not None:
            if not self._evict_for(spec, now):
                unused = next((c for c in pool.idle.values() if c.provisioned), None)
                if unused is None:
                    return None
                provisioned = self._give_way(unused, now)
            place = self._cluster.place(spec.resources)
        if place is None:
            return None
        # The slot is taken after the evictions, which free slots: it could otherwise exceed the bound of `slots`.
        slot = pool.next_slot()
        container = Container(self._made, pool.name, slot, program, place, provisioned)
        self._made += 1
        pool.live[container.number] = container
        self._rows.append((now, "container_created", pool.name, -1, container.number, slot))
        # The runner begins at once, so that the real cold start and the drawn cold start run at the same time.
        self._bodies.make(container, spec, self._returned.put)
        if pool.name in self._lifetimes:
            until = now + self._lifetimes[pool.name].draw()
            self._agenda.add(until, EXPIRE, container.number, self.lose, container)
        return container

    def _give_way(self, unused: Container, now: float) -> bool:
        """Ends an idle container for another one of its function; returns whether it was provisioned."""
        provisioned = unused.provisioned
        unused.provisioned = False  # so that `end` does not replace it
        self.end(unused, now)
        return provisioned

    def _evict_for(self, spec: FunctionSpec, now: float) -> bool:
        """Ends idle containers, the longest unused first, if that makes room on a node; returns whether it does."""
        pools = self._pools
        idle = [c for pool in pools.values() for c in pool.idle.values() if not c.provisioned]
        idle.sort(key=lambda c: (c.idle_since, c.number))  # the number breaks ties: the order of pools does not matter
        # No container ends before it is certain that a node will have room. Then only the containers of `gone` on that
        # node end, because ending the others would make no room there.
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
        # A container has one event at a time and not one for every use, because most containers are used many times.
        if keep_alive != math.inf and not (container.expiring or container.provisioned):
            container.expiring = True
            self._agenda.add(now + keep_alive, EXPIRE, container.number, self._expire, container)

    def _expire(self, container: Container, now: float) -> None:
        """Ends a container that has been idle for too long; if it has been used meanwhile, schedules another check."""
        container.expiring = False
        if not container.alive or container.idle_since is None:
            return  # the container has ended, or is busy: the next `_make_idle` then adds another event
        due = container.idle_since + self._pools[container.function].spec.keep_alive
        if due > now:
            container.expiring = True
            self._agenda.add(due, EXPIRE, container.number, self._expire, container)
        else:
            self.end(container, now)
            self.on_room(now)

    def _ready(self, container: Container, now: float) -> None:
        """Makes a container available that was made ahead of calls."""
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
        """Returns the seconds until a new container is ready."""
        pool = self._pools[container.function]
        cold_start = pool.cold_start.draw()
        initialisation = pool.initialisation.draw()
        if initialisation:
            self._rows.append((now, "initialisation", container.function, -1, container.number, initialisation))
        return cold_start + initialisation


def _nobody_waits(now: float) -> None:
    """The default of `Fleet.on_room`."""


def _nobody_runs(call: Call, now: float) -> None:
    """The default of `Fleet.on_lost`."""
