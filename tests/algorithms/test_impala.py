"""IMPALA over any network: against a transcription in NumPy, and what it reduces to."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import IMPALA, Trajectory
from tests.algorithms.problems import ACTIONS, FEATURES, by_scipy, categorical, close, equal, gaussian, parameters

T, B = 6, 3


def sample_trajectory(apply_fn, steps=T, environments=B, noise=0.3, seed=0):
    """Steps that `parameters(0)` chose, with its values and, but for noise, its log-probabilities.

    Where there are enough of both, the first environment is truncated after step 1 and resets in step 2, the second
    terminates after step 2 and resets in step 3, and the third runs on.
    """
    random = np.random.default_rng(seed)
    draw = lambda *shape, scale=1.0: jnp.asarray(random.normal(size=shape, scale=scale))  # noqa: E731
    observation = draw(steps + 1, environments, FEATURES)
    distribution, value = apply_fn(parameters(0), observation)
    action = distribution.sample(draw(steps + 1, environments, ACTIONS))
    terminated, valid = np.zeros((steps, environments), bool), np.ones((steps, environments), bool)
    if (steps, environments) == (T, B):
        terminated[2, 1] = True
        valid[[2, 3], [0, 1]] = False
    return Trajectory(
        observation=observation,
        action=action[:-1],
        reward=jnp.where(valid, draw(steps, environments), 99.0),
        terminated=jnp.asarray(terminated),
        valid=jnp.asarray(valid),
        log_prob=distribution.log_prob(action)[:-1] + draw(steps, environments, scale=noise),
        value=value,
        version=jnp.asarray(random.integers(2, 9, size=(steps, environments)), jnp.int32),
    )


def loss_and_gradient(algorithm, apply_fn, params, batch, peers=(), rho=1.0, version=None):
    options = {} if version is None else {"version": version, "lags": 4}
    loss = lambda p: algorithm.loss(apply_fn, p, batch, peers, rho=rho, **options)  # noqa: E731
    return jax.value_and_grad(loss, has_aux=True)(params)


def compiled(algorithm, apply_fn, params, batch, peers=(), rho=1.0, version=None):
    """The same: one program, whether an argument is left out or is what it is by default."""
    return _compiled(algorithm, apply_fn, params, batch, peers, rho, version)


_compiled = jax.jit(loss_and_gradient, static_argnums=(0, 1, 5))


def targets_by_hand(reward, discount, value, rho, c, valid, lambda_):
    """V-trace's targets `[T + 1, B]` by its definition, one sum for every step; the last row is the last value."""
    target = np.array(value)
    for t, b in np.ndindex(reward.shape):
        weight = 1.0
        for k in range(t, len(reward)):
            if not valid[k, b]:
                break
            error = reward[k, b] + discount[k, b] * value[k + 1, b] - value[k, b]
            target[t, b] += weight * rho[k, b] * error
            weight *= lambda_ * discount[k, b] * c[k, b]
    return target


def cap_by_hand(ratio, peers, rho):
    """`max(min_j r_j, rho)` over one's own and the peers' ratios; infinite with none."""
    return np.maximum(np.min([ratio, *peers], axis=0), rho) if len(peers) else np.full(ratio.shape, np.inf)


def estimates(config, apply_fn, params, batch, peers, rho):
    """Targets and weighted advantages `[T, B]`, the ratios `[T, B]` and the cap, in float64."""
    observation = batch.observation[:-1]
    ratio, *held = (
        np.exp(by_scipy(apply_fn, p, observation, batch.action)[0] - batch.log_prob) for p in (params, *peers)
    )
    constants = not peers or rho == math.inf
    cap = cap_by_hand(ratio, [] if constants else held, rho)
    rho_clip, pg_rho_clip = (config.rho_clip, config.pg_rho_clip) if constants else (math.inf, math.inf)
    value = batch.observation @ params["value"]
    discount = config.discount * ~batch.terminated
    rho_t = np.minimum(np.minimum(ratio, rho_clip), cap)
    c_t = np.minimum(ratio, config.c_clip)
    target = targets_by_hand(batch.reward, discount, value, rho_t, c_t, batch.valid, config.lambda_)
    following = config.lambda_ * target[1:] + (1 - config.lambda_) * value[1:]
    pg = np.minimum(np.minimum(ratio, pg_rho_clip), cap)
    advantage = pg * (batch.reward + discount * following - value[:-1])
    return target[:-1], advantage, ratio, cap, pg_rho_clip


def terms(config, apply_fn, params, batch, target, advantage):
    log_prob, entropy, value = by_scipy(apply_fn, params, batch.observation[:-1], batch.action)
    rows = (-log_prob * advantage, (value - target) ** 2, entropy)
    return [np.mean(row[batch.valid]) for row in rows]


def total(config, policy_loss, value_loss, entropy):
    return policy_loss + config.value_coefficient * value_loss - config.entropy_coefficient * entropy


def transcription(config, apply_fn, params, batch, peers, rho):
    """The loss, its metrics and its gradient: central differences of the terms, whose targets are held still."""
    params, batch, peers = jax.tree.map(np.asarray, (params, batch, peers))
    target, advantage, ratio, cap, pg_rho_clip = estimates(config, apply_fn, params, batch, peers, rho)
    found = terms(config, apply_fn, params, batch, target, advantage)
    mean = lambda x: x[batch.valid].mean()  # noqa: E731
    metrics = dict(zip(("policy_loss", "value_loss", "entropy"), found, strict=True)) | {
        "kl": mean(ratio - 1 - np.log(ratio)),
        "clip_fraction": mean(ratio > pg_rho_clip),
        "truncation_fraction": mean(ratio > cap),
        "version_mean": mean(batch.version),
        "version_oldest": batch.version[batch.valid].min(),
    }
    flat, unflatten = jax.flatten_util.ravel_pytree(params)
    h = 1e-5 * np.eye(flat.size)
    moved = lambda x: total(  # noqa: E731
        config, *terms(config, apply_fn, jax.tree.map(np.asarray, unflatten(x)), batch, target, advantage)
    )
    slope = np.array([(moved(flat + step) - moved(flat - step)) / 2e-5 for step in h])
    return total(config, *found), metrics, slope


OTHER = IMPALA(lambda_=0.7, rho_clip=1.4, c_clip=0.8, pg_rho_clip=1.2, discount=0.9, value_coefficient=2.0)
ONE_STEP = IMPALA(lambda_=0.0, rho_clip=0.9, pg_rho_clip=math.inf, entropy_coefficient=0.3)

CASES = [
    (IMPALA(), 0, 1.0),
    (OTHER, 0, 1.0),
    (ONE_STEP, 0, 1.0),
    (IMPALA(), 1, 1.0),
    (OTHER, 2, 1.1),
    (OTHER, 2, math.inf),
]


@pytest.mark.parametrize("apply_fn", [gaussian, categorical])
@pytest.mark.parametrize(("config", "peers", "rho"), CASES)
def test_loss_matches_its_transcription(config, peers, rho, apply_fn):
    """Loss, metrics and gradient; with peers the cap is in the place of the constants, with `rho = inf` it is not."""
    with jax.enable_x64(True):
        params, batch = parameters(1, like=0, distance=0.3), sample_trajectory(apply_fn)
        held = tuple(parameters(2 + i, like=0, distance=0.3) for i in range(peers))
        (loss, metrics), gradient = compiled(config, apply_fn, params, batch, held, rho=rho)
        expected = transcription(config, apply_fn, params, batch, held, rho)
        assert loss.dtype == jnp.float64
        close((loss, metrics), expected[:2], 1e-10)
        close(jax.flatten_util.ravel_pytree(gradient)[0], expected[2], 1e-8)
        metrics = jax.tree.map(float, metrics)
    capped = peers and rho < math.inf
    assert (0.1 < metrics["truncation_fraction"] < 0.9) if capped else metrics["truncation_fraction"] == 0
    assert metrics["clip_fraction"] == 0 if capped or config is ONE_STEP else 0.1 < metrics["clip_fraction"] < 0.9


@pytest.fixture(params=[gaussian, categorical])
def on(request):
    """One network, a policy that learns, another, and a batch, in float64."""
    with jax.enable_x64(True):
        params, peer = (parameters(seed, like=0, distance=0.3) for seed in (1, 2))
        yield request.param, params, peer, sample_trajectory(request.param)


@pytest.mark.slow
def test_own_policy_as_the_only_peer_truncates_nothing(on):
    """Which is IMPALA without its constants; and, the ratios being what they are, not IMPALA with them."""
    apply_fn, params, _, batch = on
    unbounded = IMPALA(rho_clip=math.inf, pg_rho_clip=math.inf)
    got = compiled(IMPALA(), apply_fn, params, batch, (jax.tree.map(jnp.copy, params),))
    close(got, compiled(unbounded, apply_fn, params, batch), 1e-12)
    assert got[0][1]["truncation_fraction"] == got[0][1]["clip_fraction"] == 0
    assert abs(got[0][0] - compiled(IMPALA(), apply_fn, params, batch)[0][0]) > 1e-3


@pytest.mark.parametrize("rho", [math.inf, np.float32(math.inf), np.float64(math.inf)])
def test_without_truncation_peers_do_nothing(on, rho, monkeypatch):
    """`rho = inf`, whoever made it: plain IMPALA, bit for bit, with its constants."""
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)
    apply_fn, params, peer, batch = on
    equal(compiled(IMPALA(), apply_fn, params, batch, (peer,), rho=rho), compiled(IMPALA(), apply_fn, params, batch))


def test_a_traced_level_may_be_infinite(on):
    """As an axis of a sweep it is; then the constants count, and where it is finite the cap replaces them."""
    apply_fn, params, peer, batch = on
    losses = jax.vmap(lambda rho: IMPALA().loss(apply_fn, params, batch, (peer,), rho=rho))(jnp.array([1.1, math.inf]))
    for i, rho in enumerate((1.1, math.inf)):
        expected = IMPALA().loss(apply_fn, params, batch, (peer,), rho=rho)
        close(jax.tree.map(lambda x, i=i: x[i], losses), expected, 1e-10)


def test_on_policy_it_is_an_n_step_actor_critic():
    """At lambda = 1, of a linear Gaussian policy, by hand: `-(G - V) grad log pi + c grad (V - G)^2 - e grad H`."""
    config = IMPALA(discount=0.9, value_coefficient=0.7, entropy_coefficient=0.2)
    with jax.enable_x64(True):
        params, batch = parameters(0), sample_trajectory(gaussian, noise=0.0)
        _, gradient = compiled(config, gaussian, params, batch)
        stale = batch._replace(value=jnp.full_like(batch.value, jnp.nan))  # not looked at
        equal(compiled(config, gaussian, params, stale)[1], gradient)
    params, batch = jax.tree.map(np.asarray, (params, batch))
    value, deviation = batch.observation @ params["value"], np.exp(params["log_std"])
    n_step = np.array(value)
    for t in reversed(range(T)):
        step = batch.reward[t] + 0.9 * ~batch.terminated[t] * n_step[t + 1]
        n_step[t] = np.where(batch.valid[t], step, value[t])
    sums = {name: np.zeros_like(x) for name, x in params.items()}
    for t, b in np.argwhere(batch.valid):
        observation, error = batch.observation[t, b], n_step[t, b] - value[t, b]
        standard = (batch.action[t, b] - observation @ params["policy"]) / deviation
        sums["policy"] -= error * np.outer(observation, standard / deviation)
        sums["log_std"] -= error * (standard**2 - 1) + 0.2
        sums["value"] -= 0.7 * 2 * error * observation
    close(gradient, {name: x / batch.valid.sum() for name, x in sums.items()}, 1e-12)


def test_one_step_of_one_environment():
    """T = B = 1, by hand: one temporal difference at ratio 1."""
    with jax.enable_x64(True):
        params, batch = parameters(0), sample_trajectory(gaussian, 1, 1, noise=0.0)
        (_, metrics), _ = jax.tree.map(np.asarray, compiled(IMPALA(), gaussian, params, batch))
    batch = jax.tree.map(np.asarray, batch)
    first, last = np.asarray(batch.observation)[:, 0] @ np.asarray(params["value"])
    error = batch.reward[0, 0] + 0.99 * last - first
    close(metrics["value_loss"], error**2, 1e-12)
    close(metrics["policy_loss"], -batch.log_prob[0, 0] * error, 1e-12)
    assert metrics["version_mean"] == metrics["version_oldest"] == batch.version[0, 0]
