"""Price sheets and bills."""

import math

import pytest

from stellaris.runtime import FunctionSpec, Machine, PriceSheet, Rate, SimulatedPlatform, Trace
from stellaris.runtime.billing import bill
from stellaris.runtime.delays import Constant


def test_a_bill_by_hand():
    """Seconds from start to end, however it ends, times the price; machines by the clock; the unlisted is free."""
    trace = Trace()
    for time, event, function, invocation in [
        (0.0, "submitted", "actor", 0),
        (0.0, "submitted", "learner", 1),
        (1.0, "started", "actor", 0),
        (1.5, "started", "learner", 1),
        (2.0, "started", "free", 2),
        (2.0, "submitted", "actor", 3),
        (2.0, "submitted", "actor", 4),
        (3.0, "completed", "actor", 0),  # 2 s
        (3.0, "started", "actor", 3),
        (3.5, "failed", "actor", 3),  # 0.5 s
        (4.0, "started", "actor", 5),
        (4.25, "timed_out", "actor", 5),  # 0.25 s
        (5.0, "cancelled", "actor", 4),  # never ran
        (5.5, "cancelled", "learner", 1),  # 4 s
        (6.0, "started", "actor", 6),  # 2 s until 8
    ]:
        trace.append(time, event, function=function, invocation=invocation)
    sheet = PriceSheet(
        "hand",
        functions={"actor": Rate(per_second=2.0), "learner": Rate(per_second=0.5), "absent": Rate(per_second=7.0)},
        machines={"server": Machine(0.25)},
    )
    got = bill(trace, sheet, until=8.0)
    assert got.sheet == "hand"
    assert got.parts == {"actor": 9.5, "learner": 2.0, "absent": 0.0, "server": 2.0}
    assert got.total == 13.5


def test_the_platforms_bill_runs_up_to_now():
    """Neither queueing nor a cold start is billed; a call that runs is billed so far, a killed one to its end."""
    spec = FunctionSpec(Constant(2.0), cold_start=Constant(1.0), queueing=Constant(0.5), timeout=3.0)
    with SimulatedPlatform({"f": spec}) as platform:
        prices = PriceSheet("p", functions={"f": Rate(per_second=1.0)}, machines={"vm": Machine(0.1)})
        platform.invoke("f", lambda context: None)  # runs from 1.5 to 3.5
        for until, used in [(1.0, 0.0), (1.5, 0.0), (2.0, 0.5), (3.0, 1.5)]:
            assert platform.next_completion(until=until) is None
            assert platform.bill(prices).parts == pytest.approx({"f": used, "vm": until / 10})
        assert platform.next_completion().finished == 3.5
        assert platform.bill(prices).total == pytest.approx(2.0 + 0.35)
        platform.invoke("f", lambda context: None, work=9.0)  # warm: runs from 4 to 7, where it is killed
        assert platform.next_completion().status == "timed_out"
        assert platform.bill(prices).total == pytest.approx(5.0 + 0.7)
        platform.invoke("f", lambda context: None)  # cold: runs from 8.5, cancelled at 9
        platform.next_completion(until=9.0)
    assert platform.bill(prices).total == pytest.approx(5.5 + 0.9)


def test_a_function_and_a_machine_of_one_name():
    """Which of them a part of the bill is could not be told."""
    with pytest.raises(ValueError, match=r"price sheet 'same': \['learner'\] are functions and machines at once"):
        PriceSheet("same", {"learner": Rate(per_second=1.0)}, {"learner": Machine(0.5)})


@pytest.mark.parametrize("price", [-0.01, math.nan, math.inf])
@pytest.mark.parametrize("make", [lambda price: Rate(per_second=price), lambda price: Machine(per_second=price)])
def test_prices_that_are_none(make, price):
    """Neither functions nor machines pay."""
    with pytest.raises(ValueError, match=f"per_second={price}: a price is finite and not negative"):
        make(price)


def test_an_empty_run_costs_its_machines():
    """No invocation, no use."""
    sheet = PriceSheet("p", functions={"f": Rate(per_second=1.0)}, machines={"vm": Machine(0.5)}, source="somewhere")
    assert bill(Trace(), sheet, until=3.0).parts == {"f": 0.0, "vm": 1.5}
    assert bill(Trace(), PriceSheet("nothing"), until=3.0).total == 0
