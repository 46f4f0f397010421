"""Delay compensation, gap awareness and limited alignment: by hand, against loops, and in front of an optimizer."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import (
    add_delay_compensation,
    delay_compensate,
    gap_aware,
    limit_alignment,
    reduce_by_gap,
    scale_by_staleness,
)
from stellaris.diagnostics import tree_dot
from tests.aggregation.aggregators import close

THEN = {"w": jnp.array([1.0, 2.0, -1.0]), "b": (jnp.float32(4.0),)}
NOW = {"w": jnp.array([2.0, 2.0, -4.0]), "b": (jnp.float32(3.5),)}
GRADIENT = {"w": jnp.array([0.5, 7.0, -2.0]), "b": (jnp.float32(-2.0),)}


def same_bits(got, want):
    """As `equal`, but -0.0 is not 0.0."""
    bits = lambda x: np.asarray(x).view(np.int32)  # noqa: E731
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(bits(x), bits(y)), got, want)


@pytest.mark.parametrize("decay", [None, 0.5])
@pytest.mark.parametrize(("strength", "now"), [(0.0, NOW), (0.7, THEN)], ids=["strength 0", "no delay"])
def test_nothing_to_compensate(strength, now, decay):
    """The gradient comes back bit for bit; the adaptive form remembers its square all the same."""
    transform = add_delay_compensation(strength, decay=decay)
    gradient = jax.tree.map(lambda x: x / np.float32(3), GRADIENT)
    got, state = transform.update(gradient, transform.init(now), now, params_then=THEN)
    same_bits(got, gradient)
    if decay is not None:
        close(state.mean_square, jax.tree.map(lambda g: g * g / 2, gradient))


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("strength", "w", "b"),
    [
        (1.0, [0.5 + 0.25, 7.0, -2.0 - 12.0], -2.0 - 2.0),  # g + g * g * (1, 0, -3; -0.5)
        (0.5, [0.625, 7.0, -8.0], -3.0),
        (2, [1.0, 7.0, -26.0], -6.0),
        (0, [0.5, 7.0, -2.0], -2.0),
    ],
)
def test_by_hand(strength, w, b, run):
    """`g + strength * g * g * (now - then)`, leaf by leaf: the square is of one sign, the distance has either."""
    got = run(functools.partial(delay_compensate, strength=strength))(GRADIENT, NOW, THEN)
    close(got, {"w": np.array(w, np.float32), "b": (np.float32(b),)})
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, GRADIENT)


@pytest.mark.parametrize(("dtype", "large"), [(jnp.float16, 300.0), (jnp.float32, 1e20), (jnp.bfloat16, 1e20)])
@pytest.mark.parametrize(("strength", "now"), [(0.0, 2.0), (0.5, 1.0)], ids=["strength 0", "no delay"])
def test_nothing_to_compensate_of_a_large_gradient(strength, now, dtype, large):
    """The same where the gradient's square is beyond its type."""
    gradient, then = jnp.array([large], dtype), jnp.array([1.0], dtype)
    np.testing.assert_array_equal(delay_compensate(gradient, jnp.array([now], dtype), then, strength), gradient)


@pytest.mark.parametrize("then", [-3.0, 0.1, 2.0])
def test_exact_where_the_square_is_the_hessian(then):
    """exp(-x) has g * g = f'' * f: at f = 1, the first-order term of the gradient, error of the second order."""

    def loss(x):  # gradient exp(x - then), and at x = then both its square and the second derivative are 1
        return jnp.exp(x - then)

    with jax.enable_x64(True):
        stale = jax.grad(loss)(jnp.float64(then))
        for distance in (1e-2, 1e-3, -1e-3):
            fresh = jax.grad(loss)(then + distance)
            guess = delay_compensate(stale, jnp.float64(then + distance), jnp.float64(then), 1.0)
            assert abs(guess - fresh) < 0.51 * distance**2 < abs(stale - fresh) / 50


# ---- optimizers in float64, as their papers have them --------------------------------------------------------------


class Momentum:
    """Descent with a momentum of 0.9, of one parameter."""

    library = optax.sgd(0.1, momentum=0.9)

    def __init__(self):
        self.velocity = 0.0

    def step(self, g):
        self.velocity = 0.9 * self.velocity + g
        return -0.1 * self.velocity


class Adam:
    """Kingma and Ba's, of one parameter."""

    library = optax.adam(0.1)

    def __init__(self):
        self.first = self.second = 0.0
        self.steps = 0

    def step(self, g):
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * g
        self.second = 0.999 * self.second + 0.001 * g * g
        first, second = self.first / (1 - 0.9**self.steps), self.second / (1 - 0.999**self.steps)
        return -0.1 * first / (math.sqrt(second) + 1e-8)


KINDS = [Momentum, Adam]
STEPS = 8


def course(seed=0, size=5):
    """Gradients, how many versions old each is, and where the parameters begin; two gradients are fresh."""
    random = np.random.default_rng(seed)
    ages = np.minimum(random.integers(0, 4, STEPS), np.arange(STEPS))
    return random.normal(size=(STEPS, size)), ages, random.normal(size=size)


def walked(transform, dtype, seed=0):
    """The parameters after each step of the library's, all steps under one jit, from the parameters of then."""
    gradients, ages, start = course(seed)

    @jax.jit
    def walk(gradients, start):
        path, state = [start], transform.init(start)
        for i, age in enumerate(ages):
            step, state = transform.update(gradients[i], state, path[i], params_then=path[i - age])
            path.append(optax.apply_updates(path[i], step))
        return jnp.stack(path), state

    return walk(jnp.asarray(gradients, dtype), jnp.asarray(start, dtype))


def by_loop(one_parameter, seed=0):
    """The same of a function `(g, now, then) -> step`, made anew for each parameter, in Python's floats."""
    gradients, ages, start = course(seed)
    paths = []
    for j, first in enumerate(start.tolist()):
        step, path = one_parameter(), [first]
        for i, age in enumerate(ages.tolist()):
            path.append(path[i] + step(float(gradients[i, j]), path[i], path[i - age]))
        paths.append(path)
    return np.array(paths).T


# ---- the adaptive form ----------------------------------------------------------------------------------------------


def test_the_adaptive_form_by_hand():
    """The strength is divided by the root of the mean square, to which 1e-7 is added first."""
    square = {"w": jnp.array([4.0, 1.0, 0.25]), "b": (jnp.float32(0.0),)}
    got = jax.jit(functools.partial(delay_compensate, strength=0.5))(GRADIENT, NOW, THEN, mean_square=square)
    want = [0.5 + 0.25 * 0.25, 7.0, -2.0 - 12.0], -2.0 - 0.5 / math.sqrt(1e-7) * 2.0
    close(got, {"w": np.array(want[0]), "b": (np.array(want[1]),)})


def compensation(kind, strength, decay):
    """DC-ASGD, or with a decay DC-ASGD-a: the optimizer gets the compensated gradient.

    The mean square takes in the gradient at hand before it is used, and is not corrected for its start.
    """
    mean, optimizer = 0.0, kind()

    def step(g, now, then):
        nonlocal mean
        if decay is None:
            return optimizer.step(g + strength * g * g * (now - then))
        mean = decay * mean + (1 - decay) * g * g
        return optimizer.step(g + strength / math.sqrt(mean + 1e-7) * g * g * (now - then))

    return step


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("strength", "decay"), [(2.0, 0.95), (0.3, 0.0), (0.3, None)])
def test_both_forms_in_front_of_an_optimizer(kind, strength, decay):
    """Eight steps of stale gradients are those of a loop in Python's floats."""
    want = by_loop(functools.partial(compensation, kind, strength, decay))
    chain = optax.chain(add_delay_compensation(strength, decay=decay), kind.library)
    with jax.enable_x64(True):
        got, state = walked(chain, "float64")
        np.testing.assert_allclose(got, want, rtol=1e-12)
    if decay is not None:
        gradients, _, _ = course()
        squares = sum((1 - decay) * decay ** (STEPS - 1 - i) * gradients[i] ** 2 for i in range(STEPS))
        np.testing.assert_allclose(state[0].mean_square, squares, rtol=1e-12)


def test_a_mean_square_of_one_is_the_other_form():
    """Where the root is 1, the strength is what it says."""
    with jax.enable_x64(True):
        trees = [jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tree) for tree in (GRADIENT, NOW, THEN)]
        ones = jax.tree.map(lambda x: jnp.full_like(x, 1 - 1e-7), trees[0])
        close(delay_compensate(*trees, 0.3, mean_square=ones), delay_compensate(*trees, 0.3), 1e-14)


# ---- gap awareness ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_gap_by_hand(run):
    """|now - then| is (1, 0, 3; 0.5), and a step (0.5, 1, 3; 0): divided by 3, 1, 2, and not at all."""
    size = {"w": jnp.array([0.5, 1.0, 3.0]), "b": (jnp.float32(0.0),)}
    got = run(reduce_by_gap)(GRADIENT, NOW, THEN, size)
    close(got, {"w": np.array([0.5 / 3, 7.0, -1.0]), "b": (np.array(-2.0),)})


def test_a_gap_only_shrinks():
    """Whatever has moved, either way: never the sign, never more than there was; bit for bit where nothing moved."""
    random = np.random.default_rng(0)
    g, now, then, size = random.normal(size=(4, 1000)).astype(np.float32) * 10.0 ** random.integers(-9, 9, (4, 1000))
    g, now, then, size = (np.asarray(x, np.float32) for x in (g, now, then, abs(size)))
    then[:200], size[200:400] = now[:200], 0.0
    reduce = jax.jit(reduce_by_gap)
    got = np.asarray(reduce(g, now, then, size))
    same_bits(got[:400], g[:400])
    assert np.all(np.abs(got) <= np.abs(g))
    assert np.all(np.sign(got[400:]) * np.sign(g[400:]) >= 0)
    np.testing.assert_array_equal(reduce(g, then, now, size), got)
    rest = slice(400, None)
    gap = np.abs(now - then)[rest].astype(np.float64) / size[rest]
    np.testing.assert_allclose(got[rest], g[rest].astype(np.float64) / (1 + gap), rtol=1e-5, atol=1e-37)


def gap_awareness(kind, decay):
    """The gradient over `1 + gap / size`; the size is the root of the mean square of the steps before, corrected.

    The step that is taken is counted after it, and not before.
    """
    mean, steps, optimizer = 0.0, 0, kind()

    def step(g, now, then):
        nonlocal mean, steps
        size = math.sqrt(mean / (1 - decay**steps)) if steps else 0.0
        taken = optimizer.step(g / (1 + abs(now - then) / size) if size else g)
        mean, steps = decay * mean + (1 - decay) * taken * taken, steps + 1
        return taken

    return step


def unaware(kind):
    """The optimizer alone."""
    optimizer = kind()
    return lambda g, now, then: optimizer.step(g)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decay", [0.999, 0.5, 0.0])
def test_gap_awareness_is_a_loop(kind, decay):
    """Eight steps of stale gradients are those of Python's floats, for any optimizer, which sees what is shrunk."""
    want = by_loop(functools.partial(gap_awareness, kind, decay))
    with jax.enable_x64(True):
        got, state = walked(gap_aware(kind.library, decay=decay), "float64")
        np.testing.assert_allclose(got, want, rtol=1e-12)
    assert state.steps == STEPS
    assert np.max(np.abs(want - by_loop(functools.partial(unaware, kind)))) > 0.01  # it matters


def test_nothing_has_moved():
    """Without a gap it is the optimizer, bit for bit; so it is before there was a step, whatever the gap."""
    adam = optax.adam(0.1)
    aware, plain = gap_aware(adam), optax.with_extra_args_support(adam)
    update, alone = jax.jit(aware.update), jax.jit(plain.update)
    state, inner, params = aware.init(NOW), adam.init(NOW), NOW
    for i in range(3):
        then = THEN if i == 0 else params
        got, state = update(GRADIENT, state, params, params_then=then)
        want, inner = alone(GRADIENT, inner, params)
        same_bits((got, state.inner), (want, inner))
        params = optax.apply_updates(params, got)
    moved, _ = update(GRADIENT, state, params, params_then=THEN)
    assert np.any(moved["w"] != alone(GRADIENT, inner, params)[0]["w"])


def test_gap_awareness_passes_on_what_the_optimizer_needs():
    """A staleness, and the parameters of then: SGD at 0.5 on `g + g^2 (now - then) / 2`, halved at staleness 8."""
    inner = optax.chain(add_delay_compensation(0.5), optax.sgd(0.5), scale_by_staleness(3.0))
    aware, now, then = gap_aware(inner), jnp.array([1.5]), jnp.array([1.0])
    got, _ = aware.update(jnp.array([2.0]), aware.init(now), now, params_then=then, staleness=jnp.int32(8))
    close(got, np.array([-0.5 * (2.0 + 0.5 * 4.0 * 0.5) * 0.5]))


# ---- both -----------------------------------------------------------------------------------------------------------


def test_settings_are_swept_and_nothing_is_compiled_twice():
    """vmap over strength and decay is each alone, by one trace, whatever the numbers."""
    traces = []

    def after_two_steps(strength, decay, gradient):
        traces.append(1)
        chain = gap_aware(optax.chain(add_delay_compensation(strength, decay=decay), optax.sgd(0.1)), decay=decay)
        state, params = chain.init(NOW), NOW
        for _ in range(2):
            step, state = chain.update(gradient, state, params, params_then=THEN)
            params = optax.apply_updates(params, step)
        return params

    strength, decay = np.array([0.0, 0.5, 2.0], np.float32), np.array([0.0, 0.95, 0.999], np.float32)
    sweep, alone = jax.jit(jax.vmap(after_two_steps, in_axes=(0, 0, None))), jax.jit(after_two_steps)
    for scale in (1.0, -2.0):
        gradient = jax.tree.map(lambda g, scale=scale: np.float32(scale) * g, GRADIENT)
        swept = sweep(strength, decay, gradient)
        for i in range(3):
            got = jax.tree.map(lambda x, i=i: x[i], swept)
            close(got, alone(strength[i], decay[i], gradient), 1e-4)
    assert len(traces) == 2
    assert len(np.unique(swept["w"][:, 0])) == 3


TRANSFORMS = {
    "plain": lambda: add_delay_compensation(2.0),
    "adaptive": lambda: add_delay_compensation(2.0, decay=0.999),
    "gap-aware": lambda: gap_aware(optax.sgd(1.0)),
}


@pytest.mark.parametrize("name", ["adaptive", "gap-aware"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64])
def test_steps_keep_the_types_of_gradients(name, dtype):
    """Of every type; means of squares are in float32 at least."""
    with jax.enable_x64(True):
        transform, one = TRANSFORMS[name](), jnp.ones(2, dtype)
        update, state = jax.jit(transform.update), transform.init(one)
        types = lambda tree: jax.tree.map(lambda x: (x.dtype, x.shape), tree)  # noqa: E731
        step, after = update(one, state, 2 * one, params_then=one)
        assert types(after) == types(state)
        assert step.dtype == dtype
        assert state.mean_square.dtype == (jnp.float64 if dtype == jnp.float64 else jnp.float32)


STRICT = {
    "delay_compensate": lambda g, p: delay_compensate(g, p, 2 * p, jnp.float32(0.5)),
    "add_delay_compensation": lambda g, p: stepped(add_delay_compensation(jnp.float32(0.5)), g, p),
    "adaptive": lambda g, p: stepped(add_delay_compensation(2.0, decay=jnp.float32(0.9)), g, p),
    "reduce_by_gap": lambda g, p: reduce_by_gap(g, p, 2 * p, jnp.full(2, 0.1, jnp.float32)),
    "gap_aware": lambda g, p: stepped(gap_aware(optax.sgd(0.1), decay=jnp.float32(0.9)), g, p),
    "gap_aware, Adam": lambda g, p: stepped(gap_aware(optax.adam(0.1)), g, p),
    "limit_alignment": lambda g, p: limit_alignment(g, 2 * p, limit=jnp.float32(0.5)),
}


def stepped(transform, g, p):
    """The second of two steps."""
    _, state = transform.update(g, transform.init(p), p, params_then=2 * p)
    return transform.update(g, state, p, params_then=2 * p)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", STRICT)
@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float16", "float32")])
def test_strict_promotion(name, dtypes):
    """The gradient's type, whatever the parameters' and settings'; as under standard promotion, to the bit."""
    g, p = (jnp.asarray([0.5, -2.0], dtype) for dtype in dtypes)
    expected = STRICT[name](g, p)
    with jax.numpy_dtype_promotion("strict"):
        got = STRICT[name](g, p)
    assert got.dtype == expected.dtype
    assert got.dtype == g.dtype or name == "gap_aware, Adam"  # whose moments are the parameters'
    np.testing.assert_array_equal(got.astype(jnp.float32), expected.astype(jnp.float32))


@pytest.mark.parametrize("name", ["adaptive", "gap-aware"])
def test_mean_squares_of_narrow_types_do_not_stand_still(name):
    """2000 steps of 1, then 2000 of 0, in bfloat16: in it 0.999 is 1, and a mean of 1/2 would neither rise nor fall."""
    transform, x = TRANSFORMS[name](), jnp.zeros(1, jnp.bfloat16)

    @jax.jit
    def steps(gradient, state):
        one = lambda state, _: (transform.update(gradient, state, x, params_then=x)[1], None)  # noqa: E731
        return jax.lax.scan(one, state, None, length=2000)[0]

    state = steps(jnp.ones(1, jnp.bfloat16), transform.init(x))
    np.testing.assert_allclose(state.mean_square, 1 - 0.999**2000, rtol=1e-3)
    state = steps(jnp.zeros(1, jnp.bfloat16), state)
    np.testing.assert_allclose(state.mean_square, (1 - 0.999**2000) * 0.999**2000, rtol=1e-3)


# ---- limited alignment -----------------------------------------------------------------------------------------------


def test_a_sum_of_products_by_hand():
    """Over all leaves, in float32 at least: 300^2 is beyond float16, and nothing is lost of what bfloat16 holds."""
    first = {"w": jnp.array([1.0, -2.0]), "b": (jnp.array([[300.0]], jnp.float16),)}
    second = {"w": np.array([3.0, 0.5], np.float32), "b": (jnp.array([[300.0]], jnp.float16),)}
    got = tree_dot(first, second)
    assert (got.dtype, got.shape, float(got)) == (jnp.float32, (), 2.0 + 90_000.0)
    many = jnp.ones(1000, jnp.bfloat16)
    assert float(tree_dot(many, many)) == 1000.0
    assert float(tree_dot({}, {})) == 0.0
    with jax.enable_x64(True):
        assert tree_dot(jnp.ones(1), jnp.array([1 + 2.0**-40])) == 1 + 2.0**-40


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("gradient", "previous", "limit", "want"),
    [
        ([4.0, 3.0], [2.0, 0.0], 0.6, [2.25, 3.0]),  # 3 * 0.6 / 0.8
        ([4.0, 3.0], [0.1, 0.0], 0.0, [0.0, 3.0]),
        ([2.0, 3.0], [7.0, 0.0], 0.6, [2.0, 3.0]),  # a cosine of 0.55
        ([-4.0, 3.0], [7.0, 0.0], 0.0, [-4.0, 3.0]),  # it points the other way
        ([4.0, 3.0], [0.0, 0.0], 0.0, [4.0, 3.0]),  # there was none before
        ([0.0, 0.0], [1.0, 0.0], 0.0, [0.0, 0.0]),
        ([3.0, 3.0], [1.0, 1.0], 0.0, [0.0, 0.0]),  # nothing is orthogonal
    ],
)
def test_limited_alignment_by_hand(gradient, previous, limit, want, run):
    """The part along the gradient before shrinks to |o| limit / sqrt(1 - limit^2)."""
    got = run(functools.partial(limit_alignment, limit=limit))(jnp.array(gradient), jnp.array(previous))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@functools.cache
def limited():
    """`limit_alignment` of two leaves, for many gradients and limits at once, under one jit."""

    def one(g, p, limit):
        halves = lambda x: {"a": x[:2], "b": x[2:]}  # noqa: E731
        got = limit_alignment(halves(g), halves(p), limit=limit)
        return jnp.concatenate([got["a"], got["b"]])

    return jax.jit(jax.vmap(one))


def pairs(n=2000, size=5):
    """Gradients of any angle between them, hardly one from parallel; limits, of which some are 0."""
    random = np.random.default_rng(0)
    g, p = random.normal(size=(2, n, size))
    p += random.uniform(0, 5, size=(n, 1)) * g * random.choice([1, 1, -1], size=(n, 1))
    return *(x.astype(np.float32) for x in (g, p)), random.choice([0.0, 0.1, 0.5, 0.9], size=n).astype(np.float32)


def test_limited_alignment_against_a_loop():
    """Two thousand pairs as in Python's floats: cosine, parts, and what is left alone."""
    g, p, limit = pairs()
    got = np.asarray(limited()(g, p, limit), np.float64)
    changed = 0
    for x, y, most, z in zip(g.tolist(), p.tolist(), limit.tolist(), got, strict=True):
        xy, xx, yy = (math.fsum(a * b for a, b in zip(u, v, strict=True)) for u, v in ((x, y), (x, x), (y, y)))
        cosine = xy / math.sqrt(xx * yy)
        if cosine <= most - 1e-5:
            same_bits(np.float32(z), np.float32(x))
        elif cosine > most + 1e-5:
            orthogonal = np.array([a - xy / yy * b for a, b in zip(x, y, strict=True)])
            size = math.sqrt(math.fsum(orthogonal**2))
            along = np.array(y) / math.sqrt(yy) * size * most / math.sqrt(1 - most * most)
            np.testing.assert_allclose(z, orthogonal + along, atol=2e-6 * math.sqrt(xx))
            assert z @ y / math.sqrt(z @ z * yy) <= most + 1e-5 * math.sqrt(xx / (z @ z))
            changed += 1
    assert 500 < changed < 1900


def test_limited_alignment_at_any_scale():
    """By powers of two of either gradient, to where squares overflow and underflow: the same, scaled, bit for bit."""
    g, p, limit = pairs(500)
    want = np.asarray(limited()(g, p, limit))
    for scale, before in ((2.0**70, 1.0), (1.0, 2.0**70), (2.0**-70, 2.0**-80), (2.0**-60, 2.0**90)):
        got = np.asarray(limited()(g * np.float32(scale), p * np.float32(before), limit))
        np.testing.assert_array_equal(got, want * np.float32(scale))


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("function", "others"),
    [
        (
            functools.partial(delay_compensate, strength=0.5),
            {"params_now": NOW, "params_then": THEN, "mean_square": GRADIENT},
        ),
        (reduce_by_gap, {"params_now": NOW, "params_then": THEN, "step_size": GRADIENT}),
        (functools.partial(limit_alignment, limit=0.5), {"previous": THEN}),
    ],
    ids=["delay_compensate", "reduce_by_gap", "limit_alignment"],
)
@pytest.mark.usefixtures("unchecked")
def test_trees_that_do_not_fit(function, others, run):
    """Another structure or shape names the tree, the leaf, what it is and what is expected; so do integers."""
    good = {"gradient": GRADIENT} | others
    for name in others:
        for bad, message in (
            ({"w": NOW["w"]}, rf"{name} has structure .*: expected gradient's .*'b'"),
            ({"w": NOW["w"], "b": [NOW["b"][0]]}, f"{name} has structure .*: expected gradient's"),
            (
                NOW | {"w": np.ones(2, np.float32)},
                rf"{name}\['w'\] has shape \(2,\): expected gradient\['w'\]'s \(3,\)",
            ),
            (NOW | {"b": (np.ones(1),)}, rf"{name}\['b'\]\[0\] has shape \(1,\): expected gradient\['b'\]\[0\]'s \(\)"),
        ):
            with pytest.raises(ValueError, match=message):
                run(function)(**good | {name: bad})
    for dtype in ("int32", "bool"):
        with pytest.raises(TypeError, match=rf"gradient\['w'\] has dtype {dtype}: expected floating point"):
            run(function)(**good | {"gradient": GRADIENT | {"w": np.ones(3, dtype)}})


@pytest.mark.usefixtures("unchecked")
def test_settings_out_of_their_range():
    """Found when the transformation is made, not when it is first used; the error names the setting."""
    compensate = functools.partial(delay_compensate, GRADIENT, NOW, THEN)
    limit = lambda limit: limit_alignment(GRADIENT, THEN, limit=limit)  # noqa: E731
    decays = (lambda x: add_delay_compensation(0.5, decay=x), lambda x: gap_aware(optax.sgd(0.1), decay=x))
    outside = {x: rf"={x} lies outside \[0, 1\)" for x in (-0.1, 1.0, 2.0, math.nan)}
    for error, name, functions, messages in (
        (
            ValueError,
            "strength",
            (compensate, add_delay_compensation),
            {-0.5: r"=-0\.5 is negative", math.nan: "=nan is negative or NaN", math.inf: "=inf is not finite"},
        ),
        (ValueError, "decay", decays, outside),
        (ValueError, "limit", (limit,), outside),
        (TypeError, "decay", decays, {"0.9": r"='0\.9' is not a number"}),
        (TypeError, "limit", (limit,), {None: "=None is not a number"}),
    ):
        for function in functions:
            for value, message in messages.items():
                with pytest.raises(error, match=f"^{name}{message}"):
                    function(value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("plain", "delay compensation needs"),
        ("adaptive", "delay compensation needs"),
        ("gap-aware", "the gap is measured to"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_parameters_that_are_missing(name, reason):
    """The parameters of now and of then are needed, and have to fit; others' extra arguments are ignored."""
    transform = TRANSFORMS[name]()
    state = transform.init(NOW)
    with pytest.raises(ValueError, match=f"params is None: {reason}"):
        transform.update(GRADIENT, state, params_then=THEN)
    with pytest.raises(TypeError, match="params_then"):
        transform.update(GRADIENT, state, NOW)
    with pytest.raises(ValueError, match="params_then has structure"):
        transform.update(GRADIENT, state, NOW, params_then=THEN["w"])
    transform.update(GRADIENT, state, NOW, params_then=THEN, staleness=3)
