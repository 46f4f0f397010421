"""Faults: each kind by hand, in what it costs, leaves behind and lets through."""

import math

import numpy as np
import pytest

from stellaris.runtime import (
    Faults,
    Function,
    FunctionError,
    FunctionSpec,
    Outages,
    PriceSheet,
    Rate,
    SimulatedPlatform,
    StoreFaults,
    StoreRefusedError,
)
from stellaris.runtime.delays import Constant, Exponential
from stellaris.runtime.engine.faults import KINDS
from tests.runtime.helpers import drain, handed_out

PRICES = PriceSheet("p", {"f": Rate(per_second=1.0)})


def deploy(faults: Faults | None = None, store=None, seed=0, **spec) -> SimulatedPlatform:
    """The one function `f`, which computes for 2 s and starts cold in 0.5 s."""
    given = {"compute": Constant(2.0), "cold_start": Constant(0.5)} | spec
    options = {"faults": {"f": faults}} if faults else {}
    return SimulatedPlatform({"f": FunctionSpec(**given)}, seed=seed, store_faults=store, **options)


@pytest.mark.parametrize(
    ("kind", "status", "ends", "handed", "ran", "dies", "cost"),
    [
        ("throttle", "throttled", 0.0, 0.0, 0, False, 0.0),
        ("crash_before", "crashed", 0.5, 0.5, 0, True, 0.0),
        ("crash_after", "crashed", 2.5, 2.5, 1, True, 2.0),
        ("lose", "lost", 2.5, 3.25, 1, False, 2.0),
        ("duplicate", "completed", 2.5, 2.5, 1, False, 2.0),
        ("straggle", "completed", 8.5, 8.5, 1, False, 8.0),
    ],
)
def test_each_kind(kind, status, ends, handed, ran, dies, cost):
    """When it ends, when that is handed out, whether the body ran, whether the container lives on, what it costs."""
    bodies = []
    faults = Faults(at={0: (kind,)}, straggler_factor=Constant(4.0), notice_after=Constant(0.75))
    with deploy(faults) as platform:
        first = platform.invoke("f", lambda context: bodies.append(context.number) or "value")
        assert platform.next_completion() is first
        assert (first.status, first.finished, platform.now, len(bodies)) == (status, ends, handed, ran)
        assert platform.bill(PRICES).total == cost
        if status == "completed":
            assert first.result() == "value"
        else:
            assert first.value is None
            with pytest.raises(FunctionError, match=rf"'f', invocation 0 \(attempt 1\) {status}"):
                first.result()
        second = platform.invoke("f", lambda context: None)
        while platform.next_completion() is not second:
            pass
        assert second.status == "completed"  # only the scheduled one
        assert second.cold is (dies or kind == "throttle")


def test_a_crash_during_the_body():
    ends = []
    for seed in range(30):
        with deploy(Faults(crash_during=1.0), seed=seed) as platform:
            invocation = platform.invoke("f", lambda context: pytest.fail("it ran"))
            platform.next_completion()
            assert invocation.status == "crashed"
            assert platform.bill(PRICES).total == pytest.approx(invocation.finished - 0.5)
            ends.append(invocation.finished - 0.5)
    assert 0 <= min(ends) < 0.3 < 1.7 < max(ends) < 2.0
    assert np.mean(ends) == pytest.approx(1.0, abs=0.35)


def test_a_timeout_comes_before_a_later_crash():
    for seed in range(20):
        with deploy(Faults(crash_during=1.0), seed=seed, timeout=1.0) as platform:
            invocation = platform.invoke("f", lambda context: None)
            platform.next_completion()
            assert invocation.status == ("timed_out" if invocation.finished == 1.5 else "crashed")
            assert invocation.finished <= 1.5


def test_a_duplicate_is_another_object_with_the_same_key():
    faults = Faults(at={0: ("duplicate",)}, duplicate_after=Constant(0.25))
    with deploy(faults) as platform:
        platform.invoke("f", lambda context: context.number)
        first, second = drain(platform)
        assert first is not second
        assert (first.number, first.key, first.result()) == (second.number, second.key, second.result()) == (0, 0, 0)
        assert platform.now == 2.75
        assert platform.trace.select("redelivered").time.tolist() == [2.75]
        assert len(platform.trace.select("completed").time) == 1
        assert platform.bill(PRICES).total == 2.0


@pytest.mark.parametrize(("notice", "order"), [(0.1, ["lost", "completed"]), (9.0, ["completed", "lost"])])
def test_a_lost_message_may_come_a_second_time(notice, order):
    """Before or after its loss is noticed; the key tells that it is the same work."""
    faults = Faults(at={0: ("lose", "duplicate")}, duplicate_after=Constant(1.0), notice_after=Constant(notice))
    with deploy(faults) as platform:
        platform.invoke("f", lambda context: "value")
        done = drain(platform)
        assert [d.status for d in done] == order
        assert {d.key for d in done} == {0}
        assert next(d for d in done if d.status == "completed").result() == "value"


def test_a_container_is_free_while_its_message_is_lost():
    with deploy(Faults(at={0: ("lose",)}, notice_after=Constant(10.0)), max_concurrency=1) as platform:
        for _ in range(2):
            platform.invoke("f", lambda context: None)
        assert handed_out(platform) == [(1, "completed", 4.5), (0, "lost", 12.5)]


def test_a_container_that_is_lost():
    function = Function(lambda context: context.state.append(1) or len(context.state), init=lambda slot, key: [])
    with deploy(Faults(lose_containers_at=(3.0, 6.0))) as platform:
        platform.invoke("f", function)  # 0.5 to 2.5, idle at 3
        platform.invoke("f", function, at=4.0)  # 4.5 to 6.5 in a new one, lost at 6
        platform.invoke("f", function, at=7.0)
        done = drain(platform)
        assert [(d.status, d.finished, d.cold) for d in done] == [
            ("completed", 2.5, True),
            ("crashed", 6.0, True),
            ("completed", 9.5, True),
        ]
        assert [d.value for d in done] == [1, None, 1]
        assert platform.trace.select("container_lost").time.tolist() == [3.0, 6.0]


def test_lifetime():
    with deploy(Faults(lifetime=Constant(3.0))) as platform:
        platform.invoke("f", lambda context: None)
        platform.invoke("f", lambda context: None, at=2.5)
        assert handed_out(platform) == [(0, "completed", 2.5), (1, "crashed", 3.0)]
    with deploy(Faults(lifetime=Constant(0.25))) as platform:
        invocation = platform.invoke("f", lambda context: None)
        assert handed_out(platform) == [(0, "crashed", 0.25)]
        assert invocation.started is None
        assert platform.bill(PRICES).total == 0


@pytest.mark.parametrize(
    "refuse", [Outages(at=((0.5, 1.0),)), Outages(every=Constant(0.5), lasting=Constant(0.125))], ids=str
)
def test_a_store_that_refuses(refuse):
    """The outage begins at the very instant of the first start."""
    with deploy(store=StoreFaults(refuse=refuse)) as platform:
        argument = platform.store.put(np.zeros(10))
        refused = platform.invoke("f", lambda context, x: None, argument)
        alone = platform.invoke("f", lambda context: None)
        later = platform.invoke("f", lambda context, x: None, argument, at=1.0)
        drain(platform)
        assert [i.status for i in (refused, alone, later)] == ["crashed", "completed", "completed"]
        assert isinstance(refused.error, StoreRefusedError)
        assert refused.finished == 0.5
        again = platform.retry(refused)
        drain(platform)
        assert again.status == "completed"


def test_random_outages():
    store = StoreFaults(refuse=Outages(every=Exponential(3.0), lasting=Exponential(1.0)))
    with deploy(store=store, compute=Constant(0.0), cold_start=Constant(0.0)) as platform:
        argument = platform.store.put(1)
        for i in range(8000):
            platform.invoke("f", lambda context, x: None, argument, at=0.25 * i)
        refused = [d.status == "crashed" for d in sorted(drain(platform), key=lambda d: d.number)]
    assert np.mean(refused) == pytest.approx(0.25, abs=0.05)
    spells = np.flatnonzero(np.diff(np.array(refused, int)) == 1)
    assert len(spells) == pytest.approx(2000 / 4 * math.exp(-0.0), rel=0.25)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities(kind):
    status = {"throttle": "throttled", "lose": "lost"}.get(kind, "crashed")
    with deploy(Faults(**{kind: 0.3}), cold_start=Constant(0.0), compute=Constant(1.0)) as platform:
        for i in range(2000):
            platform.invoke("f", lambda context: None, at=float(i))
        done = drain(platform)
        if kind == "duplicate":
            hit = len(done) - 2000
        elif kind == "straggle":
            hit = sum(d.finished - d.started > 5 for d in done)
        else:
            hit = sum(d.status == status for d in done)
    assert hit / 2000 == pytest.approx(0.3, abs=0.04)


def test_every_kind_has_a_stream_of_its_own():
    def outcomes(faults):
        spec = {"compute": Exponential(1.0), "cold_start": Exponential(1.0), "keep_alive": 0.0}
        with deploy(faults, **spec) as platform:
            calls = [platform.invoke("f", lambda context: None, at=100.0 * i) for i in range(300)]
            drain(platform)
        return calls

    plain, crashing = outcomes(Faults(lose=0.2)), outcomes(Faults(lose=0.2, straggle=0.3, straggler_factor=Constant(2)))
    assert [c.status for c in plain] == [c.status for c in crashing]
    longer = [(b.finished - b.started) / (a.finished - a.started) for a, b in zip(plain, crashing, strict=True)]
    assert sorted({round(x, 6) for x in longer}) == [1.0, 2.0]
    assert [a.started for a in plain] == [b.started for b in crashing]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Faults(lose=1.5), r"lose=1\.5 is not a probability"),
        (lambda: Faults(throttle=math.nan), r"throttle=nan is not a probability"),
        (lambda: Faults(at={3: ("explode",)}), r"at=\{3: \('explode',\)\}: give a sequence of throttle, crash_before"),
        (lambda: Faults(at={3: "lose"}), r"at=\{3: 'lose'\}: give a sequence"),
        (lambda: Faults(at={-1: ("lose",)}), r"at=\{-1: \('lose',\)\}: give the number of an attempt, 0 for the first"),
        (lambda: Faults(at={0.5: ("lose",)}), r"at=\{0\.5: \('lose',\)\}: give the number of an attempt"),
        (lambda: Faults(at={"3": ("lose",)}), r"at=\{'3': \('lose',\)\}: give the number of an attempt"),
        (lambda: Faults(lose_containers_at=(-1.0,)), r"lose_containers_at=\(-1\.0,\)"),
        (lambda: Outages(at=((2.0, 1.0),)), r"at=\(\(2\.0, 1\.0\),\): an outage begins"),
        (lambda: StoreFaults(slow_factor=0.5), r"slow_factor=0\.5"),
    ],
)
def test_faults_that_are_none(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_outages_that_never_pass():
    store = StoreFaults(refuse=Outages(every=Constant(0.0), lasting=Constant(0.0)))
    with deploy(store=store) as platform:
        platform.invoke("f", lambda context, x: None, platform.store.put(1))
        with pytest.raises(ValueError, match="time stands still"):
            platform.next_completion()
