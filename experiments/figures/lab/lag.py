"""Return against an imposed lag of the data, for seven corrections, five learning rates and three environments.

The questions, the settings and the criteria for an answer were written down in docs/registrations/lab-lag.md before
the first run.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.figures.lab.methods import methods
from experiments.figures.lab.outcomes import Cells, chosen_scores, curves, halves, interval, short
from experiments.lab.command import shown
from experiments.toolkit import options, output, plots, shell
from experiments.toolkit.provenance import provenance
from stellaris import ActorCritic, Workload
from stellaris._core.describe import describe
from stellaris.acting.jax_env import JaxEnvironment
from stellaris.algorithms import Algorithm
from stellaris.lab import CartPole, Constant, Gymnax, Schedule, imposed, mean_evaluation, mean_return, sweep
from stellaris.runtime.files import atomic_write
from stellaris.systems import Evaluation
from stellaris.types import NDArray

if TYPE_CHECKING:
    import xarray as xr

DESCRIPTION = "return against the lag of the data, for seven corrections at five learning rates, in the lab"

#: The fraction of the updates, at the end of a run, whose mean return is the outcome.
TAIL = 0.2
#: A learning rate so small that the policy stays untrained; its mean return is subtracted from every outcome.
_UNTRAINED = 1e-12

#: Colours that the colour-blind tell apart (Okabe & Ito 2008), and dashes for print in grey.
_STYLES: Sequence[dict[str, Any]] = (
    {"color": "#000000", "linestyle": ":"},
    {"color": "#0072B2", "linestyle": "-"},
    {"color": "#D55E00", "linestyle": "--"},
    {"color": "#009E73", "linestyle": "-."},
    {"color": "#CC79A7", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
    {"color": "#E69F00", "linestyle": (0, (3, 1))},
    {"color": "#56B4E9", "linestyle": (0, (1, 1))},
)


class Task(NamedTuple):
    """An environment, and the lags that are imposed in it."""

    environment: JaxEnvironment | str  #: an environment, or the name of a gymnax environment.
    lags: Sequence[int]

    def make(self) -> JaxEnvironment:
        """Makes the environment."""
        return Gymnax(self.environment) if isinstance(self.environment, str) else self.environment


@dataclass(frozen=True)
class Preset:
    """The size of the study."""

    tasks: Mapping[str, Task]
    updates: int = 512
    seeds: int = 32
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
    actors: int = 16
    fragment: int = 16
    epochs: int = 2
    minibatch_size: int = 128
    hidden: tuple[int, ...] = (32, 32)
    evaluation: Evaluation | None = None  #: of the newest policy; None to score the policies that sampled.


_LAGS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)

PRESETS: Mapping[str, Preset] = {
    "smoke": Preset({"CartPole": Task(CartPole(), (0, 2))}, updates=8, seeds=2, rates=(1e-3, 3e-3), hidden=(8,)),
    "small": Preset(
        {
            "CartPole": Task(CartPole(), _LAGS),
            "Acrobot-v1": Task("Acrobot-v1", _LAGS),
            "Breakout-MinAtar": Task("Breakout-MinAtar", _LAGS[::2]),
        }
    ),
}


#: The parts of the study, in order.
_PARTS = ("runs", "report")


def add_arguments(parser: argparse.ArgumentParser, folder: str = "lab-lag") -> None:
    """Adds the options; results are written to a folder of this name."""
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="the size of the study")
    add("--tasks", nargs="+", help="environments (default: the preset's)")
    add(
        "--parts", nargs="+", choices=_PARTS, default=_PARTS, help="parts to do; report alone reads the folder's tables"
    )
    add("--out", type=options.folder, default=Path("results") / folder, help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Runs the sweep of every environment, and writes tables and pictures after each environment."""
    return study(PRESETS[arguments.preset], arguments)


def study(preset: Preset, arguments: argparse.Namespace) -> int:
    """Runs the study of a preset's size."""
    tasks = _chosen(preset, arguments.tasks)
    with output.usable(arguments.out):
        arguments.out.mkdir(parents=True, exist_ok=True)
    tables, settings = _earlier(preset, arguments.out)
    if "runs" not in arguments.parts:
        if not tables:
            raise shell.UsageError(f"{arguments.out} has no runs of this preset: leave --parts out to make them")
        write(tables, arguments.out, preset)
        return 0
    for name, task in tasks.items():
        print(f"{name}:")
        began = time.monotonic()
        tables[name] = run(preset, task, arguments.out / "blocks")
        settings[name] = {
            "preset": _alone(preset, name),
            "floor": tables[name].floor,
            "seconds": time.monotonic() - began,
            **provenance(),
        }
        # In the order of the preset, whichever task was run first.
        write({each: tables[each] for each in preset.tasks if each in tables}, arguments.out, preset)
        with atomic_write(arguments.out / "settings.json") as file:
            json.dump(settings, file, indent=1)
        for row in halves(name, tables[name]):
            # It is NaN if the method has not learned without lag, as in a smoke run.
            lost = "a lag that cannot be told" if row["half"] == "nan" else f"lag {row['half']} ({row['interval']})"
            print(f"  {row['method']}, {row['rate']} rate: half is lost at {lost}")
    return 0


def _alone(preset: Preset, name: str) -> Any:
    """Describes the part of the preset that the runs of one task depend on."""
    described = json.loads(json.dumps(describe(replace(preset, tasks={name: preset.tasks[name]}))))
    # Settings that are None are left out: tables may be older than such a setting.
    return {setting: value for setting, value in described.items() if value is not None}


def _earlier(preset: Preset, folder: Path) -> tuple[dict[str, Cells], dict[str, Any]]:
    """Reads the tasks that earlier commands wrote to the folder with the same preset, and the settings of each."""
    path = folder / "settings.json"
    if not path.exists():
        return {}, {}
    settings = {name: of for name, of in json.loads(path.read_text()).items() if name in preset.tasks}
    settings = {name: of for name, of in settings.items() if of["preset"] == _alone(preset, name)}
    return {name: read(folder, preset, name, of["floor"]) for name, of in settings.items()}, settings


def _chosen(preset: Preset, names: Sequence[str] | None) -> Mapping[str, Task]:
    unknown = sorted({*(names or ())} - {*preset.tasks})
    if unknown:
        raise shell.UsageError(f"--tasks {' '.join(unknown)}: the preset has {', '.join(preset.tasks)}")
    return {name: task for name, task in preset.tasks.items() if not names or name in names}


# ---- runs ------------------------------------------------------------------------------------------------------------


def run(preset: Preset, task: Task, blocks: Path) -> Cells:
    """Runs every method under every lag, at every learning rate, with every seed."""
    several = methods(epochs=preset.epochs, minibatch_size=preset.minibatch_size, fragment=preset.fragment)
    result = swept(preset, task, several, blocks)
    fresh = replace(preset, rates=(_UNTRAINED,))
    untrained = swept(fresh, task._replace(lags=(0,)), {"PPO": several["PPO"]})
    floor = float(np.nanmean(returns(preset, untrained, 1.0)))
    final, mean = (returns(preset, result, part) for part in (TAIL, 1.0))
    return Cells([*several], task.lags, preset.rates, final, mean, floor)


def swept(preset: Preset, task: Task, several: Mapping[str, Algorithm], blocks: Path | None = None) -> "xr.Dataset":
    """Runs methods under every lag, at every learning rate, with every seed; `blocks` keeps what is finished."""
    workload = Workload(task.make(), ActorCritic(hidden=preset.hidden), actors=preset.actors, fragment=preset.fragment)

    def schedule(lag: int) -> Schedule:
        return imposed(preset.updates, actors=preset.actors, data=Constant(lag))

    axes: dict[str, list[Any]] = {"lag": list(task.lags), "algorithm.learning_rate": list(preset.rates)}
    return sweep(
        workload,
        several,
        schedule,
        axes,
        seeds=preset.seeds,
        evaluation=preset.evaluation,
        directory=blocks,
        on_progress=shown(),
    )


def returns(preset: Preset, result: "xr.Dataset", part: float) -> NDArray:
    """Returns the mean returns of the last part of the updates, by method, lag, learning rate and seed."""
    last = max(1, round(part * preset.updates))
    outcome = mean_return(result, last) if preset.evaluation is None else mean_evaluation(result, last)
    # Rounded here, so that a task that is read from the file gives the same tables as when it was run.
    rounded: NDArray = np.vectorize(short, otypes=[float])(outcome.values)
    return rounded


def read(folder: Path, preset: Preset, name: str, floor: float) -> Cells:
    """Returns the outcomes of one task from a folder's `runs.csv`."""
    rows = [row for row in output.read_rows(folder / "runs.csv") if row["task"] == name]
    names, lags = list(dict.fromkeys(row["method"] for row in rows)), preset.tasks[name].lags
    shape = (len(names), len(lags), len(preset.rates), preset.seeds)
    final, mean = (
        np.array([float(row[key]) for row in rows]).reshape(shape) for key in ("final_return", "mean_return")
    )
    return Cells(names, lags, preset.rates, final, mean, floor)


# ---- tables and pictures ---------------------------------------------------------------------------------------------


def write(tables: Mapping[str, Cells], folder: Path, preset: Preset) -> None:
    """Writes the tables of the runs, of the curves and of the lags at which half is lost, and both pictures."""
    for name, rows in {"runs": _rows, "curves": curves, "half": halves}.items():
        output.write_rows(folder / f"{name}.csv", [row for task, cells in tables.items() for row in rows(task, cells)])
    outcome = "return" if preset.evaluation is None else "evaluated return"
    for rate, which in {"best": "each at its best rate", "shared": "all at the rate best for fresh PPO"}.items():
        _draw(tables, folder / rate, rate, f"mean {outcome} of the last {TAIL:.0%},\n{which}")


def _rows(task: str, cells: Cells) -> Iterator[dict[str, Any]]:
    for place in np.ndindex(cells.final.shape):
        method, lag, rate, seed = place
        yield {
            "task": task,
            "method": cells.methods[method],
            "lag": cells.lags[lag],
            "learning_rate": cells.rates[rate],
            "seed": seed,
            "final_return": float(cells.final[place]),
            "mean_return": float(cells.mean[place]),
        }


def _draw(tables: Mapping[str, Cells], path: Path, rate: str, label: str) -> None:
    """Draws the mean return of the last updates against the lag, one panel per environment, with 95 % intervals."""
    with plots.figure(path, "", columns=len(tables), suffixes=(".png", ".pdf")) as several:
        for axes, (name, cells) in zip(several, tables.items(), strict=True):
            returns = chosen_scores(cells)[rate] + cells.floor
            low, high = interval(returns)
            for i, (method, style) in enumerate(zip(cells.methods, _STYLES, strict=True)):
                axes.plot(cells.lags, returns[i].mean(axis=-1), label=method, linewidth=1.5, **style)
                axes.fill_between(cells.lags, low[i], high[i], color=style["color"], alpha=0.15, linewidth=0)
            plots.untrained(axes, cells.floor)
            axes.set_xscale("symlog", base=2, linthresh=1)
            # Every second tick, because 128 and 256 would touch.
            axes.set_xticks(cells.lags[::2] if len(cells.lags) > 6 else cells.lags)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
            axes.set_xlim(0, cells.lags[-1])
            axes.set(xlabel="age of the data (batches)")
            axes.set_title(name, fontsize="medium")
        several[0].set_ylabel(label)
        plots.legend(several[0])
