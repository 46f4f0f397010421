"""Schedules: read off a trace by hand, and replays against the platform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stellaris
from stellaris.runtime import Trace
from stellaris.runtime.delays import Constant
from theory_checks import schedules
from theory_checks.quadratics import Problem, Run, mean_square

AGGREGATORS = {
    "fully asynchronous": stellaris.fully_asynchronous(capacity=8),
    "softsync": stellaris.softsync(3),
    "staleness-aware": stellaris.staleness_aware(group_size=4, decay=0.9, max_staleness=1),
    "sequential": stellaris.staleness_aware(group_size=4, decay=0.9, max_staleness=2, combine="sequential"),
}


def test_a_schedule_by_hand():
    """Two learners start on version 0; the second is faster, and starts again on version 1; the first is one behind."""
    trace = Trace()
    for event, invocation, value in (
        ("published", -1, 0.0),
        ("started", 0, 0.0),
        ("started", 1, 0.0),
        ("completed", 1, 0.0),
        ("published", -1, 1.0),
        ("started", 2, 0.0),
        ("completed", 0, 0.0),
        ("completed", 2, 0.0),
    ):
        trace.append(0.0, event, invocation=invocation, value=value)
    seen = schedules.schedule(trace, 3)
    np.testing.assert_array_equal(seen, [[1, 0, 2], [0, 0, 1], [0, 1, 1]])
    np.testing.assert_array_equal(seen.lag, [0, 1, 0])
    assert len(schedules.schedule(trace, 2).number) == 2


def test_learners_of_equal_speed_by_hand():
    """Four end at one instant, each applied as it comes, and start again on the fourth version: 0 to 3 behind."""
    recorded = schedules.record(AGGREGATORS["fully asynchronous"], 12, delay=Constant(1.0))
    np.testing.assert_array_equal(recorded.number, range(12))
    np.testing.assert_array_equal(recorded.clock, range(12))
    np.testing.assert_array_equal(recorded.lag, [0, 1, 2, 3] * 3)


def test_a_mixture_by_hand():
    """The mean of two: both of version 0, then one of version 0 and one of version 1."""
    recorded = schedules.Schedule(np.arange(4), np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1]))
    mixture = schedules.mixture(stellaris.softsync(2), recorded, oldest=2)
    np.testing.assert_allclose(mixture.lags, [[1, 0, 0], [0.5, 0.5, 0]])
    np.testing.assert_allclose(mixture.noise, [0.5, 0.5])


@pytest.mark.slow
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


@pytest.mark.slow
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
