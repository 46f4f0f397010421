"""Runs in rounds that a scheduler decides about, and what their invocations alone say of each round."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris.runtime.delays import Gamma, LogNormal
from stellaris.runtime.endings import ENDINGS
from stellaris.scheduling import Scheduler
from stellaris.systems import Budget, MinionsRL, Result
from tests.systems import tiny

ACTORS = 8
WORKLOAD = replace(tiny.WORKLOAD, actors=ACTORS)
BY_USE = tiny.PRICES[1:]  # nothing but running functions costs anything
DRAWN = (LogNormal(0.01, 0.5), Gamma(0.1, 1.0))
JITTERY = tiny.deployment(*DRAWN)


@dataclass(frozen=True)
class Drawing:
    """As many as its key says, anew in every round."""

    def decide(self, states: Any, *, most: int, key: jax.Array) -> int:
        return int(jax.random.randint(jax.random.fold_in(key, len(states)), (), 1, most + 1))


def run(scheduler: Scheduler, functions: Any = JITTERY, *, prewarm: bool = False, **options: Any) -> Result:
    """Of the tiny problem with eight actors, priced by use; some ten rounds."""
    options = {"workload": WORKLOAD, "budget": Budget(steps=16 * 44), "prices": BY_USE} | options
    return tiny.run(MinionsRL(tiny.PPO_CONFIG, scheduler, prewarm=prewarm), functions, **options)


class Round(NamedTuple):
    """What the table of all invocations says of a round that its learner has completed."""

    began: float  #: when the last round was over, in seconds.
    over: float
    waits: list[float]  #: for each actor: from the beginning to its first attempt that completed.
    learner_wait: float
    ran: list[float]  #: for each actor: from start to end, of its first attempt.
    learner_ran: float
    submitted: list[float]  #: of the actors' first attempts.
    learner_submitted: float


def rounds_of(result: Result) -> list[Round]:
    """By the invocations alone: neither history nor notes of the system have a part in it."""
    table = result.trace.invocations()
    name = np.array(table.names)[table.function]
    first = table.key == table.number
    rounds = []
    began = 0.0
    for learner in np.flatnonzero((name == "learner") & first):
        over = completed(table, learner)
        if math.isnan(over):
            break
        since = table.submitted[learner]
        actors = np.flatnonzero((name == "actor") & first & (table.submitted >= began) & (table.submitted <= since))
        rounds.append(
            Round(
                began=began,
                over=over,
                waits=[completed(table, actor) - began for actor in actors],
                learner_wait=over - since,
                ran=(table.ended - table.started)[actors].tolist(),
                learner_ran=float((table.ended - table.started)[learner]),
                submitted=table.submitted[actors].tolist(),
                learner_submitted=float(since),
            )
        )
        began = over
    return rounds


def completed(table: Any, row: int) -> float:
    """When the first attempt completed that is of the same piece of work; NaN if none has."""
    good = (table.key == table.number[row]) & (table.ending == ENDINGS.index("completed"))
    return float(np.min(table.ended[good], initial=math.inf)) if good.any() else math.nan


def differences(result: Result, column: str) -> list[float]:
    return np.diff([0.0] + [row[column] for row in result.history]).tolist()
