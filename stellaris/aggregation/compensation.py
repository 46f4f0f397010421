"""Corrections of a stale gradient: by curvature, by the distance the parameters moved, by the previous gradient."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Int

from stellaris._core import checks
from stellaris.diagnostics import scale_to_largest, tree_dot
from stellaris.types import JaxArray, Scalar, Tree, at_least_float32

#: Added to a mean square before taking its root, as in the source of the adaptive form (DC-ASGD-a).
_EPSILON = 1e-7


def delay_compensate(
    gradient: Tree, params_now: Tree, params_then: Tree, strength: Scalar, *, mean_square: Tree | None = None
) -> Tree:
    """Estimates the gradient at the newest parameters: `g + strength * g * g * (now - then)`, elementwise.

    `g * g` approximates the diagonal of the Hessian; for a log-likelihood the two are equal in expectation. For a
    policy gradient it contains squared advantages, so the best strength depends on their scale. In the adaptive form,
    with `mean_square`, the strength of each element is divided by `sqrt(mean_square + 1e-7)`.

    Args:
      gradient: the gradient at `params_then`, a tree of arrays.
      params_now: the newest parameters, a tree of the same structure and shapes.
      params_then: the parameters at which the gradient was computed.
      strength: lambda, at least 0; 0 returns the gradient unchanged.
      mean_square: mean square of recent gradients, a tree like the gradient; `add_delay_compensation` keeps one.

    Returns:
      The compensated gradient, with the gradient's structure, shapes and dtypes.

    Raises:
      TypeError: if a leaf of the gradient holds integers.
      ValueError: if the trees differ in structure or shape, or `strength` is negative or infinite.

    Source:
      Zheng et al. 2017, Asynchronous Stochastic Gradient Descent with Delay Compensation, Eq. 10; Section 6 for the
      adaptive form (DC-ASGD-a).

    Example:
      >>> import jax.numpy as jnp
      >>> print(delay_compensate(jnp.array([2.0]), jnp.array([1.5]), jnp.array([1.0]), strength=0.5))
      [3.]
    """
    checks.not_negative(strength=strength)
    checks.finite(strength=strength)
    others = {"params_now": params_now, "params_then": params_then}
    if mean_square is not None:
        others["mean_square"] = mean_square
    _check_like(gradient, **others)

    def compensate(g: Any, now: Any, then: Any, square: Any = None) -> Any:
        factor = strength if square is None else strength / jnp.sqrt(square + _EPSILON)
        # The difference comes first, so that parameters that did not move add zero even if g * g overflows.
        return g + (factor * (now - then) * g * g).astype(jnp.result_type(g))

    with _promoting():
        compensated: Tree = jax.tree.map(compensate, gradient, *others.values())
    return compensated


class MeanSquare(NamedTuple):
    """The state of `add_delay_compensation` with a `decay`.

    Example:
      >>> MeanSquare(jnp.zeros(2)).mean_square.tolist()
      [0.0, 0.0]
    """

    mean_square: Tree  #: running mean of the squared gradients, which starts at 0.


def add_delay_compensation(strength: Scalar, *, decay: Scalar | None = None) -> optax.GradientTransformationExtraArgs:
    """`delay_compensate` as the first link of an optimizer's chain.

    Args:
      strength: lambda, at least 0.
      decay: decay of the mean square, in [0, 1), for the adaptive form: `decay * mean + (1 - decay) * g * g`, updated
        with the current gradient before use. The authors take 0.95, and a strength of 2. None for the plain form.

    Returns:
      A transformation with `update(updates, state, params, params_then=...)`: `params` are the newest parameters, and
      `params_then` the parameters at which the gradient was computed.

    Raises:
      ValueError: if `strength` is negative or infinite, or `decay` lies outside [0, 1); at an update, if `params` is
        missing or a tree does not fit the gradient's.

    Source:
      Zheng et al. 2017, Asynchronous Stochastic Gradient Descent with Delay Compensation, Algorithm 2. In the
      paper each worker may keep a mean of its gradients; here all gradients share one mean.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> optimizer = optax.chain(add_delay_compensation(0.5), optax.sgd(0.5))
      >>> params = jnp.array([1.5])
      >>> state = optimizer.init(params)
      >>> step, _ = optimizer.update(jnp.array([2.0]), state, params, params_then=jnp.array([1.0]))
      >>> print(step)
      [-1.5]
    """
    checks.not_negative(strength=strength)
    checks.finite(strength=strength)
    if decay is not None:
        _check_decay(decay)

    def init(params: Tree) -> optax.EmptyState | MeanSquare:
        return optax.EmptyState() if decay is None else MeanSquare(_zeros_like(params))

    def update(updates: Tree, state: Any, params: Tree = None, *, params_then: Tree, **extra: Any) -> tuple[Tree, Any]:
        del extra
        if params is None:
            raise ValueError("params is None: delay compensation needs the newest parameters, so pass them")
        if decay is None:
            return delay_compensate(updates, params, params_then, strength), state
        square = jax.tree.map(lambda s, g: _averaged(s, g, decay), state.mean_square, updates)
        return delay_compensate(updates, params, params_then, strength, mean_square=square), MeanSquare(square)

    return optax.GradientTransformationExtraArgs(init, update)


def reduce_by_gap(gradient: Tree, params_now: Tree, params_then: Tree, step_size: Tree) -> Tree:
    """Shrinks a stale gradient by how far the parameters moved meanwhile: `g / (1 + |now - then| / step_size)`.

    Elementwise: the gradient of a parameter that moved by one step is halved, as if it were one version stale; a
    parameter that did not move keeps its gradient, regardless of the versions published meanwhile.

    Args:
      gradient: the gradient at `params_then`, a tree of arrays.
      params_now: the newest parameters, a tree of the same structure and shapes.
      params_then: the parameters at which the gradient was computed.
      step_size: how far one step moves each parameter, such as the root mean square of recent steps; a tree like the
        gradient. Where it is 0, the gradient does not change.

    Returns:
      The reduced gradient, with the gradient's structure, shapes and dtypes.

    Raises:
      TypeError: if a leaf of the gradient holds integers.
      ValueError: if the trees differ in structure or shape.

    Source:
      Barkai et al. 2020, Gap-Aware Mitigation of Gradient Staleness.

    Example:
      >>> import jax.numpy as jnp
      >>> now, then = jnp.array([1.0, 1.0]), jnp.array([1.0, 0.7])
      >>> print(reduce_by_gap(jnp.array([2.0, 2.0]), now, then, jnp.array([0.1, 0.1])).round(4))
      [2.  0.5]
    """
    _check_like(gradient, params_now=params_now, params_then=params_then, step_size=step_size)

    def reduce(g: Any, now: Any, then: Any, size: Any) -> Any:
        size = jnp.asarray(size)
        gap = jnp.where(size > 0, jnp.abs(now - then) / jnp.where(size > 0, size, 1.0), 0.0)
        return (g / (1.0 + gap)).astype(jnp.result_type(g))

    with _promoting():
        reduced: Tree = jax.tree.map(reduce, gradient, params_now, params_then, step_size)
    return reduced


class GapAware(NamedTuple):
    """The state of `gap_aware`.

    Example:
      >>> GapAware((), jnp.zeros(2), jnp.int32(0)).mean_square.tolist()
      [0.0, 0.0]
    """

    inner: Tree  #: the wrapped optimizer's state.
    mean_square: Tree  #: running mean of the optimizer's squared steps, which starts at 0.
    steps: Int[JaxArray, ""]


def gap_aware(
    optimizer: optax.GradientTransformation, *, decay: Scalar = 0.999
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer so that it shrinks stale gradients by `reduce_by_gap`, relative to the size of its steps.

    The step size of each parameter is the root mean square of the optimizer's steps so far, an exponential average with
    `decay` and bias correction. The first gradient is never shrunk.

    Args:
      optimizer: any optax transformation, with its learning rate.
      decay: decay of that average, in [0, 1).

    Returns:
      A transformation with `update(updates, state, params, params_then=...)`.

    Raises:
      ValueError: if `decay` lies outside [0, 1); at an update, if `params` is missing or a tree does not fit the
        gradient's.

    Source:
      Barkai et al. 2020, Gap-Aware Mitigation of Gradient Staleness. Their group's code takes as step size the largest
      learning rate times the root mean square of the momentum, and for Adam the root mean square of its steps, as here.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> optimizer = gap_aware(optax.sgd(0.1))
      >>> params = jnp.array([1.0])
      >>> state = optimizer.init(params)
      >>> step, state = optimizer.update(jnp.array([1.0]), state, params, params_then=params)
      >>> step, state = optimizer.update(jnp.array([1.0]), state, params + step, params_then=params)
      >>> print(f"{step[0]:.4f}")  # the parameters moved by one step meanwhile
      -0.0500
    """
    _check_decay(decay)
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: Tree) -> GapAware:
        return GapAware(optimizer.init(params), _zeros_like(params), jnp.int32(0))

    def update(
        updates: Tree, state: GapAware, params: Tree = None, *, params_then: Tree, **extra: Any
    ) -> tuple[Tree, GapAware]:
        if params is None:
            raise ValueError("params is None: the gap is measured to the newest parameters, so pass them")
        seen = 1.0 - jnp.asarray(decay, float) ** state.steps.astype(float)
        started = jnp.where(seen > 0, seen, 1.0)
        size = jax.tree.map(lambda square: jnp.sqrt(square / started.astype(square.dtype)), state.mean_square)
        reduced = reduce_by_gap(updates, params, params_then, size)
        with _promoting():  # optax's Adam needs standard promotion
            updates, inner = optimizer.update(reduced, state.inner, params, params_then=params_then, **extra)
        square = jax.tree.map(lambda s, step: _averaged(s, step, decay), state.mean_square, updates)
        return updates, GapAware(inner, square, state.steps + 1)

    return optax.GradientTransformationExtraArgs(init, update)


def limit_alignment(gradient: Tree, previous: Tree, *, limit: Scalar) -> Tree:
    """Shrinks the component of a gradient along the previous gradient, until their cosine is at most `limit`.

    With `g = p + o`, `p` parallel to `previous` and `o` orthogonal to it, a gradient whose cosine exceeds the limit
    becomes `o + p'` with `|p'| = |o| limit / sqrt(1 - limit^2)`. Successive gradients that are computed on the same
    stale data have similar directions, so the sum of their steps is too long; fresh gradients are nearly orthogonal.

    Args:
      gradient: a tree of arrays.
      previous: the previous gradient, a tree of the same structure and shapes.
      limit: upper bound of the cosine, in [0, 1); without a default, because the source's value is unknown.

    Returns:
      The limited gradient, with the same structure, shapes and dtypes; unchanged if its cosine is at most `limit`, or
      `previous` is zero.

    Raises:
      TypeError: if a leaf holds integers.
      ValueError: if the trees differ in structure or shape, or `limit` lies outside [0, 1).

    Source:
      The idea is from Xu et al. 2026, GAC: Stabilizing Asynchronous RL Training for LLMs via Gradient Alignment
      Control: shrink the parallel component above a threshold, and skip the step in extreme cases. We could not verify
      its formula and thresholds, so this is a projection in its spirit and not its algorithm.

    Example:
      >>> import jax.numpy as jnp
      >>> print(limit_alignment(jnp.array([4.0, 3.0]), jnp.array([1.0, 0.0]), limit=0.0))
      [0. 3.]
      >>> print(limit_alignment(jnp.array([1.0, 3.0]), jnp.array([1.0, 0.0]), limit=0.6))
      [1. 3.]
    """
    for _, number in checks.known(limit=limit):
        if not 0.0 <= number < 1.0:
            raise ValueError(f"limit={limit} lies outside [0, 1)")
    _check_like(gradient, previous=previous)
    # Both gradients are divided by their largest magnitudes, so that squares neither underflow nor overflow.
    (now, largest), (before, _) = scale_to_largest(gradient), scale_to_largest(previous)
    length = tree_dot(before, before)
    unit = jnp.where(length > 0, length, 1.0)
    along = tree_dot(now, before) / unit  # the parallel part, in units of the previous gradient
    orthogonal = jax.tree.map(lambda g, p: g - (along * p).astype(g.dtype), now, before)
    most = jnp.sqrt(tree_dot(orthogonal, orthogonal) / unit) * limit / jnp.sqrt(1.0 - jnp.square(limit))
    shrunk = (along > most) & (length > 0)

    def limited(g: Any, o: Any, p: Any) -> Any:
        return jnp.where(shrunk, ((o + (most * p).astype(o.dtype)) * largest).astype(jnp.result_type(g)), g)

    return jax.tree.map(limited, gradient, orthogonal, before)


def _promoting() -> Any:
    """Allows gradients, parameters and running means of different float dtypes, even if promotion is strict."""
    return jax.numpy_dtype_promotion("standard")


def _check_like(gradient: Tree, **trees: Tree) -> None:
    """Raises unless the gradient holds floats and the trees have its structure and shapes."""
    checks.same_structure(gradient, "gradient", **trees)

    def check(path: Any, g: Any, *leaves: Any) -> None:
        where = jax.tree_util.keystr(path)
        checks.floats(**{f"gradient{where}": g})
        named = {f"{name}{where}": leaf for name, leaf in zip(trees, leaves, strict=True)}
        checks.same_leaf(g, f"gradient{where}", **named)

    jax.tree_util.tree_map_with_path(check, gradient, *trees.values())


def _check_decay(decay: Any) -> None:
    for _, number in checks.known(decay=decay):
        if not 0.0 <= number < 1.0:
            raise ValueError(f"decay={decay} lies outside [0, 1)")


def _zeros_like(params: Tree) -> Tree:
    """Zeros, in float32 at least, to start running means: in a narrower dtype small increments would round to zero."""
    return jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), at_least_float32(jnp.result_type(p))), params)


def _averaged(mean: jax.Array, x: Any, decay: Any) -> jax.Array:
    """Updates a running mean of squares with one more value."""
    with _promoting():
        averaged: jax.Array = decay * mean + (1.0 - decay) * jnp.square(jnp.asarray(x, mean.dtype))
    return averaged.astype(mean.dtype)
