"""IMPACT over any network: against a transcription in NumPy, and its reduction to PPO."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import IMPACT, PPO
from tests.algorithms.problems import by_scipy, categorical, close, gaussian, parameters
from tests.algorithms.test_impala import B, T, cap_by_hand, compiled, sample_trajectory, targets_by_hand


def prepared(impact, apply_fn, target, trajectory):
    """`IMPACT.prepare`, compiled once for each network."""
    return _prepared(impact, trajectory, apply_fn, target)


_prepared = jax.jit(IMPACT.prepare, static_argnums=(0, 2))


def numpy(tree):
    return jax.tree.map(np.asarray, tree)


OTHER = IMPACT(
    lambda_=0.6,
    rho_clip=1.3,
    c_clip=0.7,
    discount=0.9,
    clip=0.1,
    clip_high=0.2,
    target_rho=1.2,
    standardize_advantage=False,
    entropy_coefficient=0.2,
    value_coefficient=2.0,
)
ONE_STEP = IMPACT(lambda_=0.0, rho_clip=math.inf, c_clip=0.0, target_rho=math.inf, clip=0.3)
CONFIGURATIONS = [IMPACT(), OTHER, ONE_STEP]


@pytest.mark.slow
@pytest.mark.parametrize("apply_fn", [gaussian, categorical])
@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_prepare_matches_its_transcription(config, apply_fn):
    """Targets, advantages, values and log-ratios under the target policy, flat: sample `t * B + b`."""
    with jax.enable_x64(True):
        target, batch = parameters(4, like=0, distance=0.3), sample_trajectory(apply_fn)
        got = numpy(prepared(config, apply_fn, target, batch._replace(value=jnp.full((T + 1, B), jnp.nan))))
    target, batch = numpy((target, batch))
    log_prob = by_scipy(apply_fn, target, batch.observation[:-1], batch.action)[0]
    value, valid = batch.observation @ target["value"], batch.valid
    ratio = np.exp(log_prob - batch.log_prob)
    discount = config.discount * ~batch.terminated
    rho, c = np.minimum(ratio, config.rho_clip), np.minimum(ratio, config.c_clip)
    v = targets_by_hand(batch.reward, discount, value, rho, c, valid, config.lambda_)
    following = config.lambda_ * v[1:] + (1 - config.lambda_) * value[1:]
    advantage = np.where(valid, batch.reward + discount * following - value[:-1], 0.0)
    if config.standardize_advantage:
        mean, deviation = advantage[valid].mean(), advantage[valid].std()
        advantage = np.where(valid, (advantage - mean) / (deviation + 1e-8), 0.0)
    expected = {
        "observation": batch.observation[:-1],
        "action": batch.action,
        "log_prob": batch.log_prob,
        "value": value[:-1],
        "advantage": advantage,
        "target": v[:-1],
        "version": batch.version,
        "valid": valid,
    }
    for name, array in expected.items():
        close(getattr(got.samples, name), array.reshape(T * B, *array.shape[2:]), 1e-10)
    close(got.target_log_ratio, np.where(valid, log_prob - batch.log_prob, 0.0).ravel(), 1e-10)


def transcription(config, apply_fn, params, batch, peers, rho):
    """The loss and its metrics, sample by sample in float64, with scipy's distributions."""
    params, batch, peers = numpy((params, batch, peers))
    samples = batch.samples
    evaluate = lambda p: by_scipy(apply_fn, p, samples.observation, samples.action)  # noqa: E731
    log_prob, entropy, value = evaluate(params)
    entropy = np.broadcast_to(entropy, value.shape)
    log_ratio = log_prob - samples.log_prob
    cap = cap_by_hand(np.exp(log_ratio), [np.exp(evaluate(p)[0] - samples.log_prob) for p in peers], rho)
    rows = []
    for i in np.flatnonzero(samples.valid):
        ratio, of_target, a = math.exp(log_ratio[i]), math.exp(batch.target_log_ratio[i]), samples.advantage[i]
        used = min(ratio, cap[i]) * min(1 / of_target, config.target_rho)
        low, high = 1 - config.clip, 1 + (config.clip if config.clip_high is None else config.clip_high)
        surrogate = min(used * a, min(max(used, low), high) * a)
        clipped = not low <= ratio / of_target <= high
        kl = ratio - 1 - log_ratio[i]
        rows.append((-surrogate, (value[i] - samples.target[i]) ** 2, entropy[i], kl, clipped, ratio > cap[i]))
    names = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "truncation_fraction")
    metrics = dict(zip(names, np.mean(rows, axis=0), strict=True))
    versions = samples.version[samples.valid]
    metrics |= {"version_mean": versions.mean(), "version_oldest": versions.min()}
    critic, bonus = config.value_coefficient * metrics["value_loss"], config.entropy_coefficient * metrics["entropy"]
    return metrics["policy_loss"] + critic - bonus, metrics


@pytest.mark.parametrize("apply_fn", [gaussian, categorical])
@pytest.mark.parametrize(
    ("config", "peers", "rho"),
    [(CONFIGURATIONS[0], 0, 1.0), (OTHER, 0, 1.0), (OTHER, 1, 1.0), (ONE_STEP, 2, 1.1), (OTHER, 2, math.inf)],
)
def test_loss_matches_its_transcription(config, peers, rho, apply_fn):
    """Loss and all metrics, over valid samples alone; the gradient is the slope, with the cap held still."""
    with jax.enable_x64(True):
        target, params = (parameters(seed, like=0, distance=0.3) for seed in (4, 1))
        held = tuple(parameters(2 + i, like=0, distance=0.3) for i in range(peers))
        batch = prepared(config, apply_fn, target, sample_trajectory(apply_fn))
        # Where one's own ratio sets the cap it moves with the parameters, but no gradient flows there: not truncated.
        (loss, metrics), gradient = compiled(config, apply_fn, params, batch, held, rho=rho)
        flat, unflatten = jax.flatten_util.ravel_pytree(params)
        moved = lambda x: transcription(config, apply_fn, unflatten(x), batch, held, rho)[0]  # noqa: E731
        expected = transcription(config, apply_fn, params, batch, held, rho)
        close((loss, metrics), expected, 1e-10)
        if not peers:
            slope = [(moved(flat + h) - moved(flat - h)) / 2e-6 for h in 1e-6 * np.eye(flat.size)]
            close(jax.flatten_util.ravel_pytree(gradient)[0], np.array(slope), 1e-7)
        metrics = jax.tree.map(float, metrics)
    assert 0 < metrics["clip_fraction"] < 1
    assert 0 < metrics["truncation_fraction"] < 0.9 if peers and rho < math.inf else metrics["truncation_fraction"] == 0


@pytest.fixture(params=[gaussian, categorical])
def on(request):
    """One network, a policy that learns, another, and a trajectory of `parameters(0)` alone, in float64."""
    with jax.enable_x64(True):
        params, peer = (parameters(seed, like=0, distance=0.3) for seed in (1, 2))
        yield request.param, params, peer, sample_trajectory(request.param, noise=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("lambda_", "standardize"), [(0.0, False), (0.95, False), (0.95, True), (1.0, True)])
def test_with_the_behaviour_policy_for_target_it_is_ppo(on, lambda_, standardize):
    """The same advantages and value targets, then the same loss, metrics and gradient, with a peer and without."""
    apply_fn, params, peer, trajectory = on
    same = {"lambda_": lambda_, "standardize_advantage": standardize}
    impact, ppo = IMPACT(**same), PPO(**same)
    ours, theirs = prepared(impact, apply_fn, parameters(0), trajectory), ppo.prepare(trajectory)
    close(ours.samples, theirs, 1e-12)
    close(ours.target_log_ratio, np.zeros(T * B), 1e-12)
    if impact == IMPACT():
        assert ppo == PPO()
        for held in ((), (peer,)):
            got = compiled(impact, apply_fn, params, ours, held)
            close(got, compiled(ppo, apply_fn, params, theirs, held), 1e-11)


@pytest.mark.slow
def test_one_step_of_one_environment():
    """T = B = 1, by hand: one temporal difference, whose weight 2 the target's ratio is cut from to 1.5."""
    config = IMPACT(rho_clip=1.5, standardize_advantage=False)
    with jax.enable_x64(True):
        params, trajectory = parameters(0), sample_trajectory(gaussian, 1, 1, noise=0.0)
        batch = numpy(
            prepared(config, gaussian, params, trajectory._replace(log_prob=trajectory.log_prob - math.log(2)))
        )
    first, last = (np.asarray(trajectory.observation) @ np.asarray(params["value"]))[:, 0]
    error = np.asarray(trajectory.reward)[0, 0] + 0.99 * last - first
    close(batch.samples.target, [first + 1.5 * error], 1e-12)
    close(batch.samples.advantage, [error], 1e-12)
    close(batch.target_log_ratio, [math.log(2)], 1e-12)
