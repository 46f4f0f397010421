"""What staleness does, by policy lag, by trajectory and between gradients: against plain loops and numbers by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import (
    IMPACT,
    PPO,
    Batch,
    LagReport,
    RatioReport,
    Trajectory,
    gradient_cosine,
    lag_report,
    ratio_report,
    sequence_log_ratio,
    version_span,
)
from tests.close import close, equal

# ---- by policy lag --------------------------------------------------------------------------------------------------


def samples(shape=(60,), seed=0):
    """Lags from -2 to 6, log-ratios, validity, clipping and truncation, NumPy."""
    random = np.random.default_rng(seed)
    lag, log_ratio = random.integers(-2, 7, size=shape), random.normal(size=shape)
    valid, clipped, truncated = (random.uniform(size=(3, *shape)).T < [0.8, 0.5, 0.3]).T
    return lag.astype(np.int32), log_ratio, valid, clipped, truncated


def report(lag, log_ratio, valid, clipped, truncated, lags=4):
    return lag_report(lag, log_ratio, valid=valid, clipped=clipped, truncated=truncated, lags=lags)


compiled = jax.jit(report, static_argnames="lags")
MEANS = (
    *("count", "kl", "clip_fraction", "truncation_fraction", "effective_sample_size"),
    *("effective_sample_fraction", "weight_mean", "weight_std", "chi_squared"),
)


def loop(lags, *columns):
    """What a report says, in plain Python: one list of samples for every lag."""
    rows = [[] for _ in range(lags)]
    for lag, log_ratio, valid, clipped, truncated in zip(*(np.ravel(x).tolist() for x in columns), strict=True):
        if valid:
            ratio = math.exp(log_ratio)
            rows[min(max(lag, 0), lags - 1)].append((ratio - 1 - log_ratio, clipped, truncated, ratio))
    said = {name: [] for name in MEANS}
    for found in rows:
        n = len(found)
        kl, clipped, truncated, weights = zip(*found, strict=True) if n else ((), (), (), ())
        squares = sum(w * w for w in weights)
        means = (sum(x) / n if n else 0.0 for x in (kl, clipped, truncated))
        effective = sum(weights) ** 2 / squares if n else 0.0
        moments = (effective / n, np.mean(weights), np.std(weights), squares / n - 1) if n else np.zeros(4)
        for name, x in zip(MEANS, (n, *means, effective, *moments), strict=True):
            said[name].append(x)
    return said


@pytest.mark.parametrize("shape", [(60,), (20, 3), (1,), (0,), ()])
@pytest.mark.parametrize("lags", [1, 4, 12])
def test_lag_report_is_a_loop(shape, lags):
    """Every sum and mean; negative lags count as 0, those beyond the last as the last, and empty ones are zero."""
    columns = samples(shape)
    with jax.enable_x64(True):
        got = compiled(*map(jnp.asarray, columns), lags=lags)
        assert all(x.shape == (lags,) and x.dtype == jnp.float64 for x in got)
        for name, expected in loop(lags, *columns).items():
            close(getattr(got, name), expected, 1e-7 if name == "weight_std" else 1e-12)


def test_lag_report_by_hand():
    """Two samples at lag 0 of ratios 1 and 3, one at 1, one of lag 5 in the last; a newer behaviour counts as 0."""
    ratio = jnp.array([1.0, 3.0, 2.0, 0.5, 1.0, 100.0])
    lag = jnp.array([0, 0, 1, 5, -3, 1])
    valid = jnp.array([True] * 5 + [False])
    got = lag_report(lag, jnp.log(ratio), valid=valid, clipped=ratio != 1, truncated=ratio > 2, lags=3)
    close(got.count, [3, 1, 1])
    close(got.weight_sum, [5, 2, 0.5])
    close(got.weight_square_sum, [11, 4, 0.25])
    close(got.clip_fraction, [1 / 3, 1, 1])
    close(got.truncation_fraction, [1 / 3, 0, 0])
    close(got.effective_sample_size, [25 / 11, 1, 1])
    close(got.kl, [(2 - math.log(3)) / 3, 1 - math.log(2), -0.5 + math.log(2)])
    alone = lag_report(lag, jnp.log(ratio), valid=valid)  # eight lags are told apart; nothing is clipped or truncated
    equal((alone.count, alone.clipped, alone.truncated), ([3, 1, 0, 0, 0, 1, 0, 0], np.zeros(8), np.zeros(8)))


def test_invalid_samples_do_not_count():
    """Whatever they hold: NaN, infinities, any lag. Nor do they to a gradient."""
    lag, log_ratio, valid, *flags = samples()
    clean = compiled(lag, jnp.asarray(log_ratio, jnp.float32), valid, *flags)
    slope = jax.jit(jax.grad(lambda x, lag: report(lag, x, valid, *flags).kl_sum.sum()))
    for garbage in (math.nan, math.inf, -math.inf, 1e30):
        spoilt = jnp.where(valid, log_ratio, garbage).astype(jnp.float32)
        bad_lag = np.where(valid, lag, 2**31 - 1).astype(np.int32)
        equal(compiled(bad_lag, spoilt, valid, *flags), clean)
        close(slope(spoilt, bad_lag), np.where(valid, np.exp(log_ratio) - 1, 0.0), 1e-5)
    nothing = compiled(lag, jnp.asarray(log_ratio, jnp.float32), np.zeros_like(valid), *flags)
    for name in MEANS:
        equal(getattr(nothing, name), np.zeros(4))


@pytest.mark.parametrize("number", [2**31, 2**32 + 7, -(2**31) - 1])
def test_versions_beyond_int32(number, unchecked):
    """An error that names the argument, not the version to which JAX wraps them: neither in arrays nor as numbers."""
    versions, x, there = np.array([0, number]), jnp.zeros(2), jnp.ones(2, bool)
    batch = Batch(jnp.ones((2, 1)), jnp.zeros(2, jnp.int32), x, x, x, x, versions, there)
    network = lambda params, observation: (observation * params, observation[:, 0])  # noqa: E731
    column, two = jnp.zeros((2, 1)), jnp.ones(2)
    trajectory = Trajectory(jnp.zeros((3, 1)), *[column] * 5, jnp.zeros((3, 1)), versions[:, None])
    for name, call in (
        ("version", lambda: version_span(versions, valid=there)),
        ("lag", lambda: lag_report(versions, x, valid=there)),
        ("segment", lambda: sequence_log_ratio(x, segment=versions)),
        ("batch.version", lambda: PPO().loss(network, two, batch)),
        ("trajectory.version", lambda: PPO().prepare(trajectory, network, two)),
        ("trajectory.version", lambda: IMPACT().prepare(trajectory, network, two)),
        ("version", lambda: PPO().loss(network, two, batch._replace(version=column[:, 0]), version=np.array(number))),
    ):
        with pytest.raises(ValueError, match=rf"^{name}={number} does not fit into int32"):
            call()


@pytest.mark.slow
def test_gradients_are_finite_in_float16():
    """Of the divergence, where numbers end at 65504: `r - 1` up to where ratios saturate. Nothing else has one."""
    x = jnp.asarray([0.5, 8.0, 11.5, 31.0, 1e4, -1e4, -math.inf], jnp.float16)
    slope = jax.grad(lambda x: sum(map(jnp.sum, lag_report(jnp.zeros(7, jnp.int32), x, valid=jnp.ones(7, bool)))))(x)
    assert slope.dtype == jnp.float16
    close(slope.astype(jnp.float32), [math.exp(0.5) - 1, math.exp(8.0) - 1, 0.0, 0.0, 0.0, -1.0, 0.0], 1e-3)


def test_lags_of_few_bits():
    """More samples than their type can count."""
    lag = jnp.asarray(np.arange(10_000) % 3, jnp.int8)
    assert lag_report(lag, jnp.zeros(10_000), valid=jnp.ones(10_000), lags=3).count.tolist() == [3334.0, 3333.0, 3333.0]


def test_more_lags_than_their_type_counts():
    report = lag_report(jnp.array([0, 3, 100], jnp.int8), jnp.zeros(3), valid=jnp.ones(3, bool), lags=200)
    assert np.flatnonzero(report.count).tolist() == [0, 3, 100]


class Tensor:
    """An array with the methods of PyTorch's tensors, which lack `astype`, and which JAX does not accept."""

    def __init__(self, x):
        self.x = np.asarray(x)

    dtype = property(lambda self: self.x.dtype)

    def to(self, dtype):
        return Tensor(self.x.astype(dtype))

    def exp(self):
        return Tensor(np.exp(self.x))

    def clip(self, min):
        return Tensor(self.x.clip(min=min))


def _apply(name):
    def method(self, other):
        return Tensor(getattr(self.x, name)(other.x if isinstance(other, Tensor) else other))

    return method


for _name in ("__add__", "__sub__", "__mul__", "__truediv__", "__pow__", "__eq__", "__gt__"):
    setattr(Tensor, _name, _apply(_name))


def test_properties_of_reports_of_tensors(unchecked):
    """They have the values of the arrays': in PyTorch the fields of a report are tensors."""
    lag, log_ratio = jnp.array([0, 1, 1], jnp.int32), jnp.log(jnp.array([0.5, 1.5, 2.0]))
    for report in (lag_report(lag, log_ratio, valid=jnp.ones(3, bool), lags=3), ratio_report(log_ratio)):
        tensors = type(report)(*map(Tensor, report))
        properties = [name for name, of in vars(type(report)).items() if isinstance(of, property)]
        for name in properties:
            close(getattr(tensors, name).x, getattr(report, name), 1e-6)
        with jax.numpy_dtype_promotion("strict"):
            assert all(jnp.isfinite(getattr(report, name)).all() for name in properties)


def test_reports_are_strict_in_float64():
    """Their own integers have the width of the lags, not of Python's."""
    lag, log_ratio = jnp.array([0, 1], jnp.int32), jnp.array([0.0, 0.5])
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        assert lag_report(lag, log_ratio, valid=jnp.ones(2, bool)).count.tolist()[:2] == [1.0, 1.0]
        assert int(ratio_report(log_ratio).count) == 2


@pytest.mark.slow
def test_reports_add_up():
    """Those of two halves give the whole's, sums and means."""
    columns = samples()
    with jax.enable_x64(True):
        halves = [compiled(*(x[half] for x in columns)) for half in (slice(30), slice(30, None))]
        both, whole = jax.tree.map(jnp.add, *halves), compiled(*columns)
        for name in (*LagReport._fields, *MEANS):
            close(getattr(both, name), getattr(whole, name), 1e-12)


# ---- of ratios ------------------------------------------------------------------------------------------------------

AT = (0.0, 0.01, 0.1, 0.25, 0.5, 0.9, 0.99, 1.0)


@pytest.mark.slow
def test_reports_of_more_samples_than_float32_counts():
    """Beyond 2**24 samples float32 has no odd numbers, but a sum goes on, and the largest ratio is a sample's."""
    n = 2**24 + 4
    lag, log_ratio = jnp.zeros(n, jnp.int32), jnp.full(n, math.log(2.0))
    found = jax.jit(lag_report, static_argnames="lags")(lag, log_ratio, valid=jnp.ones(n, bool), lags=1)
    assert (found.count.tolist(), found.weight_mean.tolist()) == ([float(n)], [2.0])
    whole = jax.jit(ratio_report, static_argnames="quantiles")(log_ratio, quantiles=(0.5, 1.0))
    close(whole.quantiles, [2.0, 2.0])
    close(whole.weight_mean, 2.0)


@pytest.mark.parametrize("shape", [(20, 3), (1,)])
def test_ratio_report_is_numpys(shape):
    """Quantiles of valid log-ratios as NumPy interpolates them, effective samples as a loop counts them."""
    asked = jax.jit(lambda x, valid: ratio_report(x, valid=valid, quantiles=AT))
    for seed in range(5):
        _, log_ratio, valid, *_ = samples(shape, seed)
        valid.flat[0] = True
        with jax.enable_x64(True):
            got, all_valid = asked(log_ratio, valid), asked(log_ratio, None)
        assert (got.log_quantiles.dtype, got.count.dtype) == (jnp.float64, jnp.int32)
        weights = [math.exp(x) for x in log_ratio[valid]]
        close(got.log_quantiles, np.quantile(log_ratio[valid], AT), 1e-12)
        close(got.quantiles, np.exp(got.log_quantiles), 1e-12)
        close(got.effective_sample_fraction, sum(weights) ** 2 / len(weights) / sum(w * w for w in weights), 1e-12)
        assert got.count == valid.sum()
        close(all_valid.log_quantiles, np.quantile(log_ratio, AT), 1e-12)
        assert all_valid.count == log_ratio.size


@pytest.mark.parametrize("wrong", [0.5, 1, "0.5"])
def test_quantiles_are_several(unchecked, wrong):
    with pytest.raises(TypeError, match=f"^quantiles={wrong!r} is not a sequence of numbers"):
        ratio_report(jnp.zeros(3), quantiles=wrong)
    assert ratio_report(jnp.zeros(3), quantiles=np.linspace(0, 1, 3)).quantiles.shape == (3,)


def test_ratio_report_by_hand():
    """Ratios 1/2, 1, 8: by default least, largest, middle and the two hundredths in between."""
    got = ratio_report(jnp.log(jnp.array([8.0, 0.5, 1.0])))
    close(got.quantiles, [0.5, 0.5 * 2**0.02, 1.0, 8**0.98, 8.0], 1e-5)
    close(got.effective_sample_fraction, 9.5**2 / 3 / 65.25)
    assert got.count == 3


def test_ratios_are_reported_before_any_bound():
    """Beyond exp(30), of impossible actions, and, in logarithms, beyond what float32 can hold."""
    far = jnp.array([-jnp.inf, -1e4, 0.0, 50.0, 1e4])
    with jax.debug_nans(True):
        got = ratio_report(far, quantiles=(0.0, 0.25, 0.5, 0.75, 1.0))
        equal(got.log_quantiles, far)
        close(got.effective_sample_fraction, 0.2)
        close(got.quantiles[3] / math.exp(50), 1.0, 1e-5)
        equal(got.quantiles[jnp.array([0, 1, 4])], [0.0, 0.0, math.inf])
        equal(ratio_report(jnp.full(4, -jnp.inf)).log_quantiles, [-math.inf] * 5)
        close(ratio_report(far[1:], quantiles=(0.5,)).log_quantiles, [25.0])


def test_ratio_report_without_a_sample():
    """Zeros: none that is valid, or an empty batch."""
    zero = np.zeros(())
    for report in (ratio_report(jnp.ones(3), valid=jnp.zeros(3, bool)), ratio_report(jnp.zeros((0, 2)))):
        equal(report, RatioReport(np.zeros(5), zero, np.int32(0), *[zero] * 6))
        equal((report.chi_squared, report.effective_sample_size, report.perplexity_ratio), (zero, zero, zero + 1))


@pytest.mark.slow
def test_moments_and_divergences_are_a_loop():
    """Each by its formula over the valid ratios; the names that both reports have mean the same."""
    lag, log_ratio, valid, *_ = samples()
    x, r = log_ratio[valid], np.exp(log_ratio[valid])
    expected = {
        "kl": np.mean(r - 1 - x),
        "k1": np.mean(-x),
        "k2": np.mean(x**2) / 2,
        "jensen_shannon": np.mean(r * np.log(2 * r / (1 + r)) + np.log(2 / (1 + r))) / 2,
        "weight_mean": np.mean(r),
        "weight_std": np.std(r),
        "chi_squared": np.mean(r**2) - 1,
        "perplexity_ratio": np.exp(-x).prod() ** (1 / len(x)),
        "effective_sample_size": r.sum() ** 2 / (r * r).sum(),
    }
    with jax.enable_x64(True):
        got = jax.jit(ratio_report)(jnp.where(valid, log_ratio, jnp.nan), valid=valid)
        by_lag = lag_report(0 * lag, log_ratio, valid=valid, lags=1)
        for name, value in expected.items():
            close(getattr(got, name), value, 1e-12)
        shared = {name for name in dir(got) if not name.startswith("_") and hasattr(by_lag, name)} - {"index"}
        assert {"count", "kl", "weight_std", "chi_squared", "effective_sample_fraction"} <= shared
        for name in shared:
            close(np.ravel(getattr(got, name)), getattr(by_lag, name), 1e-7)


def test_divergences_of_two_distributions():
    """Of three actions, weighted by the behaviour policy, they are those of the definitions."""
    pi, mu = np.array([0.2, 0.5, 0.3]), np.array([0.5, 0.25, 0.25])
    actions = np.repeat(np.arange(3), [2, 1, 1])  # as often as mu chooses them
    got, mixture = ratio_report(jnp.log(jnp.asarray(pi / mu))[actions]), (pi + mu) / 2

    def kl(p, q):
        return np.sum(p * np.log(p / q))

    close((got.kl, got.k1), (kl(mu, pi), kl(mu, pi)), 1e-6)
    close(got.jensen_shannon, (kl(pi, mixture) + kl(mu, mixture)) / 2, 1e-6)
    close((got.weight_mean, got.chi_squared), (1.0, np.sum((pi - mu) ** 2 / mu)), 1e-6)


def test_a_small_jensen_shannon_divergence():
    """Of ratios near 1, where it is `(log r)^2 / 8`, in float32."""
    close(ratio_report(jnp.full(3, 1e-2)).jensen_shannon / 1e-4, 1 / 8, 1e-2)


def test_divergences_saturate():
    """Of impossible actions and of ratios beyond exp(30): finite."""
    with jax.debug_nans(True):
        got = ratio_report(jnp.array([-jnp.inf, 1e4, 0.0]))
    assert all(np.isfinite(x) for x in got[1:])
    close(got.k2, 300.0)


@pytest.mark.slow
def test_ratios_that_are_not_valid_do_not_count():
    """Whatever they hold; and nothing has a gradient."""
    _, log_ratio, valid, *_ = samples()
    asked = jax.jit(ratio_report)
    clean = asked(log_ratio.astype(np.float32), valid=valid)
    for garbage in (math.nan, math.inf, -math.inf, 1e30):
        equal(asked(np.where(valid, log_ratio, garbage).astype(np.float32), valid=valid), clean)
    total = lambda x: sum(jnp.sum(z.astype(float)) for z in ratio_report(x, valid=valid))  # noqa: E731
    equal(jax.grad(total)(jnp.asarray(log_ratio, jnp.float32)), np.zeros(60))


FINE = {
    lag_report: {"lag": jnp.zeros(2, jnp.int32), "log_ratio": jnp.zeros(2), "valid": jnp.ones(2, bool)},
    ratio_report: {"log_ratio": jnp.zeros(2)},
}


@pytest.mark.parametrize(
    ("function", "changed", "error", "message"),
    [
        (lag_report, {"lags": 0}, ValueError, "lags=0 is below 1"),
        (
            lag_report,
            {"lag": jnp.zeros(3, jnp.int32)},
            ValueError,
            r"lag has shape \(3,\): expected log_ratio's",
        ),
        (lag_report, {"valid": jnp.zeros((2, 1), bool)}, ValueError, r"valid has shape \(2, 1\): expected log_ratio's"),
        (lag_report, {"clipped": jnp.zeros((), bool)}, ValueError, r"clipped has shape \(\): expected log_ratio's"),
        (
            lag_report,
            {"truncated": jnp.zeros(1, bool)},
            ValueError,
            r"truncated has shape \(1,\): expected log_ratio",
        ),
        (lag_report, {"log_ratio": jnp.zeros(2, jnp.int32)}, TypeError, "log_ratio has dtype int32: expected floating"),
        (ratio_report, {"log_ratio": jnp.zeros(2, jnp.int32)}, TypeError, "log_ratio has dtype int32: expected float"),
        (
            ratio_report,
            {"valid": jnp.ones(3, bool)},
            ValueError,
            r"valid has shape \(3,\): expected log_ratio's",
        ),
        (ratio_report, {"quantiles": (0.5, 1.5)}, ValueError, r"quantile=1\.5 lies outside \[0, 1\]"),
        (ratio_report, {"quantiles": (-0.1,)}, ValueError, r"quantile=-0\.1 lies outside \[0, 1\]"),
        (ratio_report, {"quantiles": ("0.5",)}, TypeError, "quantile='0.5' is not a number"),
    ],
)
def test_errors_of_reports(function, changed, error, message, unchecked):
    """Each names the argument and its value."""
    with pytest.raises(error, match=message):
        function(**(FINE[function] | changed))


# ---- by trajectory --------------------------------------------------------------------------------------------------


def test_version_span_by_hand():
    """Of one trajectory, and of two; steps that are no transition do not count."""
    version = jnp.array([[3, 7], [3, 0], [5, 8], [0, 9]])
    valid = jnp.array([[True, True], [True, False], [True, True], [False, True]])
    one = version_span(version[:, 0], valid=valid[:, 0])
    assert (one.mean.shape, one.oldest.shape, one.oldest.dtype) == ((), (), jnp.int32)
    close(one.mean, 11 / 3)
    assert one.oldest == 3
    for two in (version_span(version, valid=valid), version_span(np.asarray(version), valid=np.asarray(valid))):
        close(two.mean, [11 / 3, 8.0])
        equal(two.oldest, [3, 7])
    close(jax.vmap(lambda x, y: version_span(x, valid=y), in_axes=1)(version, valid), two)


def test_version_span_without_a_valid_step(unchecked):
    """Mean 0, and the largest version that there is, so that a minimum over trajectories is that of the others."""
    got = version_span(jnp.array([[5, 5], [6, 6]]), valid=jnp.array([[False, True], [False, False]]))
    equal(got.mean, [0.0, 5.0])
    equal(got.oldest, [2**31 - 1, 5])
    with pytest.raises(ValueError, match=r"valid has shape \(3,\): expected version's \(2,\)"):
        version_span(jnp.zeros(2, jnp.int32), valid=jnp.ones(3, bool))


# ---- between gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "cosine"),
    [
        ([3.0, 4.0], [3.0, 4.0], 1.0),
        ([3.0, 4.0], [-3.0, -4.0], -1.0),
        ([3.0, 4.0], [-4.0, 3.0], 0.0),
        ([3.0, 0.0], [3.0, 4.0], 0.6),
        ([-3.0, 0.0], [3.0, 4.0], -0.6),  # the largest by size is negative
        ([0.0, 0.0], [3.0, 4.0], 0.0),  # one vanishes
        ([0.0, 0.0], [0.0, 0.0], 0.0),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_cosine_by_hand(first, second, cosine, scale):
    """At any scale of either, in float32, where squares of 1e-30 and 1e30 do not exist; the order is all one."""
    first, second = jnp.array(first), jnp.array(second)
    for a, b in ((first * scale, second), (first, second * scale), (second * scale, first * scale)):
        got = gradient_cosine(a, b)
        assert (got.shape, got.dtype) == ((), jnp.float32)
        close(got, cosine)


def test_a_cosine_is_at_most_one():
    """Parallel gradients, whose rounded cosine would be above it for some."""
    rows = jax.random.normal(jax.random.key(0), (300, 7))
    cosines = jax.vmap(lambda row: gradient_cosine(row, 3.0 * row))(rows)
    assert 1.0 - 1e-6 < float(cosines.min()) <= float(cosines.max()) <= 1.0


def tree(seed):
    random = np.random.default_rng(seed)
    return {"w": random.normal(size=(4, 3)), "b": (random.normal(size=3), random.normal(size=()), np.zeros((0, 2)))}


@pytest.mark.slow
def test_cosine_of_trees():
    """All leaves together are one vector, in NumPy's float64; the same bit for bit whatever powers of 2 scale them."""
    flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree(seed))]) for seed in (0, 1)]
    expected = flat[0] @ flat[1] / np.linalg.norm(flat[0]) / np.linalg.norm(flat[1])
    with jax.enable_x64(True):
        got = gradient_cosine(*(jax.tree.map(jnp.asarray, tree(seed)) for seed in (0, 1)))
        assert got.dtype == jnp.float64
        close(got, expected, 1e-12)
    single = [jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree(seed)) for seed in (0, 1)]
    scaled = jax.tree.map(lambda x: x * 2.0**-80, single[0])
    assert gradient_cosine(scaled, single[1]) == gradient_cosine(*single)


@pytest.mark.slow
def test_cosine_under_vmap_and_in_half_precision():
    """One for each pair; bfloat16 is summed in float32, where 300 ones are not 256."""
    first, second = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), jnp.array([[2.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    close(jax.vmap(gradient_cosine)(first, second), [1.0, 0.0, 0.0])
    ones = jnp.ones(300, jnp.bfloat16)
    got = gradient_cosine(ones, ones.at[150:].set(0))
    assert got.dtype == jnp.float32
    close(got, math.sqrt(0.5))


@pytest.mark.parametrize(
    ("first", "second", "error", "message"),
    [
        ({"w": jnp.ones(2)}, {"v": jnp.ones(2)}, ValueError, "second has structure"),
        ({"w": jnp.ones(2)}, {"w": jnp.ones(3)}, ValueError, r"second\['w'\] has shape \(3,\): expected first\['w'\]"),
        ({"w": jnp.ones(2, int)}, {"w": jnp.ones(2)}, TypeError, r"first\['w'\] has dtype int32"),
        ({"w": jnp.ones(2)}, {"w": jnp.ones(2, int)}, TypeError, r"second\['w'\] has dtype int32"),
    ],
)
def test_cosine_errors(first, second, error, message):
    with pytest.raises(error, match=message):
        gradient_cosine(first, second)


def test_a_nan_shows_in_the_quantiles():
    """At a valid step; in the order of floats it is above infinity, so that it would show in the greatest alone."""
    report = ratio_report(jnp.array([0.1, jnp.nan, 0.3]), quantiles=(0.0, 0.5, 1.0))
    assert np.isnan(report.quantiles).all()
    masked = ratio_report(jnp.array([0.1, jnp.nan, 0.3]), valid=jnp.array([1, 0, 1]), quantiles=(0.0, 1.0))
    np.testing.assert_allclose(masked.quantiles, np.exp([0.1, 0.3]), rtol=1e-6)


@pytest.mark.usefixtures("unchecked")
def test_versions_are_whole_numbers():
    with pytest.raises(TypeError, match=r"^version has dtype float32: expected integers"):
        version_span(jnp.array([3.7, 3.2]), valid=jnp.array([True, True]))
