"""Action distributions: diagonal Gaussian and categorical, as JAX pytrees that sample from given noise.

Drawing noise does not need the parameters. An actor can therefore draw the noise of many steps in one call, with the
actor's own key, and its actions do not depend on which other actors are in the batch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.types import Array, Distribution, at_least_float32

_LOG_SQRT_2PI = 0.9189385332046727


class DiagonalGaussian(NamedTuple):
    """Independent normal actions: `a = mean + exp(log_std) * noise`; the last axis is one action.

    Example:
      >>> import jax.numpy as jnp
      >>> policy = DiagonalGaussian(mean=jnp.zeros(2), log_std=jnp.zeros(2))
      >>> print(f"{policy.log_prob(jnp.zeros(2)):.4f} {policy.entropy():.4f}")
      -1.8379 2.8379
    """

    mean: Float[Array, "*batch action"]
    log_std: Float[Array, "*#batch action"]

    def log_prob(self, value: Float[Array, "*batch action"]) -> Float[Array, "*batch"]:
        """The log-density of actions `a`: `sum_i -((a_i - mean_i) / std_i)^2 / 2 - log std_i - log sqrt(2 pi)`.

        Raises:
          TypeError: if the actions are integers, as for a categorical distribution.
          ValueError: if the actions' shape differs from the mean's.
        """
        checks.floats(value=value, mean=self.mean)
        checks.same_shape(self.mean, "mean", value=value)
        standard = (value - self.mean) * self._of_each(jnp.exp(-self.log_std))
        return jnp.sum(-0.5 * jnp.square(standard) - self._of_each(self.log_std) - _LOG_SQRT_2PI, axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        """The entropy in nats: `sum_i log std_i + log sqrt(2 pi e)`."""
        return jnp.sum(self._of_each(self.log_std) + _LOG_SQRT_2PI + 0.5, axis=-1)

    def kl_divergence(self, other: "DiagonalGaussian") -> Float[Array, "*batch"]:
        """`KL(self || other) = sum_i log(s_i / std_i) + (std_i^2 + (mean_i - m_i)^2) / (2 s_i^2) - 1/2`.

        Args:
          other: a distribution with means `m` and standard deviations `s`.

        Returns:
          The divergences `[...]` in nats.

        Raises:
          ValueError: if the means differ in shape.

        Example:
          >>> near, far = (DiagonalGaussian(jnp.array([mean]), jnp.zeros(1)) for mean in (0.0, 2.0))
          >>> print(near.kl_divergence(far))
          2.0
        """
        checks.same_shape(self.mean, "mean", **{"other.mean": other.mean})
        log_std, inverse = self._of_each(self.log_std), other._of_each(jnp.exp(-other.log_std))
        narrowing = other._of_each(other.log_std) - log_std
        distance = (self.mean - other.mean) * inverse
        return jnp.sum(narrowing + 0.5 * (jnp.exp(-2.0 * narrowing) + jnp.square(distance) - 1.0), axis=-1)

    def sample(self, noise: Float[Array, "*batch action"]) -> Float[Array, "*batch action"]:
        """The action `mean + exp(log_std) * noise` for standard normal noise of the mean's shape."""
        checks.same_shape(self.mean, "mean", noise=noise)
        return self.mean + self._of_each(jnp.exp(self.log_std)) * noise

    def _of_each(self, shared: Any) -> jax.Array:
        """Broadcasts a function of `log_std` to the mean's shape: all rows of a batch may share one `log_std`."""
        mean, log_std = jnp.shape(self.mean), jnp.shape(self.log_std)
        fits = zip(reversed(log_std), reversed(mean), strict=False)
        if not mean or len(log_std) > len(mean) or any(x not in (1, y) for x, y in fits):
            raise ValueError(
                f"log_std has shape {log_std}: expected a shape that broadcasts to the mean's shape {mean}"
            )
        return jnp.broadcast_to(shared, mean)

    @staticmethod
    def noise(key: jax.Array, shape: Sequence[int]) -> jax.Array:
        """Draws standard normal noise of `shape`, whose last axis holds the dimensions of an action."""
        return jax.random.normal(key, tuple(shape))


class Categorical(NamedTuple):
    """One of `n` actions with probability `softmax(logits)`; sampled by the Gumbel-max rule.

    Probabilities are summed in float32 at least, and results have the dtype of the logits.

    Example:
      >>> import jax.numpy as jnp
      >>> policy = Categorical(logits=jnp.zeros(4))
      >>> print(f"{policy.log_prob(jnp.int32(2)):.4f} {policy.entropy():.4f}")
      -1.3863 1.3863
    """

    logits: Float[Array, "*batch n"]

    def log_prob(self, value: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
        """The log-probability of actions `a`: `log softmax(logits)[a]`.

        Raises:
          TypeError: if the actions are not integers.
          ValueError: if the actions' shape is not that of the logits without the last axis.
        """
        checks.integers(value=value)
        batch = jnp.shape(self.logits)[:-1]
        if jnp.shape(value) != batch:
            raise ValueError(f"value has shape {jnp.shape(value)}: expected {batch}, one action for each row of logits")
        log_probs = _log_softmax(self.logits)
        return jnp.take_along_axis(log_probs, jnp.asarray(value)[..., None], axis=-1)[..., 0].astype(
            jnp.result_type(self.logits)
        )

    def entropy(self) -> Float[Array, "*batch"]:
        """The entropy in nats: `-sum_i p_i log p_i`, where an action of probability zero adds nothing."""
        log_probs = _log_softmax(self.logits)
        probs = jnp.exp(log_probs)
        terms = jnp.where(probs > 0, probs * jnp.where(probs > 0, log_probs, 0.0), 0.0)
        return -jnp.sum(terms, axis=-1).astype(jnp.result_type(self.logits))

    def kl_divergence(self, other: "Categorical") -> Float[Array, "*batch"]:
        """`KL(self || other) = sum_a p_a log(p_a / q_a)`; actions with `p_a = 0` add nothing.

        Args:
          other: a distribution with probabilities `q`. The divergence is infinite if `q_a = 0` where `p_a > 0`.

        Returns:
          The divergences `[...]` in nats.

        Raises:
          ValueError: if the logits differ in shape.

        Example:
          >>> print(f"{Categorical(jnp.array([0.0, -jnp.inf])).kl_divergence(Categorical(jnp.zeros(2))):.4f}")
          0.6931
        """
        checks.same_shape(self.logits, "logits", **{"other.logits": other.logits})
        log_probs = _log_softmax(self.logits)
        probs = jnp.exp(log_probs)
        difference = jnp.where(probs > 0, log_probs - _log_softmax(other.logits), 0.0)
        return jnp.sum(probs * difference, axis=-1).astype(jnp.result_type(self.logits, other.logits))

    def sample(self, noise: Float[Array, "*batch n"]) -> Int[Array, "*batch"]:
        """The action `argmax(logits + noise)` for standard Gumbel noise of the logits' shape."""
        checks.same_shape(self.logits, "logits", noise=noise)
        return jnp.argmax(self.logits + noise, axis=-1)

    @staticmethod
    def noise(key: jax.Array, shape: Sequence[int]) -> jax.Array:
        """Draws standard Gumbel noise of `shape`, whose last axis has one entry for each action."""
        return jax.random.gumbel(key, tuple(shape))


def _log_softmax(logits: Array) -> jax.Array:
    """The log-probabilities in float32 at least: a sum over many actions needs more digits than bfloat16 has."""
    return jax.nn.log_softmax(jnp.asarray(logits).astype(at_least_float32(jnp.result_type(logits))))


def as_distribution(parameters: Any) -> Distribution:
    """Converts a network's output to an action distribution.

    Args:
      parameters: logits `[..., n]` of a categorical distribution; a pair `(mean, log_std)` of a diagonal Gaussian; or
        any object with `log_prob` and `entropy`, such as a distribution of distrax, which is returned unchanged.

    Returns:
      A distribution.

    Raises:
      TypeError: if `parameters` has another form.

    Example:
      >>> import jax.numpy as jnp
      >>> type(as_distribution(jnp.zeros((3, 2)))).__name__
      'Categorical'
      >>> type(as_distribution((jnp.zeros((3, 2)), jnp.zeros(2)))).__name__
      'DiagonalGaussian'
    """
    if isinstance(parameters, Distribution):
        return parameters
    if isinstance(parameters, jax.Array | np.ndarray):
        return Categorical(parameters)
    if isinstance(parameters, tuple) and len(parameters) == 2:
        return DiagonalGaussian(*parameters)
    raise TypeError(
        f"apply_fn returned a {type(parameters).__name__} as the distribution's parameters: expected logits, "
        "(mean, log_std), or an object with log_prob and entropy"
    )
