"""Running statistics of observations: increments on the actors, merged once when a version is published."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from stellaris.types import Array, NDArray


class Statistics(NamedTuple):
    """Count, mean and sum of squared deviations of observations; float64 on the host.

    Source:
      Chan, Golub & LeVeque 1983, Algorithms for Computing the Sample Variance, for the merge.

    Example:
      >>> a, b = Statistics.of(np.array([[1.0], [3.0]])), Statistics.of(np.array([[8.0]]))
      >>> merged = a.merge(b)
      >>> float(merged.count), merged.mean.tolist(), merged.m2.tolist()
      (3.0, [4.0], [26.0])
    """

    count: Any
    mean: Any
    m2: Any

    @staticmethod
    def empty(shape: tuple[int, ...]) -> "Statistics":
        """Of no observation."""
        return Statistics(np.float64(0), np.zeros(shape), np.zeros(shape))

    @staticmethod
    def of(observation: NDArray) -> "Statistics":
        """Of `[n, *obs]` observations."""
        observation = np.asarray(observation, np.float64)
        mean = observation.mean(axis=0)
        return Statistics(np.float64(len(observation)), mean, np.square(observation - mean).sum(axis=0))

    def merge(self, other: "Statistics") -> "Statistics":
        """Of the observations of both."""
        count = self.count + other.count
        if count == 0:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        return Statistics(count, mean, self.m2 + other.m2 + np.square(delta) * (self.count * other.count / count))

    def normaliser(self) -> "Normaliser":
        """The affine map to zero mean and unit variance; the identity before two observations."""
        if self.count < 2:
            return Normaliser(np.zeros_like(self.mean, np.float32), np.ones_like(self.mean, np.float32))
        scale = 1.0 / np.sqrt(self.m2 / self.count + 1e-8)
        return Normaliser(self.mean.astype(np.float32), scale.astype(np.float32))


class Normaliser(NamedTuple):
    """`clip((x - mean) * scale, ±10)`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(Normaliser(mean=jnp.array([1.0]), scale=jnp.array([2.0]))(jnp.array([[1.5], [99.0]])))
      [[ 1.]
       [10.]]
    """

    mean: Float[Array, "*obs"]
    scale: Float[Array, "*obs"]

    def __call__(self, observation: Array) -> jax.Array:
        """Normalises `[..., *obs]` to float32."""
        x = jnp.asarray(observation, jnp.float32)
        return jnp.clip((x - self.mean) * self.scale, -10.0, 10.0)
