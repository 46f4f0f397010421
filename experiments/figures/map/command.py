"""Computes the map: speed by dry runs, learning in the lab, and where their product exceeds one."""

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures.map import learning, sharing, speed
from experiments.figures.map.deployments import IN_ROUNDS, ONE_LEARNER, SAMPLING_ON
from experiments.figures.map.learning import Learning
from experiments.figures.map.outcomes import (
    INTERVAL,
    MACHINES,
    TIME,
    USE,
    Efficiency,
    Speeds,
    advantages,
    efficiency,
    slowed,
)
from experiments.figures.map.pictures import Mark, draw, draw_eta
from experiments.figures.map.speed import Grid
from experiments.figures.stellaris import hpc
from experiments.lab.command import shown
from experiments.tasks import minionsrl, testbed
from experiments.toolkit import options, output
from experiments.toolkit.provenance import provenance
from stellaris.acting.jax_env import JaxEnvironment
from stellaris.lab import CartPole, Gymnax
from stellaris.runtime.files import atomic_write

DESCRIPTION = "where asynchronous learners win: speed in steps per second, times learning per step"


@dataclass(frozen=True)
class Preset:
    """The size of the study."""

    grid: Grid
    learning: Learning
    tasks: Mapping[str, str | None]  #: environments; a name is one of gymnax, None is the library's own.


PRESETS: Mapping[str, Preset] = {
    "smoke": Preset(
        Grid((1.0, 4.0), (0.1,), (1, 4), (1,), (0.0, 1.0), (0.1,), batches=4),
        Learning((1.0,), (0.1,), (2,), (1e-3,), seeds=2, batches=4),
        {"CartPole": None},
    ),
    "small": Preset(
        Grid(
            kappas=(1 / 16, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
            variations=(0.0, 0.1, 0.5, 1.0),
            learners=(1, 2, 4, 8, 16, 32, 64),
            sharers=(1, 4),
            growths=(0.0, 1.0),
            updates=(0.1, 1.4),
            batches=48,
        ),
        Learning(
            kappas=(1.0, 8.0),
            variations=(0.1, 1.0),
            learners=(1, 4, 16, 64),
            rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
            seeds=32,
            batches=64,
        ),
        {"CartPole": None, "Acrobot-v1": "Acrobot-v1"},
    ),
}


@dataclass(frozen=True)
class Way:
    """A way to deploy learners; the map has separate pictures of it."""

    suffix: str  #: what the names of its files end with.
    words: str
    sharers: int
    update: float  #: seconds of an update of the policy, divided by the seconds of a gradient.
    marks: Sequence[Mark]


#: Gradients of a batch of Stellaris on PAR-RL's testbed.
_PAR_RL_GRADIENTS = 10 * hpc.ACTORS * hpc.FRAGMENT // hpc.CHOSEN[hpc.STELLARIS].minibatch
#: With a GPU each: Ray on two cores, from the log of `what-if`: medians of 27.3 ms a fragment and 9.32 ms a batch, and
#: the variation of a normal distribution whose median distance from the median is that of the fragments; MinionsRL with
#: its authors' learner; the testbed with PAR-RL's 960 cores. With four learners on a GPU, and updates that take as long
#: as on the testbed, where the new version is also stored and announced: the demo of Stellaris, whose round has an
#: overhead of 5 s; the testbed with the tuned settings.
WAYS = (
    Way(
        "",
        "a GPU each",
        sharers=1,
        update=0.1,
        marks=(
            Mark("R", 9.32 / 27.3, 1, 0.31),
            Mark("M", minionsrl.GRADIENTS * minionsrl.WHOLE_GRADIENT / (2_048 * testbed.ENVIRONMENT_STEP), 1, 0.1),
            Mark("P", _PAR_RL_GRADIENTS * testbed.GRADIENT / (hpc.FRAGMENT * testbed.ENVIRONMENT_STEP), hpc.GPUS, 0.1),
        ),
    ),
    Way(
        "_shared",
        "four on a GPU",
        sharers=4,
        update=1.4,
        marks=(
            Mark("D", 40 * testbed.GRADIENT / (testbed.DEMO_OVERHEAD + 256 * testbed.ENVIRONMENT_STEP), 4, 0.1),
            Mark("T", 80 * testbed.GRADIENT / (256 * testbed.ENVIRONMENT_STEP), 4, 0.1),
        ),
    ),
)
_GROWTHS = (0.0, 1.0)
_TOLD = {TIME: "time", MACHINES: "cost of machines", USE: "cost by use"}

#: The parts of the study, in order.
_PARTS = ("speed", "learning", "report", "sharing")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="the size of the study")
    add("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="the parts to do; each keeps its tables")
    add("--out", type=options.folder, default=Path("results/stellaris-map"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Computes the tables of the parts, and draws the pictures of the tables that the folder holds."""
    preset, out = PRESETS[arguments.preset], arguments.out
    with output.usable(out):
        out.mkdir(parents=True, exist_ok=True)
    if "speed" in arguments.parts:
        output.write_rows(out / "speed.csv", list(speed.measured(preset.grid, print)))
        _note(out, "speed", preset)
    if "learning" in arguments.parts:
        for name, environment in preset.tasks.items():
            _learn(preset, name, CartPole() if environment is None else Gymnax(environment), out)
            _note(out, f"learning_{name}", preset)
    if "report" in arguments.parts:
        report(out)
    if "sharing" in arguments.parts and (out / "speed.csv").exists():
        speeds, learned = Speeds.of(output.read_rows(out / "speed.csv")), _learned(out)
        tasks = {name: (eta, drawn) for name, (eta, drawn, _) in learned.items()}
        (shared,) = (way for way in WAYS if way.sharers == sharing.LEARNERS)
        if found := [*sharing.compared(preset.grid, speeds, tasks, shared.update)]:
            output.write_rows(out / "sharing.csv", found)
            _note(out, "sharing", preset)
    return 0


def _learn(preset: Preset, name: str, environment: JaxEnvironment, out: Path) -> None:
    """Runs every deployment in one environment; the table is written after each."""
    rows: list[Mapping[str, Any]] = []
    points = [*preset.learning.points()]
    for i, point in enumerate(points):
        print(f"{name}, {i + 1} of {len(points)}: {point}")
        found = learning.curves(preset.learning, point, environment, out / "blocks", shown())
        rows += learning.rows(preset.learning, point, found)
        output.write_rows(out / f"learning_{name}.csv.gz", rows)


def report(out: Path) -> None:
    """Writes η and the map, and draws the pictures, for every environment whose tables the folder holds."""
    if not (out / "speed.csv").exists():
        return
    speeds = Speeds.of(output.read_rows(out / "speed.csv"))
    even = Efficiency({system: {(1.0, 0.1, 1): 1.0} for system in (ONE_LEARNER, IN_ROUNDS, SAMPLING_ON)})
    learned = _learned(out)
    for name, (_, _, table) in learned.items():
        output.write_rows(out / f"eta_{name}.csv", table)
        draw_eta(table, out / f"eta_{name}", name)
    for way in WAYS:
        of = [*advantages(speeds, even, sharers=way.sharers, update=way.update)]
        _draw(of, "speed", out / f"speed{way.suffix}", f"environment steps per second, {way.words}", "S", way)
        for name, (eta, drawn, _) in learned.items():
            _map(speeds, eta, drawn, name, way, out)


def _learned(out: Path) -> Mapping[str, tuple[Efficiency, Efficiency, list[dict[str, Any]]]]:
    """Returns what `efficiency` returns for every environment whose table the folder holds."""
    return {
        path.name.removeprefix("learning_").removesuffix(".csv.gz"): efficiency(output.read_rows(path))
        for path in sorted(out.glob("learning_*.csv.gz"))
    }


def _map(speeds: Speeds, eta: Efficiency, drawn: Efficiency, name: str, way: Way, out: Path) -> None:
    """Writes the map of a way to deploy learners in an environment, and draws its pictures."""
    rows: list[dict[str, Any]] = []
    for what, growth in itertools.product((TIME, MACHINES, USE), _GROWTHS):
        of: Any = {"what": what, "growth": growth, "sharers": way.sharers, "update": way.update}
        these = [*advantages(speeds, eta, **of)]
        for row, several in zip(these, advantages(speeds, drawn, **of), strict=True):
            row["best_low"], row["best_high"] = np.quantile(several["best"], INTERVAL)
        rows += [{"what": what, "growth": growth, **row} for row in these]
        told = f"{name}: Stellaris against the best of the others, equal {_TOLD[what]}, g = {growth:g}, {way.words}"
        marked = [{**row, "at_most": eta.at_most(*_at(row, way))} for row in these]
        picture = out / f"map_{what}_g{growth:g}_{name}{way.suffix}"
        _draw(marked, "best", picture, f"{told}; at most, if hatched", "ratio", way)
    short = [{key: x if isinstance(x, str) else float(f"{x:.4g}") for key, x in row.items()} for row in rows]
    output.write_rows(out / f"map_{name}{way.suffix}.csv", short)


def _at(row: Mapping[str, Any], way: Way) -> tuple[str, float, float, int]:
    """Returns the place at which η of a row was measured."""
    kappa = slowed(row["kappa"], way.sharers, row["learners"])
    return row["system"], kappa, row["variation"], row["learners"]


def _draw(rows: Sequence[dict[str, Any]], column: str, path: Path, title: str, label: str, way: Way) -> None:
    if len({row["kappa"] for row in rows}) > 1 and len({row["learners"] for row in rows}) > 1:
        draw(rows, column, path, title, way.marks, label)


def _note(out: Path, part: str, preset: Preset) -> None:
    """Writes the provenance of a part."""
    path = out / "provenance.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    with atomic_write(path) as file:
        json.dump(known | {part: {"preset": repr(preset), **provenance()}}, file, indent=1)
