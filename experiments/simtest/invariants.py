"""Invariants of a run, checked after every event by an independent model that reads the trace."""

import math
from collections import defaultdict
from typing import Any

from experiments.simtest.scenarios import NOTICED_WITHIN, PRICES, RETRIED_WITHIN, Scenario
from stellaris.runtime import Bill, FunctionSpec, PriceSheet, Rate, SimulatedPlatform
from stellaris.runtime.endings import ENDINGS
from stellaris.runtime.trace.trace import Trace
from stellaris.systems import CentralInference, Stellaris

#: Events that account for sampled steps.
_FATES = ("learned", "waiting", "reset", "discarded", "lost_steps")
#: Endings after which the same piece of work must be retried.
_TO_RETRY = ("timed_out", "crashed", "throttled", "lost")


class ViolationError(AssertionError):
    """An invariant does not hold."""


class Call:
    """The model's state of an invocation."""

    __slots__ = ("acquired", "container", "ended", "ending", "function", "key", "started", "submitted", "version")

    def __init__(self, function: str, submitted: float, key: int) -> None:
        self.function = function
        self.submitted = submitted
        self.key = key
        self.acquired = math.nan
        self.started = math.nan
        self.ended = math.nan
        self.container = -1
        self.ending = ""
        self.version = -1


class Box:
    """The model's state of a container."""

    __slots__ = ("busy_with", "created", "ended", "function", "idle_since", "ready", "slot")

    def __init__(self, function: str, created: float, slot: int) -> None:
        self.function = function
        self.created = created
        self.slot = slot
        self.busy_with = -1
        self.idle_since = math.nan
        self.ready = math.nan
        self.ended = math.nan


class Checker:
    """Follows a run event by event, and raises a `ViolationError` that names the broken invariant and the instant.

    Args:
      scenario: the scenario of the run.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.calls: dict[int, Call] = {}
        self.boxes: dict[int, Box] = {}
        self.live: dict[str, set[int]] = defaultdict(set)
        self.busy: dict[str, int] = defaultdict(int)
        self.dying: list[int] = []  # containers that must end at this instant
        self.open_learners = 0
        self.version = -1
        self.now = 0.0
        self.pushed: dict[int, int] = {}  # keys of queued gradients, by invocation
        self.applied: set[int] = set()  # keys of applied gradients
        self.group: list[tuple[int, float]] = []  # invocations and staleness of the current update's gradients
        self.delivered: set[int] = set()  # keys of delivered fragments
        self.came_again: set[int] = set()  # keys of work that was delivered twice
        self.taken = 0  # fragments taken into batches
        self.rounds = 0
        self._seen = 0  # number of the trace's rows that were checked

    def __call__(self, platform: SimulatedPlatform) -> None:
        """Checks the events since the last call, and the state after them."""
        trace = platform.trace
        for time, event, function, invocation, container, value in trace.rows(self._seen):
            self._require(time >= self.now, f"time went back to {time}")
            self.now = time
            self._follow(event, function, invocation, container, value)
        self._seen = len(trace)
        for number in self.dying:
            self._require(self.boxes[number].ended == self.now, f"container {number} survived its invocation's crash")
        self.dying.clear()
        self._limits()

    # ---- events -------------------------------------------------------------------------------------------------

    def _follow(self, event: str, function: str, invocation: int, container: int, value: float) -> None:
        if event == "submitted":
            self._require(invocation not in self.calls, f"invocation {invocation} was submitted twice")
            if self.group and function == "parameter":
                self._close_group()
            self.calls[invocation] = Call(function, self.now, int(value))
            self.open_learners += function == "learner"
        elif event == "container_created":
            slots = {self.boxes[number].slot for number in self.live[function]}
            self._require(int(value) not in slots, f"two live containers of {function} have slot {value:.0f}")
            self.boxes[container] = Box(function, self.now, int(value))
            self.live[function].add(container)
        elif event == "container_ready":
            self.boxes[container].ready = self.boxes[container].idle_since = self.now
        elif event == "container_ended":
            busy = self.boxes[container].busy_with
            self._require(busy < 0, f"container {container} ended while it was busy with invocation {busy}")
            self.live[function].discard(container)
            self.boxes[container].ended = self.now
        elif event == "acquired":
            self._acquired(self.calls[invocation], invocation, self.boxes[container], container, bool(value))
        elif event == "started":
            call = self.calls[invocation]
            self._require(not math.isnan(call.acquired), f"invocation {invocation} started without a container")
            self._require(math.isnan(call.started), f"invocation {invocation} started twice")
            call.started, call.version = self.now, self.version
        elif event in ENDINGS:
            self._ended(self.calls[invocation], invocation, event)
        elif event == "published":
            self._require(value == self.version + 1, f"version {value:.0f} was published after {self.version}")
            self.version = int(value)
        else:
            self._learning(event, invocation, value)

    def _acquired(self, call: Call, invocation: int, box: Box, number: int, cold: bool) -> None:
        spec = self.scenario.functions[call.function]
        self._require(math.isnan(call.acquired), f"invocation {invocation} got two containers")
        self._require(box.busy_with < 0, f"container {number} was given away while it was busy")
        self._require(math.isnan(box.ended), f"container {number} was reused after its end")
        self._require(call.function == box.function, f"container {number} is another function's")
        if cold:
            self._require(box.created == self.now, f"container {number} was not new")
        else:
            idle = self.now - box.idle_since
            kept = spec.keep_alive if not spec.provisioned else math.inf
            self._require(idle <= kept + 1e-9, f"container {number} was reused after it had expired")
        call.acquired, call.container, box.busy_with = self.now, number, invocation
        self.busy[call.function] += 1

    def _ended(self, call: Call, invocation: int, ending: str) -> None:
        spec = self.scenario.functions[call.function]
        self._require(not call.ending, f"invocation {invocation} ended twice: {call.ending} and {ending}")
        call.ended, call.ending = self.now, ending
        self.open_learners -= call.function == "learner"
        if ending in ("completed", "failed", "timed_out", "lost"):
            self._require(call.started <= self.now, f"invocation {invocation} {ending} before it started")
        if spec.timeout is not None and not math.isnan(call.started):
            self._require(
                call.ended <= call.started + spec.timeout + 1e-9,
                f"invocation {invocation} ran longer than its time limit",
            )
        if call.container >= 0:
            box = self.boxes[call.container]
            self.dying += [call.container] * (ending in ("timed_out", "crashed", "hung"))
            box.busy_with, box.idle_since = -1, self.now
            self.busy[call.function] -= 1

    def _learning(self, event: str, invocation: int, value: float) -> None:
        if event == "sampled":
            key = self.calls[invocation].key
            self._require(key not in self.delivered, f"fragment {key} was delivered twice")
            self.delivered.add(key)
        elif event == "age:oldest":
            self._require(value >= 0, f"a fragment's age is {value}")
            self.taken += 1
            self.rounds = self.taken // 2  # a batch has two fragments
        elif event == "redelivered":
            self.came_again.add(self.calls[invocation].key)
        elif event == "pushed":
            key = self.calls[invocation].key
            self._require(
                key not in self.applied and key not in self.pushed.values(), f"gradient {key} was queued twice"
            )
            self.pushed[invocation] = key
        elif event == "dropped_gradient":
            self._require(
                invocation in self.pushed, f"gradient {invocation} was dropped without being queued, or twice"
            )
            staleness = self.version - self.calls[invocation].version
            self._require(staleness >= self._drop_from, f"gradient {invocation} of staleness {staleness} was dropped")
            self.applied.add(self.pushed.pop(invocation))
        elif event == "staleness":
            self._require(value >= 0, f"staleness {value} is negative")
            self._require(value < self._drop_from, f"gradient {invocation} of staleness {value:.0f} was not dropped")
            if self._queues:
                self._require(
                    invocation in self.pushed, f"gradient {invocation} was applied without being queued, or twice"
                )
                self.applied.add(self.pushed.pop(invocation))
                due = self.version - self.calls[invocation].version
                self._require(value == due, f"gradient {invocation} has staleness {due}, not {value:.0f}")
                self.group.append((invocation, value))

    @property
    def _drop_from(self) -> float:
        """The least staleness at which the system drops gradients; infinity if it drops none."""
        aggregator = getattr(self.scenario.system, "aggregator", None)
        return getattr(aggregator, "drop_from", None) or math.inf

    @property
    def _queues(self) -> bool:
        """Whether the system queues gradients."""
        return isinstance(self.scenario.system, Stellaris)

    def _close_group(self) -> None:
        """Checks that the group of gradients was fresh enough, or full, or that no learner was running to add to it."""
        aggregator: Any = getattr(self.scenario.system, "aggregator", None)
        staleness = [value for _, value in self.group]
        if hasattr(aggregator, "max_staleness"):  # only `staleness_aware` has this threshold
            beta = aggregator.max_staleness * aggregator.decay**self.rounds
            fresh = sum(staleness) / len(staleness) <= beta + 1e-6
            allowed = fresh or len(staleness) >= aggregator.group_size or self.open_learners == 0
            self._require(
                allowed,
                f"a group of staleness {staleness} was applied in round {self.rounds}: the threshold is {beta:.3g}, "
                f"{aggregator.group_size} gradients are a full group, and {self.open_learners} learners run",
            )
            self._require(not self.pushed, f"the queue was left with {len(self.pushed)} gradients")
        self.group = []

    # ---- states -------------------------------------------------------------------------------------------------

    def _limits(self) -> None:
        functions, most = self.scenario.functions, self.scenario.options["max_concurrency"]
        shared = sum(self.busy[name] for name, spec in functions.items() if spec.reserved_concurrency is None)
        reserved = sum(spec.reserved_concurrency or 0 for spec in functions.values())
        for name, spec in functions.items():
            if spec.max_concurrency is not None:
                self._require(
                    len(self.live[name]) <= spec.max_concurrency, f"{name} has {len(self.live[name])} containers"
                )
            if spec.reserved_concurrency is not None:
                self._require(self.busy[name] <= spec.reserved_concurrency, f"{name} runs {self.busy[name]} at once")
        if most is not None:
            self._require(shared <= most - reserved, f"{shared} unreserved invocations run at once")
        nodes = self.scenario.options["nodes"]
        if nodes:
            for resource in ("memory", "vcpus"):
                used = sum(getattr(functions[name].resources, resource) * len(self.live[name]) for name in functions)
                room = sum(getattr(node, resource) for node in nodes)
                self._require(used <= room + 1e-6, f"containers use {used} {resource}, the nodes have {room}")
            slots = sum(functions[name].resources.gpu_slots * len(self.live[name]) for name in functions)
            room = sum(node.gpus * node.slots_per_gpu for node in nodes)
            self._require(slots <= room, f"containers use {slots} GPU slots, the nodes have {room}")

    # ---- the end ------------------------------------------------------------------------------------------------

    def finish(self, trace: Trace, bills: dict[str, Bill], history: Any) -> None:
        """Checks the final trace, bills and history after the platform was closed."""
        for number, call in self.calls.items():
            self._require(call.ending != "", f"invocation {number} never ended")
        self._require(not any(self.live.values()), "containers outlived the platform")
        last, budget = history[-1], self.scenario.budget
        stopped = last["steps"] >= budget.steps or last["seconds"] >= budget.seconds
        self._require(stopped, f"the run stopped at {last['steps']:.0f} steps and {self.now:.3g} s: a deadlock")
        queued = trace.select("queued").value.sum()
        if self._queues:
            self._require(len(self.pushed) == queued, f"{len(self.pushed)} gradients should be left, {queued:.0f} are")
        spent = sum(trace.select(event).value.sum() for event in _FATES)
        sampled = trace.select("sampled").value.sum()
        self._require(sampled == spent, f"{sampled:.0f} steps were sampled, and {spent:.0f} accounted for")
        queued_or_applied = {*self.applied, *self.pushed.values()}
        for number, call in self.calls.items():
            if not self._queues:
                queued_or_applied = {call.key}  # passes the check: an invocation has several gradients
            if isinstance(self.scenario.system, CentralInference):
                self.delivered.add(call.key)  # passes the check: an invocation is one step, not a fragment
            there = {"actor": self.delivered, "learner": queued_or_applied}.get(call.function)
            if call.ending == "completed" and there is not None:
                self._require(call.key in there, f"the result of {call.function} {number} was lost")
        self._retried()
        for prices in PRICES:
            self._bill(bills[prices.name], prices)

    def _retried(self) -> None:
        """Checks that work that was killed, rejected or lost is retried until it is done or the run ends."""
        attempts: dict[int, list[Call]] = defaultdict(list)
        for call in self.calls.values():
            attempts[call.key].append(call)
        patience = NOTICED_WITHIN + RETRIED_WITHIN + 1e-6
        for key, calls in attempts.items():
            if any(call.ending in ("completed", "cancelled") for call in calls):
                continue
            last = max(calls, key=lambda call: call.submitted)
            waits = last.ending in _TO_RETRY and last.ended + patience >= self.now
            # Work whose message was lost is also done if a duplicate of the message arrived.
            self._require(waits or key in self.came_again, f"{last.function} {key} was given up on")

    def _bill(self, bill: Bill, prices: PriceSheet) -> None:
        """Checks that a bill is the sum of its parts, and equals a bill computed from the model's own records."""
        self._require(math.isclose(bill.total, math.fsum(bill.parts.values()), rel_tol=1e-9), "bill and parts differ")
        for name, rate in prices.functions.items():
            spec = self.scenario.functions[name]
            expected = self._walk(name, spec, rate) + spec.provisioned * self.now * (
                rate.provisioned_per_gb_second * spec.resources.memory
            )
            got = bill.parts[name]
            self._require(
                math.isclose(got, expected, rel_tol=1e-6, abs_tol=1e-9), f"{name} costs {expected}, not {got}"
            )
        for name, machine in prices.machines.items():
            expected = machine.per_second * self.now
            self._require(math.isclose(bill.parts[name], expected, rel_tol=1e-9), f"{name} costs {expected}")

    def _walk(self, name: str, spec: FunctionSpec, rate: Rate) -> float:
        # The cost of a function in USD, except for provisioned memory, from the model's calls and containers.
        total = 0.0
        used = 0.0
        price = rate.usd_per_second(spec.resources)

        def rounded(seconds: float) -> float:
            if not rate.granularity:
                return seconds
            units = seconds / rate.granularity
            whole = round(units) if abs(units - round(units)) <= 1e-9 * (1 + units) else math.ceil(units)
            return whole * float(rate.granularity)

        for call in self.calls.values():
            if call.function != name or math.isnan(call.acquired):
                continue
            began = call.started if not math.isnan(call.started) else call.ended
            cold = began - call.acquired
            used += cold
            if rate.cold:
                total += rounded(cold) * price
            if not math.isnan(call.started):
                used += call.ended - call.started
                total += rounded(call.ended - call.started) * price + rate.per_request
        for box in self.boxes.values():
            if box.function != name:
                continue
            used -= box.ended - box.created
            warmed = box.ready if not math.isnan(box.ready) else box.ended
            used_ever = any(self.boxes.get(call.container) is box for call in self.calls.values())
            if not math.isnan(box.ready) or not used_ever:
                used += warmed - box.created
                if rate.cold:
                    total += rounded(warmed - box.created) * price
        return total + (-used * price if rate.idle else 0.0)

    def _require(self, holds: bool, what: str) -> None:
        if not holds:
            raise ViolationError(f"seed {self.scenario.seed}, at {self.now:.6g} s: {what}")
