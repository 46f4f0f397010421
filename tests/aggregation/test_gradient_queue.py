"""The queue within every aggregator: overflow, slots, dtypes, donation, compilation, and errors at a push."""

import functools
import re
from collections import Counter
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import (
    apply_update,
    fully_asynchronous,
    scale_by_staleness,
    stale_synchronous,
    staleness_aware,
    staleness_weight,
    synchronous,
)
from stellaris.aggregation import gradient_queue
from tests.aggregation.aggregators import (
    CASES,
    KINDS,
    LEARNERS,
    LIKE,
    METHODS,
    QUICK,
    compiled,
    equal,
    filled,
    gradient,
)

# ---- the queue by itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtypes", "widest"),
    [
        (("float32", "float32"), "float32"),
        (("bfloat16", "bfloat16"), "bfloat16"),
        (("bfloat16", "float32"), "float32"),
        (("bfloat16", "float16"), "float32"),  # neither holds the other
    ],
)
def test_rows_hold_every_leaf_without_loss(dtypes, widest):
    """The narrowest type that does; each leaf comes back in its own."""
    tree = {str(i): jnp.ones(3, dtype) for i, dtype in enumerate(dtypes)}
    state = gradient_queue.push(gradient_queue.empty(tree, 2, memory=()), tree, 0)
    assert state.rows.dtype == widest
    back = state.layout.tree(state.rows[0])
    assert [str(leaf.dtype) for leaf in jax.tree.leaves(back)] == list(dtypes)
    equal(back, tree)


def test_a_ring_by_hand():
    """Capacity 3: two in, one out, two in; the last goes round into the first slot."""
    state = gradient_queue.empty(jnp.zeros(1), 3, memory=jnp.arange(2))
    for number, version in ((10.0, 0), (20.0, 1)):
        state = gradient_queue.push(state, jnp.array([number]), version)
    assert gradient_queue.queued(state).tolist() == [True, True, False]
    update, state = gradient_queue.take(state, 1, 4, staleness_weight, "mean")
    assert (update.gradient.tolist(), update.staleness.tolist()) == ([10.0], [4, -1, -1])
    for number, version in ((30.0, 2), (40.0, 3)):
        state = gradient_queue.push(state, jnp.array([number]), version)
    assert (int(state.head), int(state.count), state.version.tolist()) == (1, 3, [3, 1, 2])
    update, state = gradient_queue.take(state, 2, 4, lambda staleness: jnp.ones(3), "sequential")
    assert update.gradient.ravel().tolist() == [20.0, 30.0, 0.0]
    assert update.scale.tolist() == [1.0, 1.0, 0.0]
    assert (int(state.head), int(state.count)) == (0, 1)  # round the end, to the first slot
    assert gradient_queue.queued(state).tolist() == [True, False, False]
    update, state = gradient_queue.take(state, 99, 4, lambda staleness: jnp.full(3, 0.5), "mean")
    assert (int(update.count), update.gradient.tolist(), float(update.scale)) == (1, [40.0], 0.5)
    assert (int(state.head), int(state.count)) == (0, 0)  # an empty queue starts from the first slot again
    assert state.memory.tolist() == [0, 1]


def test_the_queue_without_some_is_what_a_group_leaves():
    """For any ring and number: `take` and `without` leave the same."""
    take = jax.jit(lambda state, n: gradient_queue.take(state, n, 9, staleness_weight, "mean")[1])
    without, push = jax.jit(gradient_queue.without), jax.jit(gradient_queue.push)
    state, random = gradient_queue.empty(jnp.zeros(2), 4, memory=jnp.arange(3)), Random(0)
    for number in range(40):
        state = push(state, jnp.full(2, number, float), number)
        n = random.choice((0, 0, 1, 2, 5))
        left = without(state, n)
        equal(left, take(state, n))
        state = left


# ---- within every aggregator ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_overflow_changes_nothing_else(name):
    """A push into a full queue is lost, and said so for good."""
    aggregator, capacity = compiled(name), CASES[name].model().capacity
    # Half-way round the ring, so that the next slot is one that is taken.
    state = aggregator.pop(filled(aggregator, [0, 0][:capacity]), 1, 0)[1]
    for number in range(capacity - int(state.count)):
        state = aggregator.push(state, gradient(number), 1, learner=0)
    lost = aggregator.push(state, gradient(99), 99, learner=1)
    assert not state.overflow
    assert lost.overflow
    equal(lost._replace(overflow=state.overflow), state)
    popped = aggregator.pop(lost, 1, 0)[1]
    assert popped.overflow
    assert aggregator.push(popped, gradient(1), 1, learner=0).overflow  # though there is room again


@pytest.mark.parametrize("name", ["measured, mean", "synchronous", "stale synchronous, lead 2"])
def test_a_restored_state_of_numpy_goes_on(name):
    """Outside of jit, as after a checkpoint: the next push is that of the state before it."""
    aggregator = CASES[name].aggregator
    state = aggregator.push(aggregator.init(LIKE), gradient(1), 0, learner=1)
    restored = jax.tree.map(np.asarray, state)
    for clock in (0, 1):
        equal(aggregator.admit(restored, 1, clock), aggregator.admit(state, 1, clock))
    state, restored = (aggregator.push(one, gradient(2), 0, learner=2) for one in (state, restored))
    equal(restored, state)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_slots_not_taken_never_leak(name):
    """A gradient that was not a number leaves nothing behind once it is popped."""
    aggregator = compiled(name)
    poison = jax.tree.map(lambda x: x + np.float32("nan"), gradient(1))
    update, state = aggregator.pop(aggregator.push(aggregator.init(LIKE), poison, 0, learner=0), 1, 0)
    assert np.isnan(update.gradient["w"]).any()
    update, _ = aggregator.pop(aggregator.push(state, gradient(5), 0, learner=1), 0, 0)
    first = jax.tree.map(lambda g: g[0], update.gradient) if CASES[name].sequential else update.gradient
    equal(first, gradient(5))
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(update.gradient))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_donated_state(name):
    """A new state may be donated to push and to pop, as the queue of a large policy has to be."""
    functions, (aggregator, _, _) = compiled(name), CASES[name]
    push, pop = (jax.jit(f, donate_argnums=0, compiler_options=QUICK) for f in (aggregator.push, aggregator.pop))
    empty, kept = aggregator.init(LIKE), aggregator.init(LIKE)
    state = push(push(empty, gradient(5), 0, learner=0), gradient(6), 2, learner=1)
    kept = functions.push(functions.push(kept, gradient(5), 0, learner=0), gradient(6), 2, learner=1)
    equal(state, kept)
    got = pop(state, 3, 0)
    equal(got, functions.pop(kept, 3, 0))
    assert empty.rows.is_deleted()
    assert state.rows.is_deleted()


def random_schedule(name, state, random, steps):
    """Pushes and pops of the case's compiled functions, from any state: the state, and all that was seen."""
    functions, seen = compiled(name), []
    for _ in range(steps):
        state = functions.push(state, gradient(random.randrange(99)), random.randrange(20), learner=random.randrange(3))
        seen.append([functions.ready(state, 20, 1), *(functions.admit(state, i, 12) for i in range(LEARNERS))])
        if random.random() < 0.4:
            update, state = functions.pop(state, 20, random.randrange(3))
            seen.append(update)
    return state, jax.device_get(seen)


def test_a_vectorised_push_copies_no_ring():
    """XLA copies the rings of vectorised runs for no leaf of a gradient: these copies would take most of the time."""
    runs, leaves, capacity = 3, 5, 32
    aggregator = staleness_aware(capacity // 2, capacity=capacity, decay=1.0, combine="sequential")
    like = [jnp.zeros(7)] * leaves

    def groups(start):
        def one(state, _):
            state = jax.lax.fori_loop(
                0,
                4,
                lambda i, state: aggregator.push(state, [(j + i) * start for j in range(leaves)], version=0),
                state,
            )
            update, state = aggregator.pop(state, 0, 0)
            return state, [leaf.sum() for leaf in update.gradient]

        return jax.lax.scan(one, aggregator.init(like), length=2)[1]

    program = jax.jit(jax.vmap(groups)).lower(jnp.zeros((runs, 7))).compile()
    ring = rf"copy\S* = f32\[{runs},{capacity},{gradient_queue.ALIGNMENT}\]"
    assert not re.findall(ring, program.as_text())


def test_pushes_alone_and_vectorised_are_one():
    """Beyond the ring as well; values, and gradients in reverse mode, of which a dropped gradient has none."""
    aggregator = staleness_aware(2, capacity=2, decay=1.0)

    def pushed(x):
        state = aggregator.init(jnp.zeros(3))
        for i in range(3):
            state = aggregator.push(state, x * (i + 1.0), version=0)
        return jnp.sum(state.rows**2), state.overflow

    x = jnp.array([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]])
    alone = [jax.value_and_grad(pushed, has_aux=True)(one) for one in x]
    (together, overflow), slopes = jax.vmap(jax.value_and_grad(pushed, has_aux=True))(x)
    np.testing.assert_allclose(together, 5.0 * x**2 @ jnp.ones(3), rtol=1e-6)  # x and 2x, not 3x
    np.testing.assert_allclose(slopes, 10.0 * x, rtol=1e-6)
    assert overflow.all()
    for i, ((value, full), slope) in enumerate(alone):
        np.testing.assert_allclose(value, together[i], rtol=1e-6)
        np.testing.assert_allclose(slope, slopes[i], rtol=1e-6)
        assert full


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_state_goes_through_a_checkpoint(name, tmp_path):
    """A queue in use, saved as NumPy's arrays and loaded, goes on as if nothing had happened, bit for bit."""
    functions = compiled(name)
    state, _ = random_schedule(name, functions.init(LIKE), Random(1), 15)
    leaves, structure = jax.tree.flatten(state)
    np.savez(tmp_path / "state.npz", *map(np.asarray, leaves))
    with np.load(tmp_path / "state.npz") as file:
        loaded = jax.tree.unflatten(structure, [jnp.asarray(file[f"arr_{i}"]) for i in range(len(leaves))])
    equal(loaded, state)
    equal(random_schedule(name, loaded, Random(2), 15), random_schedule(name, state, Random(2), 15))


MIXED = {"x": np.ones(2), "y": np.ones(3, jnp.bfloat16), "z": np.float32(1), "h": np.ones((1, 2), np.float16)}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_state_keeps_its_types(name, x64):
    """No push or pop changes a shape, a dtype or a weak type, with float64 or without: the state can be a carry."""
    with jax.enable_x64(x64):
        aggregator, (scalar, like) = CASES[name].aggregator, (jnp.int32(3), jax.tree.map(jnp.asarray, MIXED))
        types = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)  # noqa: E731
        state = jax.eval_shape(aggregator.init, like)
        pushed = jax.eval_shape(functools.partial(aggregator.push, learner=1), state, like, scalar)
        update, popped = jax.eval_shape(aggregator.pop, state, scalar, scalar)
        assert types(pushed) == types(popped) == types(state)
        assert jax.tree.map(lambda x: x.dtype, update.gradient) == jax.tree.map(lambda x: x.dtype, like)
        assert state.rows.dtype == (jnp.float64 if x64 else jnp.float32)
        assert {state.version.dtype, state.head.dtype, state.count.dtype, update.staleness.dtype} == {
            jnp.dtype("int32")
        }
        ready, admitted = (jax.eval_shape(f, state, scalar, scalar) for f in (aggregator.ready, aggregator.admit))
        assert [(x.shape, x.dtype) for x in (ready, admitted)] == [((), jnp.bool_)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_compiled_twice(name):
    """Fifty rounds with other clocks, versions and learners: one trace of each function."""
    traces, optimizer = Counter(), optax.sgd(0.1)

    def counted(function):
        def traced(*args, **kwargs):
            traces[function] += 1
            return function(*args, **kwargs)

        return jax.jit(traced, compiler_options=QUICK)

    aggregator, apply = CASES[name].aggregator, functools.partial(apply_update, optimizer)
    methods = [getattr(aggregator, name) for name in METHODS]
    init, push, ready, pop, admit, step = map(counted, (*methods, apply))
    state, params, opt_state = init(LIKE), LIKE, optimizer.init(LIKE)
    for number in range(50):
        clock = np.int32(number)
        state = push(state, gradient(number), np.int32(max(number - number % 5, 0)), learner=np.int32(number % 3))
        if admit(state, np.int32(number % 3), clock) or ready(state, clock, np.int32(number // 4)):
            update, state = pop(state, clock, np.int32(number // 4))
            params, opt_state = step(update, params, opt_state)
        ready(state, clock, np.int32(number // 4))
    assert list(traces.values()) == [1] * 6


def test_a_mean_of_bfloat16_is_accumulated_in_float32():
    """16 gradients, 2000 numbers each, weighted: within one bfloat16 rounding, 2^-8, of the mean in float64."""
    aggregator, random = staleness_aware(16, decay=0.5, smoothness=2.0), np.random.default_rng(0)
    gradients = jnp.asarray(random.uniform(1, 2, (16, 2000)), jnp.bfloat16)
    versions = random.integers(0, 20, 16)
    state, _ = jax.lax.scan(
        lambda s, x: (aggregator.push(s, *x), None), aggregator.init(gradients[0]), (gradients, versions)
    )
    update, _ = jax.jit(aggregator.pop)(state, 20, 0)
    assert update.gradient.dtype == jnp.bfloat16
    weights = np.maximum(20 - versions, 1.0) ** -0.5
    mean = np.average(np.asarray(gradients, np.float64), axis=0, weights=weights)
    assert np.max(np.abs(np.asarray(update.gradient, np.float64) - mean) / mean) < 2**-8 * 1.001
    np.testing.assert_allclose(update.scale, weights.mean(), rtol=1e-6)


@pytest.mark.parametrize("combine", ["mean", "sequential"])
def test_a_step_keeps_types(combine):
    """Parameters and optimizer states keep their dtypes: also float64's."""
    aggregator, optimizer = staleness_aware(2, decay=0.5, combine=combine), optax.adam(0.1)
    with jax.enable_x64(True):
        params = {"x": jnp.ones(2, jnp.float64), "y": jnp.ones(3, jnp.bfloat16), "z": jnp.ones((), jnp.float32)}
        before = params, optimizer.init(params)
        update, _ = jax.eval_shape(aggregator.pop, aggregator.init(params), 8, 0)
        stepped = jax.eval_shape(functools.partial(apply_update, optimizer), update, *before)
        assert jax.tree.map(lambda x: x.dtype, stepped) == jax.tree.map(lambda x: x.dtype, before)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("number", [2**32 + 7, np.int64(2**32 + 7), np.array(2**31), np.uint32(2**31)], ids=repr)
def test_versions_and_clocks_beyond_int32(name, number, unchecked):
    """An error, not the version to which JAX wraps them, wherever they are used."""
    aggregator, state = CASES[name].aggregator, filled(CASES[name].aggregator, (0,))
    with pytest.raises(ValueError, match=rf"^version={number} does not fit into int32"):
        aggregator.push(state, gradient(1), number, learner=0)
    with pytest.raises(ValueError, match=rf"^clock={number} does not fit into int32"):
        aggregator.pop(state, number, 0)
    for call, arguments, users in (
        ("ready", (number, 0), ("dropping from 3", "measured, mean", "threshold 4, sequential", "integer, measured")),
        ("admit", (0, number), ("synchronous",)),
    ):
        if name in users:
            with pytest.raises(ValueError, match=rf"^clock={number} does not fit into int32"):
                getattr(aggregator, call)(state, *arguments)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.usefixtures("unchecked")
def test_errors_at_a_push(name, wrap):
    """Gradients unlike those announced and versions that are not whole name the leaf, what it is, what is expected."""
    aggregator = CASES[name].aggregator
    state, push, good = compiled(name).init(LIKE), wrap(aggregator.push), gradient(1)
    for bad, message in (
        ({"w": good["w"]}, r"gradient has structure PyTreeDef\({'w': \*}\): expected gradient_like's .*'b': \*"),
        ([good["b"], good["w"]], "gradient has structure .*: expected gradient_like's"),
        (good | {"w": np.ones(3, np.float32)}, r"gradient\['w'\] has shape \(3,\): expected \(2,\)"),
        (good | {"b": np.ones(1, np.float32)}, r"gradient\['b'\] has shape \(1,\): expected \(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            push(state, bad, 0, learner=0)
    with pytest.raises(TypeError, match=r"version=.* has dtype float32: expected a whole number"):
        push(state, good, 0.5, learner=0)
    for leaf, dtype in ((np.ones(2, np.int32), "int32"), (np.ones(2, bool), "bool")):
        with pytest.raises(TypeError, match=rf"gradient_like\['w'\] has dtype {dtype}: expected floating point"):
            wrap(aggregator.init)(good | {"w": leaf})


@pytest.mark.parametrize("aggregator", [synchronous(2), stale_synchronous(1, learners=2)])
def test_a_learner_is_not_assumed(aggregator):
    """Two gradients without a learner's number would count as those of one learner; a single learner needs none."""
    state = aggregator.init(LIKE)
    with pytest.raises(
        TypeError, match=r"^learner=None: pass the number of the learner that computed the gradient, 0 to 1"
    ):
        aggregator.push(state, gradient(1), 0)
    for alone in (synchronous(1), stale_synchronous(1, learners=1, capacity=2)):
        assert alone.push(alone.init(LIKE), gradient(1), 0).count == 1


def test_a_version_above_the_clock_counts_as_fresh():
    """Also for a step that is scaled by staleness: -1, as of an empty slot, would scale it to nothing."""
    aggregator = fully_asynchronous(capacity=4)
    optimizer = optax.chain(optax.scale_by_adam(), scale_by_staleness(), optax.scale(-0.1))
    ends = []
    for ahead in (0, 1):
        params, state = jnp.zeros(1), aggregator.init(jnp.zeros(1))
        opt_state = optimizer.init(params)
        for clock in range(5):
            state = aggregator.push(state, jnp.ones(1), version=clock + ahead)
            update, state = aggregator.pop(state, clock, 0)
            assert update.staleness.tolist() == [0, -1, -1, -1]
            params, opt_state = apply_update(optimizer, update, params, opt_state)
        ends.append(float(params[0]))
    assert ends[0] == ends[1] == pytest.approx(-0.5, rel=1e-4)


def test_how_gradients_are_combined_is_known():
    """A misspelt way was another algorithm: one step per gradient."""
    state = gradient_queue.empty(LIKE, 2, memory=())
    with pytest.raises(ValueError, match="combine='average' is neither 'mean' nor 'sequential'"):
        gradient_queue.take(state, 1, 0, lambda staleness: jnp.ones(2), "average")
