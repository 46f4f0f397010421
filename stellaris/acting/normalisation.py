"""Running statistics of observations and returns: actors collect increments, which are merged for each new version.

Observations are trees. Arrays of floats are normalised elementwise; arrays of integers (categories, pixels) are left as
they are, and their statistics are None. Rewards are divided by the standard deviation of discounted returns.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.types import NDArray, Tree

#: Normalised observations and scaled rewards are clipped to this absolute value.
CLIP = 10.0


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
    mean: Tree  #: mean of each array of floats; None for other arrays.
    m2: Tree  #: sums of squared deviations, in a tree of the same structure.
    returns: "Statistics | None" = None  #: statistics of discounted returns; None if rewards are not scaled.

    @staticmethod
    def empty(observation: Tree, *, returns: bool = False) -> "Statistics":
        """The statistics of zero observations.

        Args:
          observation: a tree whose leaves have a shape and a dtype, such as `EnvSpec.observation`.
          returns: whether to also keep statistics of discounted returns.
        """
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape) if _is_float(leaf) else None, observation)
        nothing = Statistics(np.float64(0), np.float64(0), np.float64(0)) if returns else None
        return Statistics(np.float64(0), zeros, zeros, nothing)

    @staticmethod
    def of(observation: Tree) -> "Statistics":
        """The statistics of observations `[n, *obs]`."""
        count = len(jax.tree.leaves(observation)[0])
        mean = jax.tree.map(lambda x: x.mean(axis=0, dtype=np.float64) if _is_float(x) else None, observation)
        m2 = jax.tree.map(lambda x, mean: None if mean is None else np.square(x - mean).sum(axis=0), observation, mean)
        return Statistics(np.float64(count), mean, m2)

    @staticmethod
    def of_returns(returns: NDArray, valid: NDArray) -> "Statistics":
        """The statistics of the discounted returns `[n]` of the valid steps."""
        count, wide = valid.sum(dtype=np.float64), np.where(valid, returns, np.float64(0))
        mean = wide.sum() / max(count, 1.0)
        return Statistics(count, mean, np.square(np.where(valid, wide - mean, 0.0)).sum())

    def merge(self, other: "Statistics") -> "Statistics":
        """The statistics of both sets of observations together."""
        count = self.count + other.count
        # Without normalisation no observation is counted, but returns may be.
        returns = None if self.returns is None or other.returns is None else self.returns.merge(other.returns)
        if count == 0:
            return self._replace(returns=returns)
        share = other.count / count
        delta = jax.tree.map(lambda one, two: two - one, self.mean, other.mean)
        mean = jax.tree.map(lambda one, d: one + d * share, self.mean, delta)
        m2 = jax.tree.map(lambda one, two, d: one + two + np.square(d) * (self.count * share), self.m2, other.m2, delta)
        return Statistics(count, mean, m2, returns)

    def normaliser(self) -> "Normaliser":
        """The affine map to zero mean and unit variance; the identity with fewer than two observations."""
        reward = None if self.returns is None else self.returns._reciprocal_deviation()
        if self.count < 2:
            mean = jax.tree.map(lambda leaf: np.zeros_like(leaf, np.float32), self.mean)
            return Normaliser(mean, jax.tree.map(np.ones_like, mean), reward)
        scale = jax.tree.map(lambda m2: np.asarray(1.0 / np.sqrt(m2 / self.count + 1e-8), np.float32), self.m2)
        return Normaliser(jax.tree.map(lambda mean: np.asarray(mean, np.float32), self.mean), scale, reward)

    def _reciprocal_deviation(self) -> NDArray:
        """The factor of rewards, of statistics of returns; 0 with fewer than two returns."""
        factor = 0.0 if self.count < 2 else 1.0 / np.sqrt(self.m2 / self.count + 1e-8)
        return np.asarray(factor, np.float32)


class Normaliser(NamedTuple):
    """Maps each array that has a mean to `clip((x - mean) * scale, ±10)`, and leaves other arrays unchanged.

    Rewards are mapped to `clip(reward * factor, ±10)`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(Normaliser(mean=jnp.array([1.0]), scale=jnp.array([2.0]))(jnp.array([[1.5], [99.0]])))
      [[ 1.]
       [10.]]
    """

    mean: Tree  #: mean of each array of floats, float32 `[*obs]`; None for other arrays.
    scale: Tree  #: reciprocal standard deviations, in a tree of the same structure.
    reward: Any = None  #: factor of rewards, float32; 0 if no return is known yet, None if rewards are not scaled.

    def __call__(self, observation: Tree) -> Tree:
        """Normalises observations `[..., *obs]`; normalised arrays are float32."""

        def normalised(x: Any, mean: Any, scale: Any) -> Any:
            if mean is None:
                return jnp.asarray(x)
            return jnp.clip((jnp.asarray(x, jnp.float32) - mean) * scale, -CLIP, CLIP)

        return jax.tree.map(normalised, observation, self.mean, self.scale)

    def rewards(self, reward: Any, own: "Normaliser") -> Any:
        """Scales rewards `[...]`, if this normaliser scales rewards.

        A running deviation needs a batch that was learned from. Until there is one, every batch is scaled by its own.

        Args:
          reward: the rewards of a batch.
          own: the normaliser of the batch's own statistics.
        """
        if self.reward is None:
            return reward
        return jnp.clip(reward * jnp.where(self.reward > 0, self.reward, own.reward), -CLIP, CLIP)


def _is_float(leaf: Any) -> bool:
    return np.issubdtype(leaf.dtype, np.floating)
