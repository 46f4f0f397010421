"""Aggregators as values: printed, compared, hashed, recorded and swept."""

import copy
import dataclasses
import functools
import itertools
import json
import math
import pickle
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import (
    Aggregator,
    buffered,
    fully_asynchronous,
    hinge_weight,
    polynomial_weight,
    softsync,
    stale_synchronous,
    staleness_aware,
    staleness_weight,
    synchronous,
)
from stellaris._core.describe import describe, differences
from stellaris.aggregation import gradient_queue
from stellaris.aggregation.staleness import freeze_weight

#: The aggregator, made anew at every call, and how it prints.
PRINTED = {
    "staleness-aware": (
        lambda: staleness_aware(4, decay=0.9),
        "staleness_aware(group_size=4, capacity=8, decay=0.9, smoothness=3.0, max_staleness=None, combine='mean', "
        "weight=None, threshold='decay')",
    ),
    "its weight": (
        lambda: staleness_aware(2, decay=0.5, weight=functools.partial(hinge_weight, slope=0.5, tolerance=2.0)),
        "staleness_aware(group_size=2, capacity=4, decay=0.5, smoothness=None, max_staleness=None, combine='mean', "
        "weight=hinge_weight(slope=0.5, tolerance=2.0), threshold='decay')",
    ),
    "softsync": (
        lambda: softsync(2),
        "buffered(group_size=2, weight=staleness_weight(smoothness=1.0), capacity=4)",
    ),
    "stale synchronous": (lambda: stale_synchronous(1, 3), "stale_synchronous(max_lead=1, learners=3, capacity=6)"),
    "fully asynchronous": (lambda: fully_asynchronous(capacity=4), "fully_asynchronous(capacity=4, drop_from=None)"),
    "synchronous": (lambda: synchronous(3), "synchronous(group_size=3)"),
}
#: Aggregators that differ from `staleness_aware(4, decay=0.9)`, each in one setting.
OTHERS = {
    "group_size": {"group_size": 3, "capacity": 8},
    "capacity": {"capacity": 9},
    "decay": {"decay": 0.8},
    "smoothness": {"smoothness": 2.0},
    "max_staleness": {"max_staleness": 4.0},
    "combine": {"combine": "sequential"},
    "threshold": {"threshold": "demo"},
}


def aware(**settings):
    return staleness_aware(**({"group_size": 4, "decay": 0.9} | settings))


@pytest.mark.parametrize(("make", "printed"), PRINTED.values(), ids=PRINTED)
def test_equal_settings_make_equal_aggregators(make, printed):
    """They print alike, are equal, hash alike, and have one description, which JSON holds; so do their copies."""
    one, other = make(), make()
    assert repr(one) == printed
    copies = copy.deepcopy(one), pickle.loads(pickle.dumps(one)), jax.tree.map(lambda x: x, one)
    assert {one, other, *copies} == {one}
    assert json.loads(json.dumps(describe(one))) == describe(other)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.capacity = 99


@pytest.mark.parametrize("name", OTHERS)
def test_another_setting_makes_another_aggregator(name):
    """Unequal; and the difference of their descriptions names the setting."""
    one, other = aware(), aware(**OTHERS[name])
    assert one != other
    assert [place for place, _, _ in differences(describe(one), describe(other), "aggregator")] == [
        f"aggregator.{name}"
    ]


def test_another_weight_makes_another_aggregator():
    """By the function and by its settings, however they were written."""

    def polynomial(**settings):
        return aware(weight=functools.partial(polynomial_weight, **settings))

    assert polynomial(power=0.5) == polynomial(power=np.float64(0.5)) == polynomial(power=jnp.float32(0.5))
    assert polynomial(power=0.5) != polynomial(power=1.5)
    assert polynomial(power=0.5) != aware(weight=polynomial_weight) == aware(weight=polynomial_weight)
    assert aware(weight=staleness_weight) != aware()
    assert buffered(3, functools.partial(staleness_weight, smoothness=1.0)) == softsync(3)
    # The smoothness of a weight that is not used makes no difference.
    assert aware(weight=staleness_weight, smoothness=1.0) == aware(weight=staleness_weight)


def test_numbers_compare_by_value_whatever_their_type(unchecked):
    """NumPy's and JAX's numbers become Python's, so that the aggregator has a hash."""
    for number in (0.5, np.float32(0.5), np.float64(0.5), jnp.float32(0.5), np.array(0.5)):
        made = aware(decay=number, smoothness=number, max_staleness=number)
        assert made == aware(decay=0.5, smoothness=0.5, max_staleness=0.5)
        assert len({made, aware(decay=0.5, smoothness=0.5, max_staleness=0.5)}) == 1
        assert type(made.decay) is type(made.smoothness) is type(made.max_staleness) is float
    for number in (3, np.int64(3), jnp.int32(3)):
        assert {stale_synchronous(number, 3), stale_synchronous(3, 3)} == {stale_synchronous(3, 3)}
        assert fully_asynchronous(capacity=2, drop_from=number) == fully_asynchronous(capacity=2, drop_from=3)
    assert hash(dataclasses.replace(aware(), decay=jnp.float32(0.5))) == hash(aware(decay=0.5))
    assert fully_asynchronous(capacity=2, drop_from=3) != fully_asynchronous(capacity=2)


# ---- sweeps ---------------------------------------------------------------------------------------------------------


def outcome(aggregator):
    """Admission of a learner that is ahead, readiness in a late round, and what a group of stale gradients becomes."""
    state = aggregator.init(jnp.zeros(1))
    for number, version in enumerate((0, 3, 7), start=1):
        state = aggregator.push(state, jnp.full(1, number, float), version, learner=0)
    update, _ = aggregator.pop(state, 9, 1)
    return aggregator.admit(state, 0, 9), aggregator.ready(state, 9, 1), update.scale, update.gradient, update.dropped


def stacked(aggregators):
    """One tree of all of them: each number becomes an array."""
    return jax.tree.map(lambda *numbers: jnp.stack(numbers), *aggregators)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Exponential:
    """A weight of the caller's."""

    rate: float

    def __call__(self, staleness):
        return jnp.exp(-self.rate * staleness)


SETTINGS = [(0.3, 3.0, 2.0), (0.9, 1.0, 6.0), (0.5, 0.5, 20.0), (1.0, 2.0, 4.0)]
#: A maker with numbers to sweep over.
SWEEPS = {
    "threshold": (lambda d, s, m: aware(decay=d, smoothness=s, max_staleness=m), SETTINGS),
    "demo": (lambda d, s, m: aware(decay=d, smoothness=s, max_staleness=m, threshold="demo"), SETTINGS),
    "weight": (
        lambda x: aware(weight=functools.partial(hinge_weight, slope=x, tolerance=1.0)),
        [(0.5,), (1.0,), (4.0,)],
    ),
    "the caller's": (lambda x: aware(weight=Exponential(x)), [(0.25,), (0.5,)]),
    "buffered": (lambda x: buffered(2, functools.partial(polynomial_weight, power=x)), [(0.0,), (0.5,), (1.0,)]),
    "lead": (lambda x: stale_synchronous(x, 2), [(2,), (3,)]),
    "drop from": (lambda x: fully_asynchronous(capacity=3, drop_from=x), [(1,), (3,), (10,)]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "numbers"), SWEEPS.values(), ids=SWEEPS)
def test_settings_are_swept_by_vmap(make, numbers):
    """Over a stack of aggregators, and over makers that are given traced numbers: each as it is alone."""
    aggregators = [make(*one) for one in numbers]
    alone = [jax.device_get(outcome(aggregator)) for aggregator in aggregators]
    assert all(str(first) != str(second) for first, second in itertools.pairwise(alone))
    columns = [jnp.array(column) for column in zip(*numbers, strict=True)]
    for swept in (
        jax.jit(jax.vmap(outcome))(stacked(aggregators)),
        jax.vmap(lambda *one: outcome(make(*one)))(*columns),
    ):
        for got, want in zip(swept, zip(*alone, strict=True), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_trees_of_an_aggregator_are_not_checked():
    """JAX makes trees that are no settings, such as one of axes, whose zeros would be out of range."""
    stack = stacked([aware(decay=0.3), aware(decay=0.9)])
    axes = jax.tree.map(lambda _: 0, stack)
    swept = jax.vmap(lambda one: one.decay, in_axes=(axes,))(stack)
    np.testing.assert_array_equal(swept, stack.decay)


def test_sizes_and_choices_are_structure():
    """Aggregators that differ in them cannot be stacked: nothing could be compiled for both."""
    for other in (aware(group_size=3, capacity=8), aware(combine="sequential"), aware(max_staleness=1.0)):
        with pytest.raises(ValueError, match=r"pytree structure error|Mismatch custom|Expected None"):
            stacked([aware(), other])


# ---- a weight as a value --------------------------------------------------------------------------------------------


def test_what_a_weight_becomes():
    """Functions and partials become values; an object that is a tree by itself stays as it is."""
    half = freeze_weight(functools.partial(polynomial_weight, power=0.5))
    assert repr(half) == "polynomial_weight(power=0.5)"
    assert jax.tree.leaves(half) == [0.5]
    np.testing.assert_array_equal(half(jnp.array([0, 3])), [1.0, 0.5])
    assert repr(freeze_weight(polynomial_weight)) == "polynomial_weight()"
    assert freeze_weight(Exponential(0.5)) == Exponential(0.5)
    assert aware(weight=Exponential(0.5)) == aware(weight=Exponential(0.5)) != aware(weight=Exponential(0.25))


def test_positional_settings_of_a_partial_are_left_alone():
    """They come before staleness; such a partial works as any other function."""

    def shifted(shift, staleness):
        return 1.0 / (1.0 + shift + staleness)

    weight = freeze_weight(functools.partial(shifted, 1.0))
    assert jax.tree.leaves(weight) == []
    assert float(weight(jnp.float32(2.0))) == 0.25


# ---- an aggregator of the caller's ----------------------------------------------------------------------------------


def test_what_is_an_aggregator():
    """Any object with the five methods, whatever it inherits from; the makers and other things are none."""

    class Own:
        def init(self, gradient_like):
            return gradient_queue.empty(gradient_like, 2, memory=())

        def push(self, state, gradient, version, *, learner=0):
            return gradient_queue.push(state, gradient, version)

        def ready(self, state, clock, round):
            return state.count > 0

        def pop(self, state, clock, round):
            return gradient_queue.take(state, 1, clock, staleness_weight, "mean")

        def admit(self, state, learner, clock):
            return True

    assert isinstance(Own(), Aggregator)
    assert isinstance(softsync(2), Aggregator)
    for other in (softsync, "softsync", None, math, jnp.zeros(3)):
        assert not isinstance(other, Aggregator)
