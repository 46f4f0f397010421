"""Breaks down the latency of MinionsRL's functions into starting, communicating and computing, pre-warmed and not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from experiments.study import study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import minionsrl
from experiments.tasks.presets import Contender
from experiments.toolkit import plots
from stellaris.scheduling import Maximum
from stellaris.systems import Budget

DESCRIPTION = "latency of an actor and of the learner: starting, communicating, computing; pre-warmed and not"

PARTS = ("starting", "communicating", "computing")
_COLD, _WARM, _ALONE = "on demand", "pre-warmed", "without communication"
#: Rounds of a run; the means leave out the first.
_ROUNDS = 4
SIZES = {
    "smoke": Size(("CartPole-v1",), 8_192, 1),
    "small": Size(("Hopper-v4",), 1_000_000, 5),
    "paper": Size(("Hopper-v4", "Qbert-v5"), 1_000_000, 5),
}


def _variants(environment: str) -> Sequence[Variant]:
    """Returns variants with all actors in every round: on demand, pre-warmed, and without communication.

    The variant without communication draws the same computing times as the pre-warmed variant, so the difference of the
    two is the time of communication.
    """
    return [
        Variant(
            row,
            task.workload,
            f"{testbed}: {name}",
            limits=Budget(steps=_ROUNDS * minionsrl.ACTORS * task.workload.fragment),
            factors={"testbed": testbed, "functions": name},
        )
        for testbed, task in minionsrl.both_learners(environment).items()
        for name, row in _rows(task).items()
    ]


def _rows(task: minionsrl.Task) -> Mapping[str, Contender]:
    """Returns the three deployments of a task."""
    cold, warm = (minionsrl.minions(minionsrl.MAX, Maximum(), task, prewarmed=warmed) for warmed in (False, True))
    return {_COLD: cold, _WARM: warm, _ALONE: _without_communication(warm)}


def _without_communication(row: Contender) -> Contender:
    functions = {name: replace(spec, transfer=None) for name, spec in row.functions.items()}
    return replace(row, functions=functions)


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Draws and tabulates means over the invocations after the first round, in milliseconds.

    The communicating time is the running time minus the running time without communication.
    """
    rows = []
    for environment, groups in study.by_environment(results).items():
        for testbed, own in study.by_factors(groups, "testbed", "functions").items():
            if not {_COLD, _WARM, _ALONE} <= {*own}:
                continue
            shown = _parts(own)
            title = f"{environment}, {minionsrl.label(testbed)}: {plots.counted(max(map(len, own.values())))}"
            path = out / f"latency_{testbed}_{environment}"
            plots.grouped(shown, path, title=title, ylabel="mean of an invocation (ms)")
            rows += [
                (environment, testbed, name, *(f"{parts[part]:.1f}" for part in PARTS)) for name, parts in shown.items()
            ]
    tidy.show("latency (ms)", ("environment", "testbed", "function", *PARTS), rows, out, console)


def _parts(own: Mapping[str, Sequence[Finished]]) -> Mapping[str, Mapping[str, float]]:
    """Returns the mean milliseconds of the parts of an invocation, by function and deployment."""
    computing = _running(own[_ALONE])
    shown: dict[str, dict[str, float]] = {}
    for name in (_COLD, _WARM):
        starting, running = _starting(own[name]), _running(own[name])
        for function in running:
            parts = (starting[function], running[function] - computing[function], computing[function])
            shown[f"{function}, {name}"] = dict(zip(PARTS, parts, strict=True))
    return shown


def _starting(of: Sequence[Finished]) -> dict[str, float]:
    return _means(of, "submitted", "started")


def _running(of: Sequence[Finished]) -> dict[str, float]:
    return _means(of, "started", "ended")


def _means(of: Sequence[Finished], begin: str, end: str) -> dict[str, float]:
    """Returns the mean milliseconds between two instants of invocations after the first round, by function."""
    found: dict[str, list[np.ndarray]] = {}
    for result in of:
        calls = result.trace.invocations()
        first_round = calls.submitted <= result.history[0]["seconds"] - 1e-9
        for index, name in enumerate(calls.names):
            ran = (calls.function == index) & np.isfinite(calls.ended) & ~first_round
            found.setdefault(name, []).append(1e3 * (getattr(calls, end)[ran] - getattr(calls, begin)[ran]))
    return {name: float(np.concatenate(times).mean()) for name, times in found.items()}


STUDY = Study("minionsrl-latency", SIZES, _variants, _report, ("latency_tuned", "latency_authors"))
add_arguments, main = STUDY.add_arguments, STUDY.main
