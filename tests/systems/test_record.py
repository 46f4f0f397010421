"""The record writes rows, and nothing else."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stellaris import Trace
from stellaris.diagnostics import LagReport
from stellaris.systems.record import Record, scalars


def lag_report(*counts: float) -> LagReport:
    """Of so many samples by lag; of each a divergence of a half, and every second clipped."""
    count = np.array(counts)
    return LagReport(count, 0.5 * count, 0.5 * count, 0.0 * count, 2.0 * count, 4.0 * count)


def test_metrics(unchecked: None) -> None:
    """Whatever a loss reports, under names of their own; of a report by lag the lags that there are samples of."""
    platform: Any = SimpleNamespace(trace=Trace(), now=3.0)
    done: Any = SimpleNamespace(function="actor", number=7)
    Record(platform).metrics(done, {"kl": np.float32(0.25), "queued": 3, "by_lag": lag_report(0.0, 8.0)})
    rows = {event: value for _, event, _, _, _, value in platform.trace.rows()}
    assert rows == {
        "metric:kl": 0.25,
        "metric:queued": 3.0,
        "lag:1:count": 8.0,
        "lag:1:kl_sum": 4.0,
        "lag:1:clipped": 4.0,
        "lag:1:truncated": 0.0,
        "lag:1:weight_sum": 16.0,
        "lag:1:weight_square_sum": 32.0,
    }


def test_a_metric_that_is_no_number() -> None:
    with pytest.raises(ValueError, match=r"metric 'ratios' has shape \(3,\): report a scalar"):
        dict(scalars({"ratios": np.zeros(3)}))


@pytest.mark.parametrize("name", ["steps", "cost_usd", "lag3_kl", "discarded"])
def test_a_metric_with_the_name_of_a_column(name: str) -> None:
    """It would stand in the history in that column's place, by which the budget ends a run."""
    with pytest.raises(ValueError, match=f"metric '{name}' is named like a column of the history: rename it"):
        dict(scalars({name: 1.0}))
