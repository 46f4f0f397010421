"""The papers' actor-critics (flax), and what a published version of a policy holds."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from stellaris.distributions import Categorical, DiagonalGaussian
from stellaris.envs import EnvSpec
from stellaris.normalisation import Normaliser
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


class _Tower(nn.Module):
    """Hidden tanh layers and a linear output, orthogonally initialised."""

    hidden: tuple[int, ...]
    outputs: int
    output_gain: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.hidden:
            x = nn.tanh(nn.Dense(width, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
        return nn.Dense(self.outputs, kernel_init=nn.initializers.orthogonal(self.output_gain))(x)


class ActorCritic(nn.Module):
    """Two separate towers of the same shape, for the policy and for the value.

    Source:
      MinionsRL (AAAI 2024): two hidden layers of 256 tanh units, critic of the same shape.
    """

    actions: int
    discrete: bool
    hidden: tuple[int, ...] = (256, 256)

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[Categorical | DiagonalGaussian, jax.Array]:
        # A small last layer starts the policy near uniform, whatever the observations' scale.
        output = _Tower(self.hidden, self.actions, 0.01, name="policy")(x)
        value = _Tower(self.hidden, 1, 1.0, name="value")(x)[..., 0]
        if self.discrete:
            return Categorical(output), value
        log_std = self.param("log_std", nn.initializers.constant(-0.5), (self.actions,))
        return DiagonalGaussian(output, jnp.broadcast_to(log_std, output.shape)), value


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
      >>> spec = EnvSpec("CartPole-v1", observation_shape=(4,), actions=2, discrete=True, low=None, high=None)
      >>> policy = actor_critic(spec)
      >>> version = PolicyVersion(policy.init(jax.random.key(0)), Normaliser(np.zeros(4), np.ones(4)))
      >>> distribution, value = policy.apply(version, np.zeros((3, 4)))
      >>> distribution.logits.shape, value.shape
      ((3, 2), (3,))
    """
    if len(spec.observation_shape) != 1:
        raise ValueError(f"{spec.name}: observations of shape {spec.observation_shape} are not vectors")
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
