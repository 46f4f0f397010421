"""Batches: what fragments become, by any algorithm, and which of their transitions were learned from."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from stellaris import IMPACT, IMPALA, PPO, Trajectory
from stellaris.acting.normalisation import Statistics
from stellaris.acting.policies import PolicyVersion
from stellaris.acting.rollout import Fragment
from stellaris.algorithms import Algorithm
from stellaris.runtime.references import size
from stellaris.systems import Session, System
from stellaris.systems.batches import GradientTask, LearnerBatch, batch_of
from tests.systems import tiny

T, ACTORS = 6, 3


class Captured(Exception):
    """Ends a run as soon as there is a session."""


@pytest.fixture(scope="module")
def tiny_session() -> Session:
    seen: list[Session] = []

    class Catching(System):
        functions = ("actor",)

        def run(self, session: Session) -> None:
            seen.append(session)
            raise Captured

    with pytest.raises(Captured):
        tiny.run(Catching(), tiny.deployment())
    return seen[0]


def fragment(seed: int, *, valid: bool = True) -> Fragment:
    rng = np.random.default_rng(seed)
    observation = rng.normal(size=(T + 1, 1, 4)).astype(np.float32)
    one = np.ones((T, 1), np.float32)
    trajectory = Trajectory(
        observation=observation,
        action=rng.integers(2, size=(T, 1)),
        reward=one,
        terminated=one > 1,
        valid=valid & (np.arange(T) != 2)[:, None],
        log_prob=-0.7 * one,
        value=np.zeros((T + 1, 1), np.float32),
        version=np.zeros((T, 1), np.int32),
    )
    return Fragment(trajectory, Statistics.of(observation[:-1, 0]), ())


def batch(
    algorithm: Algorithm,
    of: Session,
    key: int = 0,
    *,
    fragments: int = ACTORS,
    width: int | None = None,
    valid: bool = True,
) -> LearnerBatch:
    return batch_of(
        [fragment(seed, valid=valid) for seed in range(fragments)],
        width=width,
        algorithm=algorithm,
        policy=of.policy,
        target=of.versioned(of.first_params),
        key=jax.random.key(key),
    )


@pytest.mark.slow
@pytest.mark.parametrize("known", [False, True])
def test_rewards_are_scaled(tiny_session: Session, known: bool) -> None:
    """By the target's deviation of returns; by the batch's own before any batch was learned from."""
    of = tiny_session
    policy = replace(of.policy, scaling_discount=0.5)
    rng = np.random.default_rng(0)
    returns = [rng.normal(size=T) for _ in range(2)]
    fragments = [
        one._replace(statistics=one.statistics._replace(returns=Statistics.of_returns(x, one.trajectory.valid[:, 0])))
        for one, x in zip([fragment(0), fragment(1)], returns, strict=True)
    ]
    normaliser = policy.statistics().normaliser()._replace(reward=np.float32(0.25 if known else 0))
    target = PolicyVersion(of.first_params, normaliser)
    data = batch_of(fragments, algorithm=PPO(minibatch_size=4), policy=policy, target=target, key=jax.random.key(0))
    seen = np.concatenate([x[one.trajectory.valid[:, 0]] for x, one in zip(returns, fragments, strict=True)])
    factor = 0.25 if known else 1 / np.sqrt(seen.var() + 1e-8)
    plain = batch(PPO(minibatch_size=4), of, fragments=2)
    # All values are 0, so value targets are linear in the rewards.
    np.testing.assert_allclose(data.batch.target, factor * np.asarray(plain.batch.target), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "items"),
    [
        (PPO(epochs=2, minibatch_size=4), T * ACTORS),
        (IMPACT(epochs=2, minibatch_size=4), T * ACTORS),
        (IMPALA(epochs=2, minibatch_size=2), ACTORS),
    ],
    ids=["ppo", "impact", "impala"],
)
def test_every_transition_is_first_seen_once(algorithm: Any, items: int, tiny_session: Session) -> None:
    """Samples or whole trajectories; steps that only reset, and indices beyond the batch, count as nothing."""
    data = batch(algorithm, tiny_session)
    in_all = ACTORS * (T - 1)
    assert data.unseen.sum() == in_all
    assert np.unique(data.indices[data.indices < items]).tolist() == list(range(items))
    seen = [data.learn(row) for row in data.indices]
    assert sum(seen) == in_all
    half = len(seen) // 2
    assert sum(seen[:half]) == in_all  # an epoch has seen everything
    assert data.left == 0
    assert data.unseen.sum() == 0


@pytest.mark.slow
def test_minibatches_weigh_their_share(tiny_session: Session) -> None:
    """Of the batch's bytes; all of an epoch together weigh what the batch does."""
    data = batch(PPO(epochs=1, minibatch_size=6), tiny_session)
    assert [type(work) for work in data.minibatches] == [GradientTask] * 3
    assert data.nbytes == size(data.batch) > 0
    assert sum(work.nbytes for work in data.minibatches) == data.nbytes


WIDE = 8
ALGORITHMS = {
    "ppo": PPO(epochs=3, minibatch_size=7),
    "impact": IMPACT(epochs=2, minibatch_size=5),
    "impala": IMPALA(epochs=2, minibatch_size=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("fragments", [1, 2, 3, 5, 7])
def test_a_wider_batch_has_as_many_gradients_as_it_has_data(name: str, fragments: int, tiny_session: Session) -> None:
    """`ceil(epochs * transitions / minibatch)`, or trajectories: each is learned from once an epoch, and nothing else.

    A minibatch that has parts of two epochs may have one twice, which is seen for the first time only once.
    """
    algorithm: Any = ALGORITHMS[name]
    data = batch(algorithm, tiny_session, fragments=fragments, width=WIDE)
    items = fragments if name == "impala" else fragments * (T - 1)  # a step that only reset is no sample to learn from
    assert data.unseen.sum() == fragments * (T - 1)
    assert data.left == len(data.indices) == -(-algorithm.epochs * items // data.indices.shape[1])
    seen = data.indices[data.indices < len(data.unseen)]
    np.testing.assert_array_equal(
        np.bincount(seen, minlength=len(data.unseen)), algorithm.epochs * (data.unseen > 0).astype(int)
    )
    assert sum(data.learn(row) for row in data.indices) == fragments * (T - 1)
    assert data.left == data.unseen.sum() == 0


def test_the_epochs_of_a_wider_batch_follow_one_another(tiny_session: Session) -> None:
    """Nothing is learned from for the second time before everything was for the first."""
    data = batch(ALGORITHMS["ppo"], tiny_session, fragments=3, width=WIDE)
    epochs = data.indices.ravel()[: 3 * 3 * (T - 1)].reshape(3, -1)
    assert {frozenset(epoch.tolist()) for epoch in epochs} == {frozenset(np.flatnonzero(data.unseen).tolist())}
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3  # each in an order of its own


@pytest.mark.parametrize("fragments", [1, 3, 8])
def test_a_batch_that_fits_into_a_minibatch_has_a_gradient_an_epoch(fragments: int, tiny_session: Session) -> None:
    """Whatever its number of fragments, as without a scheduler; each gradient is of all transitions."""
    data = batch(PPO(epochs=3, minibatch_size=T * WIDE), tiny_session, fragments=fragments, width=WIDE)
    transitions = set(np.flatnonzero(data.unseen).tolist())
    assert len(transitions) == fragments * (T - 1)
    assert [transitions <= set(row.tolist()) for row in data.indices] == [True] * 3
    assert [data.learn(row) for row in data.indices] == [len(transitions), 0, 0]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_wider_batch_without_transitions_has_a_gradient_on_nothing(name: str, tiny_session: Session) -> None:
    """Fragments of one step may all only reset; a learner needs a gradient."""
    data = batch(ALGORITHMS[name], tiny_session, width=WIDE, valid=False)
    assert data.left == len(data.indices) == 1
    assert data.learn(data.indices[0]) == data.left == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "impact"])
def test_a_wider_batch_has_the_same_samples(name: str, tiny_session: Session) -> None:
    """With the same advantages, standardised over what is valid alone; its statistics are of the fragments alone."""
    plain, wide = (batch(ALGORITHMS[name], tiny_session, width=width) for width in (None, WIDE))
    one, other = (getattr(data.batch, "samples", data.batch) for data in (plain, wide))
    assert other.valid.sum() == one.valid.sum()

    def valid(samples: Any, of: Any) -> Any:
        chosen = np.asarray(samples.valid)
        rows = np.asarray(of)[chosen]
        # By the observation, which no two samples share: the order of samples is another one.
        return rows[np.argsort(np.asarray(samples.observation)[chosen][:, 0])]

    for field in ("observation", "action", "advantage", "target", "log_prob"):
        np.testing.assert_allclose(
            valid(other, getattr(other, field)), valid(one, getattr(one, field)), rtol=1e-5, atol=1e-6
        )
    jax.tree.map(np.testing.assert_array_equal, plain.statistics, wide.statistics)
