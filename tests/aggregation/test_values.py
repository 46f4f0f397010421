"""Aggregators as values: printed, compared, hashed, recorded and swept."""

import copy
import dataclasses
import functools
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
    """They print alike, are equal, hash alike, and have the same description, which JSON holds."""
    one, other = make(), make()
    assert repr(one) == printed
    assert one == other
    assert one is not other
    assert len({one, other}) == 1
    assert json.loads(json.dumps(describe(one))) == describe(other)
    assert isinstance(one, Aggregator)


@pytest.mark.parametrize("make", [make for make, _ in PRINTED.values()], ids=PRINTED)
def test_they_cannot_be_changed_and_can_be_copied(make):
    """Frozen; a copy, or one that went through a pickle, is equal."""
    one = make()
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.capacity = 99
    for copied in (copy.deepcopy(one), pickle.loads(pickle.dumps(one)), jax.tree.map(lambda x: x, one)):
        assert copied == one
        assert hash(copied) == hash(one)


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
    # The smoothness of a weight that is not used makes no difference.
    assert aware(weight=staleness_weight, smoothness=1.0) == aware(weight=staleness_weight)


def test_numbers_compare_by_value_whatever_their_type(unchecked):
    """NumPy's and JAX's numbers become Python's, so that the aggregator has a hash."""
    for number in (0.5, np.float32(0.5), np.float64(0.5), jnp.float32(0.5), np.array(0.5)):
        made = aware(decay=number, smoothness=number, max_staleness=number)
        assert made == aware(decay=0.5, smoothness=0.5, max_staleness=0.5)
        assert len({made, aware(decay=0.5, smoothness=0.5, max_staleness=0.5)}) == 1
        assert type(made.decay) is type(made.smoothness) is type(made.max_staleness) is float
    assert stale_synchronous(np.int64(1), 3) == stale_synchronous(jnp.int32(1), 3) == stale_synchronous(1, 3)


def test_a_static_argument_is_compiled_once_for_equal_aggregators():
    """No cache of functions is needed for that."""
    traced = []

    @functools.partial(jax.jit, static_argnums=0)
    def push(aggregator, state, gradient, version):
        traced.append(aggregator)
        return aggregator.push(state, gradient, version)

    for decay in (0.9, 0.9, 0.5, 0.9):
        made = aware(decay=decay, weight=functools.partial(polynomial_weight, power=2.0))
        push(made, made.init(jnp.zeros(3)), jnp.ones(3), 0)
    assert [made.decay for made in traced] == [0.9, 0.5]


# ---- sweeps ---------------------------------------------------------------------------------------------------------


def outcome(aggregator):
    """Readiness in a late round and the scale of a group of stale gradients."""
    state = aggregator.init(jnp.zeros(2))
    for version in (0, 3, 7):
        state = aggregator.push(state, jnp.ones(2), version)
    return aggregator.ready(state, 9, 1), aggregator.pop(state, 9, 1)[0].scale


def stacked(aggregators):
    """One tree of all of them: each number becomes an array."""
    return jax.tree.map(lambda *numbers: jnp.stack(numbers), *aggregators)


SETTINGS = [(0.3, 3.0, 2.0), (0.9, 1.0, 6.0), (0.5, 0.5, 20.0), (1.0, 2.0, 4.0)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("threshold", ["decay", "demo"])
def test_stacked_aggregators_are_swept_by_vmap(threshold, compiled):
    """The numbers are leaves of a tree: what vmap gives is what each aggregator gives alone."""
    settings = [
        {"decay": decay, "smoothness": smoothness, "max_staleness": most, "threshold": threshold}
        for decay, smoothness, most in SETTINGS
    ]
    aggregators = [aware(**one) for one in settings]
    sweep = jax.vmap(outcome)
    ready, scale = (jax.jit(sweep) if compiled else sweep)(stacked(aggregators))
    alone = [outcome(aggregator) for aggregator in aggregators]
    assert ready.tolist() == [bool(one) for one, _ in alone]
    assert set(ready.tolist()) == {False, True}
    np.testing.assert_allclose(scale, [one for _, one in alone], rtol=1e-6)
    assert len(set(scale.tolist())) == len(SETTINGS)


def test_a_sweep_by_closure():
    """The makers take traced numbers, too, and leave their checks out."""
    decay, smoothness, most = map(jnp.array, zip(*SETTINGS, strict=True))
    swept = jax.vmap(lambda d, s, m: outcome(aware(decay=d, smoothness=s, max_staleness=m)))(decay, smoothness, most)
    alone = [outcome(aware(decay=d, smoothness=s, max_staleness=m)) for d, s, m in SETTINGS]
    np.testing.assert_array_equal(swept[0], [ready for ready, _ in alone])
    np.testing.assert_allclose(swept[1], [scale for _, scale in alone], rtol=1e-6)


def test_settings_of_a_weight_are_swept():
    """By a stack of aggregators, and by closure."""

    def made(slope):
        return aware(weight=functools.partial(hinge_weight, slope=slope, tolerance=1.0))

    slopes = [0.5, 1.0, 4.0]
    alone = [outcome(made(slope))[1] for slope in slopes]
    assert len(set(map(float, alone))) == 3
    np.testing.assert_allclose(jax.vmap(outcome)(stacked(map(made, slopes)))[1], alone, rtol=1e-6)
    by_closure = jax.vmap(lambda slope: outcome(made(slope)))(jnp.array(slopes))
    np.testing.assert_allclose(by_closure[1], alone, rtol=1e-6)


def test_the_lead_of_stale_synchronous_learners_is_swept():
    """Learner 0 is two gradients ahead: admitted at a lead of 2 or 3, not at 0 or 1."""

    def admitted(aggregator):
        state = aggregator.init(jnp.zeros(1))
        for _ in range(2):
            state = aggregator.push(state, jnp.ones(1), 0, learner=0)
        return aggregator.admit(state, 0, 0)

    swept = jax.vmap(admitted)(stacked(stale_synchronous(lead, 2) for lead in range(4)))
    assert swept.tolist() == [False, False, True, True]
    assert jax.vmap(lambda b: admitted(stale_synchronous(b, 2)))(jnp.arange(4)).tolist() == swept.tolist()


def test_sizes_and_choices_are_structure():
    """Aggregators that differ in them cannot be stacked: nothing could be compiled for both."""
    for other in (
        aware(group_size=3, capacity=8),
        aware(capacity=9),
        aware(combine="sequential"),
        aware(max_staleness=1.0),
    ):
        with pytest.raises(ValueError, match="pytree structure error"):
            stacked([aware(), other])
    assert [jax.tree.leaves(made) for made in (softsync(2), fully_asynchronous(capacity=2), synchronous(2))] == [
        [1.0],
        [],
        [],
    ]


def test_a_tree_is_rebuilt_from_anything():
    """As JAX does it internally, with placeholders that are no numbers: nothing is checked then."""
    for made in (aware(max_staleness=1.0), stale_synchronous(1, 2), aware(weight=functools.partial(hinge_weight))):
        leaves, structure = jax.tree.flatten(made)
        jax.tree.unflatten(structure, [object() for _ in leaves])
        assert jax.tree.unflatten(structure, leaves) == made


def test_traced_numbers_cannot_be_hashed():
    """As documented: such an aggregator is used where it is made, or passed as a tree."""

    @jax.jit
    def hashed(decay):
        with pytest.raises(TypeError, match="unhashable"):
            hash(aware(decay=decay))
        return decay

    hashed(0.5)


# ---- a weight as a value --------------------------------------------------------------------------------------------


def test_what_a_weight_becomes():
    """Functions and partials become values; an object that is a tree by itself stays as it is."""
    half = freeze_weight(functools.partial(polynomial_weight, power=0.5))
    assert repr(half) == "polynomial_weight(power=0.5)"
    assert jax.tree.leaves(half) == [0.5]
    np.testing.assert_array_equal(half(jnp.array([0, 3])), [1.0, 0.5])
    assert repr(freeze_weight(polynomial_weight)) == "polynomial_weight()"

    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class Own:
        rate: float

        def __call__(self, staleness):
            return jnp.exp(-self.rate * staleness)

    assert freeze_weight(Own(0.5)) == Own(0.5)
    assert aware(weight=Own(0.5)) == aware(weight=Own(0.5)) != aware(weight=Own(0.25))
    swept = jax.vmap(outcome)(stacked([aware(weight=Own(rate)) for rate in (0.25, 0.5)]))[1]
    np.testing.assert_allclose(swept, [outcome(aware(weight=Own(rate)))[1] for rate in (0.25, 0.5)], rtol=1e-6)


def test_a_weight_that_is_no_function(unchecked):
    """Found when the aggregator is made."""
    with pytest.raises(TypeError, match=r"^weight=0\.5 is not a function of staleness"):
        aware(weight=0.5)


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
    for other in (softsync, "softsync", None, math, jnp.zeros(3)):
        assert not isinstance(other, Aggregator)
