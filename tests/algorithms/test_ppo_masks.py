"""PPO's loss where samples are invalid, extreme or batched: nothing leaks, nothing overflows."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import PPO
from stellaris.algorithms.batch import take
from tests.algorithms.problems import ACTIONS, categorical, close, compiled, equal, gaussian, parameters, sample_batch
from tests.algorithms.test_ppo import CONFIGURATIONS
from tests.algorithms.test_ppo_prepare import trajectory


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


def test_padding_weighs_nothing():
    """An index beyond the batch is a sample that is not valid: the rest give what they give alone."""
    batch, run = sample_batch(gaussian, invalid=0.0), with_a_peer(gaussian)
    rows = jnp.arange(int(sample_batch(gaussian).valid.sum()))[::-1]
    padded = take(batch, jnp.pad(rows, (0, 24 - rows.size), constant_values=24))
    equal(padded.valid, np.arange(24) < rows.size)
    assert jax.tree.map(lambda x: x.dtype, padded) == jax.tree.map(lambda x: x.dtype, batch)
    close(run(padded), run(jax.tree.map(lambda x: x[rows], batch)))


def test_a_batch_without_a_valid_sample():
    """The loss is zero, and so is the gradient: nothing is divided by nothing."""
    batch = sample_batch(gaussian)
    got = with_a_peer(gaussian)(batch._replace(valid=jnp.zeros_like(batch.valid)))
    got[0][1].pop("version_oldest")  # of none: the largest version that there can be
    equal(got, jax.tree.map(jnp.zeros_like, got))


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_extreme_log_ratios_are_finite(shift):
    """Loss, metrics and gradient, though exp(1e4) overflows, with a peer and without."""
    batch = sample_batch(gaussian)
    batch = batch._replace(log_prob=batch.log_prob - shift)
    plain = compiled(CONFIGURATIONS["everything"], gaussian, parameters(1, like=0), batch)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((plain, with_a_peer(gaussian)(batch))))


def test_loss_under_vmap():
    """Several learners at once get what each gets."""
    batch, learners = sample_batch(gaussian), [parameters(i, like=0) for i in (1, 2)]
    run = functools.partial(compiled, CONFIGURATIONS["everything"], gaussian)
    peers = (parameters(2, like=0),)
    together = jax.vmap(run, in_axes=(0, None, None))(jax.tree.map(lambda *p: jnp.stack(p), *learners), batch, peers)
    close(together, jax.tree.map(lambda *x: jnp.stack(x), *(run(p, batch, peers) for p in learners)))


@pytest.mark.parametrize("field", ["action", "log_prob", "value", "advantage", "target"])
@pytest.mark.parametrize("garbage", [math.nan, 1e30, math.inf])
def test_garbage_in_invalid_samples(field, garbage):
    """Reaches neither loss nor gradient, not even by way of 0 * NaN."""
    batch, run = sample_batch(gaussian), with_a_peer(gaussian)
    x = getattr(batch, field)
    valid = batch.valid[:, None] if x.ndim == 2 else batch.valid
    equal(run(batch._replace(**{field: jnp.where(valid, x, garbage)})), run(batch))


def test_garbage_in_steps_that_are_no_transition():
    """The NaN that a reset may have for a reward reaches no advantage, and so neither loss nor gradient."""
    steps = trajectory()
    spoilt = steps._replace(reward=np.where(steps.valid, steps.reward, np.nan))
    got, clean = (PPO().prepare(t) for t in (spoilt, steps))
    equal((got.advantage, got.target), (clean.advantage, clean.target))


def forbidding(params, observation):
    """A categorical policy whose last action has probability zero if the parameters say so."""
    forbidden = (params["log_std"] > 50.0) & (jnp.arange(ACTIONS) == ACTIONS - 1)
    return jnp.where(forbidden, -jnp.inf, observation @ params["policy"]), observation @ params["value"]


@pytest.mark.parametrize("forbids", [(True, False), (False, True), (True, True)])
def test_actions_of_probability_zero(forbids):
    """Taken all the same: in learner or peer they give a finite loss and gradient; the divergence counts them as 1e6.

    A behaviour policy whose log-probability is minus infinity is allowed where a sample is not valid.
    """
    batch = sample_batch(categorical)
    batch = batch._replace(log_prob=jnp.where(batch.valid, batch.log_prob, -jnp.inf))
    learner, peer = (
        parameters(seed, like=0) | {"log_std": jnp.full(ACTIONS, 100.0 * on)}
        for seed, on in zip((1, 2), forbids, strict=True)
    )
    with jax.debug_nans(True):
        for held in ((), (peer,)):
            got = compiled(CONFIGURATIONS["penalty"], forbidding, learner, batch, held)
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))
    impossible = (batch.action == ACTIONS - 1)[batch.valid].mean()
    assert impossible > 0.2
    if forbids[0]:
        close(got[0][1]["kl"] / 1e6, impossible, 1e-3)


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


def test_loss_under_vmap_over_batches_and_checkpoint():
    """The same numbers: a loss and a gradient for every batch, and the gradient when the forward pass is redone."""
    ppo, params, peers = CONFIGURATIONS["everything"], parameters(1, like=0), (parameters(2, like=0),)
    batches = [sample_batch(gaussian, seed=seed) for seed in (0, 1)]
    alone = [compiled(ppo, gaussian, params, batch, peers) for batch in batches]
    together = jax.vmap(lambda batch: compiled(ppo, gaussian, params, batch, peers))(
        jax.tree.map(lambda *x: jnp.stack(x), *batches)
    )
    close(together, jax.tree.map(lambda *x: jnp.stack(x), *alone))
    loss = jax.checkpoint(lambda p: ppo.loss(gaussian, p, batches[0], peers)[0])
    close(jax.jit(jax.grad(loss))(params), alone[0][1])


def test_no_gradient_to_the_peers():
    """However they move the loss."""
    batch, params = sample_batch(gaussian), parameters(1, like=0)
    loss = jax.jit(jax.value_and_grad(lambda peer: PPO().loss(gaussian, params, batch, (peer,))[0]))
    (first, gradient), (second, _) = (loss(parameters(seed, like=0)) for seed in (2, 3))
    equal(gradient, jax.tree.map(jnp.zeros_like, gradient))
    assert abs(first - second) > 1e-6
