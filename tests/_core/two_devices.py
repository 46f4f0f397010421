"""The pure functions within `shard_map`, which `test_eager.py` runs in a process that has two devices."""

import chex
import jax
import jax.numpy as jnp
import pytest

from tests._core import test_eager

#: What loops.
LOOPING = (
    "gae",
    "vtrace",
    "retrace",
    "upgo_returns",
    "second_moment_mask",
    "second_moment_clip",
    "adaptive_clip",
    "balanced_clip",
    "ratio_report",
    "apply_update, seq",
    "update, counted",
)


@pytest.mark.usefixtures("compiled_in_haste")
def test_each_device_is_as_if_it_were_alone(monkeypatch):
    """Of numbers of its own, and of constants that both share; in one program, because many take long to compile."""
    same = test_eager.x
    calls = {name: f for name, f in test_eager.CALLS.items() if name.startswith(LOOPING) or ".pop" in name}

    def results(device):
        monkeypatch.setattr(test_eager, "x", lambda n, *shape: same(n, *shape) * (1.0 - 0.5 * device))
        return {name: jax.tree.map(lambda y: jnp.asarray(y)[None], call(1)) for name, call in calls.items()}

    def sharded():
        return results(jax.lax.axis_index("devices").astype(jnp.float32))

    mesh = jax.make_mesh((2,), ("devices",))
    got = jax.device_get(jax.jit(jax.shard_map(sharded, mesh=mesh, in_specs=(), out_specs=jax.P("devices")))())
    alone = [jax.jit(results)(jnp.float32(device)) for device in range(2)]
    for name in calls:
        expected = jax.tree.map(lambda *y: jnp.concatenate(y), *(each[name] for each in alone))
        if name.startswith("gae, gradient"):  # that of a number that all devices share is a sum over them
            expected = expected[0], jnp.full(2, jnp.sum(expected[1]))
        chex.assert_trees_all_close(got[name], expected, rtol=1e-4, atol=1e-5, custom_message=name)
