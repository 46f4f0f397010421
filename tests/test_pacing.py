"""Pacing: the rule by hand, and a trainer that follows it, whose data is never too stale and who never starves."""

from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import rollout_capacity


@pytest.mark.parametrize(
    ("version", "begun", "batch", "max_staleness", "want"),
    [
        (0, 0, 16, 0, 16),  # a batch, and no more until it has been learned from
        (0, 16, 16, 0, 0),
        (1, 16, 16, 0, 16),
        (0, 0, 16, 4, 80),
        (7, 100, 16, 4, 92),
        (7, 192, 16, 4, 0),
        (7, 500, 16, 4, 0),  # more than that: not a negative number
        (0, 1, 1, 0, 0),
    ],
)
def test_by_hand(version, begun, batch, max_staleness, want):
    """(max_staleness + version + 1) * batch, less what has begun; an int."""
    got = rollout_capacity(version, begun=begun, batch=batch, max_staleness=max_staleness)
    assert (type(got), got) == (int, want)


def trained(random, *, batch, bound, concurrency, versions, reject):
    """A trainer that begins rollouts only within the capacity; they finish in any order, and some are rejected.

    The batch of each version has the oldest rollouts, in the order in which they were begun. Returns the staleness of
    what was learned from, in order.
    """
    version, number, running, accepted, staleness = 0, 0, [], [], []  # accepted: [number, begun under, finished]
    while version < versions:
        begun = version * batch + len(accepted)
        room = rollout_capacity(version, begun=begun, batch=batch, max_staleness=bound)
        for _ in range(min(room, concurrency - len(running))):
            rollout = [number, version, False]
            number += 1
            running.append(rollout)
            accepted.append(rollout)
        assert running, "it starves"
        done = running.pop(random.randrange(len(running)) if random.random() < 0.5 else -1)  # the oldest may take long
        if random.random() < reject:
            accepted.remove(done)
        else:
            done[2] = True
        while version < versions and len(accepted) >= batch and all(finished for _, _, finished in accepted[:batch]):
            staleness += [version - under for _, under, _ in accepted[:batch]]
            del accepted[:batch]
            version += 1
    return staleness


def test_a_trainer_within_the_capacity():
    """Four hundred seeds: never staler than the bound, never without a rollout to wait for, nothing thrown away."""
    reached = 0
    for seed in range(400):
        random = Random(seed)
        batch, bound = random.choice((1, 2, 3, 8)), random.choice((0, 0, 1, 2, 5))
        concurrency, reject = random.choice((1, 2, 5, 100)), random.choice((0.0, 0.0, 0.3))
        seen = trained(random, batch=batch, bound=bound, concurrency=concurrency, versions=12, reject=reject)
        assert len(seen) == 12 * batch
        assert 0 <= min(seen) <= max(seen) <= bound
        reached += max(seen) == bound > 0
    assert reached > 100  # the bound is reached: it is not stricter than it says


def test_arrays_are_as_numbers():
    """Under jit and vmap, in NumPy and in JAX."""
    random = np.random.default_rng(0)
    version, begun, batch, bound = (
        random.integers(low, high, 500) for low, high in ((0, 9), (0, 200), (1, 17), (0, 5))
    )
    rule = lambda v, n, b, s: rollout_capacity(v, begun=n, batch=b, max_staleness=s)  # noqa: E731
    want = [rule(*map(int, row)) for row in zip(version, begun, batch, bound, strict=True)]
    assert {0} < set(want)
    for arrays in ((version, begun, batch, bound), tuple(map(jnp.asarray, (version, begun, batch, bound)))):
        for run in (rule, jax.jit(jax.vmap(rule))):
            got = run(*arrays)
            assert jnp.issubdtype(got.dtype, jnp.integer)
            np.testing.assert_array_equal(got, want)


def test_numbers_beyond_int32():
    """A long run: exact in NumPy's int64, and on the device, where only the difference has to fit."""
    version, batch = 2**21 - 2, 2**10
    begun = (version + 2) * batch - 5  # the capacity is 2**31
    assert rollout_capacity(version, begun=begun, batch=batch, max_staleness=1) == 5
    assert rollout_capacity(np.array([version]), begun=np.array([begun]), batch=batch, max_staleness=1).tolist() == [5]
    wrapped = jnp.asarray(np.array([begun], np.int64).astype(np.int32))
    assert rollout_capacity(jnp.array([version]), begun=wrapped, batch=batch, max_staleness=1).tolist() == [5]


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.uint64, np.int32])
def test_unsigned_numbers(kind):
    """More begun than allowed is no huge number: of a scalar, of an array, and on the device."""
    assert rollout_capacity(0, begun=kind(40), batch=kind(16), max_staleness=kind(1)) == 0
    many = [np.array([x], kind) for x in (61, 0, 64, 1)]  # (1 + 61 + 1) * 64 is more than a byte holds
    device = [jnp.asarray(x) for x in many]
    for version, begun, batch, bound in (many, device, many[:2] + device[2:]):
        for rule in (rollout_capacity, jax.jit(rollout_capacity)):
            assert rule(version, begun=begun, batch=batch, max_staleness=bound).tolist() == [4032]
    begun = np.array([40, 3], kind)
    assert rollout_capacity(kind(0), begun=jnp.asarray(begun), batch=16, max_staleness=1).tolist() == [0, 29]


@pytest.mark.parametrize(
    ("error", "changed", "message"),
    [
        (ValueError, {"version": -1}, "version=-1 is below 0"),
        (ValueError, {"begun": -1}, "begun=-1 is below 0"),
        (ValueError, {"batch": 0}, "batch=0 is below 1"),
        (ValueError, {"max_staleness": np.int32(-2)}, "max_staleness=-2 is below 0"),
        (ValueError, {"max_staleness": jnp.int32(-2)}, "max_staleness=-2 is below 0"),
        (ValueError, {"begun": np.array([3, -5])}, "begun has -5, which is below 0"),
        (ValueError, {"batch": jnp.array([0])}, "batch has 0, which is below 1"),
        (TypeError, {"version": 1.0}, r"version=1\.0 is not a whole number"),
        (TypeError, {"batch": None}, "batch=None is not a whole number"),
        (TypeError, {"max_staleness": float("inf")}, "max_staleness=inf is not a whole number"),
        (TypeError, {"begun": "3"}, "begun='3' is not a whole number"),
        (TypeError, {"begun": np.ones(3)}, "begun has dtype float(32|64): expected integers"),
    ],
)
def test_errors(error, changed, message, unchecked):
    good = {"version": 0, "begun": 0, "batch": 4, "max_staleness": 1}
    with pytest.raises(error, match=f"^{message}"):
        rollout_capacity(**good | changed)
    with pytest.raises(TypeError, match=r"^version has dtype float32: expected integers"):
        jax.jit(lambda v: rollout_capacity(**good | {"version": v}))(1.0)
