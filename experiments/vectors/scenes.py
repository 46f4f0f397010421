"""The inputs of the reference vectors: scenes, each a set of arrays for steps of several sequences.

All numbers are drawn by NumPy from a seed and rounded to three decimals, so they have the same bits on every machine.
No number lies at a kink of a function, such as an advantage of 0, where gradients are a matter of convention.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stellaris.types import NDArray

#: Actions of a categorical distribution, dimensions of a Gaussian action, and policies that learners hold.
ACTIONS, DIMENSIONS, HELD = 4, 2, 3


@dataclass(frozen=True)
class Scene:
    """A set of arrays, mostly of one shape."""

    about: str  #: the property that the scene tests.
    shape: tuple[int, ...] = (4, 3)  #: `[T, ...]`; functions of samples lack the time axis, and take any shape.
    spread: float = 0.2  #: standard deviation of the log-ratios.
    mask: Callable[[tuple[int, ...]], NDArray] | None = None  #: shape -> bools; None if all steps are valid.
    packed: bool = False  #: whether columns hold several sequences.
    binary: bool = False  #: whether rewards are 0 or 1.
    huge: bool = False  #: whether log-ratios, advantages and rewards have extreme magnitudes.
    impossible: bool = False  #: whether some actions have probability zero under the policies that learn.

    def arrays(self, seed: int) -> dict[str, NDArray]:
        """Returns the scene's arrays by name."""
        draw = _Draw(np.random.default_rng([seed, zlib.crc32(self.about.encode())]))
        shape, ahead = self.shape, (self.shape[0] + 1, *self.shape[1:])
        possible = np.ones(shape, bool) if not self.impossible else draw.bools(shape, 0.7)
        arrays: dict[str, Any] = {
            "log_ratio": draw.normal(shape, self.spread),
            "other_log_ratio": draw.normal(shape, self.spread),
            "held_log_ratios": draw.normal((HELD, *shape), self.spread),
            "ratio": draw.positive(shape),
            "cap": draw.positive(shape),
            "width": draw.uniform(shape, 0.05, 0.4),
            "weight": draw.uniform(shape, 0.0, 2.0),
            "kl": draw.uniform(shape, 0.0, 1.0),
            "log_prob": -draw.positive(shape),
            "advantage": draw.normal(shape, 1.0),
            "sequence_advantage": draw.normal(shape, 1.0),
            "reward": draw.bools(shape, 0.5) * 1.0 if self.binary else draw.normal(shape, 1.0),
            "group": draw.choice(shape, (7, 9, 42, -3)),
            "gradient_norm": draw.positive(shape),
            "discount": draw.bools(shape, 0.8) * 0.9,
            "value": draw.normal(ahead, 1.0),
            "q_value": draw.normal(shape, 1.0),
            "estimate": draw.normal(shape, 2.0),
            "target": draw.normal(shape, 2.0),
            "old_value": draw.normal(shape, 2.0),
            "staleness": draw.choice(shape, range(10)),
            "version": draw.choice(shape, range(100, 120)),
            "clipped": draw.bools(shape, 0.3),
            "truncated": draw.bools(shape, 0.3),
            "logits": draw.normal((*shape, ACTIONS), 1.0 + self.spread),
            "other_logits": draw.normal((*shape, ACTIONS), 1.0 + self.spread),
            "choice": draw.choice(shape, range(ACTIONS)),
            "gumbel": draw.normal((*shape, ACTIONS), 1.5),
            "mean": draw.normal((*shape, DIMENSIONS), 1.0),
            "other_mean": draw.normal((*shape, DIMENSIONS), 1.0),
            "log_std": draw.normal((DIMENSIONS,), 0.5),
            "other_log_std": draw.normal((*shape, DIMENSIONS), 0.5),
            "action": draw.normal((*shape, DIMENSIONS), 1.0),
            "noise": draw.normal((*shape, DIMENSIONS), 1.0),
            "gradient": draw.normal(shape, 1.0),
            "other_gradient": draw.normal(shape, 1.0),
            "params_now": draw.normal(shape, 1.0),
            "params_then": draw.normal(shape, 1.0),
            "step_size": draw.uniform(shape, 0.0, 0.5),
            "mean_square": draw.uniform(shape, 0.0, 2.0),
        }
        if self.huge:
            for name in ("log_ratio", "other_log_ratio", "held_log_ratios"):
                arrays[name] = arrays[name] * draw.choice(arrays[name].shape, (1, 40, 1_000, 10**9))
            for name in ("advantage", "sequence_advantage", "reward", "gradient", "estimate"):
                arrays[name] = arrays[name] * draw.choice(arrays[name].shape, (1, 1_000, 10**8))
            arrays["log_prob"] = arrays["log_prob"] * draw.choice(shape, (1, 50, 10**5))
            arrays["logits"] = arrays["logits"] * 300.0
        arrays["behaviour_log_prob"] = np.minimum(arrays["log_prob"] - arrays["log_ratio"], -0.001).round(3)
        if self.impossible:
            for name in ("log_ratio", "other_log_ratio", "log_prob"):
                arrays[name] = np.where(possible, arrays[name], -np.inf)
            arrays["held_log_ratios"] = np.where(possible, arrays["held_log_ratios"], -np.inf)
            allowed = (np.arange(ACTIONS) == arrays["choice"][..., None]) | draw.bools((*shape, ACTIONS), 0.5)
            for name in ("logits", "other_logits"):
                arrays[name] = np.where(allowed, arrays[name], -np.inf)
        arrays["valid"] = np.ones(shape, bool) if self.mask is None else self.mask(shape)
        # Sequences are short, and numbered in their order.
        arrays["segment"] = np.cumsum(draw.bools(shape, 0.5), axis=0, dtype=np.int32) % max(shape[0], 1)
        return arrays

    @property
    def optional(self) -> frozenset[str]:
        """The arrays that a function may do without in other scenes."""
        return frozenset(name for name, there in (("valid", self.mask), ("segment", self.packed)) if there)


@dataclass(frozen=True)
class Numbers:
    """A set of single numbers, for functions of scalars."""

    about: str
    optional: frozenset[str] = frozenset()

    def arrays(self, seed: int) -> dict[str, NDArray]:
        """Returns the numbers by name, as arrays without an axis."""
        draw = _Draw(np.random.default_rng(seed))
        return {
            "coefficient": draw.uniform((), 0.01, 1.0),
            "divergence": draw.uniform((), 0.0, 0.03),
            "round": draw.choice((), range(60)),
            "fraction": draw.uniform((), 0.0, 1.0),
        }


@dataclass(frozen=True)
class Queue:
    """Gradients that learners push into an aggregator, in their order."""

    about: str
    gradients: int = 4
    oldest: int = 6  #: the largest possible staleness.
    optional: frozenset[str] = frozenset()

    def arrays(self, seed: int) -> dict[str, NDArray]:
        """Returns the gradients, their versions and learners, the newest version and the round."""
        draw = _Draw(np.random.default_rng([seed, zlib.crc32(self.about.encode())]))
        n, clock = self.gradients, 20
        return {
            "gradient": draw.normal((n, 3), 1.0),
            "version": np.sort(clock - draw.choice((n,), range(self.oldest + 1))).astype(np.int32),
            "learner": draw.choice((n,), range(2)),
            "clock": np.asarray(clock, np.int32),
            "round": draw.choice((), range(12)),
        }


class _Draw:
    """Rounded random numbers."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random

    def normal(self, shape: tuple[int, ...], spread: float) -> NDArray:
        # Adding 0 turns -0 into 0.
        return np.round(spread * self._random.standard_normal(shape), 3) + 0.0

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> NDArray:
        return np.asarray(np.round(self._random.uniform(low, high, shape), 3))

    def positive(self, shape: tuple[int, ...]) -> NDArray:
        return self.uniform(shape, 0.1, 3.0)

    def bools(self, shape: tuple[int, ...], share: float) -> NDArray:
        return np.asarray(self._random.random(shape) < share)

    def choice(self, shape: tuple[int, ...], numbers: Any) -> NDArray:
        return np.asarray(self._random.choice(np.asarray(numbers, np.int32), shape))


def _scattered(shape: tuple[int, ...]) -> NDArray:
    """Every third step of a column is invalid, from another step on in each column, so that the numbers differ."""
    return np.asarray((np.arange(shape[0])[:, None] + 2 * np.arange(shape[1])) % 3 != 1)


def _padded(shape: tuple[int, ...]) -> NDArray:
    """Columns of 1, 2, ... valid steps."""
    return np.asarray(np.arange(shape[0])[:, None] <= np.arange(shape[1]))


def _column_masked(shape: tuple[int, ...]) -> NDArray:
    """Every step of the second column is invalid."""
    return np.broadcast_to(np.arange(shape[1]) != 1, shape).copy()


def _nothing(shape: tuple[int, ...]) -> NDArray:
    return np.zeros(shape, bool)


#: Scenes for every function.
PLAIN = (
    Scene("typical log-ratios"),
    Scene("on-policy: all log-ratios are 0; rewards are 0 or 1", spread=0.0, binary=True),
    Scene("nearly on-policy", spread=0.01),
    Scene("stale: log-ratios of about 1", spread=1.0),
    Scene("very stale: log-ratios of about 5", spread=5.0),
    Scene("huge log-ratios, rewards and advantages", huge=True),
    Scene("actions of probability zero", impossible=True),
    Scene("one step", shape=(1, 4)),
    Scene("one sequence", shape=(6, 1)),
    Scene("longer sequences", shape=(9, 2), spread=0.5),
    Scene("no batch axis", shape=(5,), spread=0.5),
    Scene("two batch axes", shape=(3, 2, 2), spread=0.5),
    Scene("no steps", shape=(0, 3)),
    Scene("no sequences", shape=(4, 0)),
)
#: Scenes for functions with a mask.
MASKED = (
    Scene("some steps are masked", mask=_scattered, spread=0.5),
    Scene("padding after each sequence", mask=_padded, spread=0.5),
    Scene("all steps of a column are masked", mask=_column_masked),
    Scene("no step is valid", mask=_nothing),
    Scene("huge log-ratios, some masked", mask=_scattered, huge=True),
)
#: Scenes for functions of packed sequences.
PACKED = (
    Scene("packed sequences", shape=(6, 2), packed=True, spread=0.5),
    Scene("packed sequences, some steps masked", shape=(6, 2), packed=True, mask=_scattered, spread=0.5),
)
#: Scenes for functions of single numbers, and for aggregators.
NUMBERS = (Numbers("single numbers"),)
QUEUES = (
    Queue("a few gradients"),
    Queue("one gradient", gradients=1),
    Queue("an empty queue", gradients=0),
    Queue("fresh gradients", oldest=0),
    Queue("very stale gradients", oldest=19),
    Queue("more gradients than a group", gradients=7),
)
