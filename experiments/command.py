"""The command line of the experiments."""

import argparse
from collections.abc import Sequence

from experiments import quickstart, shell, stellaris_training, systems, tuning
from experiments.options import Parser

#: Experiments by name: each module has `DESCRIPTION`, `add_arguments(parser)` and `main(arguments) -> exit status`.
EXPERIMENTS = {
    "quickstart": quickstart,
    "systems": systems,
    "tuning": tuning,
    "stellaris-training": stellaris_training,
}


@shell.command
def main(argv: Sequence[str] | None = None) -> int:
    """Parses the command line and runs the experiment that it names."""
    parser = Parser(prog="python -m experiments", description="Runs an experiment.")
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in EXPERIMENTS.items():
        sub = names.add_parser(
            name,
            help=module.DESCRIPTION,
            description=module.DESCRIPTION,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        module.add_arguments(sub)
    arguments = parser.parse_args(argv)
    status: int = EXPERIMENTS[arguments.name].main(arguments)
    return status
