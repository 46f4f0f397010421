"""Schedules with an imposed lag: data and gradients have given ages, and no platform is simulated."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Protocol, runtime_checkable

import numpy as np

from stellaris._core import checks
from stellaris.lab.schedule import NONE, Schedule
from stellaris.types import NDArray

#: The lags that an error names.
_LAGS = "Constant(4), Sawtooth(4), Maximum(4) or Logged(ages)"
#: Less than any difference between an age and the next multiple of 1/n that is not due to rounding.
_ROUNDING = 1e-9


@runtime_checkable
class Lag(Protocol):
    """A pattern of ages: of successive batches, counted in batches, or of successive gradients, in gradients."""

    def ages(self, n: int) -> NDArray:
        """The ages of n successive batches or gradients, `[n]`, at least 0; whole for gradients."""


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

    Patterns of one seed draw the same numbers: give those of data and of gradients, or of the pieces of a fragment,
    different seeds, unless their ages are to rise and fall together.

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


@dataclass(frozen=True, eq=False)
class Logged:
    """Given ages in order, for example `runtime.WorkLog(...).ages`; after the last, the first follows.

    Args:
      values: the ages, which may be fractional for data: the mean age of each batch's samples.

    Raises:
      TypeError: if they are not a sequence of numbers.
      ValueError: if there are no ages, or one is negative or not finite.

    Example:
      >>> Logged([0, 1, 1.5]).ages(4).tolist()
      [0.0, 1.0, 1.5, 0.0]
    """

    values: Sequence[float] | NDArray

    def __post_init__(self) -> None:
        if isinstance(self.values, str) or not isinstance(self.values, Sequence | np.ndarray):
            raise TypeError(f"values={self.values!r} is not a sequence of ages: pass [{self.values}] for one")
        if len(self.values) == 0:
            raise ValueError("values is empty: give at least one age")
        checks.single(**{f"values[{i}]": age for i, age in enumerate(self.values)})
        wrong = [(i, age) for i, age in enumerate(self.values) if not 0 <= age < math.inf]
        if wrong:
            raise ValueError(f"values[{wrong[0][0]}]={wrong[0][1]} is not an age: give finite numbers of at least 0")

    def ages(self, n: int) -> NDArray:
        """Returns the first n ages, repeated if there are fewer."""
        return np.resize(np.asarray(self.values, float), n)


@dataclass(frozen=True)
class Mixed:
    """A pattern of ages for each actor, so that a batch mixes data of several ages, as a queue does.

    Actor i has the pattern `lags[i % n]` of n. In the language task a fragment holds the answers to one prompt, which
    then have one age.

    Raises:
      ValueError: if there are no lags.
      TypeError: if one is not a lag.

    Example:
      >>> Mixed([Constant(0), Constant(4)]).ages_of(3, actors=4).tolist()
      [[0, 4, 0, 4], [0, 4, 0, 4], [0, 4, 0, 4]]
    """

    lags: Sequence[Lag]

    def __post_init__(self) -> None:
        object.__setattr__(self, "lags", tuple(self.lags))
        if not self.lags:
            raise ValueError("lags is empty: give a lag for each actor, or fewer, which take turns")
        for i, lag in enumerate(self.lags):
            if isinstance(lag, type) or not isinstance(lag, Lag):
                raise TypeError(f"lags[{i}]={lag!r} is not a Lag: pass {_LAGS}")

    def ages_of(self, n: int, *, actors: int) -> NDArray:
        """Returns the ages of n successive batches, `[n, actors]`."""
        several = [_whole(f"lags[{i}]", lag, n) for i, lag in enumerate(self.lags)]
        return np.stack([several[actor % len(several)] for actor in range(actors)], axis=1)


def imposed(
    updates: int,
    *,
    actors: int,
    data: Lag | Mixed | Sequence[Lag | Mixed] = Constant(0),
    gradients: Lag | None = None,
    minibatches: int = 1,
    group: int = 1,
) -> Schedule:
    """Makes a schedule in which data and gradients have exactly the given ages.

    All actors sample one fragment per batch, with the version that was the newest `age` batches before. If the age is
    fractional, some actors' fragments are one batch older than the others': actor i of n has the age
    `floor(age + i / n)`, so that the mean is the age, rounded down to a multiple of 1/n. With `Mixed` each actor has
    ages of its own. Near the start, where the age exceeds the number of earlier batches, they use version 0. Gradients
    also use version 0 where their age exceeds the number of earlier gradients.

    Args:
      updates: number of batches that are learned from.
      actors: number of actors, with one environment each; a batch has one fragment of each actor.
      data: the age of each batch, counted in batches. For a workload with `refresh`, a sequence of as many lags as a
        fragment has pieces, in order: `[Constant(3), Constant(1)]` renews the policy in the middle of each fragment.
      gradients: the age of each gradient, counted in gradients: it is computed on the version that was the newest `age`
        gradients earlier. None for a central learner, which makes one version per batch, after it has applied all
        gradients of the batch in order.
      minibatches: number of gradients per batch, if `gradients` is given: for PPO
        `epochs * ceil(samples / minibatch_size)`.
      group: number of successive gradients that make a version together, if `gradients` is given; it divides
        `minibatches`. With 1, the ages of gradients are their staleness in versions.

    Raises:
      TypeError: if a number is not whole, or a lag has no method `ages`.
      ValueError: if a number is below 1, `data` is an empty sequence, an age of gradients or in `Mixed` is not whole,
        or `group` does not divide `minibatches`.

    Example:
      >>> schedule = imposed(4, actors=2, data=Constant(2))
      >>> schedule.piece_version.tolist()  # of two actors, four times
      [0, 0, 0, 0, 0, 0, 1, 1]
      >>> schedule.data_lag.tolist()
      [0.0, 1.0, 2.0, 2.0]
    """
    checks.whole(at_least=1, updates=updates, actors=actors, minibatches=minibatches, group=group)
    # Products of NumPy's small integers would wrap.
    updates, actors, minibatches, group = (operator.index(number) for number in (updates, actors, minibatches, group))
    if minibatches % group:
        raise ValueError(f"group={group} does not divide minibatches={minibatches}: a version needs a whole group")
    lags = [data] if isinstance(data, Lag | Mixed) or not isinstance(data, Sequence) else list(data)
    if not lags:
        raise ValueError("data is empty: give a lag for each piece of a fragment")
    for name, lag in (*(("data", lag) for lag in lags), ("gradients", gradients)):
        if isinstance(lag, type) or not isinstance(lag, Lag | Mixed if name == "data" else Lag | NoneType):
            raise TypeError(f"{name}={lag!r} is not a Lag: pass {_LAGS}")
    batch = np.arange(updates)
    ages_of_data = np.stack([_of_actors(lag, updates, actors) for lag in lags], axis=1)  # [updates, pieces, actors]
    sampled_by = np.maximum(batch[:, None, None] - ages_of_data, 0).ravel()
    pieces = len(sampled_by)
    per_batch = 1 if gradients is None else minibatches // group  # versions
    gradient = np.arange(0 if gradients is None else updates * minibatches)
    ages = np.zeros(0, int) if gradients is None else _whole("gradients", gradients, len(gradient))
    versions = updates * per_batch
    return Schedule(
        slots=actors,
        piece_before=_int32(np.repeat(batch * per_batch, len(lags) * actors)),
        piece_slot=_int32(np.tile(np.arange(actors), updates * len(lags))),
        piece_version=_int32(sampled_by * per_batch),
        piece_noise=_int32(np.arange(pieces)),
        piece_start=_int32(np.where(np.arange(pieces) < actors, np.arange(pieces), NONE)),
        batch_before=_int32(batch * per_batch),
        batch_pieces=_int32(np.arange(pieces).reshape(updates, len(lags), actors).swapaxes(1, 2)),
        batch_target=_int32(batch * per_batch),
        batch_merged=_int32((batch + 1) * per_batch - 1),
        gradient_before=_int32(gradient // group),
        gradient_batch=_int32(gradient // minibatches),
        gradient_row=_int32(gradient % minibatches),
        gradient_version=_int32(np.maximum(gradient - ages, 0) // group),
        gradient_learner=_int32(np.zeros_like(gradient)),
        gradient_held=_int32(np.zeros((len(gradient), 0))),
        update_batch=_int32(batch if gradients is None else np.full(versions, NONE)),
        update_round=_int32(np.arange(versions) // per_batch + 1),
        seconds=np.full(versions + 1, np.nan),
    )


def _ages(name: str, lag: Lag, n: int) -> NDArray:
    """Returns the first n ages of a lag, which may be a class of the user's."""
    ages = np.asarray(lag.ages(n))
    if ages.shape != (n,):
        raise ValueError(f"{name}={lag!r} gave ages of shape {ages.shape}: expected {n} ages")
    if wrong := [i for i, age in enumerate(ages.tolist()) if not 0 <= age < math.inf]:
        raise ValueError(f"{name}={lag!r} gave ages[{wrong[0]}]={ages[wrong[0]]}: expected finite ages of at least 0")
    return ages


def _whole(name: str, lag: Lag, n: int) -> NDArray:
    """Returns the first n ages of a lag, which must be whole."""
    ages = _ages(name, lag, n)
    if (fractional := ages[ages % 1 != 0]).size:
        raise ValueError(f"{name}={lag!r} has the age {fractional[0]}: the ages of gradients, and in Mixed, are whole")
    return ages.astype(int)


def _of_actors(lag: Lag | Mixed, n: int, actors: int) -> NDArray:
    """Returns the whole ages of the actors' fragments in n batches, `[n, actors]`."""
    if isinstance(lag, Mixed):
        return lag.ages_of(n, actors=actors)
    # By Hermite's identity these floors have the sum floor(actors * age); the last term absorbs rounding.
    return np.floor(_ages("data", lag, n)[:, None] + np.arange(actors) / actors + _ROUNDING).astype(int)


def _int32(x: NDArray) -> NDArray:
    return np.asarray(x, np.int32)
