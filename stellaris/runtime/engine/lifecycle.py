"""The first half of a call's life: it is submitted, gets a container and starts. `departures` has the second half.

Every step is an event of the agenda, `step(subject, time)`, and may return a call to be handed out. Everything that
changes while a platform runs can be reached from `Lifecycle`, so a checkpoint of it is a checkpoint of the platform.
"""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from stellaris.runtime.delays import Measured
from stellaris.runtime.engine.admission import Admission
from stellaris.runtime.engine.agenda import ACQUIRE, END, EXPIRE, START, Agenda
from stellaris.runtime.engine.bodies import BodyRunner
from stellaris.runtime.engine.calls import Call, Container
from stellaris.runtime.engine.clock import Clock
from stellaris.runtime.engine.containers import Pool
from stellaris.runtime.engine.course import Courses
from stellaris.runtime.engine.departures import Departures
from stellaris.runtime.engine.deployment import Deployment
from stellaris.runtime.engine.faults import StoreRefusedError
from stellaris.runtime.engine.fleet import Fleet
from stellaris.runtime.engine.placement import NOWHERE, Nodes
from stellaris.runtime.engine.recorded import Recording
from stellaris.runtime.engine.transfers import Transfers
from stellaris.runtime.functions import Function, FunctionSpec
from stellaris.runtime.state.registry import register_part
from stellaris.runtime.store.store import Store
from stellaris.runtime.trace.trace import Trace


@register_part(
    "_expected",
    "_invoked",
    rebuilt=(
        # `departures` comes first, because a snapshot names an object by the first path that leads to it: the name of a
        # call is then its number among the pending calls.
        "departures",
        "clock",
        "agenda",
        "trace",
        "transfers",
        "pools",
        "fleet",
        "admission",
        "returned",
        "_rows",
        "_courses",
        "_bodies",
        "_hang_after",
    ),
    steps=("_arrive", "_acquire", "_start"),
)
class Lifecycle:
    """Calls, containers, the store and the trace of one platform.

    Args:
      deployment: the functions and nodes, and the faults to simulate.
      replay: a recorded run to repeat, or None.
      seed: seed of every draw.
      clock: virtual or wall time.
      bodies: the body runner, which runs the body of every call that has started.
      hang_after: seconds of real time after which a body on the wall clock is given up on.
      store: the class of the store of versions, or a function that makes one.
    """

    def __init__(
        self,
        deployment: Deployment,
        replay: Recording | None,
        seed: int,
        clock: Clock,
        bodies: BodyRunner,
        hang_after: float,
        store: Callable[..., Store] = Store,
    ) -> None:
        self.clock = clock
        self.agenda = Agenda()
        self.trace = Trace()
        self.transfers = Transfers(deployment, seed, clock, self.trace, store)
        self.pools = {name: Pool(name, spec, seed) for name, spec in deployment.functions.items()}
        #: A queue, on the wall clock, of calls whose body has returned and of containers that are ready or could not be
        #: made. Other threads put them there, because only the platform's thread may change the agenda.
        self.returned: SimpleQueue[Call | Container] = SimpleQueue()
        self._rows = self.trace.newest
        self._bodies = bodies
        self._hang_after = hang_after
        self._expected: deque[Call] = deque()  # calls submitted for a later instant, in the order of these instants
        self._invoked = 0  # number of calls so far; calls are numbered in the order in which `submit` gets them
        self._courses = Courses(deployment.faults, replay, seed)
        self.fleet = Fleet(
            self.pools,
            Nodes(deployment.nodes, deployment.placement),
            deployment.max_concurrency,
            agenda=self.agenda,
            trace=self.trace,
            bodies=bodies,
            returned=self.returned,
            hang_after=hang_after,
            seed=seed,
            lifetimes={name: f.lifetime for name, f in deployment.faults.items() if f.lifetime is not None},
        )
        self.departures = Departures(self.agenda, self.fleet, self.transfers, self.trace, bodies)
        self.admission = Admission(self.pools, self.fleet, self.agenda, self._take)
        for name, fault in deployment.faults.items():
            for instant in fault.lose_containers_at:
                self.agenda.add(instant, EXPIRE, -1, self.fleet.lose_newest, name)
        self.fleet.provision(clock.now)

    # ---- submitted ------------------------------------------------------------------------------------------------

    def submit(
        self,
        pool: Pool,
        program: Function,
        args: tuple[Any, ...],
        at: float | None,
        work: float,
        tag: Any,
        nbytes: int,
        *,
        attempt: int = 1,
        key: int | None = None,
    ) -> Call:
        """Submits a call, now or for a later instant."""
        number = self._invoked
        now = self.clock.now
        if args:
            self.transfers.pin(args, number)  # before any state changes, because pinning may raise
        self._invoked += 1
        key = number if key is None else key
        submitted = now if at is None else at
        course = self._courses.next(pool.name) if self._courses.any else None
        call = Call(number, pool.name, tag, attempt, key, submitted, program, args, work, nbytes, pool, course)
        # A call is pending even before its instant, so that it can be cancelled and the drivers wait for it.
        self.departures.pending[number] = call
        if at is None:
            self.agenda.add(self._arrived(call, now), ACQUIRE, number, self._acquire, call)
        else:
            self._expect(call)
        return call

    def _expect(self, call: Call) -> None:
        """Schedules the arrival of a call at a later instant."""
        # A workload is often submitted all at once, in the order of its arrivals. Its calls wait in `_expected`, and
        # only the first has an event, so that the agenda stays short. A call out of this order gets its event at once.
        line = self._expected
        if not line or call.submitted >= line[-1].submitted:
            line.append(call)
            if line[0] is not call:
                return
        self.agenda.add(call.submitted, ACQUIRE, call.number, self._arrive, call)

    def _arrive(self, call: Call, now: float) -> Call | None:
        """Records the arrival of a call, and looks for its container."""
        line = self._expected
        if line and line[0] is call:
            line.popleft()
            # The next call gets its event first, even if this call was cancelled, because the next call may arrive at
            # this very instant.
            if line:
                following = line[0]
                self.agenda.add(following.submitted, ACQUIRE, following.number, self._arrive, following)
        if call.number not in self.departures.pending:
            return None  # the call was cancelled before
        looks = self._arrived(call, now)
        if looks == now:
            # No event is needed: an event with the same time, phase and number would be the next in any case.
            return self._acquire(call, now)
        self.agenda.add(looks, ACQUIRE, call.number, self._acquire, call)
        return None

    def _arrived(self, call: Call, now: float) -> float:
        """Records a call's submission; returns the time at which it looks for a container, or is refused."""
        call.arrived = True
        self._rows.append((now, "submitted", call.function, call.number, -1, call.key))
        drawn: float = now + call.pool.queueing.draw()
        return drawn if call.course is None else call.course.looks_at(now, drawn)

    # ---- acquired -------------------------------------------------------------------------------------------------

    def _acquire(self, call: Call, now: float) -> Call | None:
        """Finds a container for a call or queues the call. A call that is rejected, or throttled by a fault, ends."""
        if call.number not in self.departures.pending:
            return None  # the call was cancelled before
        # The fault is checked first, because a request that is refused never reaches the queue.
        throttled = call.course is not None and call.course.throttled
        if throttled or not self.admission.admit(call, now):
            self.departures.end(call, "throttled", now)
            return call
        return None

    def _take(self, call: Call, container: Container, wait: float, now: float) -> None:
        """Schedules the start of a call for the time at which its container is ready."""
        call.container = container
        self._rows.append((now, "acquired", call.function, call.number, container.number, call.cold))
        start = now + wait
        if call.course is not None:
            start = call.course.starts_at(now, start)
            ending = call.course.ends_before_start()
            if ending is not None:
                # An end comes before a start at the same instant, so the call ends without having started.
                self.departures.end_at(start, call, ending)
        self.agenda.add(start, START, call.number, self._start, call)

    # ---- started --------------------------------------------------------------------------------------------------

    def _start(self, call: Call, now: float) -> None:
        """Resolves a call's arguments, decides how long the call takes, and has its body run.

        The steps are in the order of a real call: it occupies its GPU, its container may crash, it fetches its
        arguments, it computes. A call that ends at one step draws no random numbers for the later ones.
        """
        container = call.container
        if call.number not in self.departures.pending:
            return  # the call was cancelled, or its container was lost
        assert container is not None
        if container.starting:
            self.fleet.wait_for(container, now)  # the drawn cold start is over, but the real cold start takes longer
            return
        if not self.clock.virtual:
            # The loop may have been busy since the time of this event. The body starts only now, and so do its limits.
            now = max(now, self.clock.now)
        spec = call.pool.spec
        course = call.course
        call.status = "running"
        call.started = now
        # The start is recorded before anything can fail: a call is billed from its start, whatever its ending.
        self._rows.append((now, "started", call.function, call.number, container.number, 0.0))
        slow_down = 1.0 if container.place is NOWHERE else self.fleet.begin(container)
        if course is not None and course.crashes_at_start():
            self.departures.end_at(now, call, "crashed")
            return
        transfer = 0.0
        try:
            if call.args or spec.transfer is not None:
                transfer = self.transfers.fetch(call, now)
        except (LookupError, StoreRefusedError) as error:
            call.error = error
            # A missing version does not come back, so the call fails for good. A store that refuses may answer a retry.
            self.departures.end_at(now, call, "failed" if isinstance(error, LookupError) else "crashed")
            return
        if course is None:
            # This is `course.end_of`, inlined for speed: on most platforms every call passes here.
            seconds = self._seconds(call, spec, transfer, slow_down)
            due = now + seconds
            ending = "completed"
            if spec.timeout is not None and seconds > spec.timeout:
                due = now + spec.timeout
                ending = "timed_out"
        else:
            due, ending = course.ends(
                now, lambda factor: self._seconds(call, spec, transfer, slow_down * factor), spec.timeout
            )
        if ending == "completed":
            self._run(call, spec, due, now)
        else:
            # The body does not run, because the call will be killed and no one would see the result.
            call.task = None
            self.departures.end_at(due, call, ending)

    def _seconds(self, call: Call, spec: FunctionSpec, transfer: float, slow_down: float) -> float:
        """Returns the seconds from a call's start to its end, if nothing goes wrong."""
        # Other calls on the GPU, or a straggling machine, slow down only the computing, and not the transfer.
        if not isinstance(spec.compute, Measured):
            seconds: float = transfer + call.work * call.pool.compute.draw() * slow_down
            return seconds
        if self.clock.virtual:
            return transfer + spec.compute.factor * call.work * self._bodies.measure(call) * slow_down
        return transfer  # on the wall clock `take_note` adds the body's time once the body has returned

    def _run(self, call: Call, spec: FunctionSpec, due: float, now: float) -> None:
        """Runs the body of a call that is due to complete, unless the body was measured and has run already."""
        call.finished = due  # on the wall clock the call ends later if the body takes longer
        if self.clock.virtual:
            if call.task is None:  # a measured body has run already
                # The body starts now and is awaited when it is due, so that bodies whose virtual times overlap run in
                # parallel.
                self._bodies.start(call, trusted=spec.timeout is None)
            self.agenda.add(due, END, call.number, self.departures.complete, call)
        else:
            # A measured body runs alone: in a batch, its time would include the time of other bodies.
            trusted = spec.timeout is None and not isinstance(spec.compute, Measured)
            self._bodies.start(call, trusted=trusted, on_done=self._on_returned)
            # The call completes when its body returns. The event added here ends a call whose body never returns.
            if spec.timeout is None:
                # The event is not before `due`: a long drawn duration does not mean that the body hangs.
                self.departures.end_at(max(now + self._hang_after, due), call, "hung")
            else:
                self.departures.end_at(max(now + spec.timeout, due), call, "timed_out")

    def _on_returned(self, call: Call) -> None:
        """Notes when a body returned; called on its thread."""
        call.returned = self.clock.now
        self.returned.put(call)

    def start_batches(self) -> None:
        """Starts the bodies that wait to run as one batch; called on the wall clock once nothing else starts now."""
        self._bodies.start_batches()

    def take_note(self, note: Call | Container) -> None:
        """Handles, on the wall clock, a body that has returned, or a container that is ready or could not be made.

        The call of the body completes when it returned, or when its drawn duration is over. A call that waits for the
        container starts now.
        """
        if isinstance(note, Container):
            if self.fleet.made(note, self.clock.now) and note.call is not None:
                self.agenda.add(self.clock.now, START, note.call.number, self._start, note.call)
            return
        call = note
        container = call.container
        if call.number not in self.departures.pending:
            if container is not None and container.occupied:
                self.fleet.vacate(container)  # the call was killed before, but its body returns only now
            return
        assert call.finished is not None
        due = call.finished = call.finished + self._bodies.returned(call)
        # The time is that of the return and not of this note: while the loop was busy, a limit of the call may have
        # passed that the body kept. Events that were due before the body returned still come first.
        self.agenda.add(max(call.returned, due), END, call.number, self.departures.complete, call)

    def stuck(self) -> tuple[int, int] | None:
        """Returns how many calls were made and wait for room if all pending calls do; None otherwise.

        Equal answers at two times mean that in between no call has arrived, found room or ended.
        """
        waiting = sum(self.admission.blocked().values())
        if waiting < len(self.departures.pending) or self.departures.undelivered:
            return None
        return self._invoked, waiting

    # ---- checkpoints, and the end ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Runs every body that has started to its end, and keeps the outcomes until the calls are due."""
        for call in self.departures.pending.values():
            if call.task is not None:
                self._bodies.settle(call)

    def end_all(self) -> None:
        """Cancels the pending calls and ends the containers."""
        now = self.clock.now
        # Calls end before containers: in the trace a call ends before its container does.
        self.departures.cancel_all(now)
        self.fleet.end_all(now)
        self.agenda.clear()  # the agenda refers to bodies and arguments, whose memory is to be freed
        self._expected.clear()
