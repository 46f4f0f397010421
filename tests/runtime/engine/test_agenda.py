"""The agenda: in which order the events of one instant happen."""

import pytest

from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant
from tests.runtime.helpers import deploy, drain, nothing, rows


def test_a_completion_comes_before_an_acquisition():
    """A container freed at an instant can be acquired at that instant, also by what the completion causes."""
    with deploy(1.0, keep_alive=0.0) as platform:
        platform.invoke("f", nothing, at=1.0)
        platform.invoke("f", nothing)
        assert [platform.next_completion().number, platform.now] == [1, 1.0]
        platform.invoke("f", nothing, tag="caused")
        assert [(i.number, i.cold, i.started) for i in drain(platform)] == [(0, False, 1.0), (2, True, 1.0)]


def test_a_completion_comes_before_a_start():
    """What is published because of a completion is seen by every start of the same instant."""
    specs = {"f": FunctionSpec(Constant(1.0)), "slow": FunctionSpec(Constant(1.0), cold_start=Constant(1.0))}
    with SimulatedPlatform(specs) as platform:
        platform.store.publish("p", "old")
        started = platform.invoke("slow", lambda context, p: p.value, platform.store.latest("p"))
        ended = platform.invoke("f", nothing)
        assert platform.next_completion() is ended
        assert (platform.now, started.started) == (1.0, None)
        platform.store.publish("p", "new")
        assert platform.next_completion() is started
        assert (started.started, started.result()) == (1.0, "new")


def test_an_acquisition_comes_before_a_start():
    """Even where the invocation that starts has the lower number."""
    with deploy(1.0, cold_start=1.0) as platform:
        platform.invoke("f", nothing)
        platform.invoke("f", nothing, at=1.0)
        drain(platform)
        order = [(row[1], row[3]) for row in rows(platform) if row[0] == 1.0 and row[1] in ("acquired", "started")]
        assert order == [("acquired", 1), ("started", 0)]


def test_what_costs_no_time_is_handed_out_before_the_next_start():
    """Each of four starts of one instant sees what the completion before it published."""
    with deploy(0.0) as platform:
        platform.store.publish("p", 0)
        for _ in range(4):
            platform.invoke("f", lambda context, p: p.version, platform.store.latest("p"))
        seen = []
        while (done := platform.next_completion()) is not None:
            seen.append((done.number, done.result()))
            platform.store.publish("p", 0)
        assert seen == [(0, 0), (1, 1), (2, 2), (3, 3)]
        assert platform.now == 0.0


@pytest.mark.parametrize("order", [(0.0, 1.0, 2.0), (2.0, 0.0, 1.0), (1.0, 2.0, 0.0)])
def test_ties_go_by_number(order):
    """Completions of one instant are handed out in order of invocation number, whenever they started."""
    with deploy(1.0) as platform:
        for at in order:
            platform.invoke("f", nothing, at=at, work=4.0 - at)
        done = drain(platform)
        assert [i.number for i in done] == [0, 1, 2]
        assert {i.finished for i in done} == {4.0}
