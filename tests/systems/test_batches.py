"""Batches: what fragments become, by any algorithm, and which of their transitions were learned from."""

from typing import Any

import jax
import numpy as np
import pytest

from stellaris import IMPACT, IMPALA, PPO, Trajectory
from stellaris.acting.normalisation import Statistics
from stellaris.acting.rollout import Fragment
from stellaris.algorithms import Algorithm
from stellaris.runtime.references import size
from stellaris.systems import Session, batches
from stellaris.systems.batches import Data, Work, batch_of, unlearned
from tests.systems import tiny

T, ACTORS = 6, 3


class Captured(Exception):
    """Ends a run as soon as there is a session."""


def session() -> Session:
    """Of the tiny problem, before its first step."""
    seen: list[Session] = []

    class Catching:
        functions = ("actor",)

        def run(self, session: Session) -> None:
            seen.append(session)
            raise Captured

    with pytest.raises(Captured):
        tiny.run(Catching(), tiny.deployment())
    return seen[0]


@pytest.fixture(scope="module")
def tiny_session() -> Session:
    """One for all tests."""
    return session()


def fragment(seed: int) -> Fragment:
    """Of CartPole; its third step only reset the environment."""
    rng = np.random.default_rng(seed)
    observation = rng.normal(size=(T + 1, 1, 4)).astype(np.float32)
    one = np.ones((T, 1), np.float32)
    trajectory = Trajectory(
        observation=observation,
        action=rng.integers(2, size=(T, 1)),
        reward=one,
        terminated=one > 1,
        valid=(np.arange(T) != 2)[:, None],
        log_prob=-0.7 * one,
        value=np.zeros((T + 1, 1), np.float32),
        version=np.zeros((T, 1), np.int32),
    )
    return Fragment(trajectory, Statistics.of(observation[:-1, 0]), ())


def batch(algorithm: Algorithm, of: Session, key: int = 0) -> Data:
    """Of three fragments."""
    return batch_of(
        [fragment(seed) for seed in range(ACTORS)],
        algorithm=algorithm,
        policy=of.policy,
        target=of.versioned(of.first_params),
        key=jax.random.key(key),
    )


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


def test_minibatches_weigh_their_share(tiny_session: Session) -> None:
    """Of the batch's bytes; all of an epoch together weigh what the batch does."""
    data = batch(PPO(epochs=1, minibatch_size=6), tiny_session)
    assert [type(work) for work in data.minibatches] == [Work] * 3
    assert data.nbytes == size(data.batch) > 0
    assert sum(work.nbytes for work in data.minibatches) == data.nbytes


def test_the_shuffles_follow_from_the_key(tiny_session: Session) -> None:
    """The same for the same key."""
    ppo = PPO(epochs=1, minibatch_size=6)
    first, again, other = (batch(ppo, tiny_session, key).indices.tolist() for key in (0, 0, 1))
    assert first == again != other


def test_the_statistics_are_of_all_observations(tiny_session: Session) -> None:
    """As if they had been of one actor."""
    data = batch(PPO(), tiny_session)
    observations = np.concatenate([fragment(seed).trajectory.observation[:-1, 0] for seed in range(ACTORS)])
    assert float(data.statistics.count) == len(observations)
    np.testing.assert_allclose(data.statistics.mean, observations.mean(axis=0), rtol=1e-6)


def test_what_was_not_learned_from(tiny_session: Session) -> None:
    """What is left of batches, each counted once."""
    data = batch(PPO(epochs=1, minibatch_size=6), tiny_session)
    learned = data.learn(data.indices[0])
    assert unlearned([data, data]) == ACTORS * (T - 1) - learned


def test_a_sample_of_the_observations(tiny_session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a small batch; of a large one so many, evenly spaced over steps and actors."""
    observations = np.stack([fragment(seed).trajectory.observation[:, 0] for seed in range(ACTORS)], axis=1)
    flat = observations.reshape(-1, observations.shape[-1])
    assert batch(PPO(), tiny_session).sample.tolist() == flat.tolist()
    monkeypatch.setattr(batches, "SAMPLE", 3)
    assert batch(PPO(), tiny_session).sample.tolist() == flat[[0, (len(flat) - 1) // 2, len(flat) - 1]].tolist()
