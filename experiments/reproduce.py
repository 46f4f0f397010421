"""Runs the experiments of every figure in turn, on one results folder; or repeats committed runs of the studies."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from experiments import catalogue
from experiments.study import repetition, study
from experiments.study.study import Study
from experiments.toolkit import options, output, shell

#: The kinds of experiments whose modules define a study.
_STUDIES = ("study", "tuning")

DESCRIPTION = "run the experiments of every figure, reusing the runs in the results folder"


def figures() -> tuple[str, ...]:
    """Returns the names of the studies that figures show, in the catalogue's order."""
    return tuple(name for name, entry in catalogue.EXPERIMENTS.items() if entry.kind == "study")


def studies() -> Mapping[str, Study]:
    """Returns all studies by name, those that tune settings as well."""
    return {name: entry.load().STUDY for name, entry in catalogue.EXPERIMENTS.items() if entry.kind in _STUDIES}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--preset", choices=("smoke", "small", "paper"), default="small", help="size of the runs")
    parser.add_argument("--jobs", type=options.whole(1), default=study.PROCESSORS, help="concurrent processes")
    parser.add_argument("--out", type=options.folder, default=Path("results"), help="results folder")
    check = "instead, repeat the shortest committed run of each study and a few of the lab's, and compare the results"
    parser.add_argument("--check", action="store_true", help=check)


def main(arguments: argparse.Namespace) -> int:
    """Runs every study and figure, also after a failure; returns the first exit status other than 0."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 170)  # in 80 columns the names of studies would be cut off
    if arguments.check:
        from experiments.figures import repeats  # here, because it needs the packages of the lab

        with output.usable(arguments.out), output.locked(arguments.out):
            wrong = repetition.check(studies(), arguments.out, arguments.jobs, console) + repeats.check(console)
            return shell.FAILED if wrong else 0
    statuses = []
    for name, entry in catalogue.EXPERIMENTS.items():
        if entry.kind == "study":
            words = ["--preset", arguments.preset, "--jobs", str(arguments.jobs), "--out", str(arguments.out)]
            words.append("--resume")
        elif entry.kind == "figure":  # a figure lacks the preset "paper", and needs a separate results folder
            preset = "smoke" if arguments.preset == "smoke" else "small"
            words = ["--preset", preset, "--out", str(arguments.out / name)]
        else:
            continue
        console.rule(name)
        module = entry.load()
        parser = options.Parser(prog=f"python -m experiments {name}")
        module.add_arguments(parser)
        statuses.append(module.main(parser.parse_args(words)))
        if statuses[-1] == shell.INTERRUPTED:
            return shell.INTERRUPTED
    return next((status for status in statuses if status), 0)
