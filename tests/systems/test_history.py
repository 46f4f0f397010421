"""The history is a view of the trace: the one that `train` returns, at any time, from any copy of the trace."""

import math
from pathlib import Path

import pytest

from stellaris import Trace
from stellaris.runtime import PriceSheet, Rate
from stellaris.systems import Budget, Stellaris, Synchronous, history
from tests.systems import tiny
from tests.systems.test_record import lag_report, scalars


@pytest.mark.parametrize(
    "system", [Stellaris(tiny.PPO_CONFIG, learners=3), Synchronous(tiny.PPO_CONFIG)], ids=["stellaris", "synchronous"]
)
def test_it_is_what_train_returns(system: Stellaris | Synchronous, tmp_path: Path) -> None:
    """From the trace in memory, and from one that was saved; costs to the last bit."""
    result = tiny.run(system, tiny.JITTERY, budget=Budget(steps=32 * 12))
    result.trace.save(tmp_path / "trace.parquet")
    for trace in (result.trace, Trace.load(tmp_path / "trace.parquet")):
        assert repr(history(trace, prices=tiny.PRICES, functions=tiny.JITTERY)) == repr(list(result.history))


def test_a_row_by_hand() -> None:
    trace = Trace()

    def note(time: float, event: str, value: float, function: str = "") -> None:
        trace.append(time, event, function=function, value=value)

    note(0.0, "published", 0, "policy")
    trace.append(0.0, "started", function="actor", invocation=0)
    for value in (10.0, 20.0):
        note(1.0, "sampled", 16, "actor")
        note(1.0, "episode", value, "actor")
    note(1.5, "published", 7, "something else")
    note(2.0, "round", 1)
    note(2.5, "staleness", 3, "learner")
    note(2.5, "staleness", 0, "learner")
    note(2.5, "metric:kl", 0.5)
    note(2.5, "metric:kl", 1.5)
    note(2.5, "metric:data_lag_max", 2)
    note(2.5, "metric:data_lag_max", 5)
    note(2.5, "published", 1, "policy")
    note(3.0, "sampled", 16, "actor")
    note(3.0, "episode", 60.0, "actor")
    note(4.0, "round", 2)
    note(5.0, "episode", 1000.0, "actor")  # nobody has declared the round over that it is in
    prices = PriceSheet("p", {"actor": Rate(per_second=0.5)})
    first, second = history(trace, prices=[prices])
    for column in ("staleness_mean", "staleness_max"):  # no gradient was applied
        assert math.isnan(first.pop(column))  # type: ignore[attr-defined]
    assert first == {
        "round": 1,
        "seconds": 2.0,
        "steps": 32,
        "version": 0,
        "episodes": 2,
        "episode_return": 15.0,
        "gradients": 0,
        "cost_p": 1.0,
    }
    assert second == {
        "round": 2,
        "seconds": 4.0,
        "steps": 48,
        "version": 1,
        "episodes": 3,
        "episode_return": 30.0,
        "gradients": 2,
        "staleness_mean": 1.5,
        "staleness_max": 3.0,
        "cost_p": 2.0,
        "kl": 1.0,
        "data_lag_max": 5.0,
    }


def test_what_is_reported_by_lag() -> None:
    """Reports of a round add up: means are over samples, not over gradients."""
    trace = Trace()
    for report in (lag_report(0.0, 8.0), lag_report(2.0, 24.0)):
        for name, value in scalars({"by_lag": report}):
            trace.append(0.0, name, value=value)
    trace.append(0.0, "lag:1:kl_sum", value=32.0)
    trace.append(1.0, "round", value=1)
    (row,) = history(trace)
    assert [name for name in row if name.startswith("lag")] == [
        f"lag{lag}_{name}"
        for lag in (0, 1)
        for name in ("samples", "kl", "clip_fraction", "truncation_fraction", "effective_sample_size")
    ]
    assert (row["lag0_samples"], row["lag1_samples"]) == (2.0, 32.0)
    assert (row["lag0_kl"], row["lag1_kl"]) == (0.5, 1.5)
    assert row["lag1_clip_fraction"] == 0.5
    assert row["lag1_effective_sample_size"] == pytest.approx(64.0**2 / 128.0)


def test_a_round_that_a_scheduler_decided_about() -> None:
    """How many sampled, the waits as means, and the mean of the round's own episodes if there are any."""
    trace = Trace()
    rounds: list[dict[str, list[float]]] = [
        {"scheduled": [2], "actor_took": [1.0, 2.0], "episode": [10.0, 30.0], "learner_took": [0.5]},
        {"scheduled": [1], "actor_took": [4.0], "learner_took": [0.25]},
        {"episode": [50.0]},
    ]
    for number, events in enumerate(rounds, start=1):
        for event, values in (events | {"round": [number]}).items():
            for value in values:
                trace.append(0.0, event, value=value)
    first, second, unscheduled = history(trace)
    columns = ("actors", "actor_seconds", "learner_seconds", "round_return", "episode_return")
    assert [first[name] for name in columns] == [2.0, 1.5, 0.5, 20.0, 20.0]
    assert [second.get(name) for name in columns] == [1.0, 4.0, 0.25, None, 20.0]
    assert [unscheduled.get(name) for name in columns] == [None, None, None, None, 30.0]
