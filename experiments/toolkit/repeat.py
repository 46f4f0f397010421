"""A committed result and its repetition."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

#: The committed results.
COMMITTED = Path(__file__).parents[1] / "results"
#: The committed numbers of dry runs have five digits.
_ROUNDING = 1e-4
#: If both means are of one distribution, they are nearer than the margin with this probability.
_LEVEL = 0.999


class Repeat(NamedTuple):
    """A committed result and its repetition: a number each, or one per seed."""

    study: str
    run: str  #: words for the run.
    committed: Sequence[float]
    now: Sequence[float]

    @property
    def margin(self) -> float:
        """The largest difference of the means that is not an error.

        Of one number the rounding, of several the prediction interval of the mean of as many seeds as were repeated.
        """
        known = len(self.committed)
        if known == 1:
            return _ROUNDING * abs(self.committed[0])
        quantile = float(stats.t.ppf(0.5 + _LEVEL / 2, known - 1))
        return quantile * float(np.std(self.committed, ddof=1)) * math.sqrt(1 / known + 1 / len(self.now))

    @property
    def agrees(self) -> bool:
        """Whether the means differ by the margin at most."""
        return abs(float(np.mean(self.now)) - float(np.mean(self.committed))) <= self.margin

    def row(self) -> Sequence[str]:
        """Returns the texts of a table's row: study, run, both means, the margin, and whether they agree."""
        numbers = (float(np.mean(self.committed)), float(np.mean(self.now)), self.margin)
        return self.study, self.run, *(f"{x:,.4g}" for x in numbers), "agrees" if self.agrees else "differs"


def matching(rows: Sequence[Mapping[str, str]], wanted: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Returns the rows of a table that have these values; numbers are compared as numbers.

    Example:
      >>> matching([{"lag": "2.0", "method": "PPO"}, {"lag": "4.0", "method": "PPO"}], {"lag": 2, "method": "PPO"})
      [{'lag': '2.0', 'method': 'PPO'}]
    """
    return [row for row in rows if all(_same(row.get(name), value) for name, value in wanted.items())]


def _same(text: str | None, value: Any) -> bool:
    """Whether a column, which a table may lack, has a value."""
    return text is not None and (text == value if isinstance(value, str) else float(text) == float(value))
