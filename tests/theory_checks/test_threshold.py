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


@pytest.mark.slow
def test_fresh_gradients_fire_alone_however_small_the_threshold():
    """Learner 0 moves the policy twice; learner 1's gradient is then 2 versions old, and waits for company."""
    seen = threshold.arrive(jnp.array([0, 0, 1, 0]), 2, 2, FRESH_ONLY)
    assert seen.applied.tolist() == [True, True, False, True]
    assert seen.reported.tolist() == [[1, 0], [1, 0], [0, 0], [2, 2]]
    assert seen.wait.tolist() == [0, 0, 0, 1]


@pytest.mark.slow
def test_one_of_each_waits_for_the_last():
    """Learner 1's gradient is stale when it arrives; from then on nothing is applied until learner 2 delivers."""
    seen = threshold.arrive(jnp.array([0, 1, 0, 0, 0, 0, 2]), 3, 7, FRESH_ONLY, one_of_each=True)
    assert seen.applied.tolist() == [True, False, False, False, False, False, True]
    assert int(seen.wait.max()) == 5


def test_every_order_is_looked_at():
    family = threshold._every_order(3, 4, 2, MEASURED)
    draw = jax.vmap(lambda i: family.draw(jax.random.key(0), i).fixed["order"])
    orders = np.asarray(jax.jit(draw)(jnp.arange(family.count)))
    assert len(orders) == len(np.unique(orders, axis=0)) == 3**4


def test_waits_in_the_picture():
    applied = np.array([False, True, True, False, False, True])
    assert threshold._waits(applied).tolist() == [1, 0, 0, 2, 1, 0]
    # Taken up at 0, then at 1 and at 2; applied when the clock was 0, 1 and 2.
    assert threshold._staleness(np.array([1, 0, 1, 0, 1, 0], bool), applied) == pytest.approx((0 + 1 + 0) / 3)
