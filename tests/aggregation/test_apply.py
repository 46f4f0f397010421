"""Groups of gradients as optimizer steps, against loops; and steps scaled by effective samples."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import (
    Update,
    add_delay_compensation,
    apply_update,
    gap_aware,
    scale_by_effective_samples,
    scale_by_staleness,
    staleness_aware,
)
from tests.aggregation.aggregators import (
    LIKE,
    OPTIMIZERS,
    PARAMS,
    close,
    equal,
    filled,
    gradient,
    jitted,
    weighted_mean,
)

GRADIENTS = [gradient(number) for number in range(1, 5)]
STALENESS = [8, 0, 3, 27]


@functools.cache
def group(combine, smoothness=3.0):
    """GRADIENTS of STALENESS, popped together from a ring that has wrapped round."""
    aggregator = jitted(staleness_aware(4, capacity=5, decay=0.5, smoothness=smoothness, combine=combine))
    state = aggregator.pop(filled(aggregator, [0, 0, 0]), 0, 0)[1]
    for tree, staleness in zip(GRADIENTS, STALENESS, strict=True):
        state = aggregator.push(state, tree, 30 - staleness)
    return aggregator.pop(state, 30, 0)[0]


def by_loop(optimizer, gradients, scales):
    """Each gradient through the optimizer, and each step times its scale."""
    params, opt_state = PARAMS, optimizer.init(PARAMS)
    for tree, scale in zip(gradients, scales, strict=True):
        updates, opt_state = optimizer.update(tree, opt_state, params)
        params = jax.tree.map(lambda p, u, scale=scale: p + scale * u, params, updates)
    return params, opt_state


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_mean_is_one_step_of_the_weighted_mean(optimizer):
    """`gradient = sum(w g) / sum(w)`, `scale = sum(w) / n`, for weights 1/2, 1, 3^(-1/3), 1/3."""
    weights = [1 / 2, 1, 3 ** (-1 / 3), 1 / 3]
    update = group("mean")
    got = jax.jit(functools.partial(apply_update, optimizer))(update, PARAMS, optimizer.init(PARAMS))
    close(got, by_loop(optimizer, [weighted_mean(weights, GRADIENTS)], [np.mean(weights)]))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_sequential_is_one_step_each(optimizer):
    """Oldest first, each with its own scale; slots beyond the count do not step, nor age the optimizer."""
    update = group("sequential")
    got = jax.jit(functools.partial(apply_update, optimizer))(update, PARAMS, optimizer.init(PARAMS))
    close(got, by_loop(optimizer, GRADIENTS, [1 / 2, 1, 3 ** (-1 / 3), 1 / 3]))


@functools.cache
def alone(combine):
    """One gradient, to be popped at any clock."""
    aggregator = jitted(staleness_aware(2, decay=0.5, smoothness=3.0, combine=combine))
    return aggregator, filled(aggregator, [0], start=5)


@pytest.mark.parametrize("combine", ["mean", "sequential"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_staleness_eight_at_smoothness_three_goes_half_as_far(optimizer, combine):
    """The weight is a factor on the step: on the gradient, Adam would cancel it. No optimizer's state sees it."""
    aggregator, state = alone(combine)
    apply = jax.jit(functools.partial(apply_update, optimizer))
    params, opt_state = apply(aggregator.pop(state, 0, 0)[0], PARAMS, optimizer.init(PARAMS))  # a state with a past
    (whole, fresh), (half, stale) = (apply(aggregator.pop(state, s, 0)[0], params, opt_state) for s in (0, 8))
    whole, half = (jax.tree.map(jnp.subtract, moved, params) for moved in (whole, half))
    assert abs(whole["w"][0]) > 0.05
    close(half, jax.tree.map(lambda x: x / 2, whole))
    equal(stale, fresh)


def test_applying_by_hand():
    """SGD at 0.1: 1 - 0.5 * 0.1 * 2 = 0.9; two of three stacked steps: 0.9 - 1 * 0.1 * 4 = 0.5."""
    sgd, params, staleness = optax.sgd(0.1), np.array([1.0], np.float32), jnp.array([8, 0, -1])
    one = Update(jnp.array([2.0]), jnp.float32(0.5), jnp.int32(1), staleness)
    two = Update(jnp.array([[2.0], [4.0], [9.0]]), jnp.array([0.5, 1.0, 0.0]), jnp.int32(2), staleness)
    close(apply_update(sgd, one, params, sgd.init(params))[0], [0.9])
    close(apply_update(sgd, two, params, sgd.init(params))[0], [0.5])


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_scale_by_staleness_in_the_optimizer(run):
    """Where the aggregator does not weigh, the optimizer may: each gradient by its own staleness, a group by the mean.

    Staleness 8 and 1 at smoothness 3 weigh 1/2 and 1; gradients 2 and 4 at a rate of 1/2.
    """
    optimizer = optax.chain(optax.sgd(0.5), scale_by_staleness(3.0))
    for combine, expected in (("mean", 10.0 - 0.5 * 3.0 * 0.75), ("sequential", 10.0 - 0.5 * (2.0 * 0.5 + 4.0 * 1.0))):
        aggregator = staleness_aware(2, decay=1.0, smoothness=math.inf, combine=combine)
        state = aggregator.init(jnp.zeros(1))
        for number, version in ((2.0, 0), (4.0, 7)):
            state = aggregator.push(state, jnp.array([number]), version)
        update, _ = aggregator.pop(state, 8, 0)
        got, _ = run(functools.partial(apply_update, optimizer))(
            update, jnp.array([10.0]), optimizer.init(jnp.zeros(1))
        )
        np.testing.assert_allclose(got, [expected], rtol=1e-6)
    own, _ = apply_update(optimizer, update, jnp.array([10.0]), optimizer.init(jnp.zeros(1)), staleness=jnp.full(4, 8))
    np.testing.assert_allclose(own, [10.0 - 0.5 * 6.0 * 0.5], rtol=1e-6)  # the caller's own


def test_delay_compensation_in_the_optimizer():
    """One gradient at a time, `params_then` its own: g + g^2 (now - then) / 2, at a rate of 1/2."""
    optimizer, now = optax.chain(add_delay_compensation(0.5), optax.sgd(0.5)), jnp.array([1.5])
    mean = Update(jnp.array([2.0]), jnp.float32(1.0), jnp.int32(1), jnp.array([1], jnp.int32))
    got, _ = apply_update(optimizer, mean, now, optimizer.init(now), params_then=jnp.array([1.0]))
    np.testing.assert_allclose(got, [1.5 - 0.5 * (2.0 + 0.5 * 4.0 * 0.5)], rtol=1e-6)
    each = Update(jnp.array([[2.0], [1.0], [0.0]]), jnp.array([1.0, 1.0, 0.0]), jnp.int32(2), jnp.array([1, 2, -1]))
    got, _ = apply_update(optimizer, each, now, optimizer.init(now), params_then=jnp.array([[1.0], [0.5], [9.0]]))
    # first as above, to 0; then g = 1 at 0, computed at 1/2: 1 - 1/2 * 1/2
    np.testing.assert_allclose(got, [0.0 - 0.5 * 0.75], rtol=1e-6)
    with pytest.raises(ValueError, match=r"params_then has shape \(1,\): expected \[3, \.\.\.\], one row per gradient"):
        apply_update(optimizer, each, now, optimizer.init(now), params_then=now)


def test_an_argument_that_is_no_array():
    """Optax's line searches are given functions; then the update is not compiled, and the same."""

    def step(updates, state, params=None, *, value_fn, **extra):
        return jax.tree.map(lambda g: -value_fn(params) * g, updates), state

    optimizer = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), step)
    mean = Update(jnp.array([2.0]), jnp.float32(0.5), jnp.int32(1), jnp.array([1], jnp.int32))
    got, _ = apply_update(optimizer, mean, jnp.array([3.0]), optax.EmptyState(), value_fn=lambda p: p[0])
    np.testing.assert_array_equal(got, [3.0 - 0.5 * 3.0 * 2.0])


@pytest.mark.usefixtures("unchecked")
def test_a_bare_gradient_is_refused():
    optimizer, params = optax.sgd(0.5), {"w": jnp.ones(2)}
    with pytest.raises(TypeError, match="update is a dict: expected the Update that an aggregator's pop returns first"):
        apply_update(optimizer, params, params, optimizer.init(params))


def test_transformations_equal_as_tuples_are_told_apart():
    """Optax's two kinds are tuples of two functions: one passes extra arguments on, the other takes none."""
    seen = []

    def step(updates, state, params=None, **extra):
        seen.append(sorted(extra))
        return updates, state

    mean = Update(jnp.array([2.0]), jnp.float32(0.5), jnp.int32(1), jnp.array([1], jnp.int32))
    for kind in (optax.GradientTransformation, optax.GradientTransformationExtraArgs):
        apply_update(kind(optax.identity().init, step), mean, jnp.zeros(1), optax.EmptyState())
    assert seen == [[], ["staleness"]]


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("combine", ["mean", "sequential"])
def test_dropped_gradients_leave_no_trace(combine, run):
    """A group of none, however many were dropped before it: no parameter, mean square, moment or count changes."""
    optimizer = gap_aware(optax.chain(add_delay_compensation(2.0, decay=0.95), optax.adam(0.1)))
    each = combine == "sequential"
    rows = jax.tree.map(lambda x: jnp.ones((3, *x.shape)) if each else jnp.ones(x.shape), LIKE)
    scale, ages = (jnp.ones(3) if each else jnp.float32(1.0)), jnp.array([1, -1, -1])
    apply = run(functools.partial(apply_update, optimizer))
    update = Update(rows, scale, jnp.int32(1), ages, jnp.int32(2))
    before = apply(update, PARAMS, optimizer.init(PARAMS), params_then=rows)
    assert before[1].steps == 1
    none = update._replace(count=jnp.int32(0), staleness=jnp.full(3, -1), dropped=jnp.int32(5))
    equal(apply(none, *before, params_then=rows), before)


# ---- steps scaled by effective samples ------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("base", "fraction", "factor"),
    [
        (1.0, 0.25, 0.5),
        (1.0, 1.0, 1.0),
        (1.0, 0.0, 0.0),
        (0.5, 0.125, 0.5),
        (0.5, 0.5, 1.0),
        (0.5, 0.9, 1.0),  # more than there are without staleness: no longer step
        (0.55, 0.2, math.sqrt(0.2 / 0.55)),
    ],
)
def test_effective_samples_by_hand(base, fraction, factor, run):
    """sqrt(min(fraction / base, 1)), on every leaf."""
    transform = scale_by_effective_samples(base)
    update = run(lambda g, f: transform.update(g, transform.init(g), effective_sample_fraction=f)[0])
    close(update(GRADIENTS[1], fraction), jax.tree.map(lambda g: factor * g, GRADIENTS[1]), 1e-6)
    if factor == 1.0:
        equal(update(GRADIENTS[1], fraction), GRADIENTS[1])


def test_effective_samples_scale_the_learning_rate():
    """After Adam, as its authors have it: a rate of `eta * sqrt(fraction)` for one step; moments never see it."""
    fractions, rate = [0.25, 1.0, 0.04, 0.5], 0.1
    chain = optax.chain(optax.scale_by_adam(), scale_by_effective_samples(), optax.scale(-rate))
    step = jax.jit(lambda g, s, p, f: chain.update(g, s, p, effective_sample_fraction=f))
    params, state, moments = PARAMS, chain.init(PARAMS), optax.scale_by_adam()
    want, memory = PARAMS, moments.init(PARAMS)
    for tree, fraction in zip(GRADIENTS, fractions, strict=True):
        updates, state = step(tree, state, params, fraction)
        params = optax.apply_updates(params, updates)
        direction, memory = moments.update(tree, memory)
        want = jax.tree.map(lambda p, u, f=fraction: p - rate * math.sqrt(f) * u, want, direction)
    close(params, want)
    equal(state[0], memory)


def test_effective_samples_of_a_group():
    """`apply_update` passes them on: one number for a mean, and one for each gradient of a sequential group.

    Weights 1/2 and 1 by staleness, 1/2 and 1/4 by samples; gradients 2 and 4 at a rate of 1/2.
    """
    optimizer, params = optax.chain(optax.sgd(0.5), scale_by_effective_samples()), jnp.array([10.0])
    mean = Update(jnp.array([2.0]), jnp.float32(0.5), jnp.int32(1), jnp.array([8]))
    got, _ = apply_update(optimizer, mean, params, optimizer.init(params), effective_sample_fraction=0.25)
    np.testing.assert_allclose(got, [10.0 - 0.5 * 2.0 * 0.5 * 0.5], rtol=1e-6)
    each = Update(jnp.array([[2.0], [4.0]]), jnp.array([0.5, 1.0]), jnp.int32(2), jnp.array([8, 1]))
    fractions = jnp.array([0.25, 0.0625])
    got, _ = apply_update(optimizer, each, params, optimizer.init(params), effective_sample_fraction=fractions)
    np.testing.assert_allclose(got, [10.0 - 0.5 * (2.0 * 0.5 * 0.5 + 4.0 * 0.25)], rtol=1e-6)
    with pytest.raises(ValueError, match=r"effective_sample_fraction has shape \(\): expected \[2, \.\.\.\]"):
        apply_update(optimizer, each, params, optimizer.init(params), effective_sample_fraction=jnp.float32(0.5))


def test_effective_samples_keep_types():
    """Steps of narrow types stay so, and of float64 have its digits."""
    with jax.enable_x64(True):
        steps = {name: jnp.ones(2, name) for name in ("bfloat16", "float16", "float32", "float64")}
        got, _ = scale_by_effective_samples().update(steps, optax.EmptyState(), effective_sample_fraction=0.1)
        assert {name: str(x.dtype) for name, x in got.items()} == {name: name for name in steps}
        np.testing.assert_allclose(got["float64"], math.sqrt(0.1), rtol=1e-15)
        np.testing.assert_allclose(np.asarray(got["bfloat16"], float), math.sqrt(0.1), rtol=2**-8)


@pytest.mark.usefixtures("unchecked")
def test_effective_samples_that_are_missing():
    """The base is checked when the transformation is made; the fraction is needed at a step, and others are not."""
    for base, message in ((0.0, "not positive"), (-1.0, "not positive"), (1.5, r"outside \[0, 1\]"), (math.nan, "not")):
        with pytest.raises(ValueError, match=rf"^base={base} (is|lies) {message}"):
            scale_by_effective_samples(base)
    with pytest.raises(TypeError, match=r"^base='1' is not a number"):
        scale_by_effective_samples("1")
    transform = scale_by_effective_samples()
    with pytest.raises(TypeError, match="effective_sample_fraction"):
        transform.update(GRADIENTS[0], transform.init(PARAMS), PARAMS, staleness=1)
    got, state = transform.update(GRADIENTS[0], transform.init(PARAMS), staleness=1, effective_sample_fraction=1.0)
    equal(got, GRADIENTS[0])
    assert state == optax.EmptyState()
