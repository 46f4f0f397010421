"""Moments against sampled descent, schedules against the platform, objectives against their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stellaris
from theory_checks import convergence, mdp, rates, schedules
from theory_checks.quadratics import Problem, Run, mean_square

AGGREGATORS = {
    "fully asynchronous": stellaris.fully_asynchronous(capacity=8),
    "softsync": stellaris.softsync(3),
    "staleness-aware": stellaris.staleness_aware(full=4, decay=0.9, max_staleness=1),
    "sequential": stellaris.staleness_aware(full=4, decay=0.9, max_staleness=2, combine="sequential"),
}


def test_one_update_by_hand():
    """From x = 2 with h = 1/2, step 1/2, variance 3: x' = 2 - (1 + xi) / 2."""
    one = Problem(*(jnp.array([x]) for x in (0.5, 1.0, 1.0)))
    lags = jnp.tile(jnp.array([1.0, 0.0]), (2, 1))
    seen = mean_square(one, Run(1.0, 0.5, lags, jnp.full(2, 3.0), None))
    np.testing.assert_allclose(seen, [0.5**2 * 4, 0.5**2 * (1.5**2 + 0.75)])


def test_moments_are_those_of_sampled_descent():
    two = Problem(jnp.array([0.3, 0.9]), jnp.array([0.4, 0.6]), jnp.array([0.7, 0.3]))
    lags = np.random.default_rng(0).dirichlet(np.ones(4), size=12)
    exact = mean_square(two, Run(2.0, 0.4, lags, jnp.full(12, 0.5), None))
    h, start = np.asarray(two.curvature), np.sqrt(2 * 2.0 * np.asarray(two.gap / two.curvature))
    noise = np.random.default_rng(1).normal(size=(200_000, 12, 2)) * np.sqrt(0.5 * np.asarray(two.variance))
    versions = [np.broadcast_to(start, (200_000, 2))] * 4
    for t in range(12):
        np.testing.assert_allclose(exact[t], ((h * versions[0]) ** 2).sum(1).mean(), rtol=0.02)
        stale = sum(weight * version for weight, version in zip(lags[t], versions, strict=True))
        versions = [versions[0] - 0.4 * (h * stale + noise[:, t]), *versions[:3]]


def test_the_figures_of_the_docstring():
    assert convergence.thresholds() == pytest.approx(
        {"tau 0": 1.0, "tau 1": 3.7, "tau 3": 16.4, "tau 7": 71.2}, rel=0.02
    )
    assert [convergence.last_staleness(v) for v in (1.0, 2.0, 3.0)] == [3, 13, 51]


def test_fourteen_is_enough_for_every_staleness_and_thirteen_is_not():
    late = [*range(500), 10**4, 10**6, 10**9]
    assert all(convergence.is_sufficient(14.0, tau) for tau in late)
    levels, shares = np.arange(0.3, 0.8, 0.01), np.arange(0.3, 0.7, 0.02)
    assert not any(convergence.is_sufficient(13.0, 10**9, f=f, m=m) for f in levels for m in shares)


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("delay", schedules.DELAYS)
def test_a_replay_is_the_platform_run_again(name, delay):
    aggregator, arrivals, start = AGGREGATORS[name], 60, jnp.ones(2)

    def gradient(params, number):
        return jnp.sin(params) * jnp.array([1.0, 0.3]) + jax.random.normal(jax.random.key(number), (2,))

    params, trace = schedules.descend(
        aggregator, jax.jit(gradient), start, 0.1, arrivals, delay=schedules.DELAYS[delay], seed=1
    )
    recorded = schedules.schedule(trace, arrivals)
    again = schedules.replay(aggregator, gradient, start, 0.1, recorded, oldest=int(recorded.lag.max()))
    assert params.dtype == jnp.float64
    np.testing.assert_allclose(again.params, params, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(again.clock, recorded.clock)
    assert recorded.lag.max() > 0
    assert len({*recorded.number.tolist()}) == arrivals


def test_a_mixture_is_what_the_aggregator_does():
    """Without noise, the moments along it are the squares of the replay's gradients."""
    aggregator, oldest = AGGREGATORS["staleness-aware"], 40
    recorded = schedules.record(aggregator, 60, delay=schedules.DELAYS["exponential"], seed=2)
    mixture = schedules.mixture(aggregator, recorded, oldest=oldest)
    h = jnp.array([0.3, 0.8])
    run = schedules.replay(
        aggregator,
        lambda x, number: h * x,
        jnp.ones(2),
        0.2,
        recorded,
        oldest=oldest,
        measure=lambda x: ((h * x) ** 2).sum(),
    )
    gap = (h / 2).sum()
    problem = Problem(h, h / 2 / gap, h)
    squares = mean_square(problem, Run(gap, 0.2, mixture.lags, np.zeros(len(mixture.noise)), None))
    first = np.flatnonzero(np.diff(np.asarray(run.clock), prepend=-1) > 0)
    np.testing.assert_allclose(squares[: len(first)], np.asarray(run.measured)[first][: len(squares)], rtol=1e-10)
    assert ((mixture.noise > 0) & (mixture.noise <= 1)).all()


def test_policy_gradients_are_unbiased_and_within_their_variance():
    @jax.jit
    def estimate(numbers, logits, keys):
        objective = rates.policy_gradient(numbers)
        samples = jax.vmap(lambda key: objective.gradient(logits, key, 4))(keys)
        return samples, objective.expected(logits), objective.variance

    numbers, logits = jax.random.normal(jax.random.key(0), (27,)), jax.random.normal(jax.random.key(1), (3, 2))
    samples, exact, variance = estimate(numbers, logits, jax.random.split(jax.random.key(2), 4_000))
    error = abs(samples.mean(0) - exact) / (samples.std(0) / np.sqrt(4_000))
    assert (error < 5).all()
    assert 4 * ((samples - exact) ** 2).sum((1, 2)).mean() <= variance


def test_policy_gradient_is_the_derivative_of_the_return():
    @jax.jit
    def compare(numbers, logits):
        objective = rates.policy_gradient(numbers)
        transition, reward, start = jnp.split(numbers, (18, 24))
        process = mdp.MDP(
            jax.nn.softmax(2 * transition.reshape(3, 2, 3)),
            jax.nn.sigmoid(2 * reward.reshape(3, 2)),
            jax.nn.softmax(start),
            0.5,
        )
        loss = lambda x: -mdp.evaluate(process, jax.nn.softmax(x)).performance  # noqa: E731
        every = jax.vmap(lambda x: (objective.expected(x), *jax.value_and_grad(loss)(x)[::-1]))(logits)
        hessian = jax.vmap(jax.jacfwd(objective.expected))(logits)
        return *every, hessian, loss(objective.start) - objective.gap

    numbers = jax.random.normal(jax.random.key(0), (27,))
    logits = 3 * jax.random.normal(jax.random.key(1), (20, 3, 2))
    expected, gradient, losses, hessian, least = compare(numbers, logits)
    np.testing.assert_allclose(expected, gradient, atol=1e-10)
    assert abs(np.linalg.eigvalsh(hessian.reshape(20, 6, 6))).max() <= 64  # 8 / (1 - 1/2)^3
    assert (least <= losses).all()


def test_slope():
    at = (1.0, 2.0, 4.0)
    squares = np.outer(np.array(at) ** -0.5, np.random.default_rng(0).uniform(0.9, 1.1, 50))
    low, middle, high = rates.slope(at, squares, seed=0)
    assert low <= middle <= high
    assert middle == pytest.approx(-0.5)
