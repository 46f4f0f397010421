"""How long things take: distributions of durations in seconds, drawn from an explicit generator."""

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

#: Durations that a stream draws at a time: a call of NumPy's generator costs as much as drawing some fifty numbers.
_BLOCK = 256


@runtime_checkable
class Delay(Protocol):
    """A distribution of non-negative durations."""

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """`n` independent durations in seconds, `[n]`."""


@dataclass(frozen=True)
class Constant:
    """Always `seconds`.

    Example:
      >>> Constant(0.3).sample(np.random.default_rng(0), 2)
      array([0.3, 0.3])
    """

    seconds: float

    def __post_init__(self) -> None:
        _check_non_negative(self, seconds=self.seconds)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """The constant, `n` times."""
        return np.full(n, float(self.seconds))


@dataclass(frozen=True)
class Exponential:
    """Memoryless with the given mean."""

    mean: float

    def __post_init__(self) -> None:
        _check_non_negative(self, mean=self.mean)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """`n` durations in seconds."""
        return rng.exponential(self.mean, n)


@dataclass(frozen=True)
class LogNormal:
    """Log-normal with the given mean and coefficient of variation (standard deviation / mean)."""

    mean: float
    cv: float

    def __post_init__(self) -> None:
        _check_non_negative(self, mean=self.mean, cv=self.cv)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """`n` durations in seconds."""
        variance = math.log1p(self.cv**2)
        # The mean of exp(N(m, v)) is exp(m + v / 2).
        return np.asarray(self.mean * np.exp(math.sqrt(variance) * rng.standard_normal(n) - variance / 2))


@dataclass(frozen=True)
class Gamma:
    """Gamma with the given mean and coefficient of variation (1 is the exponential distribution)."""

    mean: float
    cv: float

    def __post_init__(self) -> None:
        _check_non_negative(self, mean=self.mean, cv=self.cv)
        if self.cv == 0:
            raise ValueError("Gamma(cv=0) does not vary: use Constant(mean)")

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """`n` durations in seconds."""
        return rng.gamma(1 / self.cv**2, self.mean * self.cv**2, n)


@dataclass(frozen=True)
class Uniform:
    """Uniform between `low` and `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_non_negative(self, low=self.low, high=self.high)
        if self.high < self.low:
            raise ValueError(f"Uniform(low={self.low}, high={self.high}): high is below low")

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """`n` durations in seconds."""
        return rng.uniform(self.low, self.high, n)


@dataclass(frozen=True)
class Mixture:
    """One of several delays, each with its probability.

    Example:
      Nineteen calls of twenty take 10 ms, one straggles:

      >>> slow = Mixture(delays=(Constant(0.01), Exponential(1.0)), probabilities=(0.95, 0.05))
    """

    delays: Sequence[Delay]
    probabilities: Sequence[float]

    def __post_init__(self) -> None:
        check_drawn(**{f"delays[{i}]": delay for i, delay in enumerate(self.delays)})
        if len(self.delays) != len(self.probabilities) or not self.delays:
            raise ValueError(f"Mixture of {len(self.delays)} delays with {len(self.probabilities)} probabilities")
        if min(self.probabilities) < 0 or not math.isclose(sum(self.probabilities), 1.0):
            raise ValueError(f"Mixture(probabilities={self.probabilities}) is no distribution: it must sum to 1")

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """`n` durations in seconds."""
        index = np.searchsorted(np.cumsum(self.probabilities), rng.random(n), side="right")
        drawn = np.stack([delay.sample(rng, n) for delay in self.delays])
        return np.asarray(drawn[np.minimum(index, len(self.delays) - 1), np.arange(n)])


@dataclass(frozen=True)
class Empirical:
    """Drawn with replacement from measured durations: one by one, or in runs of successive ones.

    Runs keep what successive durations have in common, such as a machine that is slow for a while: they are a circular
    block bootstrap (Politis & Romano 1992), in which the first measurement follows the last.

    Example:
      >>> Empirical((0.2, 0.25, 0.21)).sample(np.random.default_rng(0), 2)
      array([0.21, 0.25])
      >>> Empirical((0.2, 0.25, 0.21), block=3).sample(np.random.default_rng(0), 3)
      array([0.21, 0.2 , 0.25])
    """

    samples: Sequence[float]
    block: int = 1  #: how many of a run; 1 draws each by itself.

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], column: str) -> "Empirical":
        """The durations in one column of a CSV file, in seconds.

        Args:
          path: of the file, in UTF-8, whose first line names its columns.
          column: its name.

        Returns:
          The distribution.

        Raises:
          ValueError: if there is no such column, it is empty, a value in it is no duration, or a row has more values
            than there are columns; names the file, and the line.
        """
        name = os.fspath(path)
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            try:
                if column not in (reader.fieldnames or ()):
                    raise ValueError(f"column={column!r}: {name} has the columns {reader.fieldnames}")
                samples = [_duration(row, column, f"{name}, line {reader.line_num}") for row in reader]
            except (csv.Error, UnicodeDecodeError) as error:
                raise ValueError(f"{name} cannot be read as CSV: {error}") from error
        if not samples:
            raise ValueError(f"{name}: Empirical(samples) is empty")
        return cls(tuple(samples))

    def __post_init__(self) -> None:
        if len(self.samples) == 0:
            raise ValueError("Empirical(samples) is empty")
        checks.whole(at_least=1, block=self.block)
        _check_non_negative(self, **{f"samples[{i}]": s for i, s in enumerate(self.samples)})

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """`n` durations in seconds."""
        firsts = rng.integers(len(self.samples), size=-(-n // self.block))
        places = (firsts[:, None] + np.arange(self.block)).ravel()[:n]
        durations: NDArray = np.asarray(self.samples, float)[places % len(self.samples)]
        return durations


@dataclass(frozen=True)
class Measured:
    """The real time that the body takes, times `factor`. Realistic and *not* repeatable; such bodies run one by one."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_non_negative(self, factor=self.factor)

    def sample(self, rng: np.random.Generator, n: int) -> NDArray:
        """Measured durations are not drawn.

        Raises:
          TypeError: always.
        """
        raise TypeError("Measured is only a compute time: it is known once the body has run, and cannot be drawn")


@register_part("_rng", "_ahead", rebuilt=("_delay", "_name"))
class Stream:
    """The draws of one purpose, from a random stream of its own, so that no purpose's draws depend on another's number.

    Args:
      delay: the distribution.
      seed: of the run.
      name: of the purpose.
    """

    __slots__ = ("_ahead", "_delay", "_name", "_rng")

    def __init__(self, delay: Delay, seed: int, name: str) -> None:
        self._delay = delay
        self._name = name
        self._rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        self._ahead: list[float] = []

    def draw(self) -> float:
        """The next duration in seconds.

        Raises:
          ValueError: if the distribution drew a number that is no duration.
        """
        if not self._ahead:
            block = np.asarray(self._delay.sample(self._rng, _BLOCK), float)
            if block.shape != (_BLOCK,) or not (np.isfinite(block).all() and (block >= 0).all()):
                wrong = block[~(np.isfinite(block) & (block >= 0))][:1]
                what = f"{wrong[0]}, which is no duration" if len(wrong) else f"the shape {block.shape}"
                function, _, purpose = self._name.rpartition("/")
                raise ValueError(f"function {function!r}: its {purpose} {self._delay!r} drew {what}")
            self._ahead = block[::-1].tolist()  # reversed, because the list is used up from its end
        return self._ahead.pop()


def _duration(row: dict[str | None, Any], column: str, where: str) -> float:
    """The duration in a row of a file, in seconds; `where` names the row in errors."""
    if None in row:  # as of a decimal comma: the numbers would be others
        columns = [name for name in row if name is not None]
        found = len(columns) + len(row[None])
        raise ValueError(f"{where}: it has {found} values, for the columns {columns}")
    try:
        seconds = float(row[column])
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{where}: {column}={row[column]!r} is no duration in seconds")
    return seconds


def check_delay(name: str, delay: object) -> None:
    """Raises a TypeError that names the argument unless it is a delay."""
    if not isinstance(delay, Delay):
        number = f"delays.Constant({delay!r})" if isinstance(delay, int | float) else "delays.Constant(seconds)"
        raise TypeError(f"{name}={delay!r} is not a delay: use {number} or a distribution")


def check_drawn(**arguments: object) -> None:
    """Raises an error that names the argument unless each is a delay that can be drawn: any but `Measured`."""
    for name, delay in arguments.items():
        check_delay(name, delay)
        if isinstance(delay, Measured):
            raise ValueError(f"{name}=Measured(): only a compute time can be measured")


def _check_non_negative(delay: object, **values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{type(delay).__name__}({name}={value}): a delay is finite and not negative")
