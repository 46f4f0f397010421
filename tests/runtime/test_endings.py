"""The table of endings, and what the platform makes of it."""

import pytest

from stellaris.runtime import Faults, FunctionError, FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant
from stellaris.runtime.endings import ENDINGS, ENDINGS_BY_NAME, RETRIABLE, WASTED


def test_the_table() -> None:
    assert ENDINGS == ("completed", "failed", "timed_out", "crashed", "throttled", "lost", "hung", "cancelled")
    assert WASTED == ("failed", "timed_out", "crashed", "lost", "hung")
    assert RETRIABLE == ("timed_out", "crashed", "throttled", "lost")
    ends = [name for name, ending in ENDINGS_BY_NAME.items() if ending.ends_container]
    assert ends == ["timed_out", "crashed", "hung", "cancelled"]


@pytest.mark.parametrize(
    ("fault", "status"), [("crash_during", "crashed"), ("throttle", "throttled"), ("lose", "lost"), ("", "failed")]
)
def test_what_an_ending_means_on_the_platform(fault: str, status: str) -> None:
    """Whether it is tried again, and whether its container lives on, is what the table says."""

    def body(context: object) -> None:
        if status == "failed":
            raise ArithmeticError

    faults = {"f": Faults(at={0: (fault,)} if fault else {})}
    with SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, faults=faults) as platform:
        platform.invoke("f", body)
        ended = platform.next_completion()
        assert ended.status == status
        gone = len(platform.trace.select("container_ended").time)
        assert gone == ENDINGS_BY_NAME[status].ends_container
        if ENDINGS_BY_NAME[status].retriable:
            assert platform.retry(ended).attempt == 2
        else:
            with pytest.raises(FunctionError, match="ArithmeticError"):
                platform.retry(ended)
