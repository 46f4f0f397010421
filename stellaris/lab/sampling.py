"""Sampling in a compiled program: several environments sample steps together, with the same version."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from stellaris.acting import jax_env
from stellaris.acting.jax_env import JaxEnvironment, Slot, Stepped
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.types import Trajectory


def sample(
    env: JaxEnvironment,
    policy: Policy,
    version: PolicyVersion,
    number: Any,
    slots: Slot,
    keys: jax.Array,
    length: int,
) -> tuple[Slot, Trajectory, Stepped]:
    """Steps environments with a version of the policy, as actors do.

    Args:
      env: the environment.
      policy: the policy.
      version: the version that acts.
      number: the number of the version, int32.
      slots: the states of the environments, `[n, ...]`.
      keys: the keys of the actions' noise, `[n]`.
      length: number of steps.

    Returns:
      The new states; the trajectories `[T, n, ...]`; and the steps `[T, n]`, which say where episodes ended.
    """
    noise = jnp.moveaxis(jax.vmap(lambda key: policy.noise(key, length))(keys), 1, 0)

    def step(slots: Slot, noise: jax.Array) -> tuple[Slot, tuple[Any, ...]]:
        action, log_prob = policy.act(version, slots.observation, noise)
        after, stepped = jax.vmap(functools.partial(jax_env.advance, env))(slots, action)
        return after, (slots.observation, action, log_prob, stepped)

    slots, (observation, action, log_prob, stepped) = jax.lax.scan(step, slots, noise)
    observation = jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), observation, slots.observation)
    trajectory = Trajectory(
        observation=observation,
        action=action,
        reward=stepped.reward,
        terminated=stepped.terminated,
        valid=stepped.valid,
        log_prob=log_prob,
        value=policy.apply(version, observation)[1],
        version=jnp.full(log_prob.shape, number),
    )
    return slots, trajectory, stepped


def chosen(condition: jax.Array, one: Any, other: Any) -> Any:
    """Chooses the rows of two trees by a condition `[n]`."""

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, one, other)
