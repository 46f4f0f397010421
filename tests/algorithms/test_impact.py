"""IMPACT over any network: against a transcription in NumPy, and its reduction to PPO."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import IMPACT, PPO, Batch, TargetBatch
from tests.algorithms.problems import by_scipy, categorical, close, equal, gaussian, parameters
from tests.algorithms.test_impala import (
    B,
    T,
    cap_by_hand,
    compiled,
    forbidding,
    policies,
    sample_trajectory,
    targets_by_hand,
)


def prepared(impact, apply_fn, target, trajectory):
    """`IMPACT.prepare`, compiled once for each network."""
    return _prepared(impact, trajectory, apply_fn, target)


_prepared = jax.jit(IMPACT.prepare, static_argnums=(0, 2))


def numpy(tree):
    return jax.tree.map(np.asarray, tree)


# ---- prepare --------------------------------------------------------------------------------------------------------

OTHER = IMPACT(
    lambda_=0.6,
    rho_clip=1.3,
    c_clip=0.7,
    discount=0.9,
    clip=0.1,
    target_rho=1.2,
    standardize_advantage=False,
    entropy_coefficient=0.2,
    value_coefficient=2.0,
)
ONE_STEP = IMPACT(lambda_=0.0, rho_clip=math.inf, c_clip=0.0, target_rho=math.inf, clip=0.3)
CONFIGURATIONS = [IMPACT(), OTHER, ONE_STEP]


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


# ---- loss -----------------------------------------------------------------------------------------------------------


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
        surrogate = min(used * a, min(max(used, 1 - config.clip), 1 + config.clip) * a)
        clipped = abs(ratio / of_target - 1) > config.clip
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


# ---- reductions -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[gaussian, categorical])
def on(request):
    """One network, a policy that learns, another, and a trajectory of `parameters(0)` alone, in float64."""
    with jax.enable_x64(True):
        params, peer = (parameters(seed, like=0, distance=0.3) for seed in (1, 2))
        yield request.param, params, peer, sample_trajectory(request.param, noise=0.0)


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


@pytest.mark.parametrize("held", ["own", "others at rho = inf"])
def test_reduces_to_plain_impact(on, held):
    """One policy held, or no truncation; another peer makes a difference."""
    apply_fn, params, peer, trajectory = on
    batch = prepared(IMPACT(), apply_fn, parameters(4, like=0), trajectory)
    peers, rho = ((params,), 1.0) if held == "own" else ((peer,), math.inf)
    got = compiled(IMPACT(), apply_fn, params, batch, jax.tree.map(jnp.copy, peers), rho=rho)
    close(got, compiled(IMPACT(), apply_fn, params, batch), 1e-12)
    assert abs(got[0][0] - compiled(IMPACT(), apply_fn, params, batch, (peer,))[0][0]) > 1e-6


def test_no_gradient_to_the_target_or_the_peers(on):
    """However they move the loss: the target is renewed, not learned."""
    apply_fn, params, peer, trajectory = on
    target = parameters(4, like=0)

    def loss(target, peer):
        return IMPACT().loss(apply_fn, params, IMPACT().prepare(trajectory, apply_fn, target), (peer,))[0]

    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    value, gradient = run(target, peer)
    equal(gradient, jax.tree.map(jnp.zeros_like, (target, peer)))
    assert abs(run(parameters(5, like=0), peer)[0] - value) > 1e-6
    assert abs(run(target, parameters(5, like=0))[0] - value) > 1e-6


# ---- invalid samples, extremes and transformations ------------------------------------------------------------------


@pytest.mark.parametrize("apply_fn", [gaussian, categorical])
def test_what_invalid_steps_hold_is_never_looked_at(apply_fn):
    """Reward and log-probability, and no value of the behaviour policy's at all."""
    params, peer, clean = parameters(1, like=0), parameters(2, like=0), sample_trajectory(apply_fn)
    target = parameters(4, like=0)
    run = lambda t: compiled(IMPACT(), apply_fn, params, prepared(IMPACT(), apply_fn, target, t), (peer,))  # noqa: E731
    for garbage in (math.nan, 1e30, -math.inf):
        spoil = lambda x, g=garbage: jnp.where(clean.valid, x, g)  # noqa: E731
        spoilt = clean._replace(
            reward=spoil(clean.reward), log_prob=spoil(clean.log_prob), value=jnp.full((T + 1, B), garbage)
        )
        equal(run(spoilt), run(clean))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_actions_of_invalid_steps_are_never_looked_at(garbage):
    """Nor does a NaN get into the gradient by way of 0 * NaN."""
    params, peer, clean = parameters(1, like=0), parameters(2, like=0), sample_trajectory(gaussian)
    target = parameters(4, like=0)
    run = lambda t: compiled(IMPACT(), gaussian, params, prepared(IMPACT(), gaussian, target, t), (peer,))  # noqa: E731
    equal(run(clean._replace(action=jnp.where(clean.valid[..., None], clean.action, garbage))), run(clean))


@pytest.mark.parametrize("shift", [1e4, -1e4, "random"])
def test_extremes_are_finite_and_make_no_nan(shift):
    """Log-ratios of ±1e4 and rewards of ±1e6 overflow nothing, with a peer and without."""
    random = np.random.default_rng(0)
    batch = sample_trajectory(gaussian)
    shift = jnp.asarray(random.choice([1e4, 0.0, -1e4], size=(T, B))) if shift == "random" else shift
    rewards = jnp.asarray(random.choice([1e6, -1e6], size=(T, B)))
    with jax.debug_nans(True):
        batch = prepared(
            IMPACT(), gaussian, parameters(4, like=0), batch._replace(log_prob=batch.log_prob - shift, reward=rewards)
        )
        for peers in ((), (parameters(2, like=0),)):
            got = compiled(IMPACT(), gaussian, parameters(1, like=0), batch, peers)
            assert all(np.isfinite(x).all() for x in jax.tree.leaves(got))


@pytest.mark.parametrize("target_forbids", [False, True])
@pytest.mark.parametrize("forbids", ["learner", "peer", "both"])
def test_actions_of_probability_zero(forbids, target_forbids):
    """Taken all the same: in learner, peer or target they give a finite loss and gradient, and no NaN on the way."""
    trajectory, (learner, peer) = sample_trajectory(categorical), policies(forbids)
    target = policies("learner" if target_forbids else "peer")[0]
    with jax.debug_nans(True):
        batch = prepared(IMPACT(), forbidding, target, trajectory)
        for held in ((), (peer,)):
            (loss, metrics), gradient = compiled(IMPACT(), forbidding, learner, batch, held)
            assert all(np.isfinite(x).all() for x in jax.tree.leaves((loss, metrics, gradient)))


def test_action_impossible_to_learner_and_target_makes_no_nan():
    """Step by step, without jit, `jax.debug_nans` sees what lies between: no infinity is taken from another."""
    (learner, _), trajectory = policies("learner"), sample_trajectory(categorical)
    batch = prepared(IMPACT(), forbidding, learner, trajectory)
    with jax.debug_nans(True):
        IMPACT().loss(forbidding, learner, batch)


def test_transformations():
    """jit, vmap over batches and jax.checkpoint give the same numbers."""
    params, target, peer = (parameters(seed, like=0) for seed in (1, 4, 2))
    batches = [prepared(IMPACT(), gaussian, target, sample_trajectory(gaussian, seed=seed)) for seed in (0, 1)]
    alone = [compiled(IMPACT(), gaussian, params, batch, (peer,)) for batch in batches]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    together = jax.vmap(lambda b: compiled(IMPACT(), gaussian, params, b, (peer,)))(stacked)
    close(together, jax.tree.map(lambda *x: jnp.stack(x), *alone))
    loss = jax.checkpoint(lambda p: IMPACT().loss(gaussian, p, batches[0], (peer,))[0])
    close(jax.jit(jax.grad(loss))(params), alone[0][1])


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


def test_minibatches_are_ppos():
    """The same shuffles for the same key."""
    same = {"epochs": 3, "minibatch_size": 4}
    samples, none = (Batch(*[jnp.zeros(n, bool)] * len(Batch._fields)) for n in (10, 0))
    batch = TargetBatch(samples, target_log_ratio=jnp.zeros(10))
    equal(IMPACT(**same).minibatches(jax.random.key(0), batch), PPO(**same).minibatches(jax.random.key(0), samples))
    with pytest.raises(ValueError, match="size=0 is below 1"):
        IMPACT().minibatches(jax.random.key(0), TargetBatch(none, target_log_ratio=jnp.zeros(0)))


def test_optimizer_is_ppos():
    """Adam behind the same bound; one step by its definition: 0.1 in the gradient's direction."""
    ours, theirs = (a(learning_rate=0.1, max_gradient_norm=0.5).optimizer() for a in (IMPACT, PPO))
    gradient = jnp.array([3.0, -4.0, 1e-5])
    got = ours.update(gradient, ours.init(gradient), gradient)[0]
    equal(got, theirs.update(gradient, theirs.init(gradient), gradient)[0])
    close(got, [-0.1, 0.1, -0.1 * 1e-6 / (1e-6 + 1e-5)], 1e-4)


@pytest.mark.parametrize("rho", [0.5, math.nan])
@pytest.mark.parametrize("peers", [0, 1])
def test_rho_below_one(rho, peers):
    """An error also where no peer makes use of it."""
    batch = prepared(IMPACT(), gaussian, parameters(4, like=0), sample_trajectory(gaussian))
    with pytest.raises(ValueError, match=f"rho={rho} is below 1"):
        IMPACT().loss(gaussian, parameters(0), batch, (parameters(1),) * peers, rho=rho)


# ---- configuration --------------------------------------------------------------------------------------------------


def test_configuration_is_a_frozen_value():
    """Equal configurations are one static argument to jit."""
    assert hash(IMPACT(clip=0.1)) == hash(IMPACT(clip=0.1))
    assert IMPACT(clip=0.1) == IMPACT(clip=0.1) != IMPACT()
    with pytest.raises(dataclasses.FrozenInstanceError):
        IMPACT().clip = 0.1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            (name, value, "is not positive")
            for name in ("learning_rate", "clip", "max_gradient_norm", "epochs", "minibatch_size")
            for value in (0, -1)
        ),
        ("clip", math.nan, "is not positive"),
        *((name, value, "is negative") for name in ("rho_clip", "c_clip") for value in (-0.1, math.nan)),
        *((n, v, r"lies outside \[0, 1\]") for n in ("discount", "lambda_") for v in (-0.1, 1.1, math.nan)),
        *(("target_rho", value, "is below 1") for value in (0.99, 0, math.nan)),
    ],
)
def test_configuration_errors(name, value, message):
    """Found when the configuration is made; the error names the field and its value."""
    with pytest.raises(ValueError, match=f"^{name}={value} {message}"):
        IMPACT(**{name: value})


def test_configuration_limits():
    """The ends of the ranges are allowed, and None where there is a bound to lift."""
    IMPACT(discount=1.0, lambda_=0.0, target_rho=1, rho_clip=0, c_clip=math.inf, max_gradient_norm=None, epochs=1)
