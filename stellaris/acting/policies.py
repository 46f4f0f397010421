"""Policies: a network that acts in an environment, its published versions, and ready-made policies."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from stellaris._core import checks
from stellaris.acting import cells
from stellaris.acting.normalisation import Normaliser, Statistics
from stellaris.acting.vector import EnvSpec, array
from stellaris.distributions import Categorical, DiagonalGaussian, as_distribution
from stellaris.memory import Sequences, check_memory, unroll
from stellaris.types import Distribution, Tree


@runtime_checkable
class Network(Protocol):
    """The protocol of a network from any library: a hashable value that does not hold its parameters.

    A flax module satisfies it. For bare arrays or an Equinox model, write a frozen dataclass with these two methods.
    Equal networks are compiled once.
    """

    def init(self, key: jax.Array, observation: Tree, /) -> Tree:
        """Returns initial parameters, from a key and observations `[1, *obs]`."""

    def apply(self, params: Tree, observation: Tree, /) -> tuple[Any, Any]:
        """Returns the action distribution and the value for observations `[..., *obs]`, with any batch axes.

        Arrays of floats are normalised (if the policy normalises); integers are as the environment returned them.

        Returns:
          A pair. The action distribution is logits `[..., actions]` for discrete actions, `(mean, log_std)`
          `[..., actions]` for continuous ones, or an object with `log_prob`, `entropy` and `sample(noise)`, where the
          noise `[..., actions]` is standard Gumbel for discrete actions and standard normal for continuous ones. The
          value is `[...]`.
        """


@runtime_checkable
class RecurrentNetwork(Protocol):
    """The protocol of a network with memory: it carries a state, such as a GRU's, from one step to the next.

    A flax module with a method `initial_memory` satisfies it. `FlaxMemory` and `EquinoxMemory` make one of a cell.
    """

    def initial_memory(self) -> Tree:
        """Returns the memory of one environment at an episode's start, any tree of arrays `[...]`."""

    def init(self, key: jax.Array, observation: Tree, memory: Tree, /) -> Tree:
        """Returns initial parameters, from a key, observations `[1, *obs]` and memories `[1, ...]`."""

    def apply(self, params: Tree, observation: Tree, memory: Tree, /) -> tuple[Any, Any, Tree]:
        """Takes one step of `n` environments, whose observations `[n, *obs]` and memories `[n, ...]` are given.

        The library resets memories where an episode starts, and runs the step over the time axis.

        Returns:
          The action distribution `[n, ...]`, which must be a tree of arrays, and the value `[n]`, as `Network.apply`;
          and the memory after the step, with the shapes and dtypes of the memory before it.
        """


@runtime_checkable
class CachingNetwork(Network, Protocol):
    """A network that may keep a cache, such as a transformer's keys and values, from one step to the next.

    The cache only saves time: `apply` defines the network, from one observation. So it is not a memory in the sense of
    `RecurrentNetwork`, and is neither stored nor learned from.
    """

    def recall(self, params: Tree, observation: Tree, /) -> Tree:
        """Computes the cache with which the observations `[..., *obs]` can be resumed."""

    def resume(self, params: Tree, cache: Tree, observation: Tree, /) -> tuple[tuple[Any, Any], Tree]:
        """Returns what `apply` returns for observations `[..., *obs]`, and the cache for the next observations."""


class PolicyVersion(NamedTuple):
    """One published version: parameters, and the normaliser that belongs to them."""

    params: Tree
    normaliser: Normaliser


@dataclass(frozen=True)
class Policy:
    """A network that acts in an environment; its methods are pure functions over a `PolicyVersion`.

    Args:
      spec: the environment's specification.
      network: any `Network`, or a `RecurrentNetwork` for a policy with memory.
      normalise: whether observations of floats are normalised by running statistics before the network sees them.
      scaling_discount: if given, learners divide rewards by the running standard deviation of the returns that are
        discounted by this factor, and clip the quotients to ±10. Values are then in these units; histories, budgets and
        evaluations have unscaled returns. None leaves rewards as they are.

    Raises:
      TypeError: if the network lacks a method, cannot be hashed, or is a recurrent cell.
      ValueError: if `scaling_discount` is not in [0, 1].

    Source:
      Engstrom et al. 2020, Implementation Matters in Deep Policy Gradients, Algorithm 1: the deviation is that of
      `R_t = discount * R_(t-1) + r_t`, which starts at zero with every episode. Their code, like Stable-Baselines3's
      `VecNormalize`, updates the deviation at every step. Here, learners use that of the batches learned from so far,
      which belongs to a version as the statistics of observations do.

    Example:
      >>> import numpy as np
      >>> spec = EnvSpec("CartPole-v1", np.zeros(4), actions=2, discrete=True)
      >>> policy = ActorCritic(hidden=(8,))(spec)
      >>> version = PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser())
      >>> distribution, value = policy.apply(version, np.zeros((3, 4)))
      >>> distribution.logits.shape, value.shape
      ((3, 2), (3,))
    """

    spec: EnvSpec
    network: Network | RecurrentNetwork
    normalise: bool = True
    scaling_discount: float | None = None

    def __post_init__(self) -> None:
        if self.scaling_discount is not None:
            checks.between_zero_and_one(scaling_discount=self.scaling_discount)
        cells.check_network(self.network)
        for method in ("init", "apply"):
            if not callable(getattr(self.network, method, None)):
                raise TypeError(f"network={self.network!r} has no method {method}: expected init and apply")
        try:
            hash(self.network)
        except TypeError as error:
            raise TypeError(
                f"network={self.network!r} cannot be hashed ({error}): make it a frozen dataclass of its settings, and "
                "let init return its arrays"
            ) from None

    def init(self, key: jax.Array) -> Tree:
        """Returns initial parameters.

        Raises:
          TypeError: if the network lacks a memory but contains a recurrent cell of flax or Equinox, and an observation
            is not a sequence: the cell would start anew at every step.
        """
        nothing = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), self.spec.observation)
        seen = self._seen(self.statistics().normaliser(), nothing)
        if isinstance(self.network, RecurrentNetwork):
            return self.network.init(key, seen, self.initial_memory(1))
        with cells.watched(self.network, self.spec):
            params = self.network.init(key, seen)
        cells.check_params(params, self.network, self.spec)
        return params

    @property
    def remembers(self) -> bool:
        """Whether the policy has a memory: its network is a `RecurrentNetwork`."""
        return isinstance(self.network, RecurrentNetwork)

    def initial_memory(self, *batch: int) -> Tree:
        """Returns the memory at an episode's start, `[*batch, ...]`; None if the policy is without memory."""
        if not isinstance(self.network, RecurrentNetwork):
            return None
        memory = self.network.initial_memory()
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (*batch, *jnp.shape(x))), memory)

    def apply(self, version: PolicyVersion, observation: Tree) -> tuple[Distribution, jax.Array]:
        """Returns the action distribution and the values for observations.

        Args:
          version: parameters and normaliser.
          observation: raw observations `[..., *obs]`; for a policy with memory, `Sequences` of them, `[T, B, *obs]`.

        Returns:
          The distribution of actions, and the values `[...]`.

        Raises:
          TypeError: if the network does not return a distribution, or returns one for the wrong kind of actions; or if
            the policy has a memory and `observation` is not `Sequences`.
          ValueError: if the network returns other shapes than `Network.apply` describes.
        """
        if isinstance(self.network, RecurrentNetwork):
            return self._unrolled(version, observation)
        output = self.network.apply(version.params, self._seen(version.normaliser, observation))
        return self._checked(output, observation)

    def act(self, version: PolicyVersion, observation: Tree, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Samples actions and returns them with their log-probabilities `[...]`.

        The value is unused, so XLA removes its computation.

        Args:
          version: parameters and normaliser.
          observation: raw observations `[..., *obs]`.
          noise: `[..., actions]`, from `noise`.

        Raises:
          TypeError: as `apply`, or if the distribution has no method `sample`.
          ValueError: as `apply`, or if sampled actions do not have the shape of the environment's actions.
        """
        distribution, _ = self.apply(version, observation)
        return self._sampled(distribution, observation, noise)

    def step(
        self, version: PolicyVersion, observation: Tree, noise: jax.Array, memory: Tree
    ) -> tuple[jax.Array, jax.Array, Tree]:
        """Samples actions as `act`, from observations and memories; also returns the memory after the step.

        A policy without memory ignores `memory` and returns it unchanged.

        Args:
          version: parameters and normaliser.
          observation: raw observations `[n, *obs]`.
          noise: `[n, actions]`, from `noise`.
          memory: `[n, ...]`, the memory before the step; the initial one where an episode starts.

        Raises:
          TypeError: as `act`, or if the network returns a memory of other shapes or dtypes.
          ValueError: as `act`.
        """
        if not isinstance(self.network, RecurrentNetwork):
            return *self.act(version, observation, noise), memory
        distribution, _, after = self._remembered(version.params, self._seen(version.normaliser, observation), memory)
        return *self._sampled(distribution, observation, noise), after

    @property
    def caches(self) -> bool:
        """Whether the network may keep a cache: it is a `CachingNetwork`."""
        return isinstance(self.network, CachingNetwork)

    def recall(self, version: PolicyVersion, observation: Tree) -> Tree:
        """Computes the cache for observations `[..., *obs]` of a `CachingNetwork`."""
        network: Any = self.network
        return network.recall(version.params, self._seen(version.normaliser, observation))

    def resume(
        self, version: PolicyVersion, cache: Tree, observation: Tree, noise: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array, Tree]:
        """Samples actions as `act` does, with a cache; returns actions, log-probabilities, values and the next cache.

        Args:
          version: parameters and normaliser.
          cache: from `recall` or the last `resume` of the same episode.
          observation: raw observations `[..., *obs]`.
          noise: `[..., actions]`, from `noise`.
        """
        network: Any = self.network
        output, cache = network.resume(version.params, cache, self._seen(version.normaliser, observation))
        distribution, value = self._checked(output, observation)
        return *self._sampled(distribution, observation, noise), value, cache

    def _checked(self, output: Any, observation: Tree) -> tuple[Distribution, jax.Array]:
        """Returns a network's output as a distribution and values, if its form is as `Network.apply` describes."""
        if not isinstance(output, tuple) or len(output) != 2:
            raise TypeError(
                f"{self._name}: the network returned a {type(output).__name__}: expected a pair, the distribution and "
                "the value"
            )
        parameters, value = output
        distribution = as_distribution(parameters)
        self._check(distribution, jnp.shape(value), self._batch(observation))
        return distribution, jnp.asarray(value)

    def _sampled(self, distribution: Any, observation: Tree, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Samples actions from a distribution; returns them with their log-probabilities."""
        if not hasattr(distribution, "sample"):
            raise TypeError(f"{self._name}: a {type(distribution).__name__} lacks the method sample(noise): add it")
        action = distribution.sample(noise)
        expected = self._batch(observation) + (() if self.spec.discrete else (self.spec.actions,))
        if jnp.shape(action) != expected:
            raise ValueError(f"{self._name}: sampled actions have shape {jnp.shape(action)}: expected {expected}")
        return action, distribution.log_prob(action)

    def divergence(self, version: PolicyVersion, other: PolicyVersion, observation: Tree) -> jax.Array:
        """Computes the mean of `KL(version || other)` over observations, in nats.

        Args:
          version: parameters and normaliser.
          other: the version to compare with.
          observation: raw observations, as for `apply`.

        Returns:
          A scalar; NaN if the distribution lacks the method `kl_divergence(other)`.
        """
        (one, _), (two, _) = self.apply(version, observation), self.apply(other, observation)
        return jnp.mean(one.kl_divergence(two)) if hasattr(one, "kl_divergence") else jnp.asarray(jnp.nan)

    def noise(self, key: jax.Array, n: int) -> jax.Array:
        """Draws the noise for `n` actions, `[n, actions]`: Gumbel for discrete actions, normal for continuous ones."""
        kind = Categorical if self.spec.discrete else DiagonalGaussian
        return kind.noise(key, (n, self.spec.actions))

    def statistics(self) -> Statistics:
        """Empty statistics of the observations that this policy normalises, and of the returns that scale rewards."""
        observation = self.spec.observation if self.normalise else ()
        return Statistics.empty(observation, returns=self.scaling_discount is not None)

    @property
    def action(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of one action, from an abstract evaluation that also checks the network's outputs.

        Raises:
          TypeError: as `act`.
          ValueError: as `act`.
        """

        def act(key: jax.Array) -> jax.Array:
            version = PolicyVersion(self.init(key), self.statistics().normaliser())
            one = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), self.spec.observation)
            return self.step(version, one, self.noise(key, 1), self.initial_memory(1))[0]

        action = jax.eval_shape(act, jax.random.key(0))
        return array(action.shape[1:], action.dtype)

    @property
    def _name(self) -> str:
        return f"{type(self.network).__name__} on {self.spec.name}"

    def _unrolled(self, version: PolicyVersion, sequences: Any) -> tuple[Distribution, jax.Array]:
        """Returns the distribution and the values `[T, B]` of a policy with memory."""
        if not isinstance(sequences, Sequences):
            raise TypeError(
                f"{self._name} has a memory, but observations came without one: pass stellaris.memory.Sequences, or "
                "call `step` for one step"
            )

        def step(memory: Tree, seen: Tree) -> tuple[Tree, tuple[Any, Any]]:
            distribution, value, after = self._remembered(version.params, seen, memory)
            return after, (distribution, value)

        observation = self._seen(version.normaliser, sequences.observation)
        memory = jax.tree.map(lambda x: jnp.asarray(x)[0], sequences.memory)
        output: tuple[Distribution, jax.Array]
        _, output = unroll(step, memory, observation, sequences.reset, initial=self.initial_memory())
        return output

    def _remembered(self, params: Tree, seen: Tree, memory: Tree) -> tuple[Distribution, jax.Array, Tree]:
        """Takes one step of a network with memory, and checks the results."""
        output: Any = self.network.apply(params, seen, memory)  # type: ignore[call-arg]
        if not isinstance(output, tuple) or len(output) != 3:
            raise TypeError(
                f"{self._name}: the network returned a {type(output).__name__}: expected three results, the "
                "distribution, the value and the memory"
            )
        parameters, value, after = output
        distribution: Any = as_distribution(parameters)
        self._check(distribution, jnp.shape(value), self._batch(seen))
        check_memory(after, memory)
        if isinstance(distribution, DiagonalGaussian):  # rows may share a deviation, but steps are stacked
            mean, log_std = distribution
            distribution = DiagonalGaussian(mean, jnp.broadcast_to(log_std, jnp.shape(mean)))
        return distribution, jnp.asarray(value), after

    def _seen(self, normaliser: Normaliser, observation: Tree) -> Tree:
        """Converts raw observations to the network's inputs."""
        return normaliser(observation) if self.normalise else jax.tree.map(jnp.asarray, observation)

    def _batch(self, observation: Tree) -> tuple[int, ...]:
        """The batch axes of observations."""
        first, one = jax.tree.leaves(observation)[0], jax.tree.leaves(self.spec.observation)[0]
        shape = jnp.shape(first)
        return shape[: len(shape) - len(one.shape)]

    def _check(self, distribution: Distribution, value: tuple[int, ...], batch: tuple[int, ...]) -> None:
        """Raises unless the distribution and the values have the shapes of `Network.apply`."""
        if value != batch:
            raise ValueError(f"{self._name}: values have shape {value}: expected {batch}, one number per observation")
        match distribution:
            case Categorical(numbers):
                discrete = True
            case DiagonalGaussian(numbers):
                discrete = False
            case _:
                return  # a user's own distribution: only `act` can check its actions
        if discrete != self.spec.discrete:
            kind = "discrete" if self.spec.discrete else "continuous"
            raise TypeError(
                f"{self._name}: the network returned a {type(distribution).__name__}, but actions are {kind}: return "
                "logits for discrete actions, (mean, log_std) for continuous ones"
            )
        if jnp.shape(numbers) != (*batch, self.spec.actions):
            raise ValueError(
                f"{self._name}: the network's {'logits' if discrete else 'means'} have shape {jnp.shape(numbers)}: "
                f"expected {(*batch, self.spec.actions)}"
            )


@dataclass(frozen=True)
class ActorCritic:
    """MinionsRL's policy for vector observations: two separate tanh towers, for policy and value.

    Discrete actions are categorical; continuous ones are Gaussian.

    Args:
      hidden: widths of the hidden layers of each tower.
      state_dependent_std: whether the policy's tower also outputs the logarithms of the standard deviations, about 0 at
        first, as in Ray RLlib. Otherwise these logarithms are parameters: they do not depend on the state, and start at
        -0.5.
      normalise: whether observations are normalised by running statistics.
      scaling_discount: the discount of the returns by whose running deviation rewards are divided; see `Policy`.

    Raises:
      TypeError: if `hidden` is not a tuple of whole numbers.
      ValueError: if a width is below 1; when the policy is made, if `scaling_discount` is not in [0, 1].

    Example:
      >>> import numpy as np
      >>> policy = ActorCritic(hidden=(64, 64))(EnvSpec("CartPole-v1", np.zeros(4), actions=2, discrete=True))
      >>> policy.network.hidden
      (64, 64)
    """

    hidden: tuple[int, ...] = (256, 256)
    state_dependent_std: bool = False
    normalise: bool = True
    scaling_discount: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, tuple):
            raise TypeError(f"hidden={self.hidden!r} is not a tuple of widths, such as (256, 256)")
        checks.whole(at_least=1, **{f"hidden[{i}]": width for i, width in enumerate(self.hidden)})

    def __call__(self, spec: EnvSpec) -> Policy:
        """Makes the policy for an environment.

        Raises:
          ModuleNotFoundError: without flax.
          ValueError: if observations are not vectors; the message says which policy to use.
        """
        from stellaris.acting.networks import Towers  # imported here so that `import stellaris` does not import flax

        if len(_array_shape(spec)) != 1:
            pixels = "policy=Pixels() for images, or " if _is_image(spec) else ""
            raise ValueError(
                f"{spec.name}: ActorCritic is for vectors, but an observation is {_types(spec)}: pass {pixels}"
                "policy=lambda spec: Policy(spec, network) with a network of your own"
            )
        network = Towers(spec.actions, spec.discrete, self.hidden, self.state_dependent_std)
        return Policy(spec, network, self.normalise, self.scaling_discount)


@dataclass(frozen=True)
class Pixels:
    """A policy for image observations.

    Bytes are scaled to [0, 1], without running statistics. The channels are the smaller of the first and the last axis,
    as in EnvPool's `[4, 84, 84]` and Gymnasium's `[84, 84, 3]`; `[84, 84]` is one channel.

    Args:
      network: `"nature"`, the Nature CNN, shared by policy and value, on images of at least 36x36; or `"minionsrl"`,
        two separate towers of convolutions, on images of at least 84x84.

    Raises:
      ValueError: if `network` is neither of these.

    Source:
      Mnih et al. 2015, Human-level control through deep reinforcement learning; MinionsRL (AAAI 2024).

    Example:
      >>> import numpy as np
      >>> policy = Pixels()(EnvSpec("Pong-v5", np.zeros((4, 84, 84), np.uint8), actions=6, discrete=True))
      >>> policy.normalise
      False
    """

    network: str = "nature"

    def __post_init__(self) -> None:
        if self.network not in _LEAST_PIXELS:
            raise ValueError(f"network={self.network!r}: expected {' or '.join(map(repr, _LEAST_PIXELS))}")

    def __call__(self, spec: EnvSpec) -> Policy:
        """Makes the policy for an environment.

        Raises:
          ModuleNotFoundError: without flax.
          ValueError: if observations are not images, or too small for the convolutions.
        """
        from stellaris.acting.networks import ConvolutionTowers, NatureCNN

        least = _LEAST_PIXELS[self.network]
        if not _is_image(spec, least):
            raise ValueError(
                f"{spec.name}: {self} is for images of at least {least}x{least}, but an observation is "
                f"{_types(spec)}: pass policy=lambda spec: Policy(spec, network) with a network of your own"
            )
        network = NatureCNN if self.network == "nature" else ConvolutionTowers
        return Policy(spec, network(_array_shape(spec), spec.actions, spec.discrete), normalise=False)


#: The least height and width of an image, by network.
_LEAST_PIXELS = {"nature": 36, "minionsrl": 84}


def _array_shape(spec: EnvSpec) -> tuple[int, ...]:
    """The shape of an observation that is one array; empty if it is a tree of several."""
    return spec.observation_shape if isinstance(spec.observation, jax.ShapeDtypeStruct) else ()


def _types(spec: EnvSpec) -> str:
    """The dtypes and shapes of an observation, for messages."""
    brief = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", spec.observation)
    return str(brief).replace("'", "")


def _is_image(spec: EnvSpec, least: int = 36) -> bool:
    """Whether an observation is an image of at least `least` pixels in height and width, with or without channels."""
    shape = _array_shape(spec)
    return len(shape) in (2, 3) and sorted(shape)[-2] >= least
