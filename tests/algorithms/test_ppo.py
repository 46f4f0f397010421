"""PPO's loss over any network, against a transcription in NumPy and its reductions."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import PPO
from stellaris.algorithms import Batch
from tests.algorithms.problems import (
    FEATURES,
    ActorCritic,
    by_scipy,
    categorical,
    close,
    compiled,
    equal,
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
        surrogate = min(used * a, min(max(used, 1 - ppo.clip), 1 + ppo.clip) * a)
        error = (value - batch.target[i]) ** 2
        if ppo.value_clip is not None:
            moved = min(max(value - batch.value[i], -ppo.value_clip), ppo.value_clip)
            error = max(error, (batch.value[i] + moved - batch.target[i]) ** 2)
        if ppo.value_loss_clip is not None:
            error = min(error, ppo.value_loss_clip)
        kl = ratio - 1 - log_ratio
        rows.append((-surrogate, error, entropy, kl, abs(ratio - 1) > ppo.clip, ratio > cap))
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
    "value_loss_clip": PPO(value_loss_clip=0.5, value_coefficient=1),
    "everything": PPO(entropy_coefficient=0.1, value_clip=0.5, value_loss_clip=1.0, clip=0.4),
}


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


@pytest.mark.parametrize("apply_fn", [gaussian, categorical])
@pytest.mark.parametrize("peers", ["own", "own twice", "others at rho = inf"])
def test_reduces_to_plain_ppo(apply_fn, peers):
    """One policy held, however often, or no truncation: loss, metrics and gradient are plain PPO's, bit for bit."""
    params, rho = parameters(1, like=0), 1.0
    held = tuple(jax.tree.map(jnp.copy, params) for _ in range(2 if peers == "own twice" else 1))
    if peers == "others at rho = inf":
        held, rho = (parameters(2, like=0), parameters(3, like=0)), math.inf
    run = functools.partial(compiled, CONFIGURATIONS["everything"], apply_fn, params, sample_batch(apply_fn))
    got, plain = run(held, rho=rho), run()
    equal(got, plain)
    assert got[0][1]["truncation_fraction"] == 0


@pytest.mark.slow
def test_own_policy_among_the_held_is_not_lost_to_rounding():
    """So too where two learners run as one under vmap, and XLA compiles own and peer's ratio differently.

    The policy is narrow, so that rounding the mean is a large part of a deviation.
    """
    network, size, random = ActorCritic(actions=6), 512, np.random.default_rng(0)
    draw = lambda *shape, scale=1.0: jnp.asarray(random.normal(size=shape, scale=scale))  # noqa: E731
    observation, noise = draw(size, FEATURES), draw(size, 6)
    shapes = jax.eval_shape(network.init, jax.random.key(0), observation)
    behaviour = jax.tree.map(lambda p: draw(*p.shape, scale=0.3), shapes)
    params = jax.tree.map(lambda p: p + draw(2, *p.shape, scale=0.001), behaviour)
    behaviour, params = (
        p | {"params": p["params"] | {"log_std": p["params"]["log_std"] - 4.0}} for p in (behaviour, params)
    )
    distribution, value = jax.jit(network.apply)(behaviour, observation)
    action = distribution.sample(noise)
    log_prob = distribution.log_prob(action)
    version, valid = jnp.zeros(size, jnp.int32), jnp.ones(size, bool)
    batch = Batch(observation, action, log_prob, value, noise[:, 0], value, version, valid)
    run = jax.jit(jax.vmap(functools.partial(loss_and_gradient, PPO(), network.apply), in_axes=(0, None, 0)))
    got, plain = run(params, batch, (jax.tree.map(jnp.copy, params),)), run(params, batch, ())
    equal(got[0][1]["truncation_fraction"], np.zeros(2))
    close(got, plain, 1e-4)


@pytest.mark.parametrize("rho", [0.5, math.nan])
@pytest.mark.parametrize("peers", [0, 1])
def test_rho_below_one(rho, peers):
    """An error also where no peer makes use of it."""
    with pytest.raises(ValueError, match=f"rho={rho} is below 1"):
        PPO().loss(gaussian, parameters(0), sample_batch(gaussian), (parameters(1),) * peers, rho=rho)


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


def test_kl_coefficient_may_change_without_a_new_trace():
    """One trace for every coefficient, as `adapt_kl_coefficient` gives a new one for every batch."""
    traces = []

    def counted(params, observation):
        traces.append(1)
        return gaussian(params, observation)

    batch, params = sample_batch(gaussian), parameters(1, like=0)
    loss = jax.jit(lambda c: PPO().loss(counted, params, batch, kl_coefficient=c))
    losses = [loss(jnp.float32(c)) for c in (0.0, 0.5, 2.0)]
    assert len(traces) == 1
    kl = losses[0][1]["kl"]
    close([x[0] for x in losses], [losses[0][0] + c * kl for c in (0.0, 0.5, 2.0)])
