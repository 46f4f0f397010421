"""The library's queue against one in plain Python, and numbers by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from theory_checks import threshold
from theory_checks.threshold import Setting

FRESH_ONLY, MEASURED = Setting(0.0, 1.0, 1), Setting(None, 0.5, 4)


def in_plain_python(order, learners, full, setting, one_of_each=False):
    """`(applied, stalenesses in the queue, wait of the first, beta)` at each arrival."""
    queue, taken_up, clock, stale_round, stalest = [], [0] * learners, 0, None, 0
    for i, learner in enumerate(order):
        k = i // setting.period
        queue.append((i, learner, taken_up[learner]))
        stalenesses = [clock - version for _, _, version in queue]
        if setting.max_staleness is not None:
            beta = setting.max_staleness * setting.decay**k
        else:
            beta = float("inf") if stale_round in (None, k) else stalest * setting.decay**k
        everybody = one_of_each and len({who for _, who, _ in queue}) == learners
        applied = np.mean(stalenesses) <= beta or len(queue) >= full or everybody
        yield applied, stalenesses, i - queue[0][0], beta
        if applied:
            if max(stalenesses) > 0 and stale_round in (None, k):
                stale_round, stalest = k, max(stalest, *stalenesses)
            queue, clock = [], clock + 1
        taken_up[learner] = clock


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "one_of_each"),
    [
        (Setting(1.5, 0.8, 5), False),
        (FRESH_ONLY, False),
        (Setting(0.1, 1.0, 1), True),
        (Setting(np.inf, 1.0, 1), False),
        (MEASURED, False),
    ],
)
def test_arrivals_are_those_of_a_queue_in_plain_python(setting, one_of_each):
    learners, full = 4, 12 if one_of_each else 4
    order = np.random.default_rng(3).choice(learners, size=60, p=[0.5, 0.3, 0.15, 0.05])
    seen = jax.jit(lambda o: threshold.arrive(o, learners, full, setting, one_of_each=one_of_each))(jnp.array(order))
    applied, queues, waits, betas = zip(*in_plain_python(order, learners, full, setting, one_of_each), strict=True)
    np.testing.assert_array_equal(seen.applied, applied)
    np.testing.assert_array_equal(seen.length, [len(q) for q in queues])
    np.testing.assert_array_equal(seen.total, [sum(q) for q in queues])
    np.testing.assert_array_equal(seen.stalest, [max(q) for q in queues])
    np.testing.assert_array_equal(seen.wait, waits)
    np.testing.assert_allclose(seen.threshold, betas)
    reported = [(len(q), sum(q)) if now else (0, 0) for now, q in zip(applied, queues, strict=True)]
    np.testing.assert_array_equal(seen.reported, reported)


def test_every_order_is_looked_at():
    family = threshold._every_order(3, 4, 2, MEASURED)
    draw = jax.vmap(lambda i: family.draw(jax.random.key(0), i).fixed["order"])
    orders = np.asarray(jax.jit(draw)(jnp.arange(family.count)))
    assert len(orders) == len(np.unique(orders, axis=0)) == 3**4
