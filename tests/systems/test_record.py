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


def record() -> tuple[Record, Trace]:
    """On a platform of which there is only the trace."""
    platform: Any = SimpleNamespace(trace=Trace(), now=3.0)
    return Record(platform), platform.trace


DONE: Any = SimpleNamespace(function="actor", number=7)


def test_a_fragment(unchecked: None) -> None:
    """Steps, resets, and what episodes ended, each with the invocation that sampled it."""
    notes, trace = record()
    episodes = [SimpleNamespace(episode_return=9.0, length=4), SimpleNamespace(episode_return=2.0, length=1)]
    fragment: Any = SimpleNamespace(steps=16, resets=2, episodes=episodes)
    notes.sampled(DONE, fragment)
    rows = list(trace.rows())
    assert [(event, value) for _, event, _, _, _, value in rows] == [
        ("sampled", 16.0),
        ("reset", 2.0),
        ("episode", 9.0),
        ("episode_length", 4.0),
        ("episode", 2.0),
        ("episode_length", 1.0),
    ]
    assert {(time, function, number) for time, _, function, number, _, _ in rows} == {(3.0, "actor", 7)}


def test_gradients(unchecked: None) -> None:
    """Queued, applied, and what is left."""
    notes, trace = record()
    notes.queued(DONE)
    notes.applied(4, staleness=2, steps=30)
    notes.unused(gradients=3, steps=100)
    notes.round_over(5)
    assert [(event, function, number, value) for _, event, function, number, _, value in trace.rows()] == [
        ("pushed", "actor", 7, 1.0),
        ("staleness", "learner", 4, 2.0),
        ("learned", "learner", 4, 30.0),
        ("queued", "", -1, 3.0),
        ("waiting", "", -1, 100.0),
        ("round", "", -1, 5.0),
    ]


def test_metrics(unchecked: None) -> None:
    """Whatever a loss reports, under names of their own; of a report by lag the lags that there are samples of."""
    notes, trace = record()
    notes.metrics(DONE, {"kl": np.float32(0.25), "queued": 3, "by_lag": lag_report(0.0, 8.0)})
    rows = {event: value for _, event, _, _, _, value in trace.rows()}
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
    """A loss of one's own may report anything: it is named."""
    with pytest.raises(ValueError, match=r"metric 'ratios' has shape \(3,\): report a scalar"):
        dict(scalars({"ratios": np.zeros(3)}))


@pytest.mark.parametrize(
    "name", ["steps", "episode_return", "round_return", "cost_usd", "lag3_kl", "discarded", "actors"]
)
def test_a_metric_with_the_name_of_a_column(name: str) -> None:
    """It would stand in the history in that column's place, by which the budget ends a run."""
    with pytest.raises(ValueError, match=f"metric '{name}' is named like a column of the history: rename it"):
        dict(scalars({name: 1.0}))
