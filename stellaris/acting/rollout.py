"""An actor's work: step an environment with a policy version, and tag every step with it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris.acting.envs import VectorEnv
from stellaris.acting.normalisation import Statistics
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.types import NDArray, Trajectory, Versioned


class ActorState(NamedTuple):
    """Where an actor's environment stands between two fragments: what its container keeps."""

    observation: NDArray  #: `[*obs]`, the newest.
    ended: bool  #: whether the last step ended the episode, so that the next one only resets.
    episode_return: float  #: of the episode so far.
    episode_length: int


class Episode(NamedTuple):
    """An episode that ended within a fragment."""

    episode_return: float
    length: int


class Fragment(NamedTuple):
    """What an actor delivers."""

    trajectory: Trajectory  #: `[T, 1, ...]`, with raw observations.
    statistics: Statistics  #: of its observations: an increment to be merged.
    episodes: tuple[Episode, ...]

    @property
    def steps(self) -> int:
        """Environment steps, those that only reset included."""
        return self.trajectory.reward.shape[0]

    @property
    def resets(self) -> int:
        """Steps that only reset the environment."""
        return self.steps - int(np.sum(self.trajectory.valid))


def start(env: VectorEnv, slot: int) -> ActorState:
    """Resets a slot, and begins an episode there."""
    return ActorState(env.reset(np.array([slot]))[0], ended=False, episode_return=0.0, episode_length=0)


#: `(versions [U, ...], observation [U, n, *obs], noise [U, n, ...]) -> (action, log_prob, value)`, each `[U, n, ...]`.
Inference = Callable[[Any, Any, Any], tuple[jax.Array, jax.Array, jax.Array]]


class Actors:
    """Rolls out many actors at once, each with a policy version, a slot and a random key of its own.

    One jitted inference call a step serves all of them: actors are grouped by version, versions are stacked, and both
    are padded to powers of two so that few shapes are ever compiled.

    Args:
      policy: whose versions act.
      env: with a slot for every actor.
      length: steps of a fragment.

    Raises:
      ValueError: if `length` is below 1.
    """

    def __init__(self, policy: Policy, env: VectorEnv, length: int) -> None:
        if length < 1:
            raise ValueError(f"length={length} is below 1: a fragment has at least one step")
        self._env, self._length = env, length
        self._infer, self._noise = _compiled(policy, length)

    def rollout(
        self,
        versions: Sequence[Versioned],
        slots: Sequence[int],
        states: Sequence[ActorState],
        keys: Sequence[jax.Array],
    ) -> tuple[list[Fragment], list[ActorState]]:
        """Steps every actor's environment for one fragment.

        Args:
          versions: `PolicyVersion`s to act with.
          slots: of the actors, all different.
          states: where their environments stand.
          keys: of their action noise. An actor's actions do not depend on who shares the call, up to rounding.

        Returns:
          The actors' fragments, and their new states.
        """
        n, length = len(slots), self._length
        stacked, rows, places = _group(versions)
        groups = (rows.shape[0], rows.shape[1])
        noise = np.asarray(self._noise(jax.numpy.stack([*keys])))  # [n, T, ...]
        noise = np.swapaxes(noise, 0, 1)[:, rows]  # [T, U, n_u, ...]
        where = np.array(slots, np.int32)

        observation = np.stack([state.observation for state in states])
        ended = np.array([state.ended for state in states])
        running_return = np.array([state.episode_return for state in states])
        running_length = np.array([state.episode_length for state in states])
        episodes: list[list[Episode]] = [[] for _ in range(n)]
        record = _Record(length, n, observation)

        def infer(t: int) -> list[NDArray]:
            outputs = self._infer(stacked, observation[rows], noise[t])
            return [np.asarray(x).reshape(groups[0] * groups[1], *x.shape[2:])[places] for x in outputs]

        for t in range(length):
            action, log_prob, value = infer(t)
            step = self._env.step(where, action)
            valid = ~ended
            record.add(t, observation, action, step.reward, step.terminated, valid, log_prob, value)
            running_return += step.reward * valid
            running_length += valid
            observation, ended = step.observation, step.terminated | step.truncated
            for i in np.flatnonzero(ended):
                episodes[i].append(Episode(float(running_return[i]), int(running_length[i])))
                running_return[i], running_length[i] = 0.0, 0
        record.finish(observation, infer(length - 1)[2])

        fragments = [
            Fragment(record.trajectory(i, versions[i].version), record.statistics(i), tuple(episodes[i]))
            for i in range(n)
        ]
        moved = [
            ActorState(observation[i], bool(ended[i]), float(running_return[i]), int(running_length[i]))
            for i in range(n)
        ]
        return fragments, moved


@functools.lru_cache(maxsize=64)
def _compiled(policy: Policy, length: int) -> tuple[Inference, Callable[[jax.Array], jax.Array]]:
    """Inference and a fragment's noise, compiled once for all rollouts of a policy."""

    def infer(version: PolicyVersion, observation: Any, noise: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        distribution, value = policy.apply(version, observation)
        action = distribution.sample(noise)
        return action, distribution.log_prob(action), value

    return jax.jit(jax.vmap(infer)), jax.jit(jax.vmap(lambda key: policy.noise(key, length)))


class _Record:
    """Columns `[T, n]` of a rollout, filled step by step."""

    def __init__(self, length: int, n: int, observation: NDArray) -> None:
        self.length, self.n = length, n
        self.observation = np.empty((length + 1, *observation.shape), observation.dtype)
        self.value = np.empty((length + 1, n), np.float32)
        self.columns: tuple[NDArray, ...] | None = None

    def add(self, t: int, observation: NDArray, *columns: NDArray) -> None:
        *rest, value = columns
        if self.columns is None:
            self.columns = tuple(np.empty((self.length, *column.shape), column.dtype) for column in rest)
        self.observation[t], self.value[t] = observation, value
        for column, row in zip(self.columns, rest, strict=True):
            column[t] = row

    def finish(self, observation: NDArray, value: NDArray) -> None:
        self.observation[-1], self.value[-1] = observation, value

    def trajectory(self, i: int, version: int) -> Trajectory:
        assert self.columns is not None
        action, reward, terminated, valid, log_prob = (column[:, i : i + 1] for column in self.columns)
        return Trajectory(
            observation=self.observation[:, i : i + 1].astype(np.float32),
            action=action,
            reward=reward,
            terminated=terminated,
            valid=valid,
            log_prob=log_prob,
            value=self.value[:, i : i + 1],
            version=np.full((self.length, 1), version, np.int32),
        )

    def statistics(self, i: int) -> Statistics:
        return Statistics.of(self.observation[:-1, i])


def _group(versions: Sequence[Versioned]) -> tuple[Any, NDArray, NDArray]:
    """Groups actors by version.

    Returns:
      The versions' values stacked `[U, ...]`; `rows [U, m]`, the actor at each place (padding repeats actor 0); and
      `places [n]`, each actor's place in the flattened rows.
    """
    distinct = {version.version: version.value for version in versions}
    members = {number: [i for i, v in enumerate(versions) if v.version == number] for number in distinct}
    width = _power_of_two(max(len(group) for group in members.values()))
    height = _power_of_two(len(distinct))
    rows = np.zeros((height, width), np.int64)
    places = np.empty(len(versions), np.int64)
    for u, group in enumerate(members.values()):
        rows[u, : len(group)] = group
        places[group] = u * width + np.arange(len(group))
    values = list(distinct.values())
    values += [values[0]] * (height - len(values))
    return jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *values), rows, places


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
