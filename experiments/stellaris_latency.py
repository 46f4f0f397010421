"""Where an invocation's time goes, by function: waiting, starting, running."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from experiments import plots, presets, runs, study, variants
from experiments.cells import Cell, Finished
from experiments.study import Study
from stellaris.systems import Budget

DESCRIPTION = "latency of Stellaris' functions: waiting for a container, starting it and fetching, running"

PARTS = ("waiting", "starting", "running")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line's options."""
    study.add_arguments(parser, variants.SIZES)


def main(arguments: argparse.Namespace) -> int:
    """Stellaris as it is tuned."""
    size, seeds = study.chosen(arguments, variants.SIZES)
    cells = []
    for environment in size.environments:
        workload = presets.workload(environment)
        runs.check(workload)
        (contender,) = variants.of_stellaris(environment, {"cap": {}}).values()
        cells += [Cell(contender, workload, Budget(steps=size.steps), seed, "cap") for seed in seeds]
    return study.main(Study("stellaris-latency", cells, _report), arguments)


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Means over all invocations of all seeds, in milliseconds."""
    rows = []
    for environment in dict.fromkeys(result.cell.environment for result in results):
        here = [result for result in results if result.cell.environment == environment]
        means = _means(here)
        title = f"{environment}: {here[0].cell.budget.steps:,.0f} steps a run"
        plots.stacked(means, out / f"latency_{environment}", title=title, ylabel="mean of an invocation (ms)")
        rows += [(environment, name, *(f"{parts[part]:.2f}" for part in PARTS)) for name, parts in means.items()]
    console.print(study.table("latency (ms)", ("environment", "function", *PARTS), rows))


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
