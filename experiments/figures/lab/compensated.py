"""PPO whose stale gradients are corrected or weighted in the optimizer, by one number that a sweep can trace."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from stellaris import PPO
from stellaris._core import checks
from stellaris.aggregation import add_delay_compensation, gap_aware, limit_alignment
from stellaris.lab.alignment import measure_alignment
from stellaris.types import NDArray, Scalar, Tree

#: The corrections by name; each value is the power of the weight `max(staleness, 1) ** -power` of a step.
METHODS: Mapping[str, float] = {
    "uncorrected": 0.0,
    "weight, cube root": 1.0 / 3.0,  # Stellaris' weight, with its default smoothness
    "weight, 1/lag": 1.0,
    "delay compensation": 0.0,
    "gap-aware": 0.0,
    "limited alignment": 0.0,
}
#: The authors' settings of the adaptive form, DC-ASGD-a.
_STRENGTH, _DECAY = 2.0, 0.95
#: The bound on the cosine with the previous gradient. No source is known: GAC's own could not be verified.
LIMIT = 0.2


@dataclass(frozen=True)
class Compensated(PPO):
    """PPO with one of `METHODS` in its optimizer, chosen by a number that a sweep can trace.

    The gradient is corrected before its norm is clipped, because all corrections compare it with other gradients or
    parameters; a weight multiplies Adam's step. The result of a sweep also has `gradient_cosine`, of the gradients as
    they were computed.

    Args:
      method: the place of the method in `METHODS`.
      scale: a factor on every step; 1 over the mean weight of the run's gradients makes mean steps equal.
    """

    method: Scalar = 0.0
    scale: Scalar = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(method=self.method)
        checks.positive(scale=self.scale)

    def optimizer(self) -> optax.GradientTransformation:
        """PPO's optimizer between the corrections of the gradient and the weight of the step."""
        compensate = add_delay_compensation(_STRENGTH, decay=_DECAY)
        return optax.chain(
            measure_alignment(),
            _fresh_unless(_is(self.method, "delay compensation"), compensate),
            _limited(self.method),
            _fresh_unless(_is(self.method, "gap-aware"), gap_aware(super().optimizer())),
            _weighted(self.method, self.scale),
        )


def weights(method: str, staleness: NDArray) -> NDArray:
    """Returns the weights of gradients of these ages.

    Example:
      >>> import numpy as np
      >>> weights("weight, cube root", np.array([0, 1, 8])).round(3).tolist()
      [1.0, 1.0, 0.5]
    """
    found: NDArray = staleness.clip(1) ** -METHODS[method]
    return found


def _is(method: Any, name: str) -> Any:
    return jnp.asarray(method) == [*METHODS].index(name)


def _chosen(condition: Any, one: Tree, other: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), one, other)


def _fresh_unless(
    stale: Any, optimizer: optax.GradientTransformationExtraArgs
) -> optax.GradientTransformationExtraArgs:
    """Tells an optimizer that the gradient is fresh, unless `stale`: it then leaves the gradient as it is."""

    def update(
        updates: Tree, state: Any, params: Tree = None, *, params_then: Tree = None, **extra: Any
    ) -> tuple[Tree, Any]:
        then = params if params_then is None else _chosen(stale, params_then, params)
        after: tuple[Tree, Any] = optimizer.update(updates, state, params, params_then=then, **extra)
        return after

    return optax.GradientTransformationExtraArgs(optimizer.init, update)


def _limited(method: Any) -> optax.GradientTransformation:
    def update(updates: Tree, previous: Tree, params: Tree = None) -> tuple[Tree, Tree]:
        del params
        limited = limit_alignment(updates, previous, limit=LIMIT)
        return _chosen(_is(method, "limited alignment"), limited, updates), updates

    return optax.GradientTransformation(lambda params: jax.tree.map(jnp.zeros_like, params), update)


def _weighted(method: Any, scale: Any) -> optax.GradientTransformationExtraArgs:
    def update(
        updates: Tree, state: optax.EmptyState, params: Tree = None, *, staleness: jax.Array, **extra: Any
    ) -> tuple[Tree, optax.EmptyState]:
        del params, extra
        power = jnp.asarray([*METHODS.values()])[jnp.asarray(method, int)]
        factor = scale * jnp.maximum(staleness[0], 1).astype(jnp.float32) ** -power
        return jax.tree.map(lambda u: u * factor, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
