"""Schedules with an imposed lag: data and gradients have given ages, and no platform is simulated."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from stellaris._core import checks
from stellaris.lab.schedule import NONE, Schedule
from stellaris.types import NDArray


@runtime_checkable
class Lag(Protocol):
    """A pattern of ages: of successive batches, counted in batches, or of successive gradients, counted in versions."""

    def ages(self, n: int) -> NDArray:
        """The ages of n successive batches or gradients, int `[n]`, at least 0."""


@dataclass(frozen=True)
class Constant:
    """Every age is `k`.

    Example:
      >>> Constant(2).ages(4).tolist()
      [2, 2, 2, 2]
    """

    k: int

    def __post_init__(self) -> None:
        checks.whole(at_least=0, k=self.k)

    def ages(self, n: int) -> NDArray:
        """Returns `k`, n times."""
        return np.full(n, self.k)


@dataclass(frozen=True)
class Sawtooth:
    """The age grows from 0 to `k - 1`, and starts again at 0, as if the policy were fetched every `k` batches.

    Example:
      >>> Sawtooth(3).ages(5).tolist()
      [0, 1, 2, 0, 1]
    """

    k: int

    def __post_init__(self) -> None:
        checks.whole(at_least=1, k=self.k)

    def ages(self, n: int) -> NDArray:
        """Returns 0 to `k - 1`, repeated up to n ages."""
        return np.arange(n) % self.k


@dataclass(frozen=True)
class Maximum:
    """Ages are drawn uniformly from 0 to `k`.

    Example:
      >>> ages = Maximum(4, seed=0).ages(1000)
      >>> int(ages.min()), int(ages.max())
      (0, 4)
    """

    k: int
    seed: int = 0

    def __post_init__(self) -> None:
        checks.whole(at_least=0, k=self.k)
        checks.seed(seed=self.seed)

    def ages(self, n: int) -> NDArray:
        """Returns n independent draws; for a larger n the first draws stay the same."""
        return np.random.default_rng(self.seed).integers(0, self.k, size=n, endpoint=True)


def imposed(
    updates: int, *, actors: int, data: Lag = Constant(0), gradients: Lag | None = None, minibatches: int = 1
) -> Schedule:
    """Makes a schedule in which data and gradients have exactly the given ages.

    All actors sample one fragment per batch, with the version that was the newest `age` batches before. Near the start,
    where the age exceeds the number of earlier batches, they use version 0. Gradients also use
    version 0 where their age exceeds the number of earlier versions.

    Args:
      updates: number of batches that are learned from.
      actors: number of actors, with one environment each; a batch has one fragment of each actor.
      data: the age of each batch, counted in batches.
      gradients: the age of each gradient, counted in versions; every gradient then makes a version. None for a central
        learner, which makes one version per batch, after it has applied all gradients of the batch in order.
      minibatches: number of gradients per batch, if `gradients` is given: for PPO
        `epochs * ceil(samples / minibatch_size)`.

    Raises:
      TypeError: if a number is not whole, or a lag has no method `ages`.
      ValueError: if a number is below 1.

    Example:
      >>> schedule = imposed(4, actors=2, data=Constant(2))
      >>> schedule.piece_version.tolist()  # of two actors, four times
      [0, 0, 0, 0, 0, 0, 1, 1]
      >>> schedule.data_lag.tolist()
      [0.0, 1.0, 2.0, 2.0]
    """
    checks.whole(at_least=1, updates=updates, actors=actors, minibatches=minibatches)
    for name, lag in (("data", data), ("gradients", gradients)):
        if lag is not None and not isinstance(lag, Lag):
            raise TypeError(f"{name}={lag!r} is not a Lag: pass Constant(4), Sawtooth(4) or Maximum(4)")
    batch = np.arange(updates)
    sampled_by = np.maximum(batch - data.ages(updates), 0)
    pieces = updates * actors
    per_batch = 1 if gradients is None else minibatches  # versions
    gradient = np.arange(0 if gradients is None else updates * per_batch)
    ages = np.zeros(0, int) if gradients is None else gradients.ages(len(gradient))
    versions = updates * per_batch
    return Schedule(
        slots=actors,
        piece_before=_int32(np.repeat(batch * per_batch, actors)),
        piece_slot=_int32(np.tile(np.arange(actors), updates)),
        piece_version=_int32(np.repeat(sampled_by * per_batch, actors)),
        piece_noise=_int32(np.arange(pieces)),
        piece_start=_int32(np.where(np.arange(pieces) < actors, np.arange(pieces), NONE)),
        batch_before=_int32(batch * per_batch),
        batch_pieces=_int32(np.arange(pieces).reshape(updates, actors, 1)),
        batch_target=_int32(batch * per_batch),
        batch_merged=_int32((batch + 1) * per_batch - 1),
        gradient_before=_int32(gradient),
        gradient_batch=_int32(gradient // per_batch),
        gradient_row=_int32(gradient % per_batch),
        gradient_version=_int32(np.maximum(gradient - ages, 0)),
        gradient_learner=_int32(np.zeros_like(gradient)),
        gradient_held=_int32(np.zeros((len(gradient), 0))),
        update_batch=_int32(batch if gradients is None else np.full(versions, NONE)),
        update_round=_int32(np.arange(versions) // per_batch + 1),
        seconds=np.full(versions + 1, np.nan),
    )


def _int32(x: NDArray) -> NDArray:
    return np.asarray(x, np.int32)
