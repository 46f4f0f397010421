"""Parsers and option types of the commands: range-checked numbers, one-line errors."""

import argparse
import difflib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from experiments.toolkit.shell import STATUSES, UsageError

#: Seeds are below this number, because EnvPool's seeds are signed 32-bit integers.
SEEDS = 2**31


class Parser(argparse.ArgumentParser):
    """A parser that raises a UsageError of one line, and explains the exit status in its help."""

    def __init__(self, *, epilog: str = "", **options: Any) -> None:
        super().__init__(epilog=f"{epilog} {STATUSES}".strip(), **options)

    def error(self, message: str) -> NoReturn:
        """Raises a UsageError that names the argument and the problem, and the choice that was probably meant."""
        message = message.removeprefix("argument ")
        if found := re.fullmatch(r"(.*invalid choice: '(.*)') \(choose from (.*)\)", message):
            close = difflib.get_close_matches(found[2], re.findall(r"[^\s',]+", found[3]), 1)
            message = f"{found[1]}; did you mean {close[0]!r}?" if close else message
        raise UsageError(f"{message} (see {self.prog} --help)")


class Defaults(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of an option that has one, unless its help does so."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        said = action.help or ""
        none = action.default is None or action.default is False or action.default == []
        return said if none or "default" in said else super()._get_help_string(action)


def whole(least: int, most: int = SEEDS - 1) -> Callable[[str], int]:
    """Returns the type of an option that is an integer from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number from {least} to {most:,}")
        return number

    return parse


def finite(text: str) -> float:
    """Parses a finite number; the type of an option."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return number


def positive(unit: str) -> Callable[[str], float]:
    """Returns the type of an option that is a positive amount of a unit, named in the plural."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not a positive, finite number of {unit}")
        return number

    return parse


#: The type of an option that is a duration.
seconds = positive("seconds")


def folder(text: str) -> Path:
    """Parses the path of a folder; the type of an option."""
    if not text:
        raise argparse.ArgumentTypeError("'' names no folder; for the working directory, use '.'")
    return Path(text)


def seeds(name: str, first: int, count: int) -> range:
    """Returns the seeds `first`, ..., `first + count - 1`.

    Args:
      name: the name of the option that gives the first seed, which the error shows.
      first: the first seed, at least 0.
      count: the number of seeds, at least 1.

    Raises:
      UsageError: if the last seed is too large.
    """
    if first + count > SEEDS:
        raise UsageError(f"{name}: {count} seeds from {first} on exceed {SEEDS - 1:,}; choose a smaller {name}")
    return range(first, first + count)
