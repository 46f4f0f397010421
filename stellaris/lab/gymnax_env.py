"""Environments of gymnax as `JaxEnvironment`s: classic control, MinAtar, Reacher, Swimmer and others."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris._core.extras import needs
from stellaris.acting.jax_env import Transition
from stellaris.acting.vector import EnvSpec
from stellaris.types import Tree


@dataclass(frozen=True)
class Gymnax:
    """An environment of gymnax, by its name.

    Observations are flattened to vectors of float32, so that `ActorCritic` accepts even MinAtar's images. Continuous
    actions are clipped to their bounds.

    Args:
      name: name in gymnax, such as `"Acrobot-v1"`, `"Breakout-MinAtar"` or `"Reacher-misc"`.
      parameters: fields of the environment's parameters and their values, such as
        `(("max_steps_in_episode", 200),)`; other fields keep their defaults.

    Raises:
      ModuleNotFoundError: if gymnax is not installed; the error names the extra that installs it.
      TypeError: if the parameters cannot be hashed, such as a dictionary.
      ValueError: if gymnax has no such environment, or the environment has no such parameter.

    Example:
      >>> env = Gymnax("Acrobot-v1")
      >>> env.spec.observation_shape, env.spec.actions, env.spec.discrete
      ((6,), 3, True)
    """

    name: str
    parameters: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        try:
            hash(self.parameters)
        except TypeError as error:
            raise TypeError(
                f"parameters={self.parameters!r} must be a tuple of pairs, such as "
                f'(("max_steps_in_episode", 200),), whose values can be hashed: {error}'
            ) from None
        _made(self.name, self.parameters)

    @functools.cached_property
    def spec(self) -> EnvSpec:
        """The specification, with the bounds of continuous actions."""
        env, params = _made(self.name, self.parameters)
        observation = jax.eval_shape(lambda: self.reset(jax.random.key(0))[1])
        space = env.action_space(params)
        if hasattr(space, "n"):
            return EnvSpec(self.name, observation, actions=int(space.n), discrete=True)
        low, high = (
            np.broadcast_to(np.asarray(bound, float), space.shape).ravel() for bound in (space.low, space.high)
        )
        return EnvSpec(
            self.name,
            observation,
            actions=math.prod(space.shape),
            discrete=False,
            low=tuple(low.tolist()),
            high=tuple(high.tolist()),
            action_shape=tuple(space.shape),
        )

    def reset(self, key: jax.Array) -> tuple[Tree, Tree]:
        """Starts an episode."""
        env, params = _made(self.name, self.parameters)
        observation, state = env.reset_env(key, params)
        # Every leaf becomes an array, because some states start with Python numbers, whose type changes after a step.
        return jax.tree.map(jnp.asarray, state), _flat(observation)

    def step(self, state: Tree, action: jax.Array, key: jax.Array) -> Transition:
        """Steps an episode."""
        env, params = _made(self.name, self.parameters)
        space = env.action_space(params)
        if not hasattr(space, "n"):
            action = jnp.clip(action.reshape(space.shape), space.low, space.high)
        observation, moved, reward, terminated, _ = env.step_env(key, state, action, params)
        moved = jax.tree.map(lambda new, old: jnp.asarray(new, jnp.result_type(old)), moved, state)
        terminated = jnp.asarray(terminated, bool)
        truncated = jnp.asarray(env.is_truncated(moved, params), bool) & ~terminated
        return Transition(moved, _flat(observation), jnp.asarray(reward, jnp.float32), terminated, truncated)


@functools.cache
def _made(name: str, parameters: tuple[tuple[str, Any], ...]) -> tuple[Any, Any]:
    """Returns the gymnax environment and its parameters."""
    with needs(f"environment {name!r}"):
        import gymnax
    try:
        env, params = gymnax.make(name)
        return env, params.replace(**dict(parameters))
    except (TypeError, ValueError) as error:
        raise ValueError(f"Gymnax({name!r}, {parameters!r}): {error}") from error


def _flat(observation: Any) -> jax.Array:
    return jnp.ravel(jnp.asarray(observation)).astype(jnp.float32)
