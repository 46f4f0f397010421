"""Runs a study from a file of the user's own."""

import argparse
import importlib
import sys
from pathlib import Path

from experiments.study.study import Study
from experiments.toolkit.options import Defaults, Parser
from experiments.toolkit.shell import UsageError

DESCRIPTION = "run the study that a Python file of your own defines as STUDY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("file", type=Path, help="a Python file that defines STUDY, an experiments.study.study.Study")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="the study's options, such as --seeds 5"
    )


def main(arguments: argparse.Namespace) -> int:
    """Imports the file, and runs its study with the remaining options.

    Raises:
      UsageError: if the file does not exist, or does not define a study.
    """
    path: Path = arguments.file
    if not path.is_file() or path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file: name one that defines STUDY")
    # The file is imported as a module by its name, because the processes of the runs import it as well, if a cell holds
    # a class of it; they inherit this path.
    sys.path.insert(0, str(path.resolve().parent))
    own = getattr(importlib.import_module(path.stem), "STUDY", None)
    if not isinstance(own, Study):
        raise UsageError(f"{path} does not define STUDY: assign an experiments.study.study.Study to this name")
    parser = Parser(prog=f"python -m experiments study {path}", formatter_class=Defaults)
    own.add_arguments(parser)
    return own.main(parser.parse_args(arguments.arguments))
