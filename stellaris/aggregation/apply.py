"""Applies a group of gradients as optimizer steps."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from stellaris._core import eager
from stellaris.aggregation.gradient_queue import Update
from stellaris.types import Tree, alike


def apply_update(
    optimizer: optax.GradientTransformation, update: Update, params: Tree, opt_state: Tree, **extra: Any
) -> tuple[Tree, Tree]:
    """Applies a group of gradients, and scales the optimizer's *step* by the staleness weight.

    `params + scale * optimizer(gradient)`: one step for `combine="mean"`; one step per gradient, oldest first, for
    `combine="sequential"`. An empty group changes neither the parameters nor the optimizer's state.

    Outside of `jit` the step is compiled once per optimizer, so make the optimizer once and not for every update. The
    programs of the 32 most recently used optimizers are kept.

    Args:
      optimizer: any optax transformation.
      update: the group of gradients, from `Aggregator.pop`.
      params: the newest parameters.
      opt_state: the optimizer's state.
      **extra: more arguments of the optimizer's update, such as `params_then` of `add_delay_compensation`. For
        `combine="sequential"` they are stacked like the gradients, `[capacity, ...]`, one row per gradient.
        `staleness`, which `scale_by_staleness` reads, defaults to the update's: a scalar per step for
        `"sequential"`, and `[capacity]` for `"mean"`, with -1 for empty slots.

    Returns:
      `(params, opt_state)`, the next version.

    Raises:
      TypeError: if `update` is not an `Update`.
      ValueError: if the update is sequential and an extra argument does not have one row per gradient. The optimizer's
        errors pass through, for instance if the structures of gradient and parameters differ.

    Source:
      Stellaris (SC 2024) modulates the learning rate; Zhang et al. 2016, Staleness-aware Async-SGD, averages first.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> update = Update(jnp.array([2.0]), scale=jnp.array(0.5), count=jnp.int32(1), staleness=jnp.array([8]))
      >>> optimizer, params = optax.sgd(0.1), jnp.array([1.0])
      >>> params, _ = apply_update(optimizer, update, params, optimizer.init(params))
      >>> print(params)
      [0.9]
    """
    if not isinstance(update, Update):
        raise TypeError(
            f"update is a {type(update).__name__}: expected the Update that an aggregator's pop returns first; for a "
            "bare gradient, call the optimizer's update and optax.apply_updates"
        )
    extra = {"staleness": update.staleness} | extra
    apply = _step_once if jnp.ndim(update.scale) == 0 else _step_for_each
    if apply is _step_for_each:
        _check_rows(extra, len(update.scale))
    after: tuple[Tree, Tree] = eager.call(apply, (optimizer,), update, params, opt_state, extra)
    return after


def _step_once(
    optimizer: optax.GradientTransformation, update: Update, params: Tree, opt_state: Tree, extra: Mapping[str, Any]
) -> tuple[Tree, Tree]:
    after = _step(optimizer, update.gradient, update.scale, (params, opt_state), extra)
    some = update.count > 0
    kept: tuple[Tree, Tree] = jax.tree.map(lambda new, old: jnp.where(some, new, old), after, (params, opt_state))
    return kept


def _step_for_each(
    optimizer: optax.GradientTransformation, update: Update, params: Tree, opt_state: Tree, extra: Mapping[str, Any]
) -> tuple[Tree, Tree]:
    update, params, opt_state, extra = alike((update, params, opt_state, dict(extra)))

    def one(i: jax.Array, before: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        gradient, scale, row = jax.tree.map(lambda x: x[i], (update.gradient, update.scale, extra))
        return _step(optimizer, gradient, scale, before, row)

    after: tuple[Tree, Tree] = jax.lax.fori_loop(0, update.count, one, (params, opt_state))
    return after


def _step(
    optimizer: optax.GradientTransformation,
    gradient: Tree,
    scale: jax.Array,
    before: tuple[Tree, Tree],
    extra: Mapping[str, Any],
) -> tuple[Tree, Tree]:
    params, opt_state = before
    # optax's Adam raises its decay to an integer power, which strict dtype promotion refuses.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optax.with_extra_args_support(optimizer).update(gradient, opt_state, params, **extra)
    updates = jax.tree.map(lambda u: u * scale.astype(u.dtype), updates)
    return optax.apply_updates(params, updates), opt_state


def _check_rows(extra: Mapping[str, Any], capacity: int) -> None:
    for name, tree in extra.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if jnp.shape(leaf)[:1] != (capacity,):
                where = f"{name}{jax.tree_util.keystr(path)}"
                raise ValueError(
                    f"{where} has shape {jnp.shape(leaf)}: expected [{capacity}, ...], one row per gradient of the "
                    "sequential update"
                )
