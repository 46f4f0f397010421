"""Every figure, one after the other, on one folder of runs."""

import argparse
from pathlib import Path

from rich.console import Console

from experiments import catalogue
from experiments.study import study
from experiments.toolkit import options, shell

DESCRIPTION = "run the study of every figure, going on with what the folder of results holds"

#: What is a study, but of no figure.
_LEFT_OUT = ("tuning",)
#: What has a figure, but is no study: it has a folder of its own, seeds one after the other, and no preset "paper".
_NO_STUDY = ("gear-hopper",)


def figures() -> tuple[str, ...]:
    """The studies' names, in the catalogue's order: those that come in a preset "small"."""
    studies = (name for name, entry in catalogue.EXPERIMENTS.items() if "small" in entry.minutes)
    return tuple(name for name in studies if name not in ("reproduce", *_LEFT_OUT, *_NO_STUDY))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line's options."""
    parser.add_argument("--preset", choices=("smoke", "small", "paper"), default="small", help="how much is run")
    parser.add_argument("--jobs", type=options.whole(1), default=study.PROCESSORS, help="processes at once")
    parser.add_argument("--out", type=options.folder, default=Path("results"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """The exit status is the first that is not 0; a study that fails does not keep the others from being run."""
    console = Console(highlight=False)
    statuses = []
    for name in (*figures(), *(name for name in _NO_STUDY if name in catalogue.EXPERIMENTS)):
        console.rule(name)
        module = catalogue.EXPERIMENTS[name].load()
        parser = options.Parser(prog=f"python -m experiments {name}")
        module.add_arguments(parser)
        words = ["--preset", arguments.preset, "--jobs", str(arguments.jobs), "--out", str(arguments.out), "--resume"]
        if name in _NO_STUDY:
            preset = "smoke" if arguments.preset == "smoke" else "small"
            words = ["--preset", preset, "--out", str(arguments.out / name)]
        statuses.append(module.main(parser.parse_args(words)))
        if statuses[-1] == shell.INTERRUPTED:
            return shell.INTERRUPTED
    return next((status for status in statuses if status), 0)
