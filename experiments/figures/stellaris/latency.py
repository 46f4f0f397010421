"""Breaks down the latency of invocations into waiting, starting and running, by function."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from experiments.study import study, tidy, variants
from experiments.study.cells import Finished
from experiments.study.study import Study, Variant
from experiments.toolkit import plots

DESCRIPTION = "latency of functions: invocation, cold start, and running time including transfers"

PARTS = ("waiting", "starting", "running")


def _variants(environment: str) -> Sequence[Variant]:
    """Returns Stellaris with its tuned settings."""
    return variants.of_stellaris(environment, {"Stellaris": {}})


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Draws and tabulates means over the invocations of all seeds, in milliseconds."""
    rows = []
    for environment, groups in study.by_environment(results).items():
        (here,) = groups.values()
        means = _means(here)
        title = plots.caption(environment, here[0].cell.budget.steps, seeds=len(here))
        plots.grouped(means, out / f"latency_{environment}", title=title, ylabel="mean of an invocation (ms)")
        rows += [(environment, name, *(f"{parts[part]:.2f}" for part in PARTS)) for name, parts in means.items()]
    tidy.show("latency (ms)", ("environment", "function", *PARTS), rows, out, console)


def _means(results: Sequence[Finished]) -> dict[str, dict[str, float]]:
    found: dict[str, list[np.ndarray]] = {}
    for result in results:
        calls = result.trace.invocations()
        for index, name in enumerate(calls.names):
            ran = (calls.function == index) & np.isfinite(calls.ended) & np.isfinite(calls.started)
            edges = (calls.submitted, calls.acquired, calls.started, calls.ended)
            if ran.any():
                found.setdefault(name, []).append(1e3 * np.diff([edge[ran] for edge in edges], axis=0))
    return {
        name: dict(zip(PARTS, np.concatenate(parts, axis=1).mean(axis=1).tolist(), strict=True))
        for name, parts in found.items()
    }


STUDY = Study("stellaris-latency", variants.SIZES, _variants, _report, ("latency",))
add_arguments, main = STUDY.add_arguments, STUDY.main
