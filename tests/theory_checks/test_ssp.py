"""The runs against loops by hand, and the count of the derivation by enumeration."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from theory_checks import check, ssp

PHI = (
    lambda z, w: z,
    lambda z, w: abs(z),
    lambda z, w: max(z, 0),
    lambda z, w: abs(z) - w / 2 if abs(z) > w else z * z / (2 * w),
)
SLOPE = (lambda z, w: 1, lambda z, w: np.sign(z), lambda z, w: float(z > 0), lambda z, w: np.clip(z / w, -1, 1))


def test_two_workers_of_which_one_runs_ahead():
    """s = 1: worker 0 does both its clocks before worker 1 starts, so worker 1 holds number 3 early, at number 2."""
    seen = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]], float)
    schedule = ssp.Schedule(jnp.array([1, 3, 2, 4]), jnp.array(seen))
    run = ssp.descend(ssp.Losses(jnp.ones((4, 1)), jnp.zeros(4), 0, 1.0), schedule, 1.0, 1e9)
    second, third = 1 / math.sqrt(2), 1 / math.sqrt(3)
    np.testing.assert_allclose(run.views[:, 0], [0, -1, -1 - third, -1 - third - second], atol=1e-6)
    np.testing.assert_allclose(run.iterates[:, 0], [0, -1 - second, -1, -1 - second - third], atol=1e-6)
    missing = seen < np.asarray(schedule.before)
    extra = seen > np.asarray(schedule.before)
    assert np.argwhere(missing).tolist() == [[1, 2]]
    assert np.argwhere(extra).tolist() == [[2, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", range(4))
def test_projected_is_the_loop_by_hand(kind):
    instance = ssp._draw(jax.random.key(kind), 12)
    fixed = {**instance.fixed, "kind": kind, "workers": 3, "bound": 1}
    free, numbers = jax.tree.map(np.asarray, (instance.free, fixed))
    radius, steepness = numbers["radius"], numbers["lipschitz"]

    def clip(x, most):
        length = np.linalg.norm(x)
        return x if length <= most else x * most / length

    star, a = radius * clip(free["star"], 1), [steepness * clip(x, 1) for x in free["direction"]]
    b = [a_t @ star + steepness * radius * z for a_t, z in zip(a, free["offset"], strict=True)]
    width = steepness * radius / 10
    reach = (radius + np.linalg.norm(star)) / math.sqrt(2)
    sigma = reach / (steepness * math.sqrt(2 * 2 * 3))
    x, updates, regret = np.zeros(2), [], 0.0
    for t, (clock, worker) in enumerate(itertools.product(range(4), range(3))):
        view = np.zeros(2)
        for i, update in enumerate(updates):
            may_lack = i % 3 != worker and i // 3 >= clock - 1
            view += update * (1 - may_lack / (1 + math.exp(-free["lacking"][t, i])))
        z = a[t] @ view - b[t]
        regret += PHI[kind](z, width) - PHI[kind](a[t] @ star - b[t], width)
        after = clip(x - sigma / math.sqrt(t + 1) * SLOPE[kind](z, width) * a[t], radius)
        updates.append(after - x)
        x = after
    sides = jax.jit(ssp.projected)(check.Instance(instance.free, fixed))
    unit = reach * steepness * math.sqrt(2 * 2 * 3 * 12)
    np.testing.assert_allclose(sides["c = 4"].left, regret, rtol=1e-10)
    np.testing.assert_allclose(sides["c = 4"].right, 4 * unit)
    np.testing.assert_allclose(sides["c = 3 - 2/P + .."].right, (3 - 2 / 3 + 1 / 12) * unit)
    np.testing.assert_allclose(sides["c = 2 - 1/P + .."].right, (2 - 1 / 3 + 1 / 12) * unit)


@pytest.mark.parametrize("s", range(4))
def test_views_that_an_update_is_missing_from_or_extra_in(s):
    """Of one other worker, by enumeration: `held[k]` is whether its view holds the update k clocks after the update."""

    def most(views, before_it):
        reference = [k > 0 or (k == 0 and before_it) for k in range(-s, s + 1)]
        return max(sum(a != b for a, b in zip(held, reference, strict=True)) for held in views)

    arbitrary = list(itertools.product((False, True), repeat=2 * s + 1))
    forgetting_nothing = [held for held in arbitrary if list(held) == sorted(held)]
    for before_it in (False, True):
        assert most(arbitrary, before_it) == 2 * s + 1
        assert most(forgetting_nothing, before_it) == s + 1


def test_admitted_views_hold_what_they_must_and_no_more():
    s, workers, clocks = 1, 3, 6
    keys = jax.random.split(jax.random.key(0), 200)
    number, seen = jax.jit(jax.vmap(lambda key: ssp.admitted(key, s, workers, clocks)))(keys)
    number, seen = np.asarray(number) - 1, np.asarray(seen)
    clock, worker = number // workers, number % workers
    ahead = clock[:, None, :] - clock[:, :, None]  # of the viewer
    assert (np.sort(number) == np.arange(workers * clocks)).all()
    assert seen[ahead < -s].all()
    assert not seen[ahead > s].any()
    own = worker[:, None, :] == worker[:, :, None]
    np.testing.assert_array_equal(seen[own], (ahead < 0)[own])
    assert not seen[ahead == -s].all()  # the bound is used, and so is
    assert seen[(ahead == s) & ~own].any()  # a finished update, which counts at once
