"""How long things take: distributions of durations in seconds, drawn from an explicit generator."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Delay(Protocol):
    """A distribution of non-negative durations."""

    def sample(self, rng: np.random.Generator) -> float:
        """One duration in seconds."""


@dataclass(frozen=True)
class Constant:
    """Always `seconds`.

    Example:
      >>> Constant(0.3).sample(np.random.default_rng(0))
      0.3
    """

    seconds: float

    def __post_init__(self) -> None:
        _check_non_negative(self, seconds=self.seconds)

    def sample(self, rng: np.random.Generator) -> float:
        """The constant."""
        return float(self.seconds)


@dataclass(frozen=True)
class Exponential:
    """Memoryless with the given mean."""

    mean: float

    def __post_init__(self) -> None:
        _check_non_negative(self, mean=self.mean)

    def sample(self, rng: np.random.Generator) -> float:
        """One duration in seconds."""
        return float(rng.exponential(self.mean))


@dataclass(frozen=True)
class LogNormal:
    """Log-normal with the given mean and coefficient of variation (standard deviation / mean)."""

    mean: float
    cv: float

    def __post_init__(self) -> None:
        _check_non_negative(self, mean=self.mean, cv=self.cv)

    def sample(self, rng: np.random.Generator) -> float:
        """One duration in seconds."""
        variance = math.log1p(self.cv**2)
        # The mean of exp(N(m, v)) is exp(m + v / 2).
        return float(self.mean * math.exp(math.sqrt(variance) * rng.standard_normal() - variance / 2))


@dataclass(frozen=True)
class Gamma:
    """Gamma with the given mean and coefficient of variation (1 is the exponential distribution)."""

    mean: float
    cv: float

    def __post_init__(self) -> None:
        _check_non_negative(self, mean=self.mean, cv=self.cv)
        if self.cv == 0:
            raise ValueError("Gamma(cv=0) does not vary: use Constant(mean)")

    def sample(self, rng: np.random.Generator) -> float:
        """One duration in seconds."""
        return float(rng.gamma(1 / self.cv**2, self.mean * self.cv**2))


@dataclass(frozen=True)
class Uniform:
    """Uniform between `low` and `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_non_negative(self, low=self.low, high=self.high)
        if self.high < self.low:
            raise ValueError(f"Uniform(low={self.low}, high={self.high}): high is below low")

    def sample(self, rng: np.random.Generator) -> float:
        """One duration in seconds."""
        return float(rng.uniform(self.low, self.high))


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
        if len(self.delays) != len(self.probabilities) or not self.delays:
            raise ValueError(f"Mixture of {len(self.delays)} delays with {len(self.probabilities)} probabilities")
        if min(self.probabilities) < 0 or not math.isclose(sum(self.probabilities), 1.0):
            raise ValueError(f"Mixture(probabilities={self.probabilities}) is no distribution: it must sum to 1")

    def sample(self, rng: np.random.Generator) -> float:
        """One duration in seconds."""
        index = int(np.searchsorted(np.cumsum(self.probabilities), rng.random(), side="right"))
        return self.delays[min(index, len(self.delays) - 1)].sample(rng)


@dataclass(frozen=True)
class Empirical:
    """Drawn with replacement from measured durations."""

    samples: Sequence[float]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("Empirical(samples) is empty")
        _check_non_negative(self, **{f"samples[{i}]": s for i, s in enumerate(self.samples)})

    def sample(self, rng: np.random.Generator) -> float:
        """One duration in seconds."""
        return float(self.samples[int(rng.integers(len(self.samples)))])


@dataclass(frozen=True)
class Measured:
    """The time that the body really takes, times `factor`. Realistic and *not* repeatable; it excludes batching."""

    factor: float = 1.0

    def __post_init__(self) -> None:
        _check_non_negative(self, factor=self.factor)

    def sample(self, rng: np.random.Generator) -> float:
        """Measured durations are not drawn.

        Raises:
          TypeError: always.
        """
        raise TypeError("Measured is only a compute time: it is known once the body has run, and cannot be drawn")


def _check_non_negative(delay: object, **values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{type(delay).__name__}({name}={value}): a delay is finite and not negative")
