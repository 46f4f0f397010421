"""Sampling with a cache: what the lab records is what the network computes from whole observations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.acting import jax_env
from stellaris.acting.policies import PolicyVersion
from stellaris.lab import statistics
from stellaris.lab.language import Answering, Sorting, Transformer, workload
from stellaris.lab.sampling import sample

ENV = Answering(Sorting(most=2, base=4), group=1)
MODEL = Transformer.of(ENV.task, width=16, layers=1, heads=2)
POLICY = workload(ENV, MODEL).make_policy(ENV.spec)
NORMALISER = statistics.normaliser(statistics.empty(POLICY.statistics()))


@pytest.mark.slow
def test_a_cache_changes_no_probability_over_episodes():
    """Two vectorised runs of two environments, of which one is ahead, so that their resets differ."""

    def run(seed):
        params = MODEL.init(jax.random.key(seed)) | {"value": jnp.ones(MODEL.width)}
        params["head"] = 10.0 * params["head"]
        slots = jax.vmap(lambda n: jax_env.start(ENV, n, seed))(jnp.arange(2))
        ahead, _ = jax.vmap(functools.partial(jax_env.advance, ENV))(slots, jnp.array([1, ENV.task.end]))
        slots = jax.tree.map(lambda x, y: jnp.stack([x[0], y[1]]), slots, ahead)
        version = PolicyVersion(params, NORMALISER)
        keys = jax.random.split(jax.random.key(seed + 7), 2)
        columns = sample(ENV, POLICY, version, jnp.int32(0), slots, keys, 3 * ENV.steps)[1]
        distribution, value = POLICY.apply(version, columns.observation)
        logits = jax.tree.map(lambda x: x[:-1], distribution)
        return columns, logits.log_prob(columns.action), value

    columns, log_prob, value = jax.jit(jax.vmap(run))(jnp.arange(2))
    resets = ~np.asarray(columns.valid)
    assert resets.sum(axis=1).tolist() == [[3, 3]] * 2
    assert (resets[:, :, 0] != resets[:, :, 1]).any()
    valid = np.asarray(columns.valid)
    np.testing.assert_allclose(np.asarray(columns.log_prob)[valid], np.asarray(log_prob)[valid], atol=1e-5)
    np.testing.assert_allclose(columns.value, value, atol=1e-5)
    assert np.ptp(value) > 0.1
