"""Evaluations in a compiled program: the episodes that `stellaris.acting.evaluation.evaluate` plays."""

import functools
from typing import TypeAlias

import jax
import jax.numpy as jnp

from stellaris.acting import evaluation, jax_env
from stellaris.acting.jax_env import JaxEnvironment, Slot
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.lab.sampling import sample

#: The environments, the number of steps, and by episode whether it has ended and its return so far.
_State: TypeAlias = tuple[Slot, jax.Array, jax.Array, jax.Array]


def evaluated(
    env: JaxEnvironment, policy: Policy, version: PolicyVersion, *, episodes: int, seed: jax.Array
) -> jax.Array:
    """Plays whole episodes with one policy version, as `evaluate` does with the same seed.

    Args:
      env: the environment.
      policy: the policy of the version.
      version: the version.
      episodes: number of episodes.
      seed: the seed of environments and actions, int32.

    Returns:
      The returns of the episodes, float32 `[episodes]`; one that reaches the limit of steps has its return so far.
    """
    key, places = jax.random.key(seed), jnp.arange(episodes)

    def more(state: _State) -> jax.Array:
        _, steps, ended, _ = state
        return ~ended.all() & (steps < evaluation.MOST_STEPS)

    def advance(state: _State) -> _State:
        slots, steps, ended, returns = state
        steps = steps + evaluation.AT_ONCE
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(key, steps), places)
        slots, _, stepped = sample(env, policy, version, jnp.int32(0), slots, keys, evaluation.AT_ONCE)
        ends, first = stepped.finished.any(axis=0), jnp.argmax(stepped.finished, axis=0)
        # Only the first episode of an environment counts.
        so_far = jnp.where(ends, stepped.episode_return[first, places], slots.episode_return)
        return slots, steps, ended | ends, jnp.where(ended, returns, so_far)

    slots = jax.vmap(functools.partial(jax_env.start, env), (0, None))(seed + places, 0)
    began = slots, jnp.int32(0), jnp.zeros(episodes, bool), jnp.zeros(episodes, jnp.float32)
    returns: jax.Array = jax.lax.while_loop(more, advance, began)[3]
    return returns
