"""Reads the results that are committed under `experiments/results/`."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from experiments.toolkit import output
from experiments.toolkit.statistics import Estimate, estimate, interquartile_mean, ratio

RESULTS = Path(__file__).parents[2] / "results"
#: The end of the names of variants that repeat another variant's schedule.
REPLAYED = ", replayed"


#: The paths that `rows` is asked for in a block of `noted`.
_paths: list[str] = []


def rows(path: str) -> Sequence[Mapping[str, str]]:
    """Reads the rows of a CSV file, by its path under `experiments/results/`."""
    _paths.append(path)
    return stored(path)


@functools.cache
def stored(path: str) -> Sequence[Mapping[str, str]]:
    """Reads the rows of a CSV file once."""
    return output.read_rows(RESULTS / path)


@contextmanager
def noted() -> Iterator[Sequence[str]]:
    """Yields a list, to which `rows` adds the paths that it is asked for in the block."""
    _paths.clear()
    yield _paths


# ---- runs ------------------------------------------------------------------------------------------------------------


def runs(study: str, environment: str) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """Returns the rows of a study's `runs.csv` by variant, which is named by its setting or else by its system."""
    groups: dict[str, list[Mapping[str, str]]] = {}
    for row in rows(f"{study}/runs.csv"):
        if row["environment"] == environment:
            groups.setdefault(row["setting"] or row["system"], []).append(row)
    return groups


def estimated(of: Sequence[Mapping[str, str]], column: str) -> Estimate:
    """Estimates a result over runs."""
    return estimate([float(row[column]) for row in of])


def paired(of: Sequence[Mapping[str, str]], others: Sequence[Mapping[str, str]], column: str) -> Estimate:
    """Estimates the ratio of a result over runs to that of others, paired by seed."""
    by_seed = {row["seed"]: float(row[column]) for row in others}
    return estimate([ratio(float(row[column]), by_seed[row["seed"]]) for row in of])


def middle(of: Sequence[Mapping[str, str]], column: str) -> float:
    """Returns the interquartile mean of a result over runs, without the interval, whose computation takes longer."""
    return interquartile_mean([float(row[column]) for row in of])


# ---- the studies' tables ---------------------------------------------------------------------------------------------


def first(text: str) -> float:
    """Returns the first number of an estimate in a study's table.

    Example:
      >>> first("1,376 (1,254 to 1,541)")
      1376.0
    """
    return float(text.split(" ")[0].replace(",", ""))


def rounded(text: str, decimals: int = 2) -> str:
    """Rounds the numbers of an estimate in a study's table, by default to two decimals.

    Example:
      >>> rounded("1.376 (1.254 to 1.541)")
      '1.38 (1.25 to 1.54)'
    """
    return re.sub(r"[\d,]+\.?\d*", lambda number: f"{float(number[0].replace(',', '')):.{decimals}f}", text)
