"""PPO's adaptive KL penalty: the optimizer's state keeps the penalty's weight, which changes once per batch."""

from typing import Any, NamedTuple

import jax
import optax
from jaxtyping import Float

from stellaris.losses import adapt_kl_coefficient
from stellaris.types import JaxArray, Scalar, Tree, default_float


class PenaltyState(NamedTuple):
    """The state of an optimizer, with the weight of the KL penalty for the next batch."""

    optimizer: Tree
    kl_coefficient: Float[JaxArray, ""]
    kl_target: Float[JaxArray, ""]  #: the desired KL divergence, in nats.


def with_penalty(
    optimizer: optax.GradientTransformation, kl_coefficient: Scalar, kl_target: Scalar
) -> optax.GradientTransformation:
    """Returns an optimizer whose state also holds the penalty's weight and target; its steps change neither."""

    def init(params: Tree) -> PenaltyState:
        return PenaltyState(optimizer.init(params), default_float(kl_coefficient), default_float(kl_target))

    def update(updates: Tree, state: Any, params: Tree = None) -> tuple[Tree, PenaltyState]:
        updates, inner = optimizer.update(updates, state.optimizer, params)
        return updates, state._replace(optimizer=inner)

    return optax.GradientTransformation(init, update)


def options(opt_state: Tree) -> dict[str, jax.Array]:
    """Returns keyword arguments for the loss: the penalty's weight if it is adaptive, otherwise nothing."""
    return {"kl_coefficient": opt_state.kl_coefficient} if isinstance(opt_state, PenaltyState) else {}


def adapted(opt_state: Tree, metrics: dict[str, Any]) -> Tree:
    """Returns the state for the next batch, from the `metrics` of this batch, which include its mean divergence `kl`.

    The weight is multiplied by 1.5 if the divergence exceeds twice the target, and by 0.5 if it is below half the
    target.

    Source:
      Ray RLlib's PPO; the paper (Schulman et al. 2017, Section 4) multiplies by 2 above 1.5 times the target,
      and by 1/2 below the target divided by 1.5.
    """
    if not isinstance(opt_state, PenaltyState):
        return opt_state
    weight, target = opt_state.kl_coefficient, opt_state.kl_target
    weight = adapt_kl_coefficient(weight, metrics["kl"], target=target, tolerance=2.0, increase=1.5, decrease=0.5)
    return opt_state._replace(kl_coefficient=weight.astype(opt_state.kl_coefficient.dtype))
