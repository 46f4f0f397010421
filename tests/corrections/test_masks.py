"""Masks and adaptive clip widths against the papers' algorithms, step by step in plain Python, and by hand."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import (
    ClipWidths,
    adaptive_clip,
    balanced_clip,
    bidirectional_kl_mask,
    off_policy_sequence_mask,
    ppo_loss,
    probability_mask,
    second_moment_clip,
    second_moment_mask,
    sequence_log_ratio,
    total_variation_mask,
)
from tests.close import close, equal


def sample(shape=(12, 3), seed=0, scale=0.4):
    """Log-ratios, advantages with zeros among them, validity and segments, NumPy."""
    random = np.random.default_rng(seed)
    log_ratio, advantage = random.normal(size=shape, scale=scale), random.normal(size=shape)
    advantage[random.uniform(size=shape) < 0.1] = 0.0
    valid = random.uniform(size=shape) < 0.8
    return log_ratio, advantage, valid, np.cumsum(random.uniform(size=shape) < 0.35, axis=0).astype(np.int32)


# ---- M2PO -----------------------------------------------------------------------------------------------------------


def drop_the_largest(log_ratio, advantage, valid, bound):
    """M2PO's Algorithm 1: of the candidates, mask the one of the largest square until their mean is small enough."""
    kept = np.array(valid)
    left = [
        i
        for i in np.ndindex(log_ratio.shape)
        if valid[i] and ((advantage[i] > 0 and log_ratio[i] > 0) or (advantage[i] < 0 and log_ratio[i] < 0))
    ]
    while left and math.fsum(log_ratio[i] ** 2 for i in left) / len(left) > bound:
        worst = max(left, key=lambda i: log_ratio[i] ** 2)
        kept[worst] = False
        left.remove(worst)
    return kept


second_moment = jax.jit(lambda x, a, valid, bound: second_moment_mask(x, a, valid=valid, max_second_moment=bound))


@pytest.mark.parametrize("seed", range(10))
def test_second_moment_is_the_papers_loop(seed):
    """Of bounds from those that drop all that moves outward to those that drop nothing."""
    log_ratio, advantage, valid, _ = sample(seed=seed)
    with jax.enable_x64(True):
        for bound in (0.0, 1e-3, 0.04, 0.2, 10.0, math.inf):
            expected = drop_the_largest(log_ratio, advantage, valid, bound)
            equal(second_moment(log_ratio, advantage, valid, bound), expected)
        outward = valid & (log_ratio * advantage > 0)
        equal(second_moment(log_ratio, advantage, valid, 0.0), valid & ~outward)
        equal(second_moment(log_ratio, advantage, valid, math.inf), valid)


def test_second_moment_by_hand():
    """Squares 0.01, 0.04, 0.09, 0.16: their means are 0.075, then 0.0467, then 0.025, so that two are dropped."""
    log_ratio = jnp.array([0.4, -0.1, 0.3, -0.2, 5.0, -5.0, 7.0])
    advantage = jnp.array([1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 0.0])  # the last three do not move outward
    equal(second_moment_mask(log_ratio, advantage), [False, True, False, True, True, True, True])
    equal(second_moment_mask(log_ratio, advantage, max_second_moment=0.05), [False, True, True, True, True, True, True])
    equal(second_moment_mask(log_ratio, advantage, max_second_moment=0.08), [True] * 7)
    one = jnp.arange(7) == 1
    equal(second_moment_mask(log_ratio, advantage, valid=one), one)


def test_equal_distances_are_kept_or_dropped_together():
    """Whichever their side; one of the two alone would have been enough."""
    log_ratio, advantage = jnp.array([0.3, -0.3, 0.1]), jnp.array([1.0, -1.0, 1.0])
    # (0.09 + 0.01) / 2 = 0.05
    equal(second_moment_mask(log_ratio, advantage, max_second_moment=0.055), [False, False, True])
    equal(second_moment_mask(log_ratio, advantage, max_second_moment=0.07), [True, True, True])


def capped(log_ratio, advantage, valid, bound):
    """The authors' search: goes through the ascending squares until the later ones, capped to one, exceed the bound."""
    squares = sorted(
        x * x for x, a, v in zip(log_ratio.flat, advantage.flat, valid.flat, strict=True) if v and x * a > 0
    )
    if not squares or math.fsum(squares) <= bound * len(squares):
        return 1.0, math.inf
    below = 0.0
    for k, square in enumerate(squares):
        if math.fsum(squares[: k + 1]) + square * (len(squares) - k - 1) >= bound * len(squares):
            break
        below = square
    return 1 - math.exp(-math.sqrt(below)), math.exp(math.sqrt(below)) - 1


@pytest.mark.parametrize("seed", range(10))
def test_second_moment_clip_is_the_authors_search(seed):
    """For bounds that clip everything, something and nothing; the capped mean stays within each."""
    log_ratio, advantage, valid, _ = sample(seed=seed)
    garbage = np.where(valid, log_ratio, np.nan)
    widths = jax.jit(lambda x, bound: second_moment_clip(x, advantage, valid=valid, max_second_moment=bound))
    with jax.enable_x64(True):
        for bound in (0.0, 1e-6, 1e-3, 0.04, 0.08, 10.0, math.inf):
            low, high = widths(garbage, bound)
            assert low.shape == high.shape == log_ratio.shape
            expected = capped(log_ratio, advantage, valid, bound)
            close((low[0, 0], high[0, 0]), expected, 1e-9)
            moved = np.abs(log_ratio[valid & (log_ratio * advantage > 0)])
            assert np.mean(np.minimum(moved, np.log1p(expected[1])) ** 2) <= max(bound, 0.0)


def test_second_moment_clip_by_hand():
    """Squares 0.01, 0.04 and 0.81 have the mean 0.287; capped at 0.04 their mean is 0.03, at 0.01 it is 0.01."""
    log_ratio, advantage = jnp.array([0.1, -0.2, 0.9, -9.0, 9.0]), jnp.array([1.0, -1.0, 1.0, 1.0, 0.0])
    for bound, tau in ((0.04, 0.2), (0.02, 0.1), (0.005, 0.0)):
        low, high = second_moment_clip(log_ratio, advantage, max_second_moment=bound)
        close(low, np.full(5, 1 - math.exp(-tau)), 1e-6)
        close(high, np.full(5, math.exp(tau) - 1), 1e-6)
        low, high = second_moment_clip(log_ratio, advantage, max_second_moment=bound, min_clip=0.3, min_clip_high=0.5)
        close((low, high), (np.full(5, 0.3), np.full(5, 0.5)), 1e-6)
    free = second_moment_clip(log_ratio, advantage, max_second_moment=0.3)
    equal(free, ClipWidths(np.ones(5), np.full(5, math.inf)))
    close(ppo_loss(log_ratio, advantage, clip=free.low, clip_high=free.high), -jnp.exp(log_ratio) * advantage, 1e-5)
    equal(second_moment_clip(log_ratio, -jnp.zeros(5), max_second_moment=0.0), free)


def balanced(ratio, advantage, valid, low, max_low, high, max_high, step, balance):
    """The authors' search: raises the lower bound, then the upper one, until good samples outweigh bad ones."""

    def enough():
        there = [(r, a) for r, a, v in zip(ratio.flat, advantage.flat, valid.flat, strict=True) if v]
        good = math.fsum(min(r, high) * a for r, a in there if a > 0)
        return good >= balance * math.fsum(-max(r, low) * a for r, a in there if a < 0)

    while not enough() and low < max_low:
        low = min(low + step, max_low)
    while not enough() and high < max_high:
        high = min(high + step, max_high)
    return 1 - low, high - 1


@pytest.mark.parametrize("seed", range(4))
def test_balanced_clip_is_the_authors_search(seed):
    """From the narrowest region to the widest, and in between, where good samples have large ratios."""
    log_ratio, advantage, valid, _ = sample(seed=seed)
    log_ratio = np.where(advantage > 0, 3 * np.abs(log_ratio), log_ratio)
    garbage = np.where(valid, log_ratio, np.nan)
    settings = {"low": 0.6, "max_low": 0.8, "high": 1.2, "max_high": 2.0, "step": 0.05}
    widths = jax.jit(lambda x, balance: balanced_clip(x, advantage, valid=valid, balance=balance))
    at = functools.partial(balanced, np.exp(log_ratio), advantage, valid, **settings)
    # The balance at which the search begins, and that which the widest region cannot reach.
    first = max(b for b in np.linspace(0, 5, 501) if at(balance=b)[1] < 0.21)
    last = max(b for b in np.linspace(0, 5, 501) if at(balance=b)[1] < 0.99)
    with jax.enable_x64(True):
        several = [0.0, *np.linspace(first - 0.02, last + 0.02, 20), 10.0]
        for balance in several:
            low, high = widths(garbage, balance)
            assert low.shape == high.shape == log_ratio.shape
            close((low[0, 0], high[0, 0]), at(balance=balance), 1e-9)
    assert len({at(balance=b) for b in several}) > 4


def test_balanced_clip_by_hand():
    """With ratios 4, 0.2 and 0.7: N(0.6) = 1.3 a, N(0.8) = 1.6 a, for the advantages 1, -a and -a."""
    log_ratio = jnp.log(jnp.array([4.0, 0.2, 0.7]))
    # P(1.2) = 1.2 is at least N(0.6); then at least 1.44, 1.92 and 2.4 are wanted.
    for a, low, high in ((0.9, 0.6, 1.2), (0.94, 0.8, 1.55), (1.2, 0.8, 1.95), (1.5, 0.8, 2.0)):
        got = balanced_clip(log_ratio, jnp.array([1.0, -a, -a]))
        close(got, ClipWidths(np.full(3, 1 - low), np.full(3, high - 1)), 1e-6)
    narrow = ClipWidths(np.full(3, np.float32(0.4)), np.full(3, np.float32(0.2)))
    close(balanced_clip(log_ratio, jnp.zeros(3)), narrow, 1e-6)
    close(balanced_clip(log_ratio, -jnp.ones(3), balance=0.0), narrow, 1e-6)
    close(balanced_clip(log_ratio, -jnp.ones(3), valid=jnp.zeros(3, bool)), narrow, 1e-6)
    # A traced step that is too small cannot be refused, and ends the search.
    close(jax.jit(lambda step: balanced_clip(log_ratio, -jnp.ones(3), step=step).high)(1e-8), narrow[1], 1e-6)


# ---- DPPO -----------------------------------------------------------------------------------------------------------


def moved_too_far(p, q, advantage, bound, divergence):
    """Whether DPPO drops a sample of probabilities p now and q before."""
    tv, kl = abs(q - p), q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    distance = {"tv": tv, "kl": kl}[divergence]
    return distance > bound and ((advantage > 0 and p / q > 1) or (advantage < 0 and p / q < 1))


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_probability_mask_is_the_papers(divergence):
    """Each sample in float64, for several bounds; and no gradient flows."""
    random = np.random.default_rng(0)
    p, q, advantage = [*random.uniform(0.02, 0.98, size=(2, 300)), random.normal(size=300)]
    with jax.enable_x64(True):
        arrays = [jnp.log(jnp.asarray(p)), jnp.log(jnp.asarray(q)), jnp.asarray(advantage)]
        mask = jax.jit(lambda *z, bound: probability_mask(*z, max_distance=bound, divergence=divergence))
        for bound in (0.01, 0.05, 0.15, 0.2, 0.6):
            expected = [not moved_too_far(*row, bound, divergence) for row in zip(p, q, advantage, strict=True)]
            equal(mask(*arrays, bound=bound), expected)
            assert 0 < sum(expected) < 300
        equal(mask(*arrays, bound=math.inf), np.ones(300, bool))


def test_probability_mask_by_hand():
    """Only what has moved outward is dropped, by probabilities: 0.01 to 0.1 is near in these, and tenfold in ratio."""
    q, p = jnp.array([0.01, 0.5, 0.5, 0.5, 0.5, 0.5]), jnp.array([0.1, 0.75, 0.75, 0.25, 0.25, 0.25])
    advantage = jnp.array([1.0, 1.0, -1.0, -1.0, 1.0, 0.0])
    for bound in ({"max_distance": 0.2}, {"max_distance": 0.1, "divergence": "kl"}):  # KL(1/2 || 1/4) is 0.1438
        equal(probability_mask(jnp.log(p), jnp.log(q), advantage, **bound), [True, False, True, False, True, True])
    equal(probability_mask(jnp.log(p), jnp.log(q), advantage, max_distance=0.145, divergence="kl"), [True] * 6)


@pytest.mark.parametrize("divergence", ["tv", "kl"])
def test_certain_and_impossible_actions(divergence):
    """Probabilities of 0 and 1, and a hair above 1 as rounding leaves them; no NaN on the way."""
    now = jnp.array([0.0, 1e-7, 0.0, -jnp.inf, -jnp.inf, -1e4, -0.7, 0.0])
    before = jnp.array([0.0, 0.0, 1e-7, -0.7, -0.7, -1e4, -1e4, -20.0])
    advantage = jnp.array([1.0, 1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0])
    with jax.debug_nans(True):
        got = probability_mask(now, before, advantage, divergence=divergence)
    equal(got, [True, True, True, False, True, True, False, False])


def test_each_divergence_has_its_bound():
    """0.7 to 0.85 are 0.15 apart in variation and 0.072 in nats: beyond the latter's 0.05, and not beyond 0.15."""
    now, before, advantage = jnp.log(jnp.array([0.85, 0.84, 0.86])), jnp.log(jnp.full(3, 0.7)), jnp.ones(3)
    equal(probability_mask(now, before, advantage)[1:], [True, False])
    equal(probability_mask(now, before, advantage, divergence="kl"), [False] * 3)
    equal(probability_mask(now, before, advantage, max_distance=0.15, divergence="kl"), [True] * 3)


# ---- KPop -----------------------------------------------------------------------------------------------------------


def test_bidirectional_kl_is_areals():
    """Each sample in float64, for several bounds, whichever way it moved; and no gradient flows."""
    random = np.random.default_rng(0)
    p, q = random.uniform(0.001, 0.999, size=(2, 300))

    def kl(a, b):
        return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))

    with jax.enable_x64(True):
        mask = jax.jit(lambda x, y, bound: bidirectional_kl_mask(x, y, max_divergence=bound))
        for bound in (0.01, 0.2, 2.0):
            expected = [max(kl(a, b), kl(b, a)) <= bound for a, b in zip(p, q, strict=True)]
            equal(mask(jnp.log(p), jnp.log(q), bound), expected)
            equal(mask(jnp.log(q), jnp.log(p), bound), expected)
            assert 0 < sum(expected) < 300


def test_bidirectional_kl_by_hand():
    """From 0.5 to 0.99 is 0.64 nats one way and 1.61 the other; certain and impossible actions give no NaN."""
    now, before = (
        jnp.log(jnp.array([0.99, 0.5, 1.0, 0.0, 0.0, 1.0])),
        jnp.log(jnp.array([0.5, 0.99, 1.0, 0.0, 0.5, 0.5])),
    )
    with jax.debug_nans(True):
        equal(bidirectional_kl_mask(now, before, max_divergence=1.0), [False, False, True, True, False, False])
        equal(bidirectional_kl_mask(now[:2], before[:2]), [True, True])
    assert bidirectional_kl_mask(jnp.array(math.nan), jnp.array(-1.0))  # it shows in the loss


# ---- VACO -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_total_variation_is_open_instructs(seed, packed):
    """Step by step: the mean distance of its sequence, and whether it moves outward."""
    log_ratio, advantage, valid, segment = sample(seed=seed)
    name = segment if packed else np.zeros_like(segment)
    expected, dropped = np.array(valid), 0
    for t, b in zip(*np.nonzero(valid), strict=True):
        steps = [u for u in range(12) if valid[u, b] and name[u, b] == name[t, b]]
        mean = math.fsum(abs(math.exp(log_ratio[u, b]) - 1) for u in steps) / len(steps)
        if mean > 0.3 and math.copysign(1, log_ratio[t, b]) * advantage[t, b] > 0:
            expected[t, b], dropped = False, dropped + 1
    assert 0 < dropped < valid.sum()
    with jax.enable_x64(True):
        got = jax.jit(lambda x, s: total_variation_mask(x, advantage, valid=valid, segment=s, max_distance=0.3))(
            np.where(valid, log_ratio, np.nan), segment if packed else None
        )
    equal(got, expected)


# ---- OPSM -----------------------------------------------------------------------------------------------------------


def test_sequence_mask_is_the_papers():
    """A sequence is dropped iff its advantage is negative and the mean of `log(mu / pi)` is above the bound."""
    mask = jax.jit(
        lambda x, a, v: off_policy_sequence_mask(sequence_log_ratio(x, valid=v, over="mean"), a, max_divergence=0.05)
    )
    dropped = 0
    for seed in range(12):
        log_ratio, advantage, valid, _ = sample(seed=seed)
        expected = []
        for column in range(log_ratio.shape[1]):
            counted = [-x for x, counts in zip(log_ratio[:, column], valid[:, column], strict=True) if counts]
            expected.append(not (advantage[0, column] < 0 and math.fsum(counted) / len(counted) > 0.05))
        dropped += expected.count(False)
        with jax.enable_x64(True):
            equal(mask(log_ratio, advantage[0], valid), expected)
    assert 5 < dropped < 30


def test_sequence_mask_by_hand():
    """Kept at the bound, dropped beyond; never a good sequence, nor one that has become more likely."""
    log_ratio, advantage = jnp.array([-0.5, -0.75, -0.75, 9.0]), jnp.array([-1.0, -1.0, 1.0, -1.0])
    equal(off_policy_sequence_mask(log_ratio, advantage, max_divergence=0.5), [True, False, True, True])
    equal(off_policy_sequence_mask(log_ratio, advantage, max_divergence=0.0), [False, False, True, True])
    equal(off_policy_sequence_mask(log_ratio, advantage, max_divergence=math.inf), [True] * 4)


# ---- SAT ------------------------------------------------------------------------------------------------------------


widths = jax.jit(lambda x, valid, quantile: adaptive_clip(x, valid=valid, clip=0.2, clip_high=0.28, quantile=quantile))


@pytest.mark.parametrize("seed", range(10))
def test_adaptive_widths_are_the_docstrings(seed):
    """NumPy's quantile of what is valid, a Hill function of exponent 2 beyond it, on the side that has moved."""
    log_ratio, _, valid, _ = sample(seed=seed)
    with jax.enable_x64(True):
        for quantile in (0.0, 0.5, 0.9, 1.0):
            q = np.quantile(np.abs(log_ratio[valid]), quantile)
            low, high = np.full((2, *log_ratio.shape), 0.2)
            high += 0.08
            for i in np.ndindex(log_ratio.shape):
                factor = min(2 / (1 + (abs(log_ratio[i]) / q) ** 2), 1.0)
                (high if log_ratio[i] > 0 else low)[i] *= factor
            got = widths(log_ratio, valid, quantile)
            close(got, ClipWidths(low, high), 1e-12)


def test_adaptive_widths_by_hand():
    """The quantile of 1, 1, 1, 2, 3 at 1/2 is 1: factors of 2 / (1 + 4) and 2 / (1 + 9) beyond it; none at it."""
    log_ratio = jnp.array([1.0, -1.0, 1.0, -2.0, 3.0])
    got = adaptive_clip(log_ratio, clip=0.5, quantile=0.5)
    close(got.low, [0.5, 0.5, 0.5, 0.2, 0.5], 1e-6)
    close(got.high, [0.5, 0.5, 0.5, 0.5, 0.1], 1e-6)
    got = adaptive_clip(
        log_ratio, valid=jnp.array([False, True, False, False, True]), clip=0.5, clip_high=1.0, quantile=0.0
    )
    close(got.low, [0.5, 0.5, 0.5, 0.2, 0.5], 1e-6)
    close(got.high, [1.0, 1.0, 1.0, 1.0, 0.2], 1e-6)


def test_widths_do_not_jump_at_a_quantile_of_zero():
    """Where nearly all is fresh, the few samples that have moved are narrowed to 0, as by any quantile near 0."""
    far = jnp.where(jnp.arange(100) < 95, 0.0, jnp.where(jnp.arange(100) < 98, 1.0, -1.0))
    got = adaptive_clip(far)
    equal(got.high, np.where(far > 0, 0.0, np.float32(0.2)))
    equal(got.low, np.where(far < 0, 0.0, np.float32(0.2)))
    for near in (1e-30, 1e-6):
        jax.tree.map(
            lambda x, y: close(x, y, 1e-11), adaptive_clip(far, clip=0.2), adaptive_clip(jnp.where(far == 0, near, far))
        )
    infinite = adaptive_clip(far, clip=math.inf, clip_high=0.3)  # a side without a bound stays without one
    equal(infinite.low, np.full(100, math.inf))
    equal(infinite.high, np.where(far > 0, 0.0, np.float32(0.3)))


# ---- all of them ----------------------------------------------------------------------------------------------------

x, a = (jnp.asarray(z, jnp.float32) for z in sample()[:2])
v, s = map(jnp.asarray, sample()[2:])
#: Each of log-ratios, advantages, validity, segments.
MASKS = {
    "second moment": lambda x, a, v, s: second_moment_mask(x, a, valid=v),
    "probability, TV": lambda x, a, v, s: v & probability_mask(x - 1.0, -jnp.ones_like(x), a, max_distance=0.1),
    "probability, KL": lambda x, a, v, s: (
        v & probability_mask(x - 1.0, -jnp.ones_like(x), a, max_distance=0.02, divergence="kl")
    ),
    "sequence": lambda x, a, v, s: (
        v & off_policy_sequence_mask(sequence_log_ratio(x, valid=v, segment=s, over="mean"), a, max_divergence=0.05)
    ),
    "total variation": lambda x, a, v, s: total_variation_mask(x, a, valid=v, segment=s, max_distance=0.3),
    "both directions": lambda x, a, v, s: bidirectional_kl_mask(-abs(x), -abs(a), max_divergence=0.1),
    "widths": lambda x, a, v, s: adaptive_clip(x, valid=v),
    "widths by second moment": lambda x, a, v, s: second_moment_clip(x, a, valid=v),
    "balanced widths": lambda x, a, v, s: balanced_clip(x, a, valid=v),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
def test_what_is_not_valid_has_no_part(name):
    """Whatever stands there, and whatever the advantage; outside of it nothing changes. Nothing has a gradient."""
    function = jax.jit(MASKS[name])
    expected = function(x, a, v, s)
    for garbage in (math.nan, math.inf, -math.inf, 3e38):
        got = function(jnp.where(v, x, garbage), jnp.where(v, a, -garbage), v, s)
        here = np.asarray(v)
        jax.tree.map(lambda g, e, here=here: np.testing.assert_array_equal(g[here], e[here]), got, expected)
    total = lambda x, a: sum(jnp.sum(jnp.where(v, z, 0.0)) for z in jax.tree.leaves(MASKS[name](x, a, v, s)))  # noqa: E731
    equal(jax.grad(total, argnums=(0, 1))(x, a), (np.zeros(x.shape),) * 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
def test_extremes(name):
    """Log-ratios of ±1e4 and minus infinity, advantages of ±1e8 and 0: no NaN on the way, in either width of floats."""
    random = np.random.default_rng(0)
    for dtype in ("float32", "bfloat16"):
        far = random.choice([0.0, 1e-3, 30.0, -30.0, 1e4, -1e4, -math.inf], size=x.shape)
        large = random.choice([0.0, 1e8, -1e8], size=x.shape)
        with jax.debug_nans(True):
            got = MASKS[name](jnp.asarray(far, dtype), jnp.asarray(large, dtype), v, s)
        assert all(np.isfinite(z).all() for z in jax.tree.leaves(got))


@pytest.mark.parametrize("name", MASKS)
def test_bfloat16_is_float32_of_the_same_numbers(name):
    """Squares, differences of probabilities and quantiles are taken in float32: not one sample more is dropped.

    Widths come in the type of the log-ratios, as the losses that take them.
    """
    narrow = [z.astype(jnp.bfloat16) for z in (x, a)]
    if name.startswith("probability"):
        narrow[0] = jnp.round(narrow[0] * 16) / 16  # so that x - 1 has no more digits
    wide = MASKS[name](*(z.astype(jnp.float32) for z in narrow), v, s)
    got = MASKS[name](*narrow, v, s)
    equal(got, jax.tree.map(lambda z: z if z.dtype == bool else z.astype(jnp.bfloat16), wide))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0), (3, 2, 2)])
def test_shapes(shape):
    """Empty batches, and deeper ones."""
    every = jax.jit(lambda *arrays: [function(*arrays) for function in MASKS.values()])
    got = every(jnp.zeros(shape), jnp.zeros(shape), jnp.ones(shape, bool), jnp.zeros(shape, jnp.int32))
    assert {z.shape for z in jax.tree.leaves(got)} == {shape}


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
def test_batches_under_vmap(name):
    """`vmap` takes each batch as if it were alone."""
    batches = [[jnp.asarray(z) for z in sample(seed=seed)] for seed in (0, 1)]
    got = jax.vmap(MASKS[name])(*(jnp.stack(part) for part in zip(*batches, strict=True)))
    for k, batch in enumerate(batches):
        close(jax.tree.map(lambda z, k=k: z[k], got), MASKS[name](*batch))


def test_without_lag_everything_is_kept():
    """At the bound 0 as well, where there may be one; and the width of the trust region is that which is given."""
    zeros = jnp.zeros_like(x)
    equal(second_moment_mask(zeros, a, max_second_moment=0.0), np.ones(x.shape, bool))
    equal(off_policy_sequence_mask(zeros, a, max_divergence=0.0), np.ones(x.shape, bool))
    for divergence in ("tv", "kl"):
        equal(probability_mask(-abs(x), -abs(x), a, max_distance=1e-30, divergence=divergence), np.ones(x.shape, bool))
    assert set(np.ravel(adaptive_clip(zeros).low).tolist()) == {float(np.float32(0.2))}


CALLS = {
    second_moment_mask: {"log_ratio": x, "advantage": a},
    probability_mask: {"log_prob": -abs(x), "behaviour_log_prob": -abs(x), "advantage": a},
    off_policy_sequence_mask: {"log_ratio": x, "advantage": a, "max_divergence": 0.1},
    adaptive_clip: {"log_ratio": x},
    second_moment_clip: {"log_ratio": x, "advantage": a},
    balanced_clip: {"log_ratio": x, "advantage": a},
    bidirectional_kl_mask: {"log_prob": -abs(x), "behaviour_log_prob": -abs(x)},
    total_variation_mask: {"log_ratio": x, "advantage": a, "max_distance": 0.1},
}


@pytest.mark.parametrize(
    ("function", "changed", "error", "message"),
    [
        (second_moment_mask, {"max_second_moment": -0.1}, ValueError, r"max_second_moment=-0\.1 is negative"),
        (second_moment_mask, {"max_second_moment": math.nan}, ValueError, "max_second_moment=nan is negative or NaN"),
        (second_moment_mask, {"max_second_moment": jnp.ones(3)}, TypeError, r"max_second_moment has shape \(3,\)"),
        (second_moment_mask, {"advantage": jnp.ones(3)}, ValueError, r"advantage has shape \(3,\): expected log_ratio"),
        (second_moment_mask, {"valid": jnp.ones(3, bool)}, ValueError, r"valid has shape \(3,\): expected log_ratio's"),
        (probability_mask, {"max_distance": 0.0}, ValueError, r"max_distance=0\.0 is not positive"),
        (probability_mask, {"divergence": "js"}, ValueError, "divergence='js' is neither 'tv' nor 'kl'"),
        (probability_mask, {"behaviour_log_prob": jnp.ones(3)}, ValueError, r"behaviour_log_prob has shape \(3,\)"),
        (off_policy_sequence_mask, {"max_divergence": -1}, ValueError, "max_divergence=-1 is negative"),
        (off_policy_sequence_mask, {"max_divergence": "1"}, TypeError, "max_divergence='1' is not a number"),
        (off_policy_sequence_mask, {"advantage": jnp.ones(3)}, ValueError, r"advantage has shape \(3,\)"),
        (adaptive_clip, {"clip": 0.0}, ValueError, r"clip=0\.0 is not positive"),
        (adaptive_clip, {"clip_high": -0.1}, ValueError, r"clip_high=-0\.1 is not positive"),
        (adaptive_clip, {"quantile": 1.1}, ValueError, r"quantile=1\.1 lies outside \[0, 1\]"),
        (adaptive_clip, {"valid": jnp.ones(3, bool)}, ValueError, r"valid has shape \(3,\): expected log_ratio's"),
        (adaptive_clip, {"clip": "0.2"}, TypeError, "clip='0.2' is not a number"),
        (bidirectional_kl_mask, {"max_divergence": -1}, ValueError, "max_divergence=-1 is negative"),
        (
            bidirectional_kl_mask,
            {"behaviour_log_prob": jnp.ones(3)},
            ValueError,
            r"behaviour_log_prob has shape \(3,\)",
        ),
        (total_variation_mask, {"max_distance": -1}, ValueError, "max_distance=-1 is negative"),
        (
            total_variation_mask,
            {"advantage": jnp.ones(3)},
            ValueError,
            r"advantage has shape \(3,\): expected log_ratio",
        ),
        (total_variation_mask, {"segment": x}, TypeError, "segment has dtype float32: expected integers"),
        (second_moment_clip, {"max_second_moment": -0.1}, ValueError, r"max_second_moment=-0\.1 is negative"),
        (second_moment_clip, {"min_clip": math.nan}, ValueError, "min_clip=nan is negative or NaN"),
        (second_moment_clip, {"min_clip_high": "0.5"}, TypeError, "min_clip_high='0.5' is not a number"),
        (second_moment_clip, {"valid": jnp.ones(3, bool)}, ValueError, r"valid has shape \(3,\): expected log_ratio's"),
        (balanced_clip, {"advantage": jnp.ones(3)}, ValueError, r"advantage has shape \(3,\): expected log_ratio's"),
        (balanced_clip, {"low": -0.1}, ValueError, r"low=-0\.1 lies outside \[0, 1\]"),
        (balanced_clip, {"max_low": 1.2}, ValueError, r"max_low=1\.2 lies outside \[0, 1\]"),
        (balanced_clip, {"low": 0.9}, ValueError, r"low=0\.9 is above max_low=0\.8: pass low <= max_low"),
        (balanced_clip, {"high": 0.9}, ValueError, r"high=0\.9 is below 1: a trust region contains the ratio 1"),
        (balanced_clip, {"high": 3.0}, ValueError, r"high=3\.0 is above max_high=2\.0: pass high <= max_high"),
        (balanced_clip, {"max_high": math.inf}, ValueError, "max_high=inf is not finite"),
        (balanced_clip, {"step": 0.0}, ValueError, r"step=0\.0 is not positive"),
        (balanced_clip, {"balance": -1.0}, ValueError, r"balance=-1\.0 is negative"),
        (balanced_clip, {"balance": "1"}, TypeError, "balance='1' is not a number"),
        (balanced_clip, {"step": 1e-8}, ValueError, r"step=1e-08 does not change float32 numbers near max_high=2\.0"),
        *[
            (function, {name: jnp.ones((12, 3), jnp.int32)}, TypeError, f"^{name} has dtype int32: expected floating")
            for function, arguments in CALLS.items()
            for name in arguments
            if not name.startswith("max_")
        ],
    ],
)
def test_errors(function, changed, error, message, unchecked):
    """Each names the argument, its value and what it should be."""
    with pytest.raises(error, match=message):
        function(**(CALLS[function] | changed))
