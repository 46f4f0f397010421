"""rlax as an independent oracle: values and gradients, on random inputs of many seeds, in float32 and float64."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from stellaris import Categorical, DiagonalGaussian, gae, impala_loss, vtrace

pytestmark = pytest.mark.filterwarnings("ignore:Rlax :PendingDeprecationWarning")
PRECISIONS = [("float32", 1e-5), ("float64", 1e-12)]
SEEDS, STEPS, BATCH = 20, 9, 3


def trajectories():
    """Reward, discount (some zero), value and log-ratio of 20 seeds, `[seed, T, B]`; and weights of a gradient."""
    random = np.random.default_rng(0)
    shape = (SEEDS, STEPS, BATCH)
    reward, log_ratio, weight = random.normal(size=(3, *shape))
    discount = random.uniform(0.5, 1.0, size=shape) * (random.uniform(size=shape) > 0.2)
    return reward, discount, random.normal(size=(SEEDS, STEPS + 1, BATCH)), log_ratio, weight


def compare(both, arrays, precision, tolerance):
    """Compiles `both(*arrays) -> (ours, theirs)` and compares, in a type."""
    with jax.enable_x64(precision == "float64"):
        ours, theirs = jax.jit(both)(*(jnp.asarray(x, precision if x.dtype.kind == "f" else "int32") for x in arrays))
    assert all(x.dtype == precision for x in jax.tree.leaves(ours))
    chex.assert_trees_all_close(ours, theirs, rtol=tolerance, atol=tolerance)


def per_environment(function):
    """`function` of one trajectory `[T]`, over the environments `[T, B]`."""
    return jax.vmap(function, in_axes=1, out_axes=1)


def with_gradients(pairs, argnums=0):
    """Values and gradients of two functions each, for every seed."""
    return lambda *arrays: tuple(
        [jax.vmap(jax.value_and_grad(f, argnums=argnums))(*arrays) for f in functions]
        for functions in zip(*pairs, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), PRECISIONS)
def test_gae(precision, tolerance):
    """`truncated_generalized_advantage_estimation`, and its gradient to reward, discount and value."""

    def both(reward, discount, value, weight):
        results = []
        for lambda_ in (0.0, 0.95):

            def ours(r, d, v, lambda_=lambda_):
                return gae(r, d, v, lambda_=lambda_)

            def theirs(r, d, v, lambda_=lambda_):
                return per_environment(
                    lambda r, d, v: rlax.truncated_generalized_advantage_estimation(r, d, lambda_, v)
                )(r, d, v)

            def pulled_back(f, r, d, v, w):
                advantage, vjp = jax.vjp(f, r, d, v)
                return advantage, vjp(w)

            results.append(
                [jax.vmap(lambda *a, f=f: pulled_back(f, *a))(reward, discount, value, weight) for f in (ours, theirs)]
            )
        return [r[0] for r in results], [r[1] for r in results]

    reward, discount, value, _, weight = trajectories()
    compare(both, (reward, discount, value, weight), precision, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), PRECISIONS)
def test_vtrace(precision, tolerance):
    """`vtrace_td_error_and_advantage` for several lambdas and clips; rlax's c is always clipped at 1."""
    settings = [(1.0, 1.0, 1.0), (0.7, 2.0, 1.0), (0.7, 0.5, 1.5), (0.9, math.inf, math.inf)]

    def both(reward, discount, value, log_ratio):
        ours, theirs = [], []
        for lambda_, rho_clip, pg_rho_clip in settings:

            def mine(r, d, v, x, lambda_=lambda_, rho=rho_clip, pg=pg_rho_clip):
                return tuple(vtrace(r, d, v, x, lambda_=lambda_, rho_clip=rho, pg_rho_clip=pg))

            def other(r, d, v, x, lambda_=lambda_, rho=rho_clip, pg=pg_rho_clip):
                got = rlax.vtrace_td_error_and_advantage(v[:-1], v[1:], r, d, jnp.exp(x), lambda_, rho, pg)
                return got.errors + v[:-1], got.pg_advantage, got.q_estimate

            ours.append(jax.vmap(mine)(reward, discount, value, log_ratio))
            theirs.append(jax.vmap(per_environment(other))(reward, discount, value, log_ratio))
        return ours, theirs

    compare(both, trajectories()[:4], precision, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), PRECISIONS)
def test_categorical(precision, tolerance):
    """Log-probability, entropy and their gradients; the policy-gradient loss, which averages."""
    theirs = rlax.softmax()
    random = np.random.default_rng(0)
    logits, advantage = random.normal(size=(SEEDS, 6, 5), scale=3.0), random.normal(size=(SEEDS, 6))

    pairs = (
        (lambda x, a, w: jnp.sum(Categorical(x).log_prob(a) * w), lambda x, a, w: jnp.sum(theirs.logprob(a, x) * w)),
        (lambda x, a, w: jnp.sum(Categorical(x).entropy() * w), lambda x, a, w: jnp.sum(theirs.entropy(x) * w)),
        (
            lambda x, a, w: jnp.mean(impala_loss(Categorical(x).log_prob(a), w)),
            lambda x, a, w: rlax.policy_gradient_loss(x, a, w, jnp.ones_like(w)),
        ),
    )
    compare(with_gradients(pairs), (logits, random.integers(5, size=(SEEDS, 6)), advantage), precision, tolerance)


@pytest.mark.parametrize(("precision", "tolerance"), PRECISIONS)
def test_gaussian(precision, tolerance):
    """Log-probability, entropy and their gradients to mean and log-deviation."""
    theirs = rlax.gaussian_diagonal()
    mean, log_std, action = np.random.default_rng(0).normal(size=(3, SEEDS, 6, 4), scale=0.7)
    weight = np.random.default_rng(1).normal(size=(SEEDS, 6))

    pairs = (
        (
            lambda m, s, a, w: jnp.sum(DiagonalGaussian(m, s).log_prob(a) * w),
            lambda m, s, a, w: jnp.sum(theirs.logprob(a, m, jnp.exp(s)) * w),
        ),
        (
            lambda m, s, a, w: jnp.sum(DiagonalGaussian(m, s).entropy() * w),
            lambda m, s, a, w: jnp.sum(theirs.entropy(m, jnp.exp(s)) * w),
        ),
    )
    # float32: 24 terms of up to 50 are summed, so 1e-5 is of the sum's scale
    tolerance *= 10 if precision == "float32" else 1
    compare(with_gradients(pairs, argnums=(0, 1)), (mean, log_std, action, weight), precision, tolerance)
