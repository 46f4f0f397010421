"""The life of a call on the simulated platform: submitted, acquired, started; `departures` says how it ends.

Every step is an event of the agenda, `step(subject, time)`, which may return a call to be handed out. All that changes
as a platform runs is held here, so that a checkpoint of it is a checkpoint of the platform.
"""

from collections import deque
from queue import SimpleQueue
from typing import Any

from stellaris.runtime.delays import Measured
from stellaris.runtime.functions import Function, FunctionSpec
from stellaris.runtime.simulated.admission import Admission
from stellaris.runtime.simulated.agenda import ACQUIRE, END, EXPIRE, START, Agenda
from stellaris.runtime.simulated.bodies import Bodies
from stellaris.runtime.simulated.calls import Call, Container
from stellaris.runtime.simulated.clock import Clock
from stellaris.runtime.simulated.containers import Pool
from stellaris.runtime.simulated.course import Courses
from stellaris.runtime.simulated.departures import Departures
from stellaris.runtime.simulated.deployment import Deployment
from stellaris.runtime.simulated.faults import StoreRefusedError
from stellaris.runtime.simulated.fleet import Fleet
from stellaris.runtime.simulated.placement import NOWHERE, Cluster
from stellaris.runtime.simulated.recorded import Recording
from stellaris.runtime.simulated.transfers import Transfers
from stellaris.runtime.trace import Trace
from stellaris.saved import part


@part(
    *("_expected", "_invoked"),
    rebuilt=(
        # Calls are found first where they are pending, by their numbers: that is a good name of a place.
        *("departures", "clock", "agenda", "trace", "transfers", "pools", "fleet", "admission", "returned"),
        *("_rows", "_courses", "_bodies", "_hang_after"),
    ),
    steps=("_arrive", "_acquire", "_start"),
)
class Lifecycle:
    """Calls, containers, the store and the trace of one platform.

    Args:
      deployment: what costs time, and what goes wrong.
      replay: the recorded run that is met instead of faults, or None.
      seed: of every draw.
      clock: virtual or wall time.
      bodies: runs what has started.
      hang_after: seconds of real time after which a body on the wall clock is given up on.
    """

    def __init__(
        self,
        deployment: Deployment,
        replay: Recording | None,
        seed: int,
        clock: Clock,
        bodies: Bodies,
        hang_after: float,
    ) -> None:
        self.clock = clock
        self.agenda = Agenda()
        self.trace = Trace()
        self.transfers = Transfers(deployment, seed, clock, self.trace)
        self.pools = {name: Pool(name, spec, seed) for name, spec in deployment.functions.items()}
        self.returned: SimpleQueue[Call] = SimpleQueue()  #: calls whose body has returned, on the wall clock.
        self._rows = self.trace.newest
        self._bodies = bodies
        self._hang_after = hang_after
        self._expected: deque[Call] = deque()  # calls that arrive at an instant to come, in order of their arrival
        self._invoked = 0
        self._courses = Courses(deployment.faults, replay, seed)
        self.fleet = Fleet(
            self.pools,
            Cluster(deployment.nodes, deployment.placement),
            deployment.max_concurrency,
            agenda=self.agenda,
            trace=self.trace,
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
        """A new call, which looks for a container now, or arrives at an instant to come."""
        number = self._invoked
        now = self.clock.now
        if args:
            self.transfers.pin(args, number)  # before all else: if it raises, nothing has happened
        self._invoked += 1
        key = number if key is None else key
        submitted = now if at is None else at
        course = self._courses.next(pool.name) if self._courses.any else None
        call = Call(number, pool.name, tag, attempt, key, submitted, program, args, work, nbytes, pool, course)
        self.departures.pending[number] = call
        if at is None:
            self.agenda.add(self._arrived(call, now), ACQUIRE, number, self._acquire, call)
        else:
            self._expect(call)
        return call

    def _expect(self, call: Call) -> None:
        """Has a call arrive at an instant to come.

        Calls that are submitted in order of their arrival, as those of a workload that is known beforehand are, stand
        in line, and only the first has an event. So the agenda stays short, however many there are.
        """
        line = self._expected
        if not line or call.submitted >= line[-1].submitted:
            line.append(call)
            if line[0] is not call:
                return
        self.agenda.add(call.submitted, ACQUIRE, call.number, self._arrive, call)

    def _arrive(self, call: Call, now: float) -> Call | None:
        """A call's instant has come."""
        line = self._expected
        if line and line[0] is call:
            line.popleft()
            if line:  # before all else, also if the call was cancelled: the next may arrive at this very instant
                following = line[0]
                self.agenda.add(following.submitted, ACQUIRE, following.number, self._arrive, following)
        if call.number not in self.departures.pending:
            return None  # cancelled before
        looks = self._arrived(call, now)
        if looks == now:
            # At once, as the event would: it has the same time, phase and number as this one.
            return self._acquire(call, now)
        self.agenda.add(looks, ACQUIRE, call.number, self._acquire, call)
        return None

    def _arrived(self, call: Call, now: float) -> float:
        """Records that a call is submitted; returns when it looks for a container, or is refused."""
        call.arrived = True
        self._rows.append((now, "submitted", call.function, call.number, -1, call.key))
        drawn: float = now + call.pool.queueing.draw()
        return drawn if call.course is None else call.course.looks_at(now, drawn)

    # ---- acquired -------------------------------------------------------------------------------------------------

    def _acquire(self, call: Call, now: float) -> Call | None:
        """Finds a container, or waits for one; or is rejected, or throttled by a fault."""
        if call.number not in self.departures.pending:
            return None  # cancelled before
        throttled = call.course is not None and call.course.throttled
        if throttled or not self.admission.admit(call, now):
            self.departures.end(call, "throttled", now)
            return call
        return None

    def _take(self, call: Call, container: Container, wait: float, now: float) -> None:
        """Has a call start once its container is there."""
        call.container = container
        self._rows.append((now, "acquired", call.function, call.number, container.number, call.cold))
        start = now + wait
        if call.course is not None:
            start = call.course.starts_at(now, start)
            ending = call.course.ends_before_start()
            if ending is not None:
                # The end is put down first: of two events at one instant it comes first, and nothing starts.
                self.departures.end_at(start, call, ending)
        self.agenda.add(start, START, call.number, self._start, call)

    # ---- started --------------------------------------------------------------------------------------------------

    def _start(self, call: Call, now: float) -> None:
        """Snapshots the arguments, settles how long it will take, and sends the body off."""
        container = call.container
        if call.number not in self.departures.pending:
            return  # cancelled, or its container lost, before it started
        assert container is not None
        spec = call.pool.spec
        course = call.course
        call.status = "running"
        call.started = now
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
            # A version that is not there will not be there later; a store that refuses will answer again.
            self.departures.end_at(now, call, "failed" if isinstance(error, LookupError) else "crashed")
            return
        if course is None:
            seconds = self._seconds(call, spec, transfer, slow_down)
            due, ending = now + seconds, "completed"
            if spec.timeout is not None and seconds > spec.timeout:
                due, ending = now + spec.timeout, "timed_out"
        else:
            due, ending = course.ends(
                now, lambda factor: self._seconds(call, spec, transfer, slow_down * factor), spec.timeout
            )
        if ending == "completed":
            self._run(call, spec, due, now)
        else:
            # It will be killed: what it would have computed is never seen, so it is not computed.
            call.task = None
            self.departures.end_at(due, call, ending)

    def _seconds(self, call: Call, spec: FunctionSpec, transfer: float, slow_down: float) -> float:
        """How long a call takes from its start to its end, if nothing goes wrong."""
        if not isinstance(spec.compute, Measured):
            seconds: float = transfer + call.work * call.pool.compute.draw() * slow_down
            return seconds
        if self.clock.virtual:
            return transfer + spec.compute.factor * call.work * self._bodies.measure(call) * slow_down
        return transfer  # and then as long as it takes

    def _run(self, call: Call, spec: FunctionSpec, due: float, now: float) -> None:
        """Sends a body off that is to complete."""
        call.finished = due  # on the wall clock its body may take longer
        if self.clock.virtual:
            if call.task is None:  # it has not been measured
                self._bodies.start(call, trusted=spec.timeout is None)
            self.agenda.add(due, END, call.number, self.departures.complete, call)
        else:
            self._bodies.start(call, trusted=False, on_done=lambda: self.returned.put(call))
            limit, ending = (self._hang_after, "hung") if spec.timeout is None else (spec.timeout, "timed_out")
            self.departures.end_at(max(now + limit, due), call, ending)

    def take_note(self, call: Call) -> None:
        """On the wall clock a body has returned: its call ends when its delay is over, too."""
        container = call.container
        if call.number not in self.departures.pending:
            if container is not None and container.occupied:
                self.fleet.vacate(container)  # it was killed before, and has ended only now
            return
        assert call.finished is not None
        due = call.finished
        compute = call.pool.spec.compute
        if isinstance(compute, Measured):
            due += compute.factor * call.work * call.task[0].seconds
        self.agenda.add(max(self.clock.now, due), END, call.number, self.departures.complete, call)

    # ---- besides --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Runs the bodies that have started to their end."""
        for call in self.departures.pending.values():
            if call.task is not None:
                self._bodies.settle(call)

    def end_all(self) -> None:
        """The platform closes: what is pending is cancelled, and containers end."""
        now = self.clock.now
        self.departures.cancel_all(now)
        self.fleet.end_all(now)
        self.agenda.clear()
        self._expected.clear()
