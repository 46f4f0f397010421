"""How stale data may be: which rollouts start, and which fragments are kept."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris.runtime.delays import Constant, LogNormal
from stellaris.systems import AsynchronousActors, Budget, CircularReplay, Stellaris
from stellaris.systems.staleness_control import Age, StalenessControl
from tests.systems import tiny


@pytest.mark.parametrize(
    ("pace", "learned", "admitted"), [(0, 0, 4), (0, 1, 8), (1, 0, 8), (2, 3, 24), (math.inf, 0, 1000)]
)
def test_the_capacity_rule(pace: float, learned: int, admitted: int) -> None:
    """By hand, for batches of four: (pace + learned + 1) * 4 may have been begun, however many of them have arrived."""
    control = StalenessControl(pace=pace)
    for accepted in (0, admitted // 2, admitted):
        begun = accepted
        while begun < 1000 and control.admits(accepted=accepted, running=begun - accepted, learned=learned, batch=4):
            begun += 1
        assert begun == admitted


@given(
    accepted=st.integers(0, 50),
    running=st.integers(0, 9),
    learned=st.integers(0, 9),
    pace=st.integers(0, 3) | st.just(math.inf),
)
def test_rounds(accepted: int, running: int, learned: int, pace: float) -> None:
    """A rollout starts in rounds if the pace admits it, and if the batch that it would join is not whole yet."""
    state = {"accepted": accepted, "running": running, "learned": learned, "batch": 4}
    of_this_round = (accepted + running) // 4 == accepted // 4
    admitted = StalenessControl(pace).admits(**state)
    assert StalenessControl(pace, rounds=True).admits(**state) == (admitted and of_this_round)


def test_a_run_in_rounds() -> None:
    """Both actors start together, when the slower one of the round before is done, even while learners are at work."""
    functions = tiny.deployment(LogNormal(0.01, 1.0), Constant(1.0))
    system = Stellaris(tiny.PPO_CONFIG, learners=2, control=StalenessControl(rounds=True))
    calls = tiny.run(system, functions, seed=3, budget=Budget(steps=6 * 32)).trace.invocations()
    actor = calls.function == calls.names.index("actor")
    begun, ended = calls.submitted[actor].reshape(-1, 2), calls.ended[actor].reshape(-1, 2)
    assert len(begun) >= 6
    assert (begun[1:] == ended[:-1].max(axis=1, keepdims=True)).all()
    learners = calls.function == calls.names.index("learner")
    assert calls.submitted[learners].min() < begun[1, 0] + 0.1
    assert calls.ended[learners].min() > begun[4, 0]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=12),
    st.integers(9, 12),
    st.integers(0, 5) | st.just(math.inf),
    st.integers(1, 5) | st.just(math.inf),
)
@settings(max_examples=200, deadline=None)
def test_what_is_kept(ages: list[tuple[int, int]], version: int, discard: float, window: float) -> None:
    """By their definition: not too old, and among the last to arrive."""
    waiting = [Age(oldest, i) for i, (oldest, _) in enumerate(ages)]
    kept = StalenessControl(discard=discard, window=window).kept(waiting, version)
    assert kept == [
        i for i, age in enumerate(waiting) if version - age.oldest <= discard and len(waiting) - i <= window
    ]


@pytest.mark.parametrize(
    ("limits", "error", "message"),
    [
        ({"pace": -1}, ValueError, "pace=-1 is below 0"),
        ({"pace": 0.5}, TypeError, r"pace=0\.5 is not a whole number"),
        ({"discard": -1}, ValueError, "discard=-1 is below 0"),
        ({"window": 0}, ValueError, "window=0 is below 1"),
        ({"window": "all"}, TypeError, "window='all' is not a number: pass math.inf"),
        ({"discard": math.nan}, TypeError, "discard=nan"),
        ({"rounds": 1}, TypeError, "rounds=1 is not a bool"),
    ],
)
def test_errors(limits: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        StalenessControl(**limits)


@pytest.mark.slow
@pytest.mark.parametrize("system", [Stellaris, AsynchronousActors, CircularReplay])
def test_a_window_holds_a_batch_at_least(system: Any) -> None:
    """A smaller one is refused before an actor begins: the run would use its budget up, and learn nothing."""
    message = r"window=1 is below the 2 fragments of a batch: no batch could ever be made"
    with pytest.raises(ValueError, match=message):
        tiny.run(system(tiny.PPO_CONFIG, control=StalenessControl(window=1)), tiny.deployment())
    result = tiny.run(system(tiny.PPO_CONFIG, control=StalenessControl(pace=1, window=2)), tiny.deployment())
    assert result.history[-1]["version"] > 0
