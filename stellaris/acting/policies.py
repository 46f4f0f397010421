"""Policies as pure functions, what a published version holds, and the papers' actor-critic."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stellaris.acting.envs import EnvSpec
from stellaris.acting.normalisation import Normaliser
from stellaris.distributions import Categorical, DiagonalGaussian
from stellaris.types import Array, Tree


class PolicyVersion(NamedTuple):
    """One published version: parameters, and the statistics that normalise for them."""

    params: Tree
    normaliser: Normaliser


class Policy(NamedTuple):
    """Pure functions over a `PolicyVersion`; observations are raw."""

    init: Callable[[jax.Array], Tree]  #: `(key) -> params`
    apply: Callable[[PolicyVersion, Array], tuple[Any, jax.Array]]  #: `(version, [..., *obs]) -> (distribution, [...])`
    noise: Callable[[jax.Array, int], jax.Array]  #: `(key, n) -> [n, ...]`, what `n` actions are sampled from


@functools.lru_cache(maxsize=64)
def actor_critic(spec: EnvSpec, *, hidden: tuple[int, ...] = (256, 256)) -> Policy:
    """The papers' 2x256 tanh actor-critic: diagonal Gaussian for continuous actions, categorical for discrete ones.

    Args:
      spec: of the environment.
      hidden: widths of the hidden layers.

    Returns:
      A `Policy` that normalises raw observations by its version's statistics; the same one for the same arguments, so
      that what is jitted for it once is compiled once.

    Raises:
      ValueError: if observations are not vectors.

    Example:
      >>> import jax, numpy as np
      >>> spec = EnvSpec("CartPole-v1", observation_shape=(4,), actions=2, discrete=True)
      >>> policy = actor_critic(spec)
      >>> version = PolicyVersion(policy.init(jax.random.key(0)), Normaliser(np.zeros(4), np.ones(4)))
      >>> distribution, value = policy.apply(version, np.zeros((3, 4)))
      >>> distribution.logits.shape, value.shape
      ((3, 2), (3,))
    """
    if len(spec.observation_shape) != 1:
        raise ValueError(f"{spec.name}: observations of shape {spec.observation_shape} are not vectors")
    from stellaris.acting.networks import ActorCritic  # here, so that importing stellaris does not import flax

    network = ActorCritic(spec.actions, spec.discrete, hidden)
    distribution = Categorical if spec.discrete else DiagonalGaussian

    def apply(version: PolicyVersion, observation: Array) -> tuple[Any, jax.Array]:
        distribution, value = network.apply(version.params, version.normaliser(observation))
        return distribution, jnp.asarray(value)

    return Policy(
        init=lambda key: network.init(key, jnp.zeros((1, *spec.observation_shape))),
        apply=apply,
        noise=lambda key, n: distribution.noise(key, (n, spec.actions)),
    )
