"""What staleness does to a gradient: its weight, its admission threshold, and the optimizer's step.

Staleness is counted in published versions: `clock now - version the gradient was computed on`.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from stellaris import checks
from stellaris.types import Array, Scalar, Tree

#: The factor on the learning rate for a staleness `[...]` in versions.
Weight: TypeAlias = Callable[[Any], jax.Array]


def staleness_weight(staleness: Int[Array, "*batch"] | int, *, smoothness: Scalar = 3.0) -> Float[jax.Array, "*batch"]:
    """The factor on the learning rate of a stale gradient: `max(staleness, 1) ** (-1 / smoothness)`.

    It multiplies the *optimizer's update*. A constant factor on the gradient would cancel under Adam.

    Args:
      staleness: `[...]` versions published since the gradient's parameters; 0 is fresh, in an array also what is below.
      smoothness: positive; 1 weighs by 1/staleness (Zhang et al. 2016), `math.inf` weighs all alike.

    Returns:
      The weights `[...]` in (0, 1], of JAX's default float type (float32 unless float64 is enabled).

    Raises:
      TypeError: if `staleness` is not whole.
      ValueError: if `smoothness` is not positive, or `staleness` is one number and negative.

    Source:
      Stellaris (SC 2024), staleness-aware gradient aggregation: `alpha_0 / delta ** (1 / v)`.

    Example:
      >>> import jax.numpy as jnp
      >>> staleness_weight(jnp.array([0, 1, 8])).round(4).tolist()
      [1.0, 1.0, 0.5]
      >>> staleness_weight(jnp.array([0, 1, 8]), smoothness=1.0).tolist()
      [1.0, 1.0, 0.125]
    """
    checks.positive(smoothness=smoothness)
    return jnp.maximum(_versions(staleness), 1.0) ** (-1.0 / smoothness)


def polynomial_weight(staleness: Int[Array, "*batch"] | int, *, power: Scalar = 0.5) -> Float[jax.Array, "*batch"]:
    """A weight that falls with a power of staleness: `(staleness + 1) ** -power`.

    Args:
      staleness: `[...]` versions; 0 is fresh; in an array, so is what is below.
      power: at least 0.

    Returns:
      The weights `[...]` in (0, 1].

    Raises:
      TypeError: if `staleness` is not whole.
      ValueError: if `power` is negative, or `staleness` is one number and negative.

    Source:
      Xie et al. 2019, Asynchronous Federated Optimization, Section 5.2.

    Example:
      >>> import jax.numpy as jnp
      >>> print(polynomial_weight(jnp.array([0, 3, 8])).round(4))
      [1.     0.5    0.3333]
    """
    checks.not_negative(power=power)
    return (jnp.maximum(_versions(staleness), 0.0) + 1.0) ** -power


def hinge_weight(
    staleness: Int[Array, "*batch"] | int, *, slope: Scalar = 10.0, bound: Scalar = 4.0
) -> Float[jax.Array, "*batch"]:
    """A weight of 1 up to a bound, and falling from there: `1 / (slope * max(staleness - bound, 0) + 1)`.

    Args:
      staleness: `[...]` versions; 0 is fresh; in an array, so is what is below.
      slope: at least 0.
      bound: staleness up to which nothing is lost, at least 0.

    Returns:
      The weights `[...]` in (0, 1].

    Raises:
      TypeError: if `staleness` is not whole.
      ValueError: if `slope` or `bound` is negative, or `slope` infinite, or `staleness` is one number and negative.

    Source:
      Xie et al. 2019, Asynchronous Federated Optimization, Section 5.2.

    Example:
      >>> import jax.numpy as jnp
      >>> print(hinge_weight(jnp.array([0, 4, 6]), slope=1.5))
      [1.   1.   0.25]
    """
    checks.not_negative(slope=slope, bound=bound)
    checks.finite(slope=slope)
    return jnp.asarray(1.0 / (slope * jnp.maximum(_versions(staleness) - bound, 0.0) + 1.0))


def exponential_weight(staleness: Int[Array, "*batch"] | int, *, rate: Scalar) -> Float[jax.Array, "*batch"]:
    """A weight that falls exponentially: `exp(-rate * staleness)`.

    Args:
      staleness: `[...]` versions; 0 is fresh; in an array, so is what is below.
      rate: at least 0; 0 weighs all alike.

    Returns:
      The weights `[...]` in [0, 1]; beyond `rate * staleness = 87` they underflow to 0 in float32.

    Raises:
      TypeError: if `staleness` is not whole.
      ValueError: if `rate` is negative or infinite, or `staleness` is one number and negative.

    Source:
      Xie et al. 2019, Asynchronous Federated Optimization, Section 5.2.

    Example:
      >>> import jax.numpy as jnp
      >>> [f"{w:.4f}" for w in exponential_weight(jnp.array([0, 1, 2]), rate=0.5)]
      ['1.0000', '0.6065', '0.3679']
    """
    checks.not_negative(rate=rate)
    checks.finite(rate=rate)
    return jnp.exp(-rate * jnp.maximum(_versions(staleness), 0.0))


def staleness_threshold(
    round: Int[Array, ""] | int,
    *,
    max_staleness: Scalar | Int[Array, ""],
    decay: Scalar,
) -> Float[jax.Array, ""]:
    """The mean staleness up to which a group of gradients is applied: `beta_k = max_staleness * decay ** k`.

    Permissive in early rounds, strict as training converges; a decay of 1 keeps it constant.

    Args:
      round: `k`, fragments delivered divided by the number of actors, rounded down.
      max_staleness: `beta_0`, in versions; `math.inf` for no threshold.
      decay: in (0, 1].

    Returns:
      The threshold, a float scalar.

    Raises:
      ValueError: if `decay` lies outside (0, 1], or `max_staleness` is negative or NaN.

    Source:
      Stellaris (SC 2024), staleness-aware gradient aggregation.

    Example:
      >>> [float(staleness_threshold(k, max_staleness=4, decay=0.5)) for k in range(3)]
      [4.0, 2.0, 1.0]
    """
    check_decay(decay)
    checks.not_negative(max_staleness=max_staleness)
    return _unless_infinite(max_staleness, lambda start: start * jnp.asarray(decay, start.dtype) ** _float(round))


def integer_threshold(
    round: Int[Array, ""] | int,
    *,
    max_staleness: Scalar | Int[Array, ""],
    decay: Scalar,
) -> Float[jax.Array, ""]:
    """The threshold as the authors' demo computes it, in whole versions.

    `clip(int(max_staleness * decay ** (k - 1)) + 1, 1, max_staleness)`: never below 1, so that a group of mean
    staleness 1 is always applied.

    Args:
      round: `k`, as for `staleness_threshold`.
      max_staleness: in versions; `math.inf` for no threshold. The demo measures `int(mean staleness) + 1` in the first
        group that is stale at all.
      decay: in (0, 1].

    Returns:
      The threshold, a whole number if `max_staleness` is one, as a float scalar.

    Raises:
      ValueError: if `decay` lies outside (0, 1], or `max_staleness` is negative or NaN.

    Source:
      The authors' public demo of Stellaris (SC 2024).

    Example:
      >>> [float(integer_threshold(k, max_staleness=4, decay=0.5)) for k in range(5)]
      [4.0, 4.0, 3.0, 2.0, 1.0]
    """
    check_decay(decay)
    checks.not_negative(max_staleness=max_staleness)

    def threshold(start: jax.Array) -> jax.Array:
        decayed = start * jnp.asarray(decay, start.dtype) ** (_float(round) - 1.0)
        # A product that is whole in exact arithmetic may round to just below.
        return jnp.clip(jnp.floor(decayed * (1.0 + 1e-6)) + 1.0, 1.0, start)

    return _unless_infinite(max_staleness, threshold)


def scale_by_staleness(
    smoothness: Scalar = 3.0, *, weight: Weight | None = None
) -> optax.GradientTransformationExtraArgs:
    """Scales an optimizer's step by the weight of its gradient's staleness.

    Belongs *after* `optax.scale_by_adam` and its like in a chain. Adam divides a gradient by the size of the recent
    ones: before it, a factor that is always the same would cancel, and one that varies would act through the moments,
    not as a factor on the learning rate.

    In the optimizer of `apply_update` it is told the staleness. It belongs there with aggregators that do not weigh
    gradients themselves: `staleness_aware` and `softsync` do, and with them it would weigh twice.

    Args:
      smoothness: as in `staleness_weight`.
      weight: another weight, `(staleness) -> factor`, such as `polynomial_weight`, in its place.

    Returns:
      A transformation whose `update(updates, state, params, staleness=...)` takes an int32 scalar, or those of a group
      of gradients `[n]`, as `Update.staleness` has them: the factor is then the mean of the weights of all that are not
      negative.

    Raises:
      TypeError: if `weight` is not a function.
      ValueError: if `smoothness` is not positive.

    Source:
      Stellaris (SC 2024), staleness-aware gradient aggregation, which modulates the learning rate.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> optimizer = optax.chain(optax.scale_by_adam(), scale_by_staleness(3.0), optax.scale(-0.1))
      >>> params = jnp.zeros(1)
      >>> step, _ = optimizer.update(jnp.ones(1), optimizer.init(params), params, staleness=jnp.int32(8))
      >>> print(step.round(4))
      [-0.05]
    """
    weigh = weight_of(weight, smoothness)

    def update(
        updates: Tree, state: optax.EmptyState, params: Tree = None, *, staleness: Any, **extra: Any
    ) -> tuple[Tree, optax.EmptyState]:
        del params, extra
        factor = weigh(staleness)
        if jnp.ndim(staleness):
            there = jnp.asarray(staleness) >= 0
            factor = jnp.sum(jnp.where(there, factor, 0.0)) / jnp.maximum(jnp.sum(there), 1).astype(factor.dtype)
        return jax.tree.map(lambda u: u * factor.astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def inverse_root(smoothness: Scalar) -> Weight:
    """`staleness_weight` of one smoothness, checked once."""
    checks.positive(smoothness=smoothness)
    return functools.partial(staleness_weight, smoothness=smoothness)


def weight_of(weight: Weight | None, smoothness: Scalar) -> Weight:
    """The caller's own weight, or `staleness_weight` of this smoothness."""
    if weight is None:
        return inverse_root(smoothness)
    if not callable(weight):
        raise TypeError(f"weight={weight!r} is not a function of staleness")
    return weight


def check_decay(decay: Scalar) -> None:
    """Raises an error unless `decay` lies in (0, 1]."""
    for _, number in checks.known(decay=decay):
        if not 0.0 < number <= 1.0:
            raise ValueError(f"decay={decay} lies outside (0, 1]: use 1.0 for a constant threshold")


def _unless_infinite(max_staleness: Any, threshold: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """No threshold stays none: infinity times a decay that has reached zero would be no number."""
    start = _float(max_staleness)
    infinite = jnp.isinf(start)
    return jnp.where(infinite, start, threshold(jnp.where(infinite, 1.0, start)))


def _versions(staleness: Any) -> jax.Array:
    """Whole numbers of versions, in JAX's default float type."""
    if not jnp.issubdtype(jnp.result_type(staleness), jnp.integer):
        raise TypeError(f"staleness has dtype {jnp.result_type(staleness)}: expected whole numbers of versions")
    if jnp.ndim(staleness) == 0:
        checks.not_negative(staleness=staleness)
    return _float(staleness)


def _float(x: Any) -> jax.Array:
    """In JAX's default float type."""
    return jnp.asarray(x).astype(float)
