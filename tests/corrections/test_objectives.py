"""The papers' objectives, composed of the library's functions: in value and gradient, against loops over sequences.

Every objective is written twice: below in JAX, as a user would, and in plain Python, as its paper or its authors' code
has it. The slope of the second is a central difference in which what the paper detaches stays as it was.
"""

import functools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import (
    adaptive_clip,
    approximate_kl,
    approximate_proximal_log_ratio,
    bounded_importance_weight,
    decoupled_ppo_loss,
    effective_sample_fraction,
    group_relative_advantage,
    impact_loss,
    impala_loss,
    importance_ratio,
    oapl_loss,
    off_policy_sequence_mask,
    ppo_loss,
    ppo_penalty_loss,
    probability_mask,
    ratio_report,
    sapo_loss,
    second_moment_mask,
    sequence_log_ratio,
    truncated_policy_gradient_loss,
    vespo_weight,
)
from tests.close import close, equal

T, B = 7, 12
#: Columns are sequences of one to five steps, after a prompt of one.
VALID = (np.arange(T)[:, None] >= 1) & (np.arange(T)[:, None] <= np.array([5, 1, 3, 4, 2, 5] * 2))
#: The number of each sequence's prompt.
GROUP = np.arange(B) % 3


def sample(seed=0):
    """Log-probabilities of the policy that learns and of two others, advantages of steps and of sequences; NumPy."""
    random = np.random.default_rng(seed)
    behaviour = -random.uniform(0.3, 3.0, size=(T, B))
    proximal = np.minimum(behaviour + random.normal(size=(T, B), scale=0.5), -0.05)
    now = np.minimum(proximal + random.normal(size=(T, B), scale=0.4), -0.01)
    of_step, of_sequence = random.normal(size=(T, B)), np.tile(random.normal(size=B), (T, 1))
    of_sequence[:, 0] = -abs(of_sequence[:, 0])
    staleness = random.integers(-1, 6, size=(T, B)).astype(np.int32)
    return now, SimpleNamespace(
        behaviour=behaviour, proximal=proximal, a=of_step, s=of_sequence, valid=VALID, staleness=staleness
    )


# ---- ours: of log-probabilities x and a sample d ---------------------------------------------------------------------


def over_steps(loss, d):
    return jnp.sum(jnp.where(d.valid, loss, 0.0)) / jnp.sum(d.valid)


def over_sequences(loss, d):
    """The mean over the steps of each sequence, then over sequences."""
    return jnp.mean(jnp.sum(jnp.where(d.valid, loss, 0.0), axis=0) / jnp.sum(d.valid, axis=0))


def over_kept(loss, kept, d):
    kept = kept & d.valid
    return jnp.sum(jnp.where(kept, loss, 0.0)) / jnp.maximum(jnp.sum(kept), 1)


def gspo(x, d):
    s = sequence_log_ratio(x - d.behaviour, valid=d.valid, over="mean")
    return jnp.mean(ppo_loss(s, d.s[0], clip=0.1, clip_high=0.15))


def gspo_token(x, d):
    log_ratio = x - d.behaviour
    s = sequence_log_ratio(log_ratio, valid=d.valid, over="mean")
    return over_sequences(ppo_loss(jax.lax.stop_gradient(s - log_ratio) + log_ratio, d.a, clip=0.1, clip_high=0.15), d)


def tis(x, d):
    return over_steps(
        bounded_importance_weight(d.proximal - d.behaviour, high=1.3).weight * ppo_loss(x - d.proximal, d.a), d
    )


def sequence_mis(x, d):
    found = bounded_importance_weight(
        sequence_log_ratio(d.proximal - d.behaviour, valid=d.valid), low=0.3, high=1.5, outside="mask"
    )
    return over_kept(found.weight * ppo_loss(x - d.proximal, d.a), found.kept, d)


def geometric_mis(x, d):
    mean = sequence_log_ratio(d.proximal - d.behaviour, valid=d.valid, over="mean")
    kept = bounded_importance_weight(mean, low=0.8, high=1.25, outside="mask").kept
    return over_kept(ppo_loss(x - d.proximal, d.a), kept, d)


def icepop(x, d):
    weight = bounded_importance_weight(d.proximal - d.behaviour, low=0.6, high=1.7, outside="mask").weight
    return over_sequences(weight * ppo_loss(x - d.proximal, d.a), d)


def cispo(x, d):
    return over_steps(truncated_policy_gradient_loss(x, x - d.behaviour, d.a, ratio_cap=1.25, ratio_floor=0.75), d)


def areal(x, d):
    proximal = d.proximal - d.behaviour
    weight = bounded_importance_weight(proximal, high=1.4, outside="mask").weight
    return over_steps(decoupled_ppo_loss(x - d.behaviour, proximal, d.a, weight=weight), d)


def areal_truncated(x, d):
    """A truncated weight, two widths and a dual clip around the proximal policy."""
    proximal = d.proximal - d.behaviour
    return over_steps(
        decoupled_ppo_loss(
            x - d.behaviour,
            proximal,
            d.a,
            clip=0.2,
            clip_high=0.28,
            weight=bounded_importance_weight(proximal, high=1.4).weight,
            ratio_cap=1.5 * importance_ratio(proximal),
        ),
        d,
    )


def decoupled(x, d):
    return over_steps(decoupled_ppo_loss(x - d.behaviour, d.proximal - d.behaviour, d.a, clip=0.1, clip_high=0.3), d)


def a3po(x, d):
    log_ratio = x - d.behaviour
    proximal = approximate_proximal_log_ratio(log_ratio, d.staleness)
    return over_steps(decoupled_ppo_loss(log_ratio, proximal, d.a, clip=0.1), d)


def impact(x, d):
    return over_steps(
        impact_loss(x - d.behaviour, d.proximal - d.behaviour, d.a, clip=0.1, clip_high=0.3, target_rho=1.5), d
    )


def m2po(x, d):
    log_ratio = x - d.behaviour
    kept = second_moment_mask(log_ratio, d.a, valid=d.valid, max_second_moment=0.015)
    return over_steps(jnp.where(kept, ppo_loss(log_ratio, d.a, clip=math.inf), 0.0), d)


def dppo(x, d, **bound):
    kept = probability_mask(x, d.behaviour, d.a, **bound)
    return over_steps(jnp.where(kept, truncated_policy_gradient_loss(x, x - d.behaviour, d.a, ratio_cap=1.5), 0.0), d)


def opsm(x, d):
    log_ratio = x - d.behaviour
    kept = off_policy_sequence_mask(
        sequence_log_ratio(log_ratio, valid=d.valid, over="mean"), d.s[0], max_divergence=0.05
    )
    return over_sequences(jnp.where(kept, ppo_loss(log_ratio, d.s), 0.0), d)


def topr(x, d):
    whole = sequence_log_ratio(x - d.behaviour, valid=d.valid)
    weight = bounded_importance_weight(whole, low=jnp.where(d.s[0] > 0, 1.0, 0.0), high=1.0).weight
    return over_sequences(weight * impala_loss(x, d.s), d)


def vespo(x, d):
    weight = vespo_weight(sequence_log_ratio(x - d.behaviour, valid=d.valid), d.s[0])
    return over_steps(weight * impala_loss(x, d.s), d)


def sat(x, d):
    log_ratio = x - d.behaviour
    widths = adaptive_clip(log_ratio, valid=d.valid, quantile=0.3)
    return over_steps(ppo_loss(log_ratio, d.a, clip=widths.low, clip_high=widths.high), d)


def p3o(x, d):
    log_ratio = x - d.behaviour
    ess = effective_sample_fraction(log_ratio, valid=d.valid)
    weighted = bounded_importance_weight(log_ratio, high=ess).weight * impala_loss(x, d.a)
    return over_steps(weighted + (1.0 - ess) * importance_ratio(log_ratio) * approximate_kl(-log_ratio), d)


def centred(reward):
    return group_relative_advantage(reward, GROUP, divide_by_std=False)


def kimi(x, d, tau=0.3):
    whole = sequence_log_ratio(x - d.behaviour, valid=d.valid)
    return jnp.mean(oapl_loss(whole, centred(d.s[0]), coefficient=tau)) / (2 * tau)


def tba(x, d, beta=0.4):
    u = sequence_log_ratio(x - d.proximal, valid=d.valid)  # the proximal policy as the reference
    target = jax.lax.stop_gradient(u) + centred(d.s[0] / beta - u)
    return beta / 2 * jnp.mean(oapl_loss(u, target, coefficient=1.0))


def asymre(x, d, below=0.1):
    advantage = jnp.broadcast_to(centred(d.s[0]) + below, x.shape)
    return jnp.sum(jnp.where(d.valid, impala_loss(x, advantage), 0.0)) / B


# ---- the papers': of the same, and of x as it was, in plain Python ---------------------------------------------------


def bounded(x, low, high):
    return min(max(x, low), high)


def clipped(ratio, a, low=0.2, high=0.2):
    return min(ratio * a, bounded(ratio, 1 - low, 1 + high) * a)


#: The valid steps of every sequence, and of all.
SEQUENCES = [[(t, b) for t in range(T) if VALID[t, b]] for b in range(B)]
STEPS = [i for sequence in SEQUENCES for i in sequence]


def mean(numbers):
    return math.fsum(numbers) / len(numbers)


def by_steps(term):
    """An objective that is the negated mean of `term(ratio to the behaviour, i, x, x as it was, d)` over all steps."""
    return lambda x, was, d: -mean([term(math.exp(x[i] - d.behaviour[i]), i, x, was, d) for i in STEPS])


def by_sequences(term):
    return lambda x, was, d: (
        -mean([mean([term(math.exp(x[i] - d.behaviour[i]), i, x, was, d) for i in c]) for c in SEQUENCES])
    )


def detached_ratio(i, was, d):
    return math.exp(was[i] - d.behaviour[i])


def proximal_weight(i, d):
    return math.exp(d.proximal[i] - d.behaviour[i])


def product(i, x, other):
    return math.prod(math.exp(x[j] - other[j]) for j in SEQUENCES[i[1]])


def geometric(i, x, other):
    return math.exp(mean([x[j] - other[j] for j in SEQUENCES[i[1]]]))


def paper_gspo(x, was, d):
    return -mean([clipped(geometric(c[0], x, d.behaviour), d.s[c[0]], 0.1, 0.15) for c in SEQUENCES])


def paper_gspo_token(r, i, x, was, d):
    return clipped(geometric(i, was, d.behaviour) * math.exp(x[i] - was[i]), d.a[i], 0.1, 0.15)


def to_proximal(i, x, d):
    """The surrogate around the proximal policy, without a weight."""
    return clipped(math.exp(x[i] - d.proximal[i]), d.a[i])


def paper_sequence_mis(x, was, d):
    weights = {i: product(i, d.proximal, d.behaviour) for i in STEPS}
    kept = [i for i in STEPS if 0.3 <= weights[i] <= 1.5]
    return -mean([weights[i] * to_proximal(i, x, d) for i in kept])


def paper_geometric_mis(x, was, d):
    kept = [i for i in STEPS if 0.8 <= geometric(i, d.proximal, d.behaviour) <= 1.25]
    return -mean([to_proximal(i, x, d) for i in kept])


def paper_icepop(r, i, x, was, d):
    w = proximal_weight(i, d)
    return (w if 0.6 <= w <= 1.7 else 0.0) * to_proximal(i, x, d)


def paper_areal(r, i, x, was, d):
    w = proximal_weight(i, d)
    return (0.0 if w > 1.4 else w) * to_proximal(i, x, d)


def paper_dual(r, i, x, was, d):
    """A dual clip of 1.5 by its own formula: where A < 0 the surrogate is at least 1.5 A."""
    surrogate = clipped(math.exp(x[i] - d.proximal[i]), d.a[i], 0.2, 0.28)
    return min(proximal_weight(i, d), 1.4) * (max(surrogate, 1.5 * d.a[i]) if d.a[i] < 0 else surrogate)


def paper_decoupled(r, i, x, was, d):
    return proximal_weight(i, d) * clipped(math.exp(x[i] - d.proximal[i]), d.a[i], 0.1, 0.3)


def paper_a3po(r, i, x, was, d):
    age = int(d.staleness[i])
    alpha = (age - 1) / age if age > 0 else 0.0
    proximal = d.behaviour[i] + alpha * (was[i] - d.behaviour[i])
    return math.exp(proximal - d.behaviour[i]) * clipped(math.exp(x[i] - proximal), d.a[i], 0.1, 0.1)


def paper_impact(r, i, x, was, d):
    return clipped(r * min(math.exp(d.behaviour[i] - d.proximal[i]), 1.5), d.a[i], 0.1, 0.3)


def paper_m2po(x, was, d):
    log_ratio = {i: was[i] - d.behaviour[i] for i in STEPS}
    left = [i for i in STEPS if (d.a[i] > 0 and log_ratio[i] > 0) or (d.a[i] < 0 and log_ratio[i] < 0)]
    dropped = []
    while left and mean([log_ratio[i] ** 2 for i in left]) > 0.015:
        dropped.append(max(left, key=lambda i: log_ratio[i] ** 2))
        left.remove(dropped[-1])
    return -mean([0.0 if i in dropped else math.exp(x[i] - d.behaviour[i]) * d.a[i] for i in STEPS])


def paper_dppo(distance, bound):
    def term(r, i, x, was, d):
        p, q, a = math.exp(was[i]), math.exp(d.behaviour[i]), d.a[i]
        dropped = distance(p, q) > bound and ((a > 0 and p > q) or (a < 0 and p < q))
        return 0.0 if dropped else min(detached_ratio(i, was, d), 1.5) * a * x[i]

    return by_steps(term)


def paper_opsm(r, i, x, was, d):
    distance = mean([d.behaviour[j] - was[j] for j in SEQUENCES[i[1]]])
    return 0.0 if d.s[i] < 0 and distance > 0.05 else clipped(r, d.s[i])


def paper_topr(r, i, x, was, d):
    weight = 1.0 if d.s[i] > 0 else bounded(product(i, was, d.behaviour), 0.0, 1.0)
    return weight * d.s[i] * x[i]


def paper_vespo(r, i, x, was, d):
    w = product(i, was, d.behaviour)
    power, decay = (2, 3) if d.s[i] >= 0 else (3, 2)
    return w**power * math.exp(decay * (1 - w)) * d.s[i] * x[i]


def paper_sapo(r, i, x, was, d):
    tau = 1.0 if d.a[i] > 0 else 1.05
    return 4 / tau / (1 + math.exp(-tau * (r - 1))) * d.a[i]


def paper_sat(r, i, x, was, d):
    q = np.quantile([abs(was[j] - d.behaviour[j]) for j in STEPS], 0.3)
    moved = was[i] - d.behaviour[i]
    factor = min(2 / (1 + (abs(moved) / q) ** 2), 1.0)
    return clipped(r, d.a[i], 0.2 * (1.0 if moved > 0 else factor), 0.2 * (factor if moved > 0 else 1.0))


def paper_p3o(r, i, x, was, d):
    ratios = [detached_ratio(j, was, d) for j in STEPS]
    ess = math.fsum(ratios) ** 2 / (len(ratios) * math.fsum(w * w for w in ratios))
    log_ratio = x[i] - d.behaviour[i]
    penalty = (1 - ess) * r * (log_ratio + math.exp(-log_ratio) - 1)
    return min(detached_ratio(i, was, d), ess) * d.a[i] * x[i] - penalty


def log_ratio_of(b, x, other):
    """The log-ratio of a whole sequence."""
    return math.fsum(x[i] - other[i] for i in SEQUENCES[b])


def of_group(b, number):
    """The mean of a number over the sequences of the same prompt."""
    return mean([number(j) for j in range(B) if GROUP[j] == GROUP[b]])


def paper_kimi(x, was, d):
    """The mean reward stands for `tau log Z`."""
    rewards = [d.s[0, b] - of_group(b, lambda j: d.s[0, j]) for b in range(B)]
    return mean([(reward - 0.3 * log_ratio_of(b, x, d.behaviour)) ** 2 for b, reward in enumerate(rewards)]) / 0.6


def paper_tba(x, was, d):
    """The estimate of `log Z` is detached, as in the authors' code."""
    log_z = [of_group(b, lambda j: d.s[0, j] / 0.4 - log_ratio_of(j, was, d.proximal)) for b in range(B)]
    return 0.2 * mean([(log_z[b] + log_ratio_of(b, x, d.proximal) - d.s[0, b] / 0.4) ** 2 for b in range(B)])


def paper_asymre(x, was, d):
    """The baseline is below the mean reward of the prompt."""
    value = [of_group(b, lambda j: d.s[0, j]) - 0.1 for b in range(B)]
    return -mean([(d.s[0, b] - value[b]) * math.fsum(x[i] for i in SEQUENCES[b]) for b in range(B)])


#: Losses of whole sequences with the rewards of their prompt.
OF_GROUPS = {"Kimi k1.5": (kimi, paper_kimi), "TBA": (tba, paper_tba), "AsymRE": (asymre, paper_asymre)}
OBJECTIVES = {
    "GSPO": (gspo, paper_gspo),
    "GSPO-token": (gspo_token, by_sequences(paper_gspo_token)),
    "TIS": (tis, by_steps(lambda r, i, x, was, d: min(proximal_weight(i, d), 1.3) * to_proximal(i, x, d))),
    "sequence MIS": (sequence_mis, paper_sequence_mis),
    "geometric MIS": (geometric_mis, paper_geometric_mis),
    "IcePop": (icepop, by_sequences(paper_icepop)),
    "CISPO": (
        cispo,
        by_steps(lambda r, i, x, was, d: bounded(detached_ratio(i, was, d), 0.75, 1.25) * d.a[i] * x[i]),
    ),
    "AReaL": (areal, by_steps(paper_areal)),
    "AReaL, truncated, dual clip": (areal_truncated, by_steps(paper_dual)),
    "decoupled PPO": (decoupled, by_steps(paper_decoupled)),
    "A-3PO": (a3po, by_steps(paper_a3po)),
    "IMPACT, two widths": (impact, by_steps(paper_impact)),
    "dual clip": (
        lambda x, d: over_steps(ppo_loss(x - d.behaviour, d.a, ratio_cap=1.4), d),
        by_steps(lambda r, i, x, was, d: max(clipped(r, d.a[i]), 1.4 * d.a[i]) if d.a[i] < 0 else clipped(r, d.a[i])),
    ),
    "M2PO": (m2po, paper_m2po),
    "DPPO, TV": (functools.partial(dppo, max_distance=0.1), paper_dppo(lambda p, q: abs(q - p), 0.1)),
    "DPPO, KL": (
        functools.partial(dppo, max_distance=0.02, divergence="kl"),
        paper_dppo(lambda p, q: q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p)), 0.02),
    ),
    "OPSM": (opsm, by_sequences(paper_opsm)),
    "TOPR": (topr, by_sequences(paper_topr)),
    "VESPO": (vespo, by_steps(paper_vespo)),
    "SAPO": (lambda x, d: over_sequences(sapo_loss(x - d.behaviour, d.a), d), by_sequences(paper_sapo)),
    "SAT": (sat, by_steps(paper_sat)),
    "P3O": (p3o, by_steps(paper_p3o)),
}


@jax.jit
def every_objective(x, sample):
    """Value and gradient of each, in one program."""
    d = SimpleNamespace(**sample)
    return {name: jax.value_and_grad(ours)(x, d) for name, (ours, _) in (OBJECTIVES | OF_GROUPS).items()}


@functools.cache
def ours(seed, lag=True):
    """Of a sample; without lag all three policies are one, and advantages are those of sequences."""
    now, d = sample(seed)
    arrays = vars(d) if lag else vars(d) | {"behaviour": now, "proximal": now, "a": d.s}
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, every_objective(now, arrays))


def slope(paper, x, d, h=1e-6):
    """Central differences at every step, valid or not; `was` stays."""
    found = np.zeros((T, B))
    for i in np.ndindex(T, B):
        there = np.zeros((T, B))
        there[i] = h
        found[i] = (paper(x + there, x, d) - paper(x - there, x, d)) / (2 * h)
    return found


@pytest.mark.usefixtures("compiled_in_haste")
@pytest.mark.parametrize("name", [*OBJECTIVES, *OF_GROUPS])
def test_objectives_are_the_papers(name):
    """Value and gradient, in float64; prompts and padding have no gradient at all."""
    _, paper = (OBJECTIVES | OF_GROUPS)[name]
    for seed in (0, 1):
        x, d = sample(seed)
        value, gradient = ours(seed)[name]
        assert gradient.dtype == np.float64
        np.testing.assert_allclose(value, paper(x, x, d), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(gradient, slope(paper, x, d), rtol=1e-7, atol=1e-8)
        np.testing.assert_array_equal(gradient[~d.valid], np.zeros((~d.valid).sum()))
        assert np.any(gradient)


@pytest.mark.usefixtures("compiled_in_haste")
@pytest.mark.parametrize("name", OBJECTIVES)
def test_without_lag_it_is_the_policy_gradient(name):
    """Where all three policies are one, nothing is clipped, weighted or dropped: `-A / n` is the gradient."""
    _, d = sample()
    _, gradient = ours(0, lag=False)[name]
    per_sequence = name in ("GSPO", "GSPO-token", "IcePop", "OPSM", "TOPR", "SAPO")
    share = 1.0 / (d.valid.sum(0) * B if per_sequence else d.valid.sum())
    np.testing.assert_allclose(gradient, np.where(d.valid, -d.s * share, 0.0), rtol=1e-12, atol=1e-15)


@pytest.mark.usefixtures("compiled_in_haste")
@pytest.mark.parametrize("name", OF_GROUPS)
def test_without_lag_groups_have_the_policy_gradient(name):
    """Where all three policies are one, the gradient of a sequence is its reward above the mean of its prompt."""
    _, d = sample()
    _, gradient = ours(0, lag=False)[name]
    advantage = np.array([d.s[0, b] - d.s[0, GROUP[b] == GROUP].mean() for b in range(B)]) + 0.1 * (name == "AsymRE")
    np.testing.assert_allclose(gradient, np.where(d.valid, -advantage / B, 0.0), rtol=1e-12, atol=1e-15)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_in_haste")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_objectives_of_extremes_are_finite(dtype):
    """Actions that have become impossible, log-ratios of ±1e4, advantages of ±1e8; in bfloat16 close to float32."""
    x, d = sample()
    random = np.random.default_rng(0)
    as_type = lambda tree: {  # noqa: E731
        k: jnp.asarray(v, dtype) if v.dtype == np.float64 else v for k, v in tree.items()
    }
    far = vars(d) | {
        "behaviour": random.choice([-1e4, -1.0, -30.0], size=(T, B)),
        "proximal": random.choice([-1e4, -1.0, -30.0], size=(T, B)),
        "a": random.choice([-1e8, 0.0, 1e8], size=(T, B)),
        "s": np.tile(random.choice([-1e8, 0.0, 1e8], size=B), (T, 1)),
    }
    for extremes in ([0.0, -1e4, -1.0], [-math.inf, 0.0]):
        found = every_objective(jnp.asarray(random.choice(extremes, size=(T, B)), dtype), as_type(far))
        for name, (value, gradient) in found.items():
            if name not in ("GSPO-token", "TBA") or -math.inf not in extremes:  # these subtract infinities
                assert np.isfinite(value.astype(jnp.float32)), name
                assert np.isfinite(gradient.astype(jnp.float32)).all(), name
                np.testing.assert_array_equal(gradient[~d.valid], np.zeros((~d.valid).sum()))
    if dtype == "bfloat16":
        narrow = jnp.asarray(x, dtype), as_type(vars(d))
        wide = jax.tree.map(lambda z: z.astype(jnp.float32) if z.dtype == jnp.bfloat16 else z, narrow)
        close(
            {k: np.float32(v) for k, (v, _) in every_objective(*narrow).items()},
            {k: v for k, (v, _) in every_objective(*wide).items()},
            0.1,
        )


def test_dropped_samples_have_exactly_no_gradient():
    """`jnp.where(kept, loss, 0)`, of impossible actions and infinite ratios too, whatever their advantages."""
    log_ratio = jnp.array([0.1, -jnp.inf, jnp.inf, 1e4, -1e4, 0.3])
    kept = jnp.array([True, False, False, False, False, False])
    a = jnp.array([1.0, 1e8, -1e8, -1e8, 1e8, 1.0])
    losses = {
        "ppo": lambda x: ppo_loss(x, a),
        "decoupled": lambda x: decoupled_ppo_loss(x, jnp.zeros(6), a),
        "decoupled, weighted": lambda x: decoupled_ppo_loss(x, jnp.zeros(6), a, weight=1.0),
        "sapo": lambda x: sapo_loss(x, a),
        "impact": lambda x: impact_loss(x, jnp.zeros(6), a),
        "truncated": lambda x: truncated_policy_gradient_loss(x, x, a),
        "IMPALA": lambda x: impala_loss(x, a),
        "KL": approximate_kl,
    }
    total = lambda x: {name: jnp.where(kept, loss(x), 0.0).sum() for name, loss in losses.items()}  # noqa: E731
    for name, gradient in jax.jit(jax.jacrev(total))(log_ratio).items():
        np.testing.assert_array_equal(gradient[1:], np.zeros(5), err_msg=name)
        assert gradient[0] != 0, name


# ---- where two forms coincide ----------------------------------------------------------------------------------------


def with_gradient(loss, x):
    return loss(x), jax.grad(lambda z: jnp.sum(loss(z)))(x)


def arrays(count=64):
    now, d = sample()
    return [jnp.asarray(z, jnp.float32) for z in (now - d.behaviour, d.proximal - d.behaviour, d.a)]


@pytest.mark.slow
@pytest.mark.parametrize("cap", [None, 1.2])
def test_reductions(cap):
    """Of the losses to each other, to the bit; and, where a quotient comes in between, up to rounding."""
    x, y, a = arrays()
    zeros, ones = jnp.zeros_like(x), jnp.ones_like(x)
    widths = {"clip": 0.1, "clip_high": 0.3}
    plain = with_gradient(lambda x: ppo_loss(x, a, ratio_cap=cap, **widths), x)
    assert np.any(np.asarray(plain[0]) != ppo_loss(x, a, clip=0.1, ratio_cap=cap))
    for loss in (
        lambda x: decoupled_ppo_loss(x, zeros, a, ratio_cap=cap, **widths),
        lambda x: decoupled_ppo_loss(x, zeros, a, weight=1.0, ratio_cap=cap, **widths),
        lambda x: decoupled_ppo_loss(x, zeros, a, weight=ones, ratio_cap=cap, **widths),
        lambda x: impact_loss(x, zeros, a, ratio_cap=cap, **widths),
        lambda x: ppo_loss(x, a, ratio_cap=cap, clip=0.1 * ones, clip_high=0.3 * ones),
        lambda x: ppo_loss(sequence_log_ratio(x[None]), a, ratio_cap=cap, **widths),
    ):
        close(with_gradient(loss, x), plain, 3e-7)
    one_width = with_gradient(lambda x: ppo_loss(x, a, clip=0.3, ratio_cap=cap), x)
    for loss in (
        lambda x: ppo_loss(x, a, clip=0.3, clip_high=0.3, ratio_cap=cap),
        lambda x: ppo_penalty_loss(x, a, y, coefficient=0.0, clip=0.3, ratio_cap=cap),
    ):
        equal(with_gradient(loss, x), one_width)
    full = with_gradient(lambda x: decoupled_ppo_loss(x, y, a, ratio_cap=cap, **widths), x)
    for weight in (jnp.exp(y), bounded_importance_weight(y, high=math.inf).weight):
        loss = lambda x, w=weight: decoupled_ppo_loss(x, y, a, weight=w, ratio_cap=cap, **widths)  # noqa: E731
        close(with_gradient(loss, x), full, 1e-5)
    unweighted = with_gradient(lambda x: decoupled_ppo_loss(x, y, a, weight=1.0, ratio_cap=None, **widths), x)
    close(unweighted, with_gradient(lambda x: ppo_loss(x - y, a, **widths), x), 1e-6)


@pytest.mark.slow
def test_bounds_that_bind_nothing():
    """Infinite ones: the plain losses, to the bit, in value and gradient."""
    x, _, a = arrays()
    unclipped = with_gradient(lambda x: ppo_loss(x, a, clip=math.inf), x)
    close(unclipped, (-jnp.exp(x) * a,) * 2, 1e-6)
    for kept in (
        second_moment_mask(x, a, max_second_moment=math.inf),
        probability_mask(x - 4.0, jnp.full_like(x, -4.0), a, max_distance=math.inf),
        off_policy_sequence_mask(x, a, max_divergence=math.inf),
    ):
        loss = lambda x, kept=kept: jnp.where(kept, ppo_loss(x, a, clip=math.inf), 0.0)  # noqa: E731
        equal(with_gradient(loss, x), unclipped)
    free = with_gradient(lambda x: truncated_policy_gradient_loss(x, x, a, ratio_cap=None), x)
    for cap, floor in ((math.inf, 0.0), (None, 0.0), (jnp.full_like(x, jnp.inf), 1e-20)):
        got = lambda x, c=cap, f=floor: truncated_policy_gradient_loss(x, x, a, ratio_cap=c, ratio_floor=f)  # noqa: E731
        equal(with_gradient(got, x), free)
    equal(with_gradient(lambda x: bounded_importance_weight(x, high=math.inf).weight * impala_loss(x, a), x), free)
    floored = truncated_policy_gradient_loss(x, x, a, ratio_cap=0.5, ratio_floor=2.0)
    equal(floored, 2.0 * impala_loss(x, a))  # the floor wins


def test_a_weight_is_a_constant():
    """No gradient to the weight, the proximal policy, the widths or the caps; and the weight is outside of the cap."""
    x, y, a = arrays()
    loss = lambda y, w, low, high, cap: jnp.sum(  # noqa: E731
        decoupled_ppo_loss(x, y, a, clip=0.3, weight=w, ratio_cap=3.0)
        + decoupled_ppo_loss(x, y, a, clip=0.3, weight=w, ratio_cap=cap)
    )
    ones = jnp.ones_like(x)
    equal(jax.grad(loss, argnums=(0, 1, 4))(y, jnp.exp(y), ones, ones, ones), (jnp.zeros_like(x),) * 3)
    capped = with_gradient(lambda x: decoupled_ppo_loss(x, y, a, weight=2.0, ratio_cap=1.1), x)
    u = np.minimum(np.exp(np.float64(x)), 1.1) / np.exp(np.float64(y))
    want = -2.0 * np.minimum(u * a, np.clip(u, 0.8, 1.2) * a)
    close(capped[0], want, 1e-5)
    above = np.asarray(x) > math.log(1.1)
    assert 5 < above.sum() < above.size - 5
    equal(capped[1][above], np.zeros(above.sum()))
    equal(with_gradient(lambda x: decoupled_ppo_loss(x, y, a, weight=0.0), x), (jnp.zeros_like(x), jnp.zeros_like(x)))


# ---- memory ----------------------------------------------------------------------------------------------------------

MEMORY = {
    "sequence_log_ratio, packed": jax.grad(
        lambda x, n: jnp.sum(jnp.square(sequence_log_ratio(x, segment=n.astype(int), over="mean")))
    ),
    "second_moment_mask": lambda x, n: second_moment_mask(x, n),
    "adaptive_clip": lambda x, n: adaptive_clip(x, valid=n > 0),
    "ratio_report": lambda x, n: ratio_report(x, valid=n > 0),
}


def bytes_per_sample(function, shape):
    """The compiled program's peak by XLA's analysis: arguments, results and temporaries."""
    like = jax.ShapeDtypeStruct(shape, jnp.float32)
    found = jax.jit(function).lower(like, like).compile().memory_analysis()
    parts = found.argument_size_in_bytes, found.output_size_in_bytes, found.temp_size_in_bytes
    return sum(parts) / math.prod(shape)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_linear(name):
    """Four times the steps take as many bytes each: there is no matrix of steps by steps."""
    small, large = (bytes_per_sample(MEMORY[name], (steps, 8)) for steps in (512, 2048))
    assert 8 <= small < 150
    assert large <= 1.02 * small


def test_a_moving_average_as_the_proximal_policy():
    """`optax.ema` is the average of PPO-EWMA's code, whose first element is the initial parameters."""
    random, decay = np.random.default_rng(0), 0.889
    params = [{"w": jnp.asarray(random.normal(size=3))} for _ in range(6)]
    average = optax.ema(decay)
    state = average.init(params[0])
    expected, weight = 0.0, 0.0
    for now in params:
        got, state = average.update(now, state)
        before, weight = weight, decay * weight + 1
        expected = decay * before / weight * expected + np.asarray(now["w"]) / weight
        close(got["w"], expected, 1e-5)
