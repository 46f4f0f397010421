"""PPO's loss where samples are invalid, extreme or batched: nothing leaks, nothing overflows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.problems import categorical, close, compiled, equal, gaussian, parameters, sample_batch
from tests.algorithms.test_ppo import CONFIGURATIONS


def with_a_peer(apply_fn):
    """The compiled loss and gradient with everything on, as a function of the batch."""
    peers = (parameters(2, like=0),)
    return lambda batch: compiled(CONFIGURATIONS["everything"], apply_fn, parameters(1, like=0), batch, peers)


@pytest.mark.slow
@pytest.mark.parametrize("apply_fn", [gaussian, categorical])
def test_invalid_samples_weigh_nothing(apply_fn):
    """Loss, metrics and gradient do not depend on what they hold, and equal those of the valid samples alone."""
    batch, run = sample_batch(apply_fn), with_a_peer(apply_fn)
    got, valid = run(batch), np.asarray(batch.valid)
    for garbage in (-3.0, 1e6):
        spoilt = jax.tree.map(lambda x, g=garbage: x.at[~valid].set(jnp.asarray(g).astype(x.dtype)), batch)
        if apply_fn is categorical:
            spoilt = spoilt._replace(action=batch.action.at[~valid].set(1))
        equal(got, run(spoilt._replace(valid=batch.valid)))
    close(got, run(jax.tree.map(lambda x: x[valid], batch)))


def test_a_batch_without_a_valid_sample():
    """The loss is zero, and so is the gradient: nothing is divided by nothing."""
    batch = sample_batch(gaussian)
    got = with_a_peer(gaussian)(batch._replace(valid=jnp.zeros_like(batch.valid)))
    got[0][1].pop("version_oldest")  # of none: the largest version that there can be
    equal(got, jax.tree.map(jnp.zeros_like, got))


def test_random_extremes_make_no_nan():
    """Log-probabilities, advantages, targets and values of any size that float32 squares."""
    random, run = np.random.default_rng(0), with_a_peer(gaussian)
    batch = sample_batch(gaussian)
    with jax.debug_nans(True):
        for _ in range(20):
            extreme = lambda size: jnp.asarray(random.choice([-size, -1.0, 0.0, 1.0, size], size=24))  # noqa: E731
            got = run(
                batch._replace(log_prob=extreme(1e4), advantage=extreme(1e8), target=extreme(1e8), value=extreme(1e8))
            )
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))


def test_nan_in_invalid_samples():
    """It reaches neither loss nor gradient, not even by way of 0 * NaN."""
    batch, run = sample_batch(gaussian), with_a_peer(gaussian)
    for field in ("action", "log_prob", "value", "advantage", "target"):
        x = getattr(batch, field)
        valid = batch.valid[:, None] if x.ndim == 2 else batch.valid
        equal(run(batch._replace(**{field: jnp.where(valid, x, jnp.nan)})), run(batch))
