"""Recorded schedules: read from the trace of a finished run, simulated or on a Ray cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from stellaris.lab.schedule import NONE, Schedule
from stellaris.runtime.costs.billing import Meter
from stellaris.runtime.costs.price_sheets import PriceSheet, check_sheets
from stellaris.runtime.endings import ENDINGS
from stellaris.runtime.functions import FunctionSpec
from stellaris.runtime.trace.trace import Trace
from stellaris.systems.record import POLICY
from stellaris.types import NDArray

#: Endings of invocations whose body ran and whose container lives on.
_SURVIVED = ("completed", "lost")


@dataclass
class _Piece:
    """An actor's invocation that has started, and samples a piece of a fragment."""

    version: int
    noise: int  #: the number that selects the noise of the actions.
    container: int
    survived: bool = False  #: whether the body ran and the container lives on.


@dataclass
class _Task:
    """The data that a learner's invocation learns from: a whole batch, or one minibatch for one gradient."""

    batch: int = NONE
    minibatch: int = NONE  #: `NONE` for the whole batch.
    learner: int = NONE  #: `NONE` for the whole batch.


@dataclass
class _Started:
    """The versions in use when the computation of a gradient started."""

    version: int  #: the version on which the gradient is computed.
    others: list[int]  #: other versions on which learners computed gradients then, newest first.


@dataclass
class _Reader:
    """The facts about learning in a trace, gathered row by row."""

    acts: str  #: the function whose containers hold the environments.
    meters: Mapping[str, Meter]  #: by price sheet.
    version: int = -1  #: the newest version; -1 before the first.
    seconds: list[float] = field(default_factory=list)  #: times of publication, by version.
    costs: dict[str, list[float]] = field(default_factory=dict)  #: USD by price sheet and version.
    attempts: dict[int, int] = field(default_factory=dict)  #: the first attempt of every invocation.
    noise: dict[int, int] = field(default_factory=dict)  #: numbers of the noise, by an actor's first attempt.
    slots: dict[int, int] = field(default_factory=dict)  #: by container of actors.
    environments: dict[int, int] = field(default_factory=dict)  #: number of the environment's start, by container.
    pieces: dict[int, _Piece] = field(default_factory=dict)  #: by invocation, in the order of their starts.
    whole: list[int] = field(default_factory=list)  #: the last invocation of every fragment, in the order of delivery.
    length: int = 1  #: number of pieces of a fragment.
    batches: list[tuple[int, int, list[int]]] = field(default_factory=list)  #: (before, target, fragments).
    merged: dict[int, int] = field(default_factory=dict)  #: by batch: its `batch_merged`.
    tasks: dict[int, _Task] = field(default_factory=dict)  #: by a learner's first attempt.
    gradients: dict[int, _Started] = field(default_factory=dict)  #: by a learner's invocation.
    running: dict[int, int] = field(default_factory=dict)  #: by running invocation: the version of its gradient.
    pushed: dict[int, int] = field(default_factory=dict)  #: by invocation: the gradient's `gradient_before`.
    applied: int = NONE  #: the last invocation whose gradient was applied.
    update_batch: list[int] = field(default_factory=list)
    update_round: list[int] = field(default_factory=list)

    def read(self, row: tuple[float, str, str, int, int, float]) -> None:
        """Reads one row of the trace."""
        time, event, function, invocation, container, value = row
        for meter in self.meters.values():
            meter.read((row,))
        match event:
            case "published" if function == POLICY:
                self._published(time, int(value))
            case "submitted":
                self.attempts[invocation] = int(value)
                if function == self.acts and int(value) == invocation:
                    self.noise[invocation] = len(self.noise)
            case "container_created" if function == self.acts:
                self.slots[container] = int(value)
            case "started":
                self._started(function, invocation, container)
            case "environment":
                self.environments[self.pieces[invocation].container] = int(value)
            case "fragment":
                self.whole.append(invocation)
                self.length = int(value)
            case "batch":
                self.batches.append((self.version, int(value), []))
            case "batched":
                self.batches[-1][2].append(int(value))
            case "learned_batch":
                self.merged[int(value) - 1] = self.version
            case "of_batch":
                self.tasks[invocation] = _Task(int(value) - 1)
            case "minibatch":
                self.tasks[invocation].minibatch = int(value)
            case "of_learner":
                self.tasks[invocation].learner = int(value)
            case "pushed":
                # A gradient that arrives while an update is under way waits for the next update.
                self.pushed[invocation] = len(self.update_round)
            case "staleness":
                self.applied = invocation
                if len(self.update_round) == self.version:  # the first gradient of an update
                    self.update_round.append(len(self.batches))
            case _ if event in ENDINGS:
                self.running.pop(invocation, None)
                if invocation in self.pieces:
                    self.pieces[invocation].survived = event in _SURVIVED

    def task(self, invocation: int) -> _Task:
        """Returns the task of a learner's invocation; a retry has the task of the first attempt."""
        return self.tasks.get(self.attempts.get(invocation, NONE), _Task())

    def _started(self, function: str, invocation: int, container: int) -> None:
        if function == self.acts:
            noise = self.noise[self.attempts[invocation]]
            self.pieces[invocation] = _Piece(self.version, noise, container)
        elif self.task(invocation).learner != NONE:
            others = sorted(set(self.running.values()) - {self.version}, reverse=True)
            self.gradients[invocation] = _Started(self.version, others)
            self.running[invocation] = self.version

    def _published(self, time: float, version: int) -> None:
        if version:
            queued = self.applied in self.pushed
            batch = NONE if queued else self.task(self.applied).batch
            if not queued and batch == NONE:
                raise ValueError(
                    f"the trace does not name the data that version {version} was learned from: record a run of "
                    "another system than CentralInference; a system of your own must call Record.learns or "
                    "Record.computes for each of its learners' invocations"
                )
            self.update_batch.append(batch)
        self.version = version
        self.seconds.append(time)
        for sheet, meter in self.meters.items():
            self.costs.setdefault(sheet, []).append(meter.bill(until=time).total)


def recorded(
    trace: Trace,
    *,
    acts: str = "actor",
    held: int = 0,
    prices: Sequence[PriceSheet] = (),
    functions: Mapping[str, FunctionSpec] | None = None,
) -> Schedule:
    """Returns the schedule that a run followed, read from the run's trace.

    The schedule ends with the last version that was published. It leaves out the samples of containers that were lost
    before they delivered anything, because nothing was learned from these samples.

    Args:
      trace: the trace of a run of `Synchronous`, `DataParallel`, `AsynchronousActors`, `CircularReplay` or `Stellaris`,
        simulated or on a cluster, from `Result.trace`, `Trace.load` or the platform.
      acts: the function whose containers hold the environments.
      held: number of other learners whose policies cap the ratios of a gradient: `learners - 1` for a finite `rho` of
        `Stellaris`, otherwise 0.
      prices: price sheets; `costs` of the schedule is the bill up to each version, under each sheet.
      functions: the deployed functions, whose resources and provisioned containers are billed; None to leave these out.

    Returns:
      The schedule. Its seconds are times of the platform's clock.

    Raises:
      TypeError: if `prices` is a single sheet.
      ValueError: if the trace does not record the data that was learned from, a scheduler decided the number of
        actors, a checkpoint was saved, no version was published after the first, or two price sheets have the same
        name.
    """
    check_sheets(prices)
    reader = _Reader(acts, {sheet.name: Meter(sheet, functions=functions) for sheet in prices})
    for row in trace.rows():
        _check_event(row[1])
        reader.read(row)
    if reader.version < 1:
        raise ValueError("no version was published after the first, so no schedule can be read: record a longer run")
    return _schedule(reader, held)


def _check_event(event: str) -> None:
    """Raises if a schedule cannot describe a run with this event."""
    if event == "scheduled":
        raise ValueError("the run had a scheduler, so its batches differ in size: record a run without a scheduler")
    if event == "checkpoint":
        raise ValueError(
            "the run saved a checkpoint, at which its environments restarted with other seeds: record a run without "
            "checkpoints"
        )


def _schedule(reader: _Reader, held: int) -> Schedule:
    updates = reader.version
    rows, place = _pieces(reader)
    batches = [batch for batch in reader.batches if batch[0] < updates]
    pushed = [invocation for invocation, before in reader.pushed.items() if before < updates]
    tasks, starts = [reader.task(i) for i in pushed], [reader.gradients[i] for i in pushed]
    # Each row is padded with the invocation's own version, as the store pads `held`.
    others = [[*start.others, *[start.version] * held][:held] for start in starts]
    merged = [reader.merged.get(i, updates) for i in range(len(batches))]
    return Schedule(
        slots=max(reader.slots.values()) + 1,
        **rows,
        batch_before=_int32([before for before, _, _ in batches]),
        batch_pieces=_int32(
            [[_fragment(place[reader.whole[f]], reader.length) for f in fragments] for _, _, fragments in batches]
        ),
        batch_target=_int32([target for _, target, _ in batches]),
        batch_merged=_int32([before if before < updates else NONE for before in merged]),
        gradient_before=_int32([reader.pushed[i] for i in pushed]),
        gradient_batch=_int32([task.batch for task in tasks]),
        gradient_row=_int32([task.minibatch for task in tasks]),
        gradient_version=_int32([start.version for start in starts]),
        gradient_learner=_int32([task.learner for task in tasks]),
        gradient_held=_int32(others).reshape(len(pushed), held),
        update_batch=_int32(reader.update_batch),
        update_round=_int32(reader.update_round[:updates]),
        seconds=np.array(reader.seconds),
        costs={sheet: np.array(column) for sheet, column in reader.costs.items()},
    )


class _Place(NamedTuple):
    """The position of a piece among all pieces of its container."""

    rows: list[int]  #: rows of the container's pieces, in order.
    number: int  #: index of the piece in `rows`.


def _pieces(reader: _Reader) -> tuple[dict[str, NDArray], dict[int, _Place]]:
    """Returns the schedule's piece columns, and each piece's position by its invocation."""
    ran = {
        invocation: piece
        for invocation, piece in reader.pieces.items()
        if piece.survived and piece.container in reader.environments and piece.version < reader.version
    }
    starts, by_container, place = [], dict[int, list[int]](), dict[int, _Place]()
    for row, (invocation, piece) in enumerate(ran.items()):
        own = by_container.setdefault(piece.container, [])
        starts.append(NONE if own else reader.environments[piece.container])
        place[invocation] = _Place(own, len(own))
        own.append(row)
    pieces = list(ran.values())
    columns = {
        "piece_before": _int32([piece.version for piece in pieces]),
        "piece_slot": _int32([reader.slots[piece.container] for piece in pieces]),
        "piece_version": _int32([piece.version for piece in pieces]),
        "piece_noise": _int32([piece.noise for piece in pieces]),
        "piece_start": _int32(starts),
    }
    return columns, place


def _fragment(last: _Place, length: int) -> list[int]:
    """Returns the rows of a fragment's pieces: `length` successive pieces of its container, up to `last`."""
    return last.rows[last.number + 1 - length : last.number + 1]


def _int32(numbers: Any) -> NDArray:
    """Converts to int32. The numbers of environments' starts are uint32, and keep their bit pattern."""
    return np.array(numbers, np.int64).astype(np.uint32).view(np.int32)
