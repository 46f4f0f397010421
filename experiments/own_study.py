"""Runs a study from a file of the user's own."""

import argparse
import importlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

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
      UsageError: if the file does not exist, cannot be imported by its name, or does not define a study.
    """
    path: Path = arguments.file
    if not path.is_file() or path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file: name one that defines STUDY")
    own = getattr(_imported(path), "STUDY", None)
    if not isinstance(own, Study):
        raise UsageError(f"{path} does not define STUDY: assign an experiments.study.study.Study to this name")
    own = replace(own, file=str(path))
    parser = Parser(prog=f"python -m experiments study {path}", formatter_class=Defaults)
    own.add_arguments(parser)
    return own.main(parser.parse_args(arguments.arguments))


def _imported(path: Path) -> ModuleType:
    """Imports a file as a module by its name.

    Raises:
      UsageError: if the name is that of another module, or is not a module's.
    """
    folder = path.parent.resolve()
    # By its name, because the processes of the runs import it as well, if a cell holds a class of it. They inherit the
    # path.
    sys.path.insert(0, str(folder))
    module = None if "." in path.stem else importlib.import_module(path.stem)
    if getattr(module, "__file__", None) != str(folder / path.name):
        raise UsageError(f"{path} cannot be imported as {path.stem!r}, which is another module or none: rename it")
    assert module is not None
    return module
