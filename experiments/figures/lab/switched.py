"""Corrections on the language task behind one number, so that one compiled program serves all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from stellaris._core import checks
from stellaris.lab.alignment import measure_alignment
from stellaris.lab.language import (
    GRPO,
    GSPO,
    M2PO,
    SAPO,
    TOPR,
    VESPO,
    Answering,
    Bounded,
    Decoupled,
    Truncated,
    Uncorrected,
)
from stellaris.lab.language.learning import Tokens
from stellaris.types import JaxArray, Scalar

#: The corrections by name, with the library's settings except where a number is given here.
METHODS: Mapping[str, Callable[[Answering], GRPO]] = {
    "no correction": Uncorrected,
    "GRPO": GRPO,
    "AReaL": Decoupled,
    "TIS, tokens": Bounded,
    "TIS, answers": lambda environment: Bounded(environment, ratio="sequence"),
    "IcePop": lambda environment: Bounded(environment, low=0.5, high=5.0, outside="mask"),
    "CISPO": lambda environment: Truncated(environment, ratio_cap=1.28),
    "GSPO": GSPO,
    "M2PO": M2PO,
    "VESPO": VESPO,
    "SAPO": SAPO,
    "TOPR": TOPR,
}


@dataclass(frozen=True)
class Switched(GRPO):
    """GRPO with the policy loss of one of `METHODS`, chosen by a number that a sweep can trace.

    All losses are computed, and one is kept: they are elementwise, so the forward pass, which all share, takes the
    time. Each batch must make one gradient. The newest policy at the batch's preparation is then the policy that
    learns, and needs no forward pass of its own. The result of a sweep also has `gradient_cosine`.

    Args:
      method: the place of the method in `METHODS`.
    """

    method: Scalar = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(method=self.method)
        if self.epochs != 1:
            raise ValueError(f"epochs={self.epochs}: the losses assume one gradient per batch, so leave it 1")

    def optimizer(self) -> optax.GradientTransformation:
        """GRPO's optimizer, which also measures the cosine of successive gradients."""
        return optax.chain(measure_alignment(), super().optimizer())

    def policy_loss(self, tokens: Tokens) -> JaxArray:
        """The method's loss of every token, for a mean over all tokens."""
        kept = []
        for i, make in enumerate(METHODS.values()):
            # A loss that is not kept sees ratios of 1, so its gradient is finite. With the run's own ratios it could
            # overflow, and 0 times infinity is not a number.
            ratio = jnp.where(self.method == i, tokens.log_ratio, 0.0)
            seen = tokens._replace(log_ratio=ratio, proximal_log_ratio=jax.lax.stop_gradient(ratio))
            kept.append(jnp.where(self.method == i, self._over_tokens(make(self.environment), seen), 0.0))
        return jnp.sum(jnp.stack(kept), axis=0)

    @staticmethod
    def _over_tokens(method: GRPO, tokens: Tokens) -> JaxArray:
        """The loss of a method, weighted so that the mean over tokens is the method's own reduction."""
        loss = jnp.asarray(method.policy_loss(tokens))
        if method.over == "steps":
            return loss
        length = jnp.sum(tokens.valid, axis=0)
        mean = jnp.sum(length) / jnp.maximum(jnp.sum(length > 0), 1)
        return loss * mean / jnp.maximum(length, 1)
