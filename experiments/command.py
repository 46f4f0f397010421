"""The command line of the experiments."""

import argparse
from collections.abc import Sequence

from experiments.catalogue import EXPERIMENTS
from experiments.toolkit import shell
from experiments.toolkit.options import Defaults, Parser


@shell.command
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the experiment that the command line names, and returns its exit status."""
    parser = Parser(
        prog="python -m experiments",
        description="Runs an experiment; `list` describes the experiments, `NAME --help` the options of one.",
    )
    parser.add_argument("name", metavar="NAME", choices=EXPERIMENTS, help=", ".join(EXPERIMENTS))
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="the experiment's options")
    named = parser.parse_args(argv)
    try:
        experiment = EXPERIMENTS[named.name].load()
    except ModuleNotFoundError as error:
        raise shell.UsageError(error) from error
    own = Parser(
        prog=f"python -m experiments {named.name}",
        description=experiment.DESCRIPTION,
        formatter_class=Defaults,
    )
    experiment.add_arguments(own)
    status: int = experiment.main(own.parse_args(named.arguments))
    return status
