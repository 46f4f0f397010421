"""Price sheets: prices by resource, and prices that are none."""

import math

import pytest

from stellaris.runtime import Machine, PriceSheet, Rate


def test_a_function_and_a_machine_of_one_name():
    """Which of them a part of the bill is could not be told."""
    with pytest.raises(ValueError, match=r"price sheet 'same': \['learner'\] are functions and machines at once"):
        PriceSheet("same", {"learner": Rate(per_second=1.0)}, {"learner": Machine(0.5)})


@pytest.mark.parametrize("price", [-0.01, math.nan, math.inf])
@pytest.mark.parametrize("make", [lambda price: Rate(per_second=price), lambda price: Machine(per_second=price)])
def test_prices_that_are_none(make, price):
    """Neither functions nor machines pay."""
    with pytest.raises(ValueError, match=f"per_second={price}: a price must be finite and not negative"):
        make(price)


@pytest.mark.parametrize(
    "name", ["per_second", "per_gb_second", "per_vcpu_second", "per_gpu_slot_second", "per_request", "granularity"]
)
@pytest.mark.parametrize("price", [-1.0, math.inf, math.nan])
def test_rates_that_are_none(name, price):
    """Neither negative nor without end."""
    with pytest.raises(ValueError, match=f"{name}={price}: a price must be finite and not negative"):
        Rate(**{name: price})


def test_a_machine_has_a_place():
    """Half of one is enough."""
    assert Machine(1.0, places=0.5).places == 0.5
    for places in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"places={places} is not positive"):
            Machine(1.0, places=places)
