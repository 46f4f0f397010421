"""The loop and the scan that solve both recurrences: the same values, gradients and masks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import gae, vtrace
from tests.test_returns import sample
from tests.test_returns_vtrace import log_ratios, vtrace_definition


@pytest.fixture(scope="module", autouse=True, params=["loop", "scan"])
def formulation(request):
    """Solves the recurrence in one of the two ways, wherever a test of this module runs."""
    chosen = []

    def choose(*arguments, cpu, default):
        chosen.append(request.param)
        return (cpu if request.param == "loop" else default)(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.lax, "platform_dependent", choose)
        jax.clear_caches()  # or what was traced for the other formulation would be used
        yield request.param
    jax.clear_caches()
    assert chosen


def unrolled(reward, discount, value, lambda_, valid):
    """The recursion row by row, for JAX to differentiate."""
    later, rows = jnp.zeros_like(reward[0]), []
    for t in reversed(range(len(reward))):
        error = reward[t] + discount[t] * value[t + 1] - value[t]
        later = jnp.where(valid[t], error + discount[t] * lambda_ * later, 0.0)
        rows.append(later)
    return jnp.stack(rows[::-1])


# The loop is unrolled by two where rows or arrays are large: there with an odd and an even number of steps.
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 3), (7, 3), (4, 2100), (5, 1700)])
@pytest.mark.parametrize("masked", [False, True])
def test_both_formulations(shape, masked):
    """The loop and the scan give one value and one gradient."""
    reward, discount, value, valid = sample(shape, seed=3)
    log_ratio, weight = log_ratios((2, *shape))
    valid = valid if masked else np.ones_like(valid)

    def everything(reward, discount, value, log_ratio, weight, valid):
        mask = valid if masked else None
        advantage, pull = jax.vjp(lambda *a: gae(*a, lambda_=0.7, valid=mask), reward, discount, value)
        plain, pull_plain = jax.vjp(lambda *a: unrolled(*a, 0.7, valid), reward, discount, value)
        off_policy = vtrace(reward, discount, value, log_ratio, lambda_=0.7, rho_clip=1.5, valid=mask)
        return (advantage, pull(weight)), (plain, pull_plain(weight)), off_policy

    with jax.enable_x64(True):
        got, expected, off_policy = jax.jit(everything)(reward, discount, value, log_ratio, weight, valid)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12), got, expected)
    definition = vtrace_definition(reward, discount, value, log_ratio, lambda_=0.7, rho_clip=1.5, valid=valid)
    for x, y in zip(off_policy, definition, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("masked", [pytest.param(False, marks=pytest.mark.slow), True])
def test_derivatives_of_every_order(masked):
    """Forward and reverse mode, both in turn, and under `vmap`, in all arguments; as JAX derives the recursion."""
    reward, discount, value, valid = sample((4, 2), seed=5)
    valid = valid if masked else np.ones_like(valid)
    tangents = tuple(np.random.default_rng(1).normal(size=x.shape) for x in (reward, discount, value, np.zeros(())))

    def ours(reward, discount, value, lambda_):
        return jnp.sum(gae(reward, discount, value, lambda_=lambda_, valid=valid if masked else None) ** 2)

    def theirs(reward, discount, value, lambda_):
        return jnp.sum(unrolled(reward, discount, value, lambda_, valid) ** 2)

    def everything(f, *arrays):
        every = (0, 1, 2, 3)
        curvature = jax.jvp(jax.grad(f, every), arrays, tangents)[1]
        pull = jax.grad(
            lambda *a: sum(jnp.vdot(x, y) for x, y in zip(jax.grad(f, every)(*a), tangents, strict=True)), every
        )
        by_lambda = jax.vmap(jax.grad(f, 3), (None, None, None, 0))(*arrays[:3], jnp.array([0.0, 0.5, 1.0]))
        return jax.jvp(f, arrays, tangents)[1], curvature, pull(*arrays), by_lambda

    with jax.enable_x64(True):
        got, expected = (
            jax.jit(lambda *a, f=f: everything(f, *a))(reward, discount, value, 0.7) for f in (ours, theirs)
        )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11), got, expected)


VALID = np.array([True, False, False, True, True, False])[:, None] & np.ones((6, 2), bool)


@jax.jit
def values_and_gradients(reward, discount, value, log_ratio, cap):
    advantage, pull = jax.vjp(lambda *a: gae(*a, lambda_=0.7, valid=VALID), reward, discount, value)

    def total(*arrays):
        found = vtrace(*arrays[:4], ratio_cap=arrays[4], rho_clip=9.0, valid=VALID)
        return jnp.sum(jnp.where(VALID, found.target * found.advantage, 0.0)), found

    gradients, found = jax.grad(total, argnums=(0, 1, 2, 3, 4), has_aux=True)(reward, discount, value, log_ratio, cap)
    return advantage, pull(jnp.where(VALID, 1.5, 0.0)), gradients, found


@pytest.mark.slow
@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_what_invalid_steps_hold_reaches_nothing(garbage):
    """Neither values nor gradients see their reward, discount, ratio or cap, nor a value between two of them."""
    reward, discount, value, _ = (np.asarray(x, np.float32) for x in sample((6, 2)))
    log_ratio = np.asarray(log_ratios((6, 2)), np.float32)
    between = np.array([False, False, True, False, False, False, True])[:, None]  # used by no transition
    cap = np.exp(log_ratio) + 0.5

    def filled(fill):
        arrays = [np.where(VALID, x, np.float32(fill)) for x in (reward, discount, log_ratio, cap)]
        return values_and_gradients(*arrays[:2], np.where(between, np.float32(fill), value), *arrays[2:])

    got, expected = filled(garbage), filled(0.0)
    np.testing.assert_array_equal(got[3].target[~VALID[:, 0]][1], np.full(2, garbage, np.float32))
    clean = [(x[0], x[1], x[2], (x[3].target[VALID], x[3].advantage)) for x in (got, expected)]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(clean))
    jax.tree.map(np.testing.assert_array_equal, *clean)
    advantage, by_array, gradients, _ = got
    assert not np.any(advantage[~VALID])
    assert not any(np.any(x[~VALID]) for x in by_array[:2])
    assert not any(np.any(x) for x in gradients)


@pytest.mark.slow
def test_what_a_loss_makes_of_invalid_steps_reaches_nothing():
    """The gradient that comes back for an invalid step's advantage, say of a masked NaN times it, goes no further."""
    reward, discount, value, _ = (jnp.asarray(x, jnp.float32) for x in sample((6, 2)))
    valid = jnp.array([True, True, False, True, True, False])[:, None] & jnp.ones((6, 2), bool)

    @jax.jit
    def gradients(garbage):
        ratio = jnp.where(valid, 1.5, garbage)
        masked_loss = lambda *a: jnp.sum(jnp.where(valid, ratio * gae(*a, lambda_=0.7, valid=valid), 0.0))  # noqa: E731
        return jax.grad(masked_loss, argnums=(0, 1, 2))(reward, discount, value)

    jax.tree.map(np.testing.assert_array_equal, gradients(jnp.nan), gradients(0.0))
