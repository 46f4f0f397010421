"""Price sheets: prices that are refused."""

import math

import pytest

from stellaris.runtime import Machine, PriceSheet, Rate

RATES = ["per_second", "per_gb_second", "per_vcpu_second", "per_gpu_slot_second", "per_request", "granularity"]


def test_a_function_and_a_machine_of_one_name():
    with pytest.raises(ValueError, match=r"price sheet 'same': \['learner'\] are functions and machines at once"):
        PriceSheet("same", {"learner": Rate(per_second=1.0)}, {"learner": Machine(0.5)})


@pytest.mark.parametrize("price", [-0.01, math.nan, math.inf])
@pytest.mark.parametrize(("made", "name"), [(Machine, "per_second"), *((Rate, name) for name in RATES)])
def test_prices_that_are_refused(made, name, price):
    with pytest.raises(ValueError, match=f"{name}={price}: a price must be finite and not negative"):
        made(**{name: price})


def test_a_sheet_without_a_name():
    """It names a history's column, and the budget's limit of cost refers to it."""
    with pytest.raises(ValueError, match="name='': give the price sheet a name"):
        PriceSheet("")


@pytest.mark.parametrize("places", [0.0, -1.0, math.nan])
def test_places_that_are_refused(places):
    with pytest.raises(ValueError, match=f"places={places} is not positive"):
        Machine(1.0, places=places)
