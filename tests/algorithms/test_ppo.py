"""PPO's loss over any network, against a transcription in NumPy and its reductions."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import PPO
from stellaris.algorithms import Batch
from tests.algorithms.problems import (
    by_scipy,
    categorical,
    close,
    gaussian,
    loss_and_gradient,
    parameters,
    sample_batch,
)


def transcription(ppo, apply_fn, params, batch, peers, rho):
    """The loss and its metrics, sample by sample in float64, with scipy's distributions."""
    params, batch, peers = jax.tree.map(np.asarray, (params, batch, peers))

    def evaluate(p, i):
        return by_scipy(apply_fn, p, batch.observation[i], batch.action[i])

    rows = []
    for i in np.flatnonzero(batch.valid):
        log_prob, entropy, value = evaluate(params, i)
        log_ratio = log_prob - batch.log_prob[i]
        ratio = math.exp(log_ratio)
        held = [ratio, *(math.exp(evaluate(peer, i)[0] - batch.log_prob[i]) for peer in peers)]
        cap = max(min(held), rho) if peers else math.inf
        used, a = min(ratio, cap), batch.advantage[i]
        low, high = 1 - ppo.clip, 1 + (ppo.clip if ppo.clip_high is None else ppo.clip_high)
        surrogate = min(used * a, min(max(used, low), high) * a)
        error = (value - batch.target[i]) ** 2
        if ppo.value_clip is not None:
            moved = min(max(value - batch.value[i], -ppo.value_clip), ppo.value_clip)
            error = max(error, (batch.value[i] + moved - batch.target[i]) ** 2)
        if ppo.value_loss_clip is not None:
            error = min(error, ppo.value_loss_clip)
        kl = ratio - 1 - log_ratio
        rows.append((-surrogate, error, entropy, kl, not low <= ratio <= high, ratio > cap))
    names = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "truncation_fraction")
    metrics = dict(zip(names, np.mean(rows, axis=0), strict=True))
    versions = batch.version[batch.valid]
    metrics |= {"version_mean": versions.mean(), "version_oldest": versions.min()}
    critic, bonus = ppo.value_coefficient * metrics["value_loss"], ppo.entropy_coefficient * metrics["entropy"]
    return metrics["policy_loss"] + critic - bonus + ppo.kl_coefficient * metrics["kl"], metrics


CONFIGURATIONS = {
    "default": PPO(),
    "entropy": PPO(entropy_coefficient=0.05, value_coefficient=2.0),
    "value_clip": PPO(value_clip=0.3, clip=0.1),
    "penalty": PPO(kl_coefficient=0.3),
    "clip_high": PPO(clip=0.1, clip_high=0.3),
    "value_loss_clip": PPO(value_loss_clip=0.5, value_coefficient=1),
    "everything": PPO(entropy_coefficient=0.1, value_clip=0.5, value_loss_clip=1.0, clip=0.4),
}


@pytest.mark.slow
@pytest.mark.parametrize("apply_fn", [gaussian, categorical])
@pytest.mark.parametrize(("peers", "rho"), [(0, 1.0), (1, 1.0), (2, 1.2), (2, math.inf)])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_loss_matches_its_transcription(name, apply_fn, peers, rho):
    """Loss and all metrics, over valid samples alone, with and without peers."""
    with jax.enable_x64(True):
        params, batch = parameters(1, like=0), sample_batch(apply_fn)
        held = tuple(parameters(2 + i, like=0) for i in range(peers))
        got = CONFIGURATIONS[name].loss(apply_fn, params, batch, held, rho=rho)
        expected = transcription(CONFIGURATIONS[name], apply_fn, params, batch, held, rho)
        assert got[0].dtype == jnp.float64
    close(got, (expected[0], {name: expected[1][name] for name in got[1]}), 1e-10)
    fraction = expected[1]["truncation_fraction"]
    assert 0.1 < fraction < 0.9 if peers and rho < math.inf else fraction == 0


@pytest.mark.slow
@pytest.mark.parametrize("apply_fn", [gaussian, categorical])
def test_gradient_is_the_slope(apply_fn):
    """Central differences in every parameter of the loss with peers, whose cap is held still."""
    ppo, h = CONFIGURATIONS["everything"], 1e-6
    with jax.enable_x64(True):
        params, batch = parameters(1, like=0), sample_batch(apply_fn)
        # The peers are far behind, so that it is they, or rho, that set each cap which binds.
        behind = batch._replace(log_prob=batch.log_prob - 0.2)
        peers = (parameters(2, like=0), parameters(3, like=0))
        flat, unflatten = jax.flatten_util.ravel_pytree(params)
        loss = jax.jit(lambda x: ppo.loss(apply_fn, unflatten(x), behind, peers)[0])
        slope = [(loss(flat.at[i].add(h)) - loss(flat.at[i].add(-h))) / (2 * h) for i in range(flat.size)]
        close(jax.grad(loss)(flat), np.stack(slope), 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "peer", "rho", "advantage", "gradient"),
    [
        (1.1, None, 1.0, 1.0, -1.1),  # plain
        (1.1, 1.0, 1.0, 1.0, 0.0),  # above the cap, though inside the trust region
        (1.1, 1.0, 1.0, -1.0, 0.0),
        (1.1, 1.0, 2.0, 1.0, -1.1),  # rho allows it
        (1.1, 1.0995, 1.0, 1.0, 0.0),  # just above it
        (1.1, 1.1, 1.0, 1.0, -1.1),  # at the cap
        (1.1, 1.15, 1.0, 1.0, -1.1),  # below it: one's own ratio is the least
        (1.0, 0.5, 1.0, 1.0, -1.0),  # at rho, though the peer is behind
        (1.5, 1.6, 1.0, 1.0, 0.0),  # beyond the clip, on the side where it clips
        (1.5, 1.6, 1.0, -1.0, 1.5),  # ... and on the other
        (1.5, 1.4, 1.0, -1.0, 0.0),  # which the cap covers
        (0.5, 0.1, 1.0, 1.0, -0.5),
        (0.5, 0.1, 1.0, -1.0, 0.0),
    ],
)
def test_policy_gradient_of_one_sample(ratio, peer, rho, advantage, gradient):
    """`-r A` with respect to the log-probability where neither clip nor cap is exceeded; else zero."""

    class Given(NamedTuple):
        """A distribution whose log-probability is the parameter: the loss asks for nothing more."""

        logit: jax.Array

        def log_prob(self, value):
            return self.logit + jnp.zeros(value.shape)

        def entropy(self):
            return jnp.zeros(1)

    one = jnp.zeros(1)
    batch = Batch(one, one, one, one, jnp.full(1, advantage), one, jnp.zeros(1, jnp.int32), jnp.ones(1, bool))
    peers = () if peer is None else (jnp.log(jnp.float32(peer)),)
    apply_fn = lambda params, observation: (Given(params), jnp.zeros(1))  # noqa: E731
    (_, metrics), got = loss_and_gradient(PPO(), apply_fn, jnp.log(jnp.float32(ratio)), batch, peers, rho=rho)
    np.testing.assert_allclose(got, gradient, rtol=1e-6)
    assert metrics["truncation_fraction"] == (peer is not None and ratio > max(peer, rho))


@pytest.mark.slow
def test_kl_coefficient_adds_the_divergence():
    """`coefficient * kl`: the configuration's, or the argument in its place, be it 0; in the loss and its gradient."""
    batch, params = sample_batch(gaussian), parameters(1, like=0)
    differentiated = lambda loss: jax.jit(jax.value_and_grad(loss))  # noqa: E731
    plain = differentiated(lambda p: PPO().loss(gaussian, p, batch)[0])(params)
    kl = differentiated(lambda p: PPO().loss(gaussian, p, batch)[1]["kl"])(params)
    assert kl[0] > 0.01
    for ppo, arguments in ((PPO(kl_coefficient=0.3), (None, 0.7, 0.0)), (PPO(), (0.7,))):
        run = differentiated(lambda p, c, ppo=ppo: ppo.loss(gaussian, p, batch, kl_coefficient=c)[0])
        for c in arguments:
            used = 0.3 if c is None else c
            close(run(params, c), jax.tree.map(lambda x, k, used=used: x + used * k, plain, kl))
