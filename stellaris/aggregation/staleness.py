"""Staleness weights: the factor that shortens the optimizer's step for a stale gradient.

Staleness counts published versions: the newest version minus the version on which the gradient was computed.
"""

import functools
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.types import Array, JaxArray, Scalar, Tree, default_float


@runtime_checkable
class Weight(Protocol):
    """A function `(staleness [...]) -> factor [...]` on the learning rate, with the staleness in versions."""

    def __call__(self, staleness: Any, /) -> jax.Array: ...


def staleness_weight(staleness: Int[Array, "*batch"] | int, *, smoothness: Scalar = 3.0) -> Float[JaxArray, "*batch"]:
    """The factor on the learning rate of a stale gradient: `max(staleness, 1) ** (-1 / smoothness)`.

    It multiplies the *optimizer's step*. A constant factor on the gradient would cancel under Adam.

    Args:
      staleness: `[...]` versions published since the gradient's parameters; 0 is fresh. In an array, negative numbers
        count as fresh.
      smoothness: the root, positive; 1 gives 1/staleness (Zhang et al. 2016), `math.inf` gives all gradients the same
        weight.

    Returns:
      The weights `[...]` in (0, 1], of JAX's default float type (float32 unless float64 is enabled).

    Raises:
      TypeError: if `staleness` is not whole.
      ValueError: if `smoothness` is not positive, or `staleness` is a single negative number.

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


def polynomial_weight(staleness: Int[Array, "*batch"] | int, *, power: Scalar = 0.5) -> Float[JaxArray, "*batch"]:
    """A weight that falls with a power of staleness: `(staleness + 1) ** -power`.

    Args:
      staleness: `[...]` versions; 0 is fresh. In an array, negative numbers count as fresh.
      power: the exponent, at least 0.

    Returns:
      The weights `[...]` in (0, 1].

    Raises:
      TypeError: if `staleness` is not whole.
      ValueError: if `power` is negative, or `staleness` is a single negative number.

    Source:
      Xie et al. 2019, Asynchronous Federated Optimization, Section 5.2.

    Example:
      >>> import jax.numpy as jnp
      >>> print(polynomial_weight(jnp.array([0, 3, 8])).round(4))
      [1.     0.5    0.3333]
    """
    checks.not_negative(power=power)
    # The exponent is a float, so that the powers 2 and 2.0, which compare equal as settings, give the same bits.
    return (jnp.maximum(_versions(staleness), 0.0) + 1.0) ** (-1.0 * power)


def hinge_weight(
    staleness: Int[Array, "*batch"] | int, *, slope: Scalar = 10.0, tolerance: Scalar = 4.0
) -> Float[JaxArray, "*batch"]:
    """A weight that is 1 up to a tolerance and falls above it: `1 / (slope * max(staleness - tolerance, 0) + 1)`.

    Args:
      staleness: `[...]` versions; 0 is fresh. In an array, negative numbers count as fresh.
      slope: how fast the weight falls beyond the tolerance, at least 0.
      tolerance: the largest staleness with weight 1, at least 0.

    Returns:
      The weights `[...]` in (0, 1].

    Raises:
      TypeError: if `staleness` is not whole.
      ValueError: if `slope` or `tolerance` is negative, `slope` is infinite, or `staleness` is one negative number.

    Source:
      Xie et al. 2019, Asynchronous Federated Optimization, Section 5.2.

    Example:
      >>> import jax.numpy as jnp
      >>> print(hinge_weight(jnp.array([0, 4, 6]), slope=1.5))
      [1.   1.   0.25]
    """
    checks.not_negative(slope=slope, tolerance=tolerance)
    checks.finite(slope=slope)
    return jnp.asarray(1.0 / (slope * jnp.maximum(_versions(staleness) - tolerance, 0.0) + 1.0))


def exponential_weight(staleness: Int[Array, "*batch"] | int, *, rate: Scalar) -> Float[JaxArray, "*batch"]:
    """A weight that falls exponentially: `exp(-rate * staleness)`.

    Args:
      staleness: `[...]` versions; 0 is fresh. In an array, negative numbers count as fresh.
      rate: decay per version, at least 0; 0 gives all gradients the same weight.

    Returns:
      The weights `[...]` in [0, 1]; beyond `rate * staleness = 87` they underflow to 0 in float32.

    Raises:
      TypeError: if `staleness` is not whole.
      ValueError: if `rate` is negative or infinite, or `staleness` is a single negative number.

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


def scale_by_staleness(
    smoothness: Scalar = 3.0, *, weight: Weight | None = None
) -> optax.GradientTransformationExtraArgs:
    """Scales an optimizer's step by the weight of its gradient's staleness.

    In a chain, place it *after* `optax.scale_by_adam` and similar transformations. Adam divides a gradient by the size
    of recent gradients. Before Adam, a constant factor would therefore cancel, and a varying factor would act on the
    moments instead of the learning rate.

    `apply_update` passes the staleness. Do not combine the transformation with `staleness_aware`, `softsync` or
    `buffered`, which already weight gradients by staleness: the weight would apply twice.

    Args:
      smoothness: as in `staleness_weight`.
      weight: `(staleness) -> factor`, such as `polynomial_weight`, instead of `staleness_weight`.

    Returns:
      A transformation with `update(updates, state, params, staleness=...)`. The staleness is an int32 scalar, or
      `[n]` for a group of gradients, as in `Update.staleness`; the factor is then the mean weight over the nonnegative
      entries.

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
    if weight is not None:
        check_weight(weight)
    weigh = weight or inverse_root(smoothness)

    def update(
        updates: Tree, state: optax.EmptyState, params: Tree = None, *, staleness: Any, **extra: Any
    ) -> tuple[Tree, optax.EmptyState]:
        del params, extra
        factor = jnp.asarray(weigh(staleness))
        if jnp.ndim(staleness):
            there = jnp.asarray(staleness) >= 0
            factor = jnp.sum(jnp.where(there, factor, 0.0)) / jnp.maximum(jnp.sum(there), 1).astype(factor.dtype)
        return jax.tree.map(lambda u: u * factor.astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class FrozenWeight:
    """A weight with its settings. Unlike `functools.partial`, weights with equal settings are equal.

    As a tree its leaves are the settings' values, so that `vmap` can sweep them.
    """

    function: Weight = field(metadata={"static": True})
    names: tuple[str, ...] = field(metadata={"static": True})  #: the settings' names.
    numbers: tuple[Any, ...]  #: the settings' values, in the same order.

    def __call__(self, staleness: Any) -> jax.Array:
        return self.function(staleness, **dict(zip(self.names, self.numbers, strict=True)))

    def __repr__(self) -> str:
        settings = zip(self.names, self.numbers, strict=True)
        name = getattr(self.function, "__name__", repr(self.function))
        return f"{name}({', '.join(f'{key}={number!r}' for key, number in settings)})"


def freeze_weight(weight: Weight) -> Weight:
    """Converts a function, or a `functools.partial` with keyword settings, to a weight that compares by value.

    Any other object is returned unchanged.
    """
    check_weight(weight)
    if isinstance(weight, functools.partial) and not weight.args:
        names = tuple(sorted(weight.keywords))
        return FrozenWeight(weight.func, names, tuple(checks.plain(weight.keywords[name]) for name in names))
    # A bare function is wrapped, which makes it static in a tree: JAX would treat it as a leaf, which must be an array.
    return FrozenWeight(weight, (), ()) if jax.tree_util.all_leaves([weight]) else weight


def inverse_root(smoothness: Scalar) -> Weight:
    """`staleness_weight` with this smoothness, which is checked here and not at the first call."""
    checks.positive(smoothness=smoothness)
    return functools.partial(staleness_weight, smoothness=smoothness)


def check_weight(weight: Weight) -> None:
    """Raises a TypeError unless the weight is a function."""
    if not callable(weight):
        raise TypeError(f"weight={weight!r} is not a function of staleness: pass a function, such as polynomial_weight")


def _versions(staleness: Any) -> jax.Array:
    """Converts whole numbers of versions to JAX's default float type."""
    checks.array(staleness=staleness)
    if not jnp.issubdtype(jnp.result_type(staleness), jnp.integer):
        raise TypeError(f"staleness has dtype {jnp.result_type(staleness)}: expected whole numbers of versions")
    if jnp.ndim(staleness) == 0:
        checks.not_negative(staleness=staleness)
    return default_float(staleness)
