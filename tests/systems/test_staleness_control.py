"""How stale data may be: which rollouts start, and which fragments are kept."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris.systems import AsynchronousActors, CircularReplay, Stellaris
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
    ],
)
def test_errors(limits: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        StalenessControl(**limits)


@pytest.mark.parametrize("system", [Stellaris, AsynchronousActors, CircularReplay])
def test_a_window_holds_a_batch_at_least(system: Any) -> None:
    """A smaller one is refused before an actor begins: the run would use its budget up, and learn nothing."""
    message = r"window=1 is below the 2 fragments of a batch: no batch could ever be made"
    with pytest.raises(ValueError, match=message):
        tiny.run(system(tiny.PPO_CONFIG, control=StalenessControl(window=1)), tiny.deployment())
    result = tiny.run(system(tiny.PPO_CONFIG, control=StalenessControl(pace=1, window=2)), tiny.deployment())
    assert result.history[-1]["version"] > 0
