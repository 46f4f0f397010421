"""Delays: distributions of durations in seconds, drawn from an explicit generator."""

import csv
import math
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from stellaris._core import checks
from stellaris.runtime.state.registry import register_part
from stellaris.types import NDArray

#: Number of durations that a stream draws at a time: one call of NumPy's generator costs as much as drawing 50 numbers.
_BLOCK = 256


@runtime_checkable
class Delay(Protocol):
    """A distribution of non-negative durations."""

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """Draws `n` durations in seconds, `[n]`."""


@dataclass(frozen=True)
class Constant:
    """A constant duration of `seconds`.

    Example:
      >>> Constant(0.3).sample(np.random.default_rng(0), 2)
      array([0.3, 0.3])
    """

    seconds: float

    def __post_init__(self) -> None:
        _check_non_negative(self, seconds=self.seconds)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """Returns the constant `n` times."""
        return np.full(n, float(self.seconds))


@dataclass(frozen=True)
class Exponential:
    """The exponential (memoryless) distribution with the given mean."""

    mean: float

    def __post_init__(self) -> None:
        _check_non_negative(self, mean=self.mean)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """Draws `n` durations in seconds."""
        return rng.exponential(self.mean, n)


@dataclass(frozen=True)
class LogNormal:
    """The log-normal distribution with the given mean and coefficient of variation (standard deviation / mean)."""

    mean: float
    cv: float

    def __post_init__(self) -> None:
        _check_non_negative(self, mean=self.mean, cv=self.cv)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """Draws `n` durations in seconds."""
        variance = math.log1p(self.cv**2)
        # The mean of exp(N(m, v)) is exp(m + v / 2).
        return np.asarray(self.mean * np.exp(math.sqrt(variance) * rng.standard_normal(n) - variance / 2))


@dataclass(frozen=True)
class Gamma:
    """The gamma distribution with the given mean and coefficient of variation; with `cv=1` it is exponential."""

    mean: float
    cv: float

    def __post_init__(self) -> None:
        _check_non_negative(self, mean=self.mean, cv=self.cv)
        # At a coefficient of variation of 0 the shape parameter would be infinite.
        if self.cv == 0:
            raise ValueError("Gamma(cv=0) does not vary: use Constant(mean)")

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """Draws `n` durations in seconds."""
        # Shape k and scale s have the mean k s and the coefficient of variation 1 / sqrt(k).
        return rng.gamma(1 / self.cv**2, self.mean * self.cv**2, n)


@dataclass(frozen=True)
class Uniform:
    """The uniform distribution between `low` and `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_non_negative(self, low=self.low, high=self.high)
        if self.high < self.low:
            raise ValueError(f"Uniform(low={self.low}, high={self.high}): high is below low; swap the two")

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """Draws `n` durations in seconds."""
        return rng.uniform(self.low, self.high, n)


@dataclass(frozen=True)
class Mixture:
    """A mixture: one of several delays, each with its probability.

    Example:
      Nineteen of twenty calls take 10 ms. The twentieth takes 1 s on average:

      >>> slow = Mixture(delays=(Constant(0.01), Exponential(1.0)), probabilities=(0.95, 0.05))
    """

    delays: Sequence[Delay]
    probabilities: Sequence[float]

    def __post_init__(self) -> None:
        check_drawn(**{f"delays[{i}]": delay for i, delay in enumerate(self.delays)})
        if len(self.delays) != len(self.probabilities) or not self.delays:
            raise ValueError(
                f"Mixture of {len(self.delays)} delays with {len(self.probabilities)} probabilities: give at least one "
                "delay, and one probability for each delay"
            )
        checks.single(**{f"probabilities[{i}]": chance for i, chance in enumerate(self.probabilities)})
        if min(self.probabilities) < 0 or not math.isclose(sum(self.probabilities), 1.0):
            raise ValueError(
                f"Mixture(probabilities={self.probabilities}): probabilities must not be negative and must sum to 1"
            )

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """Draws `n` durations in seconds."""
        # With `side="right"` a delay of probability 0 is never chosen, even by a draw of exactly 0.
        index = np.searchsorted(np.cumsum(self.probabilities), rng.random(n), side="right")
        # All delays are drawn `n` times, so that the draws of a delay do not depend on which delays are chosen.
        drawn = np.stack([delay.sample(rng, n) for delay in self.delays])
        # If rounding makes the sum of the probabilities less than 1, the index may exceed the last delay by one.
        return np.asarray(drawn[np.minimum(index, len(self.delays) - 1), np.arange(n)])


@dataclass(frozen=True)
class Empirical:
    """Measured durations, drawn with replacement one by one or in blocks of successive measurements.

    Blocks keep the correlation of successive durations, as on a machine that is slow for a while. They are a circular
    block bootstrap (Politis & Romano 1992), in which the first measurement follows the last.

    Example:
      >>> Empirical((0.2, 0.25, 0.21)).sample(np.random.default_rng(0), 2)
      array([0.21, 0.25])
      >>> Empirical((0.2, 0.25, 0.21), block=3).sample(np.random.default_rng(0), 3)
      array([0.21, 0.2 , 0.25])
    """

    samples: Sequence[float]
    block: int = 1  #: length of a block; 1 draws each duration independently.

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], column: str) -> "Empirical":
        """Reads the durations in one column of a CSV file, in seconds.

        Args:
          path: path of the file, in UTF-8, whose first line names the columns.
          column: name of the column.

        Returns:
          The distribution.

        Raises:
          ValueError: if the column is missing, empty or there twice, a value in it is not a duration, or a row has more
            values than the file has columns; the error names the file and the line.
        """
        name = os.fspath(path)
        # "utf-8-sig" skips the byte-order mark that spreadsheets write, which would be part of the first column's name.
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            try:
                if [*(reader.fieldnames or ())].count(column) > 1:
                    raise ValueError(f"{name} has the column {column!r} twice: leave one")
                if column not in (reader.fieldnames or ()):
                    raise ValueError(f"column={column!r}: {name} has the columns {reader.fieldnames}; name one of them")
                samples = [_duration(row, column, f"{name}, line {reader.line_num}") for row in reader]
            except (csv.Error, UnicodeDecodeError) as error:
                raise ValueError(f"{name} cannot be read as CSV: {error}") from error
        if not samples:
            raise ValueError(f"{name}: column {column!r} has no durations: expected at least one row")
        return cls(tuple(samples))

    def __post_init__(self) -> None:
        if len(self.samples) == 0:
            raise ValueError("Empirical(samples) is empty: give at least one duration")
        checks.whole(at_least=1, block=self.block)
        _check_non_negative(self, **{f"samples[{i}]": s for i, s in enumerate(self.samples)})

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """Draws `n` durations in seconds."""
        # Enough blocks for `n` durations are drawn, and the last block is cut off at `n`.
        firsts = rng.integers(len(self.samples), size=-(-n // self.block))
        places = (firsts[:, None] + np.arange(self.block)).ravel()[:n]
        durations: NDArray = np.asarray(self.samples, float)[places % len(self.samples)]
        return durations


@dataclass(frozen=True)
class Measured:
    """The real time that a function's body takes, times `factor`.

    A run with a measured delay is *not* repeatable. In virtual time, the measured bodies run one after the other, and
    the body of a call that will crash while it computes runs as well, because its time is known only then. On the wall
    clock, the time is the body's own: neither stragglers nor other invocations on its GPU lengthen it.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_non_negative(self, factor=self.factor)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """Raises an error, because a measured duration is known only after the body has run.

        Raises:
          TypeError: always.
        """
        raise TypeError(
            "Measured cannot be drawn: the time is known only after a body has run; use Measured only as a compute time"
        )


@register_part("_rng", "_ahead", rebuilt=("_delay", "_name"))
class Stream:
    """A random stream of durations for one purpose. The draws do not depend on the draws for other purposes.

    Args:
      delay: the distribution.
      seed: seed of the run.
      name: name of the purpose, such as `"actor/cold_start"`.
    """

    __slots__ = ("_ahead", "_delay", "_name", "_rng")

    def __init__(self, delay: Delay, seed: int, name: str) -> None:
        self._delay = delay
        self._name = name
        # The name is hashed by a checksum, because Python's `hash` of a text differs from process to process.
        self._rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        self._ahead: list[float] = []

    def draw(self) -> float:
        """Draws the next duration in seconds.

        Raises:
          ValueError: if the distribution drew a number that is negative or not finite.
        """
        if not self._ahead:
            size = _drawn_at_once(self._delay)
            block = np.asarray(self._delay.sample(self._rng, size), float)
            if block.shape != (size,) or not (np.isfinite(block).all() and (block >= 0).all()):
                wrong = block[~(np.isfinite(block) & (block >= 0))][:1]
                what = f"{wrong[0]}, which is not a duration" if len(wrong) else f"the shape {block.shape}"
                function, _, purpose = self._name.rpartition("/")
                raise ValueError(
                    f"function {function!r}: {purpose}={self._delay!r} drew {what}; let sample(rng, n) return n finite "
                    "numbers that are not negative"
                )
            self._ahead = block[::-1].tolist()  # reversed, because the list is used up from its end
        return self._ahead.pop()


def _drawn_at_once(delay: Delay) -> int:
    """Returns how many durations a stream draws at a time: a fixed number, and whole blocks of measurements.

    It is fixed because some distributions draw different numbers for a different size.
    """
    block = delay.block if isinstance(delay, Empirical) else 1
    return -(-_BLOCK // block) * block


def _duration(row: dict[str | None, Any], column: str, where: str) -> float:
    """Reads the duration in a row of a file, in seconds; `where` names the row in errors."""
    if None in row:  # a decimal comma, for example, makes two columns of one number
        columns = [name for name in row if name is not None]
        found = len(columns) + len(row[None])
        raise ValueError(f"{where}: the row has {found} values: expected one for each of {columns}")
    try:
        seconds = float(row[column])
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{where}: {column}={row[column]!r} is not a duration in seconds: give 0 or more")
    return seconds


def check_delay(name: str, delay: object) -> None:
    """Raises a TypeError if `delay` is not a `Delay`; the error names the argument."""
    if not isinstance(delay, Delay):
        number = f"delays.Constant({delay!r})" if isinstance(delay, int | float) else "delays.Constant(seconds)"
        raise TypeError(f"{name}={delay!r} is not a delay: use {number} or a distribution")


def check_drawn(**arguments: object) -> None:
    """Raises an error that names any argument that is not a `Delay`, or is `Measured`, which cannot be drawn."""
    for name, delay in arguments.items():
        check_delay(name, delay)
        if isinstance(delay, Measured):
            raise ValueError(f"{name}=Measured(): only a compute time can be measured; use a distribution")


def _check_non_negative(delay: object, **values: float) -> None:
    checks.single(**values)
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{type(delay).__name__}({name}={value}) must be finite and not negative")
