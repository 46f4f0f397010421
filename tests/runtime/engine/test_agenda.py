"""The agenda: in which order the events of one instant happen."""

import pytest

from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant
from tests.runtime.helpers import deploy, drain, happened, nothing, rows


def test_a_completion_comes_before_an_acquisition():
    with deploy(1.0, keep_alive=0.0) as platform:
        platform.invoke("f", nothing, at=1.0)
        platform.invoke("f", nothing)
        assert [platform.next_completion().number, platform.now] == [1, 1.0]
        platform.invoke("f", nothing, tag="caused")
        assert [(i.number, i.cold, i.started) for i in drain(platform)] == [(0, False, 1.0), (2, True, 1.0)]


def test_a_completion_comes_before_a_start():
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
    with deploy(1.0, cold_start=1.0) as platform:
        platform.invoke("f", nothing)
        platform.invoke("f", nothing, at=1.0)
        drain(platform)
        order = [(row[1], row[3]) for row in rows(platform) if row[0] == 1.0 and row[1] in ("acquired", "started")]
        assert order == [("acquired", 1), ("started", 0)]


def test_what_costs_no_time_is_handed_out_before_the_next_start():
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
    with deploy(1.0) as platform:
        for at in order:
            platform.invoke("f", nothing, at=at, work=4.0 - at)
        done = drain(platform)
        assert [i.number for i in done] == [0, 1, 2]
        assert {i.finished for i in done} == {4.0}


def test_events_of_one_kind_may_coincide():
    with deploy(1.0, cold_start=0.5) as platform:
        platform.prewarm("f", 2)
        assert platform.next_completion(until=1.0) is None
        assert happened(platform, "container_ready") == [0.5, 0.5]
