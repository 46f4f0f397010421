"""Runs MinionsRL's tuned learner with as many settings as other systems got, on seeds that no result uses.

The settings of the tuned learner on CartPole and Acrobot were chosen before rewards were scaled. Registered on
2026-12-01, before the first run: all actors in every round, in compiled rounds, with the eight settings that the
synchronous system got and with the learner's own, on the seeds 100 to 103 of both tasks. Outcome: the median time to
the target. Question: does a setting take less than 1 / 1.2 of the time of the learner's own? If so, all fixed numbers
of actors run on that task with the best setting as well (`minionsrl-ceiling`), and the page shows both: the results of
many thousand runs have the older one.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments import tuning
from experiments.figures.minionsrl import ceiling
from experiments.figures.minionsrl.ceiling import Schedule
from experiments.study import tidy
from experiments.tasks import minionsrl
from experiments.toolkit import options, output, provenance
from stellaris import PPO

DESCRIPTION = "time to the target of MinionsRL's tuned learner with each of nine settings, in compiled rounds"

#: The testbeds of `ceiling` whose learner is tuned.
TESTBEDS = ("tuned", "acrobot-tuned")
PRESETS = {
    "smoke": replace(ceiling.PRESETS["smoke"], fixed=(4,), levels=(), seeds=1),
    "small": replace(ceiling.PRESETS["small"], fixed=(minionsrl.ACTORS,), levels=(), seeds=4),
}


def settings(own: PPO) -> Mapping[str, PPO]:
    """Returns the settings by name: the learner's own, and the synchronous system's on CartPole."""
    systems: Mapping[str, Any] = tuning.of("CartPole-v1").settings[tuning.BASELINE]
    others: list[PPO] = [system.algorithm for system in systems.values()]
    return {f"{ppo.learning_rate:g}, {ppo.epochs} x {ppo.minibatch_size}": ppo for ppo in (own, *others)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="the size of the study")
    add("--testbeds", nargs="+", choices=TESTBEDS, default=TESTBEDS[:1], help="the testbeds (default: CartPole's)")
    add("--out", type=options.folder, default=Path("results/minionsrl-tuning"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Writes the runs of each testbed, and shows a table of the settings, the fastest first."""
    preset, out, console = PRESETS[arguments.preset], arguments.out, Console()
    console.width = max(console.width, 110)
    with output.usable(out):
        out.mkdir(parents=True, exist_ok=True)
    for name in arguments.testbeds:
        rows: list[dict[str, Any]] = []
        for setting, ppo in settings(ceiling.task_of(preset, name).ppo).items():
            rows += _runs(preset, name, setting, ppo)
            output.write_rows(out / f"runs_{name}.csv", rows)
            console.print(f"{name}: {setting} has run")
        tidy.show(f"{name}: time to the target", HEADINGS, table(rows), out / name, console)
        provenance.write(out / f"provenance_{name}.json", preset=repr(preset))
    return 0


def _runs(preset: ceiling.Preset, testbed: str, setting: str, ppo: PPO) -> Iterator[dict[str, Any]]:
    """Yields the runs with a setting, with all actors in every round."""
    of = ceiling.rounds(preset, replace(ceiling.task_of(preset, testbed), ppo=ppo))
    number = max(preset.fixed)
    seeds = range(tuning.SEED, tuning.SEED + preset.seeds)
    runs = ceiling.measured(of, [Schedule(number, number, 0)], seeds)[Schedule(number, number, 0)]
    for i, seed in enumerate(seeds):
        columns = {name: float(getattr(runs, name)[i]) for name in runs._fields}
        yield {"testbed": testbed, "setting": setting, "seed": seed, **columns}


HEADINGS = ("setting", "reached", "median s", "from", "to", "median USD", "median steps", "time / own")


def table(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Returns a row for each setting, the fastest first; the first setting of the runs is the learner's own."""
    of: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        of.setdefault(row["setting"], []).append(row)
    medians = {
        name: {column: float(np.median([float(row[column]) for row in own])) for column in ("seconds", "cost", "steps")}
        for name, own in of.items()
    }
    own = next(iter(of))
    lines = []
    for name in sorted(of, key=lambda name: medians[name]["seconds"]):
        seconds, median = [float(row["seconds"]) for row in of[name]], medians[name]
        reached = f"{sum(np.isfinite(seconds))} of {len(seconds)}"
        numbers = (f"{x:.1f}" for x in (median["seconds"], min(seconds), max(seconds)))
        spent = f"{median['cost']:.4f}", f"{median['steps']:,.0f}"
        ratio = f"{median['seconds'] / medians[own]['seconds']:.2f}"
        lines.append((f"{name} (its own)" if name == own else name, reached, *numbers, *spent, ratio))
    return lines
