"""PPO over any network: against transcriptions in NumPy, and plain loops."""

import dataclasses
import functools
import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats

import stellaris
from stellaris import PPO, Trajectory
from stellaris.algorithms import Batch, update
from stellaris.algorithms.batch import take
from stellaris.distributions import Categorical, DiagonalGaussian

FEATURES, ACTIONS = 3, 2


def close(got, want, tolerance=1e-5):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), got, want)


def equal(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


# ---- networks, parameters and batches: in float64 where x64 is on ---------------------------------------------------


def gaussian(params, observation):
    return DiagonalGaussian(observation @ params["policy"], params["log_std"]), observation @ params["value"]


def categorical(params, observation):
    return Categorical(observation @ params["policy"]), observation @ params["value"]


class ActorCritic(nn.Module):
    """Two hidden layers and two heads."""

    actions: int = ACTIONS

    @nn.compact
    def __call__(self, observation):
        hidden = nn.tanh(nn.Dense(16)(nn.tanh(nn.Dense(16)(observation))))
        log_std = self.param("log_std", nn.initializers.zeros, (self.actions,))
        return DiagonalGaussian(nn.Dense(self.actions)(hidden), log_std), nn.Dense(1)(hidden)[..., 0]


def arrays(seed):
    """Parameters of either bare network, NumPy."""
    random = np.random.default_rng(seed)
    return {
        "policy": random.normal(size=(FEATURES, ACTIONS), scale=0.5),
        "value": random.normal(size=FEATURES),
        "log_std": random.normal(size=ACTIONS, scale=0.2),
    }


def parameters(seed, like=None, distance=0.1):
    """Bare parameters, near those of `like`."""
    near = arrays(like) if like is not None else arrays(seed)
    return jax.tree.map(lambda a, b: jnp.asarray(a + distance * (b - a)), near, arrays(seed))


def sample_batch(apply_fn, size=24, invalid=0.2, seed=0):
    """Samples of a behaviour policy, `parameters(0)`, some of them invalid."""
    random = np.random.default_rng(seed)
    observation = jnp.asarray(random.normal(size=(size, FEATURES)))
    distribution, value = apply_fn(parameters(0), observation)
    noise = random.normal(size=(size, ACTIONS))
    action = distribution.sample(jnp.asarray(noise))
    return Batch(
        observation=observation,
        action=action,
        log_prob=distribution.log_prob(action) + jnp.asarray(random.normal(size=size, scale=0.3)),
        value=value,
        advantage=jnp.asarray(random.normal(size=size)),
        target=value + jnp.asarray(random.normal(size=size)),
        version=jnp.zeros(size, jnp.int32),
        valid=jnp.asarray(random.uniform(size=size) >= invalid),
    )


def loss_and_gradient(ppo, apply_fn, params, batch, peers=(), rho=1.0):
    return jax.value_and_grad(lambda p: ppo.loss(apply_fn, p, batch, peers, rho=rho), has_aux=True)(params)


compiled = jax.jit(loss_and_gradient, static_argnums=(0, 1), static_argnames="rho")


def with_a_peer(apply_fn):
    """The compiled loss and gradient with everything on, as a function of the batch."""
    peers = (parameters(2, like=0),)
    return lambda batch: compiled(CONFIGURATIONS["everything"], apply_fn, parameters(1, like=0), batch, peers)


# ---- loss -----------------------------------------------------------------------------------------------------------


def by_scipy(apply_fn, params, observation, action):
    """Log-probabilities of actions, entropies and values of either bare network `[n]`, in NumPy and scipy."""
    mean, value = observation @ params["policy"], observation @ params["value"]
    if apply_fn is categorical:
        probabilities = scipy.special.softmax(mean, axis=-1)
        chosen = np.take_along_axis(probabilities, action[..., None], axis=-1)[..., 0]
        return np.log(chosen), scipy.stats.entropy(probabilities, axis=-1), value
    law = scipy.stats.norm(mean, np.exp(params["log_std"]))
    return law.logpdf(action).sum(-1), law.entropy().sum(-1), value


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


@pytest.mark.parametrize("rho", [0.5, math.nan])
@pytest.mark.parametrize("peers", [0, 1])
def test_rho_below_one(rho, peers):
    """An error also where no peer makes use of it."""
    with pytest.raises(ValueError, match=f"rho={rho} is below 1"):
        PPO().loss(gaussian, parameters(0), sample_batch(gaussian), (parameters(1),) * peers, rho=rho)


# ---- the divergence penalty -----------------------------------------------------------------------------------------


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


# ---- invalid samples, extremes and transformations ------------------------------------------------------------------


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


def test_one_step_of_one_environment():
    """T = B = 1, by hand: one temporal difference, and a deviation of zero."""
    one = np.ones((1, 1), np.float32)
    step = Trajectory(
        observation=np.ones((2, 1, FEATURES), np.float32),
        action=np.zeros((1, 1, ACTIONS), np.float32),
        reward=2 * one,
        terminated=one < 0,
        valid=one > 0,
        log_prob=-one,
        value=np.array([[3.0], [4.0]], np.float32),
        version=np.full((1, 1), 5, np.int32),
    )
    batch = PPO(discount=0.5, standardize_advantage=False).prepare(step)
    equal((batch.advantage, batch.target, batch.version), (np.ones(1), np.full(1, 4.0), np.full(1, 5)))
    equal(PPO(discount=0.5).prepare(step).advantage, np.zeros(1))


# ---- prepare --------------------------------------------------------------------------------------------------------


def trajectory(dtype=np.float32):
    """Two environments, five steps; value 1, 2, 4, 8, 16, 32 in both, rewards 1, 2, -, 3, 4.

    The first is truncated after step 1, resets in step 2, terminates in step 3 and resets in step 4; the second
    terminates after step 1, resets in step 2 and runs on.
    """
    value = np.array([[1, 2, 4, 8, 16, 32]] * 2, dtype).T
    return Trajectory(
        observation=np.arange(6 * 2 * FEATURES, dtype=np.float32).reshape(6, 2, FEATURES),
        action=np.arange(5 * 2 * ACTIONS, dtype=np.float32).reshape(5, 2, ACTIONS),
        reward=np.array([[1, 1], [2, 2], [99, -99], [3, 3], [99, 4]], dtype),
        terminated=np.array([[0, 0], [0, 1], [0, 0], [1, 0], [0, 0]], bool),
        valid=np.array([[1, 1], [1, 1], [0, 0], [1, 1], [0, 1]], bool),
        log_prob=-np.arange(10, dtype=dtype).reshape(5, 2),
        value=value,
        version=np.arange(10, dtype=np.int32).reshape(5, 2),
    )


# gamma = lambda = 1/2.
# First: A_1 = delta_1 = 2 + 4/2 - 2 = 2 (truncated: the last observation's value counts), delta_0 = 1 + 2/2 - 1 = 1,
# A_0 = 1 + 2/4; A_3 = 3 - 8 (terminated).
# Second: A_1 = 2 - 2 (terminated), A_0 = 1; A_4 = 4 + 32/2 - 16 = 4, delta_3 = 3 + 16/2 - 8 = 3, A_3 = 3 + 4/4.
ADVANTAGE = np.array([[1.5, 1.0], [2.0, 0.0], [0.0, 0.0], [-5.0, 4.0], [0.0, 4.0]])
BY_HAND = {"discount": 0.5, "lambda_": 0.5}


def test_prepare_by_hand():
    """Advantages, targets, and the order in which samples are laid out: `t * B + b`."""
    batch = PPO(standardize_advantage=False, **BY_HAND).prepare(trajectory())
    equal(batch.advantage, ADVANTAGE.ravel())
    valid = trajectory().valid.ravel()
    equal(batch.valid, valid)
    # A + V; the reset steps' targets are never looked at.
    equal(batch.target[valid], (ADVANTAGE + np.array([[1, 2, 4, 8, 16]]).T).ravel()[valid])
    equal(batch.value, [1, 1, 2, 2, 4, 4, 8, 8, 16, 16])
    equal(batch.version, np.arange(10))
    equal(batch.log_prob, -np.arange(10))
    equal(batch.observation, np.arange(10 * FEATURES).reshape(10, FEATURES))
    equal(batch.action, np.arange(10 * ACTIONS).reshape(10, ACTIONS))


def test_prepare_standardizes_over_valid_samples():
    """The seven transitions have mean 0 and deviation 1; resets stay at zero; targets are those without."""
    plain, standard = (PPO(standardize_advantage=s, **BY_HAND).prepare(trajectory()) for s in (False, True))
    valid = np.asarray(plain.valid)
    advantage = ADVANTAGE.ravel()[valid]
    close(standard.advantage[valid], (advantage - advantage.mean()) / advantage.std())
    equal(standard.advantage[~valid], np.zeros(3))
    equal(standard._replace(advantage=plain.advantage), plain)


def test_prepare_of_equal_advantages_is_finite():
    """One transition, or none: deviation zero."""
    for transitions in (1, 0):
        valid = np.arange(10).reshape(5, 2) < transitions
        equal(PPO().prepare(trajectory()._replace(valid=valid)).advantage, np.zeros(10))


def test_prepare_in_float64():
    """In float64 the advantages are float64's, at a discount that float32 does not hold exactly."""
    with jax.enable_x64(True):
        batch = PPO(discount=0.99, lambda_=0.0, standardize_advantage=False).prepare(trajectory(np.float64))
    assert batch.advantage.dtype == batch.target.dtype == np.float64
    np.testing.assert_allclose(batch.advantage[0], 1 + 0.99 * 2 - 1, rtol=1e-14)


def test_prepare_under_jit_and_without_float_observations():
    """Static configuration, traced trajectory; other observation and action types stay what they are."""
    pixels = trajectory()._replace(observation=np.full((6, 2, 4, 4, 1), 7, np.uint8), action=np.zeros((5, 2), np.int32))
    got, expected = jax.jit(PPO.prepare, static_argnums=0)(PPO(), pixels), PPO().prepare(pixels)
    close(got, expected)
    assert (got.observation.shape, got.observation.dtype) == ((10, 4, 4, 1), jnp.uint8)
    assert (got.action.shape, got.action.dtype) == ((10,), jnp.int32)
    assert (got.version.dtype, got.valid.dtype) == (jnp.int32, jnp.bool_)


# ---- minibatches ----------------------------------------------------------------------------------------------------


def samples(n):
    """A batch of which only the size matters."""
    return Batch(*[jnp.zeros(n)] * len(Batch._fields))


def test_minibatches_of_nothing():
    """There is no batch without a sample."""
    with pytest.raises(ValueError, match="size=0 is below 1"):
        PPO().minibatches(jax.random.key(0), samples(0))


@pytest.mark.parametrize(
    ("size", "minibatch_size", "shape"),
    [
        (8, 4, (6, 4)),  # even
        (6, 4, (6, 3)),  # two of three rather than four and two
        (10, 4, (9, 4)),  # two indices of padding
        (5, 100, (3, 5)),  # full batch
        (1, 1, (3, 1)),
    ],
)
def test_minibatches_cover_each_epoch_once(size, minibatch_size, shape):
    """Every index exactly once an epoch, then the padding, which fills no minibatch."""
    indices = PPO(epochs=3, minibatch_size=minibatch_size).minibatches(jax.random.key(0), samples(size))
    assert (indices.shape, indices.dtype) == (shape, jnp.int32)
    epochs = np.asarray(indices).reshape(3, -1)
    for epoch in epochs:
        assert sorted(epoch[:size]) == list(range(size))
        assert (epoch[size:] == size).all()
    assert (np.asarray(indices)[:, 0] < size).all()


def test_minibatches_are_shuffled_anew():
    """Epochs differ from each other and from the order of the batch, and keys from each other; a key repeats itself."""
    ppo = PPO(epochs=2, minibatch_size=50)
    first, second = ppo.minibatches(jax.random.key(0), samples(50))
    orders = [first, second, ppo.minibatches(jax.random.key(1), samples(50))[0], jnp.arange(50)]
    assert len({tuple(order.tolist()) for order in orders}) == 4
    jitted = jax.jit(PPO.minibatches, static_argnums=0)
    equal(jitted(ppo, jax.random.key(0), samples(50)), jnp.stack([first, second]))


# ---- update ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("network", "size"), [("bare", 5), ("flax", 6)])
def test_update_is_a_loop_of_optimizer_steps(network, size):
    """One Adam step for each row, in order, the second row of five samples padded; metrics are the rows' means."""
    ppo = PPO(learning_rate=0.01, epochs=2, minibatch_size=3, entropy_coefficient=0.01)
    batch = sample_batch(gaussian, size)
    apply_fn, params = gaussian, parameters(1, like=0)
    if network == "flax":
        apply_fn = ActorCritic().apply
        params = jax.jit(ActorCritic().init)(jax.random.key(0), batch.observation)
    optimizer, indices = ppo.optimizer(), ppo.minibatches(jax.random.key(1), batch)
    got = jax.jit(update, static_argnums=(0, 1))(ppo, apply_fn, params, optimizer.init(params), batch, indices)

    step, opt_state, metrics = jax.jit(optimizer.update), optimizer.init(params), []
    for row in np.asarray(indices):
        rows = row[row < size]
        (_, row_metrics), gradient = compiled(ppo, apply_fn, params, Batch(*(x[rows] for x in batch)))
        updates, opt_state = step(gradient, opt_state, params)
        params = optax.apply_updates(params, updates)
        metrics.append(row_metrics)
    assert len(metrics) == 4
    means = jax.tree.map(lambda *m: np.mean(m), *metrics)
    close(got, (params, opt_state, means | {"finite": True}), 1e-4)


@pytest.mark.parametrize("max_norm", [None, 0.5, 100.0])
def test_optimizer_transcription(max_norm):
    """Adam with epsilon 1e-5, on gradients cut to the greatest norm, in plain NumPy."""
    optimizer = PPO(learning_rate=0.1, max_gradient_norm=max_norm).optimizer()
    params = np.array([1.0, -2.0, 0.0])
    got, opt_state = jnp.asarray(params), optimizer.init(jnp.asarray(params))
    first, second = np.zeros(3), np.zeros(3)
    for t, gradient in enumerate(np.array([[3.0, -4.0, 1e-5], [0.1, 0.2, 1e-5]]), 1):
        updates, opt_state = optimizer.update(jnp.asarray(gradient), opt_state, got)
        got = optax.apply_updates(got, updates)
        gradient = gradient * min(1.0, (max_norm or math.inf) / np.linalg.norm(gradient))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        params = params - 0.1 * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-5)
        close(got, params, 1e-4)


# ---- configuration --------------------------------------------------------------------------------------------------


def test_configuration_is_a_frozen_value():
    """Equal configurations are one static argument to jit."""
    assert hash(PPO(clip=0.1)) == hash(PPO(clip=0.1))
    assert PPO(clip=0.1) == PPO(clip=0.1) != PPO()
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPO().clip = 0.1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            (name, value, "is not positive")
            for name in (
                "learning_rate",
                "clip",
                "value_clip",
                "value_loss_clip",
                "max_gradient_norm",
                "epochs",
                "minibatch_size",
            )
            for value in (0, -1)
        ),
        ("clip", math.nan, "is not positive"),
        ("kl_coefficient", -0.1, "is negative"),
        ("kl_coefficient", math.nan, "is negative or not a number"),
        *(
            (name, value, r"lies outside \[0, 1\]")
            for name in ("discount", "lambda_")
            for value in (-0.1, 1.1, math.nan)
        ),
    ],
)
def test_configuration_errors(name, value, message):
    """Found when the configuration is made; the error names the field and its value."""
    with pytest.raises(ValueError, match=f"^{name}={value} {message}"):
        PPO(**{name: value})


def test_configuration_limits():
    """The ends of the ranges are allowed, and None where there is a bound to lift."""
    PPO(discount=1.0, lambda_=0.0, value_clip=None, value_loss_clip=None, max_gradient_norm=None, epochs=1)
    PPO(discount=0, lambda_=1, clip=1)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("entropy_coefficient", math.nan, ValueError, "entropy_coefficient=nan is not finite"),
        ("entropy_coefficient", "x", TypeError, "entropy_coefficient='x' is not a number"),
        ("value_coefficient", -1, ValueError, "value_coefficient=-1 is negative"),
        ("value_coefficient", math.inf, ValueError, "value_coefficient=inf is not finite"),
        ("learning_rate", "1e-3", TypeError, "learning_rate='1e-3' is not a number"),
        *(
            (name, None, TypeError, f"{name}=None is not a number")
            for name in ("clip", "learning_rate", "epochs", "discount")
        ),
    ],
)
def test_configurations_that_make_no_sense(name, value, error, message, monkeypatch):
    """None where there is no bound to lift, NaN, and what is no number."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for algorithm in (PPO, stellaris.IMPALA, stellaris.IMPACT):
        if name in {field.name for field in dataclasses.fields(algorithm)}:
            with pytest.raises(error, match=f"^{message}"):
                algorithm(**{name: value})


@pytest.mark.parametrize("algorithm", [PPO, stellaris.IMPALA, stellaris.IMPACT])
def test_the_learning_rate_may_be_a_schedule(algorithm):
    """The second step is half as long as the first, up to what the optimizer remembers."""
    steps = []
    for schedule in (0.1, optax.piecewise_constant_schedule(0.1, {1: 0.5})):
        optimizer = algorithm(learning_rate=schedule).optimizer()
        state = optimizer.init(jnp.ones(2))
        _, state = optimizer.update(jnp.ones(2), state)
        steps.append(optimizer.update(jnp.ones(2), state)[0])
    np.testing.assert_allclose(steps[1], steps[0] / 2, rtol=1e-6)


@pytest.mark.parametrize("batch_shape", [(), (6,), (2, 3), (1, 2, 3)])
def test_any_number_of_batch_axes_is_flattened(batch_shape):
    """`[T, 6]`, however its environments are arranged, gives the samples of `[T, 6]`; `[T]` gives T."""
    flat = random_trajectory(6) if batch_shape else jax.tree.map(lambda x: x[:, :1], random_trajectory(6))
    deep = jax.tree.map(lambda x: x.reshape(len(x), *batch_shape, *x.shape[2:]), flat)
    apply_fn = lambda params, observation: (observation @ params, observation[..., 0])  # noqa: E731
    params = jnp.ones((3, 2))
    for prepare in (PPO().prepare, lambda t: stellaris.IMPACT().prepare(t, apply_fn, params)):
        got, expected = prepare(deep), prepare(flat)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), got, expected)
        assert {len(x) for x in jax.tree.leaves(got)} == {5 * (6 if batch_shape else 1)}
    losses = [stellaris.IMPALA().loss(apply_fn, params, t, (params + 0.1,), version=3)[0] for t in (deep, flat)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def random_trajectory(envs):
    """Five steps of so many environments."""
    draw = np.random.default_rng(0)
    return stellaris.Trajectory(
        observation=jnp.asarray(draw.normal(size=(6, envs, 3)), jnp.float32),
        action=jnp.asarray(draw.integers(2, size=(5, envs)), jnp.int32),
        reward=jnp.asarray(draw.normal(size=(5, envs)), jnp.float32),
        terminated=jnp.asarray(draw.random((5, envs)) < 0.2),
        valid=jnp.asarray(draw.random((5, envs)) < 0.8),
        log_prob=jnp.asarray(-draw.random((5, envs)), jnp.float32),
        value=jnp.asarray(draw.normal(size=(6, envs)), jnp.float32),
        version=jnp.asarray(draw.integers(3, size=(5, envs)), jnp.int32),
    )
