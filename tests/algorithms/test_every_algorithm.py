"""PPO, IMPALA and IMPACT keep the same promises about invalid steps, extremes, transformations and peers."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import IMPACT, IMPALA, PPO
from tests.algorithms.problems import ACTIONS, categorical, close, equal, gaussian, parameters
from tests.algorithms.test_impala import B, T, loss_and_gradient, sample_trajectory

ALGORITHMS = {"PPO": PPO(), "IMPALA": IMPALA(), "IMPACT": IMPACT()}
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())


def batch_of(algorithm, apply_fn, trajectory, target=None):
    """What an algorithm learns from a trajectory, around a target policy if it has one."""
    return algorithm.prepare(trajectory, apply_fn, parameters(4, like=0) if target is None else target)


@functools.partial(jax.jit, static_argnums=(0, 1))
def learn(algorithm, apply_fn, params, trajectory, peers, target=None):
    return loss_and_gradient(algorithm, apply_fn, params, batch_of(algorithm, apply_fn, trajectory, target), peers)


def finite(tree):
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("apply_fn", [gaussian, categorical])
def test_invalid_steps_weigh_nothing(algorithm, apply_fn):
    """Nor does a NaN get into the gradient by way of 0 * NaN; IMPALA and IMPACT ignore the behaviour's values."""
    params, peer, clean = parameters(1, like=0), parameters(2, like=0), sample_trajectory(apply_fn)
    expected = learn(algorithm, apply_fn, params, clean, (peer,))
    for garbage in (math.nan, 1e30, -math.inf):
        spoil = lambda x, g=garbage: jnp.where(clean.valid, x, g)  # noqa: E731
        spoilt = clean._replace(reward=spoil(clean.reward), log_prob=spoil(clean.log_prob))
        if not isinstance(algorithm, PPO):
            spoilt = spoilt._replace(value=jnp.full((T + 1, B), garbage))
        if apply_fn is gaussian:
            spoilt = spoilt._replace(action=jnp.where(clean.valid[..., None], clean.action, garbage))
        equal(learn(algorithm, apply_fn, params, spoilt, (peer,)), expected)


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("shift", [1e4, -1e4, "random"])
def test_extremes_are_finite_and_make_no_nan(algorithm, shift):
    """Log-ratios of ±1e4 and rewards of ±1e3 overflow nothing, with a peer and without."""
    random, batch = np.random.default_rng(0), sample_trajectory(gaussian)
    shift = jnp.asarray(random.choice([1e4, 0.0, -1e4], size=(T, B))) if shift == "random" else shift
    batch = batch._replace(log_prob=batch.log_prob - shift, reward=jnp.asarray(random.choice([1e3, -1e3], size=(T, B))))
    with jax.debug_nans(True):
        for peers in ((), (parameters(2, like=0),)):
            assert finite(learn(algorithm, gaussian, parameters(1, like=0), batch, peers))


def forbidding(params, observation):
    """A categorical policy whose last action has probability zero if the parameters say so."""
    forbidden = (params["log_std"] > 50.0) & (jnp.arange(ACTIONS) == ACTIONS - 1)
    return jnp.where(forbidden, -jnp.inf, observation @ params["policy"]), observation @ params["value"]


def policy(seed, *, forbids):
    return parameters(seed, like=0) | {"log_std": jnp.full(ACTIONS, 100.0 * forbids)}


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize(("learner", "peer"), [(True, False), (False, True), (True, True)])
def test_actions_of_probability_zero(algorithm, learner, peer, target):
    """A learner, a peer or a target that forbids a taken action gives a finite loss and gradient."""
    trajectory = sample_trajectory(categorical)
    trajectory = trajectory._replace(log_prob=jnp.where(trajectory.valid, trajectory.log_prob, -jnp.inf))
    assert (trajectory.action[trajectory.valid] == ACTIONS - 1).any()
    params, held, around = (policy(seed, forbids=forbids) for seed, forbids in ((1, learner), (2, peer), (1, target)))
    with jax.debug_nans(True):
        for peers in ((), (held,)):
            assert finite(learn(algorithm, forbidding, params, trajectory, peers, around))


@pytest.mark.slow
@every_algorithm
def test_transformations(algorithm):
    """vmap over batches, vmap over learners and jax.checkpoint give the same numbers."""
    params, peers = parameters(1, like=0), (parameters(2, like=0),)
    batches = [batch_of(algorithm, gaussian, sample_trajectory(gaussian, seed=seed)) for seed in (0, 1)]
    run = jax.jit(functools.partial(loss_and_gradient, algorithm, gaussian))
    stack = lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *trees)  # noqa: E731
    alone = [run(params, batch, peers) for batch in batches]
    close(jax.vmap(run, in_axes=(None, 0, None))(params, stack(batches), peers), stack(alone))
    learners = [params, parameters(3, like=0)]
    together = jax.vmap(run, in_axes=(0, None, None))(stack(learners), batches[0], peers)
    close(together, stack([run(p, batches[0], peers) for p in learners]))
    loss = jax.checkpoint(lambda p: algorithm.loss(gaussian, p, batches[0], peers)[0])
    close(jax.jit(jax.grad(loss))(params), alone[0][1])


@every_algorithm
def test_no_gradient_to_the_peers_or_the_target(algorithm):
    params, trajectory = parameters(1, like=0), sample_trajectory(gaussian)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1))
    def loss(peer, target):
        return algorithm.loss(gaussian, params, batch_of(algorithm, gaussian, trajectory, target), (peer,))[0]

    peer, target, far = parameters(2, like=0), parameters(4, like=0), parameters(3, like=0, distance=1.0)
    value, gradient = loss(peer, target)
    equal(gradient, jax.tree.map(jnp.zeros_like, (peer, target)))
    assert abs(loss(far, target)[0] - value) > 1e-6
    assert (abs(loss(peer, far)[0] - value) > 1e-6) == isinstance(algorithm, IMPACT)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [PPO(entropy_coefficient=0.1, value_clip=0.5, clip=0.4), IMPACT()])
@pytest.mark.parametrize("apply_fn", [gaussian, categorical])
@pytest.mark.parametrize("peers", ["own", "own twice", "others at rho = inf"])
def test_without_truncation_peers_do_nothing(algorithm, apply_fn, peers):
    """One policy held, however often, or no truncation: loss, metrics and gradient are the plain ones."""
    params, rho = parameters(1, like=0), 1.0
    batch = batch_of(algorithm, apply_fn, sample_trajectory(apply_fn))
    held = tuple(jax.tree.map(jnp.copy, params) for _ in range(2 if peers == "own twice" else 1))
    if peers == "others at rho = inf":
        held, rho = (parameters(2, like=0), parameters(3, like=0)), math.inf
    run = jax.jit(functools.partial(loss_and_gradient, algorithm, apply_fn), static_argnums=3)
    got = run(params, batch, held, rho)
    close(got, run(params, batch, (), 1.0))
    assert got[0][1]["truncation_fraction"] == 0
    assert abs(run(params, batch, (parameters(2, like=0),), 1.0)[0][0] - got[0][0]) > 1e-6


@pytest.mark.slow
@every_algorithm
@pytest.mark.parametrize("rho", [0.5, math.nan])
@pytest.mark.parametrize("peers", [0, 1])
def test_rho_below_one(algorithm, rho, peers):
    batch = batch_of(algorithm, gaussian, sample_trajectory(gaussian))
    with pytest.raises(ValueError, match=f"rho={rho} is below 1"):
        algorithm.loss(gaussian, parameters(0), batch, (parameters(1),) * peers, rho=rho)


@every_algorithm
def test_configurations_are_frozen(algorithm):
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.discount = 0.5
