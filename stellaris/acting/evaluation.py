"""Evaluation of one policy version, on separate environments."""

import jax
import numpy as np

from stellaris._core import checks
from stellaris.acting import envs
from stellaris.acting.envs import Environment
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import Actors, Episode, start
from stellaris.types import Versioned

#: Steps between two checks of whether every episode has ended.
AT_ONCE = 64
#: Steps after which an episode is cut off: Atari's usual limit, half an hour of play.
MOST_STEPS = 27_000


def evaluate(
    policy: Policy, version: PolicyVersion, environment: Environment, *, episodes: int = 10, seed: int, threads: int = 1
) -> tuple[Episode, ...]:
    """Plays whole episodes with one policy version, sampling actions as in training.

    Only the first episode of each environment counts. If all finished episodes counted, short ones would be
    over-represented.

    Args:
      policy: the policy of the version.
      version: the policy's parameters and normaliser, which stay fixed.
      environment: an environment as for `envs.make`. Each episode gets a new one; episode `i` has the seed `seed + i`.
      episodes: the number of episodes.
      seed: the seed of environments and actions.
      threads: number of threads that step the environments.

    Returns:
      The episodes' returns and lengths.

    Raises:
      ValueError: if `episodes` is below 1, or `seed` is out of range.

    Example:
      >>> from stellaris.acting import ActorCritic
      >>> from stellaris.systems import Workload
      >>> env = envs.make("CartPole-v1", slots=1)
      >>> policy = ActorCritic(hidden=(8,))(env.spec)
      >>> version = PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser())
      >>> played = evaluate(policy, version, "CartPole-v1", episodes=3, seed=0)
      >>> [episode.length == episode.episode_return for episode in played]
      [True, True, True]
    """
    checks.whole(at_least=1, episodes=episodes)
    checks.seed(seed=seed)
    env = envs.make(environment, slots=episodes, seed=seed, threads=threads)
    try:
        actors = Actors(policy, env, AT_ONCE)
        states = [start(env, slot) for slot in range(episodes)]
        played: dict[int, Episode] = {}
        key = jax.random.key(seed)
        for steps in range(AT_ONCE, MOST_STEPS + AT_ONCE, AT_ONCE):
            running = [slot for slot in range(episodes) if slot not in played]
            keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, steps), np.array(running))
            fragments, after = actors.rollout(
                [Versioned(0, version)] * len(running), running, [states[slot] for slot in running], keys
            )
            for slot, fragment, state in zip(running, fragments, after, strict=True):
                states[slot] = state
                if fragment.episodes:
                    played[slot] = fragment.episodes[0]
                elif steps >= MOST_STEPS:
                    played[slot] = Episode(state.episode_return, state.episode_length)
            if len(played) == episodes:
                break
    finally:
        env.close()
    return tuple(played[slot] for slot in range(episodes))
