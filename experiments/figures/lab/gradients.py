"""Corrections, weights and groups of gradients of an imposed age, at equal mean step size, on two control tasks.

The questions, the settings and the criteria for an answer were written down in docs/registrations/lab-gradients.md
before the first run.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.figures.lab import gradients_report, lag
from experiments.figures.lab.compensated import METHODS, Compensated, weights
from experiments.figures.lab.falls import fallen, since
from experiments.figures.lab.outcomes import short
from experiments.figures.lab.surface import floor_of
from experiments.lab.command import shown
from experiments.toolkit import options, output, provenance
from stellaris import ActorCritic, Workload, softsync
from stellaris.aggregation import fully_asynchronous
from stellaris.lab import Constant, Maximum, Schedule, imposed, mean_return, sweep
from stellaris.types import NDArray

if TYPE_CHECKING:
    import xarray as xr

DESCRIPTION = "corrections and weights of gradients at every imposed age, at equal mean step size, in the lab"

#: The method whose gradients make a version in groups: the average of Zhang et al., weighted by 1/lag.
GROUPS = "averaged groups"


class Case(NamedTuple):
    """A method, and the ages of the gradients."""

    method: str
    kind: str  #: "constant", or "drawn" uniformly from 0 to twice the mean.
    mean: int  #: in gradients.


@dataclass(frozen=True)
class Preset:
    """The size of the study; settings of the runs that are not named are those of `lab-lag`."""

    base: lag.Preset
    tasks: Sequence[str]
    constant: Sequence[int]
    drawn: Sequence[int]
    methods: Sequence[str] = (*METHODS, GROUPS)
    seeds: int = 16
    group: int = 4

    @property
    def cases(self) -> list[Case]:
        """Every method at every age, except weights at constant ages: at equal mean steps all weights are then 1."""
        kinds = {"constant": self.constant, "drawn": self.drawn}
        return [
            Case(method, kind, mean)
            for method in self.methods
            for kind, means in kinds.items()
            for mean in means
            if kind == "drawn" or not METHODS.get(method, 0.0)
        ]

    def schedule(self, case: Case) -> Schedule:
        """The schedule of a case."""
        steps = self.base.actors * self.base.fragment
        return imposed(
            self.base.updates,
            actors=self.base.actors,
            gradients=Constant(case.mean) if case.kind == "constant" else Maximum(2 * case.mean),
            minibatches=self.base.epochs * -(-steps // self.base.minibatch_size),
            group=self.group if case.method == GROUPS else 1,
        )


_SMALL = lag.PRESETS["small"]
PRESETS: Mapping[str, Preset] = {
    "smoke": Preset(
        lag.Preset({"CartPole": _SMALL.tasks["CartPole"]}, updates=20, rates=(1e-3, 3e-3), hidden=(8,)),
        ("CartPole",),
        constant=(0, 2, 8),
        drawn=(8,),
        methods=("uncorrected", "weight, 1/lag", "delay compensation", GROUPS),
        seeds=2,
    ),
    "small": Preset(_SMALL, ("CartPole", "Acrobot-v1"), constant=(0, 1, 2, 4, 8, 16, 32, 64), drawn=(2, 8, 32)),
}
PARTS = ("runs", "report")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="the size of the study")
    add("--parts", nargs="+", choices=PARTS, default=[*PARTS], help="runs, or the report from their tables")
    add("--tasks", nargs="+", choices=PRESETS["small"].tasks, help="environments (default: the preset's)")
    add("--block", type=options.whole(1), help="most runs at a time (default: 8 per CPU core, 256 per other device)")
    add("--blocks", type=options.folder, help="folder that keeps finished blocks, to continue an interrupted part")
    add("--out", type=options.folder, default=Path("results/lab-gradients"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Runs the sweeps of every environment; each environment has its own table."""
    preset, out = PRESETS[arguments.preset], arguments.out
    with output.usable(out):
        out.mkdir(parents=True, exist_ok=True)
    for task in (arguments.tasks or preset.tasks) if "runs" in arguments.parts else ():
        print(f"{task}:")
        output.write_rows(out / f"runs_{task}.csv.gz", [*run(preset, task, arguments.block, arguments.blocks)])
        provenance.write(out / f"provenance_{task}.json", preset=repr(preset))
    if "report" in arguments.parts:
        gradients_report.report(out, preset.tasks)
    return 0


def scale_of(case: Case, schedule: Schedule) -> float:
    """Returns 1 over the mean weight of the run's gradients, so that the mean step has the size of an unweighted one.

    Example:
      >>> case = Case("weight, 1/lag", "drawn", 2)
      >>> schedule = imposed(5, actors=1, gradients=Constant(4))  # ages 0, 1, 2, 3 and 4
      >>> round(scale_of(case, schedule), 3)  # the mean of 1, 1, 1/2, 1/3 and 1/4 is 0.617
      1.622
    """
    method = "weight, 1/lag" if case.method == GROUPS else case.method
    return float(1.0 / weights(method, schedule.gradient_lag).mean())


def run(preset: Preset, task: str, block: int | None = None, blocks: Path | None = None) -> Iterator[dict[str, Any]]:
    """Runs an environment: one program for single gradients and one for groups. Yields one row per run."""
    base = preset.base
    workload = Workload(
        _SMALL.tasks[task].make(), ActorCritic(hidden=base.hidden), actors=base.actors, fragment=base.fragment
    )
    algorithm = Compensated(epochs=base.epochs, minibatch_size=base.minibatch_size)
    for grouped in sorted({case.method == GROUPS for case in preset.cases}):
        cases = {str(i): case for i, case in enumerate(preset.cases) if (case.method == GROUPS) == grouped}
        schedules = {label: preset.schedule(case) for label, case in cases.items()}
        settings = {
            label: {
                "label": label,
                "algorithm.method": 0.0 if grouped else float([*METHODS].index(case.method)),
                "algorithm.scale": scale_of(case, schedules[label]),
            }
            for label, case in cases.items()
        }
        result = sweep(
            workload,
            algorithm,
            lambda label, schedules=schedules: schedules[label],
            {"case": settings, "algorithm.learning_rate": base.rates},
            seeds=preset.seeds,
            aggregator=softsync(preset.group, capacity=preset.group) if grouped else fully_asynchronous(capacity=1),
            block=block,
            directory=blocks,
            on_progress=shown(),
        )
        scales = [scale_of(case, schedules[label]) for label, case in cases.items()]
        yield from rows(base, task, [*cases.values()], scales, result)


def rows(
    base: lag.Preset, task: str, cases: Sequence[Case], scales: Sequence[float], result: "xr.Dataset"
) -> Iterator[dict[str, Any]]:
    """Yields one row per run, from the result of a sweep."""
    updates, floor = result.sizes["update"], floor_of(task)
    final, mean = (mean_return(result, max(1, round(share * updates))).values for share in (lag.TAIL, 1.0))
    fell = fallen(result.episode_return.values - floor)
    diverged = since(~np.isfinite(result.loss.values))
    columns: dict[str, NDArray] = {
        "measured_lag": result.staleness_mean.mean("update").values,
        "step_norm": result.step_norm.mean("update").values,
        "cosine": result.gradient_cosine.values[..., 1:].mean(axis=-1),  # nothing precedes the first gradient
    }
    for place in np.ndindex(final.shape):
        case, rate, seed = place
        yield {
            "task": task,
            "method": cases[case].method,
            "kind": cases[case].kind,
            "lag": cases[case].mean,
            "learning_rate": base.rates[rate],
            "seed": seed,
            "final_return": _known(floor if diverged[place] else float(final[place]), floor),
            "mean_return": _known(float(mean[place]), floor),
            "return_fell": int(fell[place]),
            "diverged": int(diverged[place]),
            "scale": short(scales[case]),
            **{name: short(float(column[place])) for name, column in columns.items()},
        }


def _known(value: float, floor: float) -> float:
    """Rounds a return; a run in which no episode ended has an untrained policy's."""
    return short(float(value if np.isfinite(value) else floor))
