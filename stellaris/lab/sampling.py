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
    cache = policy.recall(version, slots.observation) if policy.caches else None

    def step(carry: tuple[Slot, Any], noise: jax.Array) -> tuple[tuple[Slot, Any], tuple[Any, ...]]:
        slots, cache = carry
        value = None
        if policy.caches:
            action, log_prob, value, cache = policy.resume(version, cache, slots.observation, noise)
        else:
            action, log_prob = policy.act(version, slots.observation, noise)
        after, stepped = jax.vmap(functools.partial(jax_env.advance, env))(slots, action)
        if policy.caches:
            cache = _renewed(policy, version, cache, after.observation, ~stepped.valid)
        return (after, cache), (slots.observation, action, log_prob, value, stepped)

    (slots, cache), (observation, action, log_prob, value, stepped) = jax.lax.scan(step, (slots, cache), noise)
    observation = jax.tree.map(lambda x, last: jnp.concatenate([x, last[None]]), observation, slots.observation)
    if policy.caches:
        last = policy.resume(version, cache, slots.observation, noise[-1])[2]
        value = jnp.concatenate([value, last[None]])
    else:  # all values in one call
        value = policy.apply(version, observation)[1]
    trajectory = Trajectory(
        observation=observation,
        action=action,
        reward=stepped.reward,
        terminated=stepped.terminated,
        valid=stepped.valid,
        log_prob=log_prob,
        value=value,
        version=jnp.full(log_prob.shape, number),
    )
    return slots, trajectory, stepped


def check_memoryless(policy: Policy) -> None:
    """Checks that a policy has no memory.

    Raises:
      TypeError: if it has one: compiled runs do not carry it.
    """
    if policy.remembers:
        raise TypeError(
            f"policy of {policy.spec.name}: its network, {type(policy.network).__name__}, has a memory, which compiled "
            "runs of the lab do not carry: pass a policy without memory, or use stellaris.train"
        )


def _renewed(policy: Policy, version: PolicyVersion, cache: Any, observation: Any, reset: jax.Array) -> Any:
    """Recalls the caches of the environments that were reset, `[n]`; computes nothing if none was.

    Under `vmap` a plain `cond` would recall at every step, so it asks whether an environment of any run was reset.
    """

    def recalled(reset: jax.Array, version: PolicyVersion, cache: Any, observation: Any) -> Any:
        return chosen(reset, policy.recall(version, observation), cache)

    @jax.custom_batching.custom_vmap
    def renew(reset: jax.Array, *rest: Any) -> Any:
        return jax.lax.cond(jnp.any(reset), recalled, lambda reset, version, cache, observation: cache, reset, *rest)

    @renew.def_vmap
    def of_all_runs(size: int, batched: Any, *operands: Any) -> tuple[Any, Any]:
        own = jax.tree.map(lambda x, has: x if has else jnp.broadcast_to(x, (size, *x.shape)), operands, tuple(batched))
        cache = jax.lax.cond(
            jnp.any(own[0]), jax.vmap(recalled), lambda reset, version, cache, observation: cache, *own
        )
        return cache, jax.tree.map(lambda x: True, cache)

    return renew(reset, version, cache, observation)


def chosen(condition: jax.Array, one: Any, other: Any) -> Any:
    """Chooses the rows of two trees by a condition `[n]`."""

    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(choose, one, other)
