"""The pure functions on arrays that are split over an explicit mesh; `test_eager.py` runs it with two devices."""

import chex
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import stellaris
from stellaris._core.sharding import replicated
from tests._core import test_eager

#: Calls that index an array themselves.
INDEXING = "adapt_kl_coefficient"
CALLS = [name for name in test_eager.CALLS if name != INDEXING]


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((2,), ("data",), axis_types=(AxisType.Explicit,))


@pytest.fixture
def split(mesh, monkeypatch):
    """Splits every array of the table of calls over the batch, and a gradient over an axis of its parameters."""
    whole = test_eager.x

    def x(n, *shape):
        array = whole(n, *shape)
        axis = next((i for i, size in enumerate(array.shape) if size == test_eager.B), None)
        spec = P() if axis is None else P(*[None] * axis, "data")
        return jax.device_put(array, NamedSharding(mesh, spec))

    with jax.set_mesh(mesh):
        monkeypatch.setattr(test_eager, "x", x)
        monkeypatch.setattr(test_eager, "flat", lambda array: replicated(array).ravel())
        for name, aggregator in test_eager.AGGREGATORS.items():
            monkeypatch.setitem(test_eager.queues, name, aggregator.init(test_eager.tree(0)))
        yield x


@pytest.mark.parametrize("name", CALLS)
def test_as_without_a_mesh(name, request):
    expected = jax.device_get(test_eager.CALLS[name](1))
    request.getfixturevalue("split")
    got = jax.device_get(test_eager.CALLS[name](1))
    chex.assert_trees_all_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["group_relative_advantage", "ppo_loss", "optimal_baseline", "vtrace"])
def test_results_are_split_as_the_batch(name, split):
    (leaf,) = {y.sharding.spec for y in jax.tree.leaves(test_eager.CALLS[name](1)) if y.shape == split(1).shape}
    assert leaf == P(None, "data")


def test_samples_are_split_as_the_batch(split):
    """Sample `t * B + b` is step `t` of environment `b`, on whichever device it lies."""
    batch = test_eager.ppo.prepare(test_eager.trajectory(1))
    assert batch.log_prob.sharding.spec == P("data")
    steps = np.asarray(test_eager.trajectory(1).log_prob)
    np.testing.assert_array_equal(np.asarray(batch.log_prob), steps.ravel())
    some = test_eager.ppo.select(batch, np.array([3, 0, 99]))
    np.testing.assert_array_equal(np.asarray(some.log_prob), [steps[1, 1], steps[0, 0], 0.0])


@pytest.mark.parametrize("spec", [P(), P("data")])
def test_an_aggregator_without_a_mesh_in_context(spec, mesh):
    """Gradients of 1 and 3 have the mean 2, where they are whole on every device, and where they are split."""
    aggregator = stellaris.softsync(2)
    one, two = ({"w": jax.device_put(np.full(4, x, np.float32), NamedSharding(mesh, spec))} for x in (1.0, 3.0))
    queue = aggregator.init(one)
    queue = aggregator.push(aggregator.push(queue, one, version=0), two, version=1)
    assert aggregator.ready(queue, 1, 0)
    update, _ = aggregator.pop(queue, 1, 0)
    np.testing.assert_allclose(np.asarray(update.gradient["w"]), 2.0)
