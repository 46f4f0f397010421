"""An algorithm's gradient with what it reports: by policy lag, whether it is finite, and against a fresh one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import IMPACT, IMPALA, PPO, fully_asynchronous, gradient_cosine
from stellaris.algorithms import Batch, gradient, update
from tests.algorithms.problems import ActorCritic, close, compiled, equal, gaussian, parameters, sample_batch
from tests.algorithms.test_impala import sample_trajectory
from tests.test_diagnostics import loop

VERSION, LAGS = 9, 4
ALGORITHMS = {"PPO": PPO(clip=0.1), "IMPALA": IMPALA(), "IMPACT": IMPACT(clip=0.1)}


def sampled(algorithm, seed=0):
    """What an algorithm learns from; the behaviour policy's versions are 2 to 8."""
    trajectory = sample_trajectory(gaussian, seed=seed)
    if isinstance(algorithm, IMPACT):
        return algorithm.prepare(trajectory, gaussian, parameters(4, like=0))
    return algorithm.prepare(trajectory) if isinstance(algorithm, PPO) else trajectory


def samples(batch):
    """Log-probability, version and validity, and what the network sees, whatever the batch."""
    if hasattr(batch, "terminated"):
        return batch._replace(observation=batch.observation[:-1])
    return getattr(batch, "samples", batch)


@functools.partial(jax.jit, static_argnums=0)
def everything(algorithm, params, batch, peers, version, fresh=None):
    return gradient(algorithm, gaussian, params, batch, peers, rho=1.05, version=version, lags=LAGS, fresh=fresh)


@pytest.fixture(scope="module", params=ALGORITHMS)
def learned(request):
    """An algorithm, its batch, parameters, a peer, and the gradient with everything that it reports."""
    algorithm = ALGORITHMS[request.param]
    batch, params, peer = sampled(algorithm), parameters(1, like=0, distance=0.3), parameters(2, like=0)
    got = everything(algorithm, params, batch, (peer,), VERSION, parameters(5, like=1, distance=0.2))
    return algorithm, batch, params, peer, got


def test_gradient_is_that_of_the_loss(learned):
    """`jax.grad` of the loss, with its metrics, the loss itself, and whether all of it is finite."""
    algorithm, batch, params, peer, (got, metrics) = learned

    def loss(params):
        return algorithm.loss(gaussian, params, batch, (peer,), rho=1.05)

    (value, plain), expected = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    close(got, expected, 1e-6)
    close({name: metrics[name] for name in plain} | {"loss": metrics["loss"]}, plain | {"loss": value}, 1e-6)
    assert set(metrics) == {*plain, "loss", "finite", "fresh_cosine", "by_lag", "data_lag_mean", "data_lag_max"}
    assert metrics["finite"].dtype == bool
    assert metrics["finite"]


@pytest.mark.slow
def test_options_reach_the_loss(learned):
    """Without them: no peers, no report by lag and no fresh gradient."""
    algorithm, batch, params, _, (_, with_peer) = learned
    _, metrics = jax.jit(lambda p: gradient(algorithm, gaussian, p, batch))(params)
    assert {"fresh_cosine", "by_lag"}.isdisjoint(metrics)
    assert metrics["truncation_fraction"] == 0 < with_peer["truncation_fraction"]
    assert metrics["loss"] != with_peer["loss"]
    with pytest.raises(ValueError, match=r"rho=0\.5 is below 1"):
        gradient(algorithm, gaussian, params, batch, rho=0.5)
    with pytest.raises(ValueError, match="lags=0 is below 1"):
        gradient(algorithm, gaussian, params, batch, version=VERSION, lags=0)


@pytest.mark.parametrize("planted", ["policy", "value", "log_std"])
def test_a_gradient_that_is_not_finite_says_so(planted):
    class Linear:
        """A loss whose gradient is what its batch holds."""

        def loss(self, apply_fn, params, batch, peers):
            del apply_fn, peers
            return sum(jnp.vdot(p, batch[name]) for name, p in params.items()), {}

    for bad in (jnp.nan, jnp.inf):
        batch = parameters(1)
        assert gradient(Linear(), gaussian, parameters(0), batch)[1]["finite"]
        batch[planted] = batch[planted].at[..., 0].set(bad)
        got, metrics = gradient(Linear(), gaussian, parameters(0), batch)
        equal(got, batch)
        assert not metrics["finite"]


@pytest.mark.slow
def test_fresh_cosine_is_that_of_both_gradients(learned):
    """In NumPy's float64, over all leaves as one vector; 1 for the parameters themselves."""
    algorithm, batch, params, peer, (stale, metrics) = learned
    fresh = everything(algorithm, parameters(5, like=1, distance=0.2), batch, (peer,), VERSION)[0]
    a, b = (np.concatenate([np.ravel(x).astype(float) for x in jax.tree.leaves(g)]) for g in (stale, fresh))
    expected = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert expected < 0.999
    close(metrics["fresh_cosine"], expected, 1e-4)
    close(gradient_cosine(stale, fresh), expected, 1e-4)
    close(everything(algorithm, params, batch, (peer,), VERSION, params)[1]["fresh_cosine"], 1.0, 1e-6)


def test_by_lag_is_a_loop(learned):
    """Each sample under the lag of the policy that chose its action; the means are those that the loss reports."""
    algorithm, batch, params, peer, (_, metrics) = learned
    chosen = samples(batch)
    held = [gaussian(p, chosen.observation)[0].log_prob(chosen.action) - chosen.log_prob for p in (params, peer)]
    ratio, cap = jnp.exp(held[0]), jnp.maximum(jnp.exp(jnp.minimum(*held)), 1.05)
    if isinstance(algorithm, IMPALA):
        clipped = jnp.zeros_like(ratio, bool)  # the cap is in its constants' place
    else:
        around = getattr(batch, "target_log_ratio", 0.0)
        clipped = jnp.abs(jnp.exp(held[0] - around) - 1) > 0.1
    lag = VERSION - chosen.version
    expected = loop(LAGS, lag, held[0], chosen.valid, clipped, ratio > cap)
    for name, numbers in expected.items():
        close(getattr(metrics["by_lag"], name), numbers, 1e-4)
    assert np.all(metrics["by_lag"].count > 0) == np.all(np.array(expected["count"]) > 0)
    assert metrics["by_lag"].count.sum() == chosen.valid.sum()
    assert 0 < metrics["by_lag"].truncated.sum() < chosen.valid.sum()
    sums = {"kl": "kl_sum", "clip_fraction": "clipped", "truncation_fraction": "truncated"}
    for name, field in sums.items():
        close(getattr(metrics["by_lag"], field).sum() / chosen.valid.sum(), metrics[name], 1e-5)
    versions = np.asarray(chosen.version)[np.asarray(chosen.valid)]
    close(metrics["version_mean"], versions.mean(), 1e-6)
    assert metrics["version_oldest"] == versions.min()


@pytest.mark.slow
@pytest.mark.parametrize("clock", [5, 8])
def test_data_lag_and_gradient_lag_add_up(clock):
    """Version 3 chose the actions, version 5 computed the gradient, which is applied at some later clock.

    The report knows the first difference, 2, at any clock; the aggregator the second; the sum is clock minus 3.
    """
    batch = PPO().prepare(sample_trajectory(gaussian))
    batch = batch._replace(version=jnp.full_like(batch.version, 3))
    grads, metrics = everything(PPO(clip=0.1), parameters(1, like=0, distance=0.3), batch, (parameters(2, like=0),), 5)
    equal(metrics["by_lag"].count, [0, 0, batch.valid.sum(), 0])
    assert metrics["version_mean"] == metrics["version_oldest"] == 3
    aggregator = fully_asynchronous(capacity=1)
    update, _ = aggregator.pop(aggregator.push(aggregator.init(grads), grads, 5), clock, 0)
    assert update.staleness[0] == clock - 5
    data_lag = np.flatnonzero(metrics["by_lag"].count)[0]
    assert data_lag + update.staleness[0] == clock - 3


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint32])
@pytest.mark.parametrize("version", [np.uint32(3), 3, 300])
def test_versions_of_any_integers(dtype, version):
    """Data from a newer policy than the one that learns has the lag 0, though unsigned differences wrap."""
    batch = PPO().prepare(sample_trajectory(gaussian))
    batch = batch._replace(version=jnp.full_like(batch.version, 5, dtype))
    metrics = PPO().loss(gaussian, parameters(1, like=0), batch, version=version, lags=LAGS)[1]
    assert np.flatnonzero(metrics["by_lag"].count).tolist() == [LAGS - 1 if version > 5 else 0]
    assert metrics["data_lag_mean"] == metrics["data_lag_max"] == int(version) - 5


@pytest.mark.slow
@pytest.mark.parametrize(("network", "size", "count"), [("bare", 5, None), ("flax", 6, None), ("bare", 5, 3)])
def test_update_is_a_loop_of_optimizer_steps(network, size, count):
    """One Adam step for each row, in order, the second row of five samples padded; metrics are the rows' means."""
    ppo = PPO(learning_rate=0.01, epochs=2, minibatch_size=3, entropy_coefficient=0.01)
    batch = sample_batch(gaussian, size)
    apply_fn, params = gaussian, parameters(1, like=0)
    if network == "flax":
        apply_fn = ActorCritic().apply
        params = jax.jit(ActorCritic().init)(jax.random.key(0), batch.observation)
    optimizer, indices = ppo.optimizer(), ppo.minibatches(jax.random.key(1), batch)
    learn = jax.jit(update, static_argnums=(0, 1))
    got = learn(ppo, apply_fn, params, optimizer.init(params), batch, indices, count=count)

    step, opt_state, metrics = jax.jit(optimizer.update), optimizer.init(params), []
    for row in np.asarray(indices)[:count]:
        rows = row[row < size]
        (total, row_metrics), gradient = compiled(ppo, apply_fn, params, Batch(*(x[rows] for x in batch)))
        updates, opt_state = step(gradient, opt_state, params)
        params = optax.apply_updates(params, updates)
        metrics.append(row_metrics | {"loss": total})
    assert len(metrics) == (count or 4)
    means = jax.tree.map(lambda *m: np.mean(m), *metrics)
    close(got, (params, opt_state, means | {"finite": True}), 1e-4)


PPO_OF_ROWS = PPO(learning_rate=0.01, epochs=3, minibatch_size=4, entropy_coefficient=0.01)


def learn_first(count, *, rows=None, apply_fn=gaussian):
    """What six rows of indices lead to, or so many: parameters, optimizer state and metrics, under `jit`."""
    batch, params = sampled(PPO_OF_ROWS), parameters(1, like=0)
    indices = PPO_OF_ROWS.minibatches(jax.random.key(1), batch)[:6][:rows]
    return _learn_first(apply_fn, params, PPO_OF_ROWS.optimizer().init(params), batch, indices, count)


@functools.partial(jax.jit, static_argnums=0)
def _learn_first(apply_fn, params, state, batch, indices, count):
    return update(PPO_OF_ROWS, apply_fn, params, state, batch, indices, count=count, version=VERSION)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4, 6])
def test_a_count_of_rows_is_the_scan_over_these(count):
    """Parameters, optimizer state, and metrics of every kind: means, the greatest, and sums by lag."""
    got, expected = learn_first(np.int32(count)), learn_first(None, rows=count)
    close(got, expected, 1e-5)
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, expected)
    assert got[2].keys() == expected[2].keys() >= {"loss", "kl", "data_lag_max", "by_lag", "finite"}
    assert got[2]["by_lag"].count.sum() == pytest.approx(count * 4, abs=count)  # less samples that are not valid


@pytest.mark.slow
def test_rows_beyond_the_count_change_nothing():
    batch, params = sampled(PPO_OF_ROWS), parameters(1, like=0)
    state, indices = PPO_OF_ROWS.optimizer().init(params), PPO_OF_ROWS.minibatches(jax.random.key(1), batch)[:6]
    plain, other = (
        _learn_first(gaussian, params, state, batch, rows, np.int32(3)) for rows in (indices, indices.at[3:].set(-7))
    )
    equal(plain, other)


class Reporting:
    """Whatever a loss may report: numbers of Python's, truths, whole numbers, and the greatest of them."""

    def optimizer(self):
        return optax.sgd(0.1)

    def select(self, batch, row):
        return batch[row]

    def loss(self, apply_fn, params, batch):
        whole = batch.sum().astype(jnp.int32)
        some = {"python": 1.5, "truth": batch[0] > 2, "whole": whole, "whole_max": whole, "least_max": -batch.max()}
        return params * batch.mean(), some


@pytest.mark.slow
@pytest.mark.parametrize("promotion", ["standard", "strict"])
def test_metrics_of_any_type(promotion, unchecked):
    """By hand, with a count as without; the greatest may be below zero."""
    batch, indices = jnp.arange(8.0), jnp.arange(8).reshape(4, 2)
    algorithm = Reporting()
    with jax.numpy_dtype_promotion(promotion):
        for rows, count in ((indices[:3], None), (indices, 3), (indices, np.int32(3)), (indices, jnp.int32(3))):
            params = jnp.float32(1)
            state = algorithm.optimizer().init(params)
            params, _, metrics = update(algorithm, gaussian, params, state, batch, rows, count=count)
            close(params, 1 - 0.1 * (0.5 + 2.5 + 4.5), 1e-6)
            close(metrics["python"], 1.5)
            close(metrics["truth"], 1 / 3)  # of 0, 2 and 4
            close(metrics["whole"], (1 + 5 + 9) / 3)
            assert (metrics["whole_max"], metrics["least_max"]) == (9, -1)
            assert metrics["whole_max"].dtype == jnp.int32


class Own:
    """An algorithm of which only the loss matters; it returns `made`."""

    def __init__(self, made):
        self.made = made

    def loss(self, apply_fn, params, batch, peers=(), **options):
        return self.made(params)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda x: x.sum(), r"Own\.loss returned \w+Tracer: expected a pair, the scalar loss and a dictionary"),
        (lambda x: (x.sum(), {}, 1.0), r"Own\.loss returned \['\w+Tracer', 'dict', 'float'\]: expected a pair"),
        (lambda x: (x.sum(), x), r"Own\.loss returned \['\w+Tracer', '\w+Tracer'\]: expected a pair"),
        (lambda x: (x, {}), r"Own\.loss returned losses of shape \(3,\): reduce them to a scalar"),
    ],
)
def test_a_loss_without_metrics_is_refused_by_name(made, message, unchecked):
    with pytest.raises(TypeError, match=message):
        gradient(Own(made), gaussian, jnp.ones(3), None)


@pytest.mark.usefixtures("unchecked")
def test_versions_of_a_minibatch_without_transitions():
    """Without transitions nothing is old: a minibatch of padding must not change means over minibatches."""
    batch = PPO().prepare(sample_trajectory(gaussian))
    batch = batch._replace(valid=jnp.zeros_like(batch.valid))
    metrics = PPO().loss(gaussian, parameters(1, like=0), batch, version=jnp.int32(7))[1]
    assert (metrics["version_mean"], metrics["version_oldest"]) == (7, 7)
    assert (metrics["data_lag_mean"], metrics["data_lag_max"]) == (0, 0)
