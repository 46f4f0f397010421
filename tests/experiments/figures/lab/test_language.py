"""The study on the language task: its switch between losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures.lab.switched import METHODS, Switched
from stellaris.lab.language import Answering, Sorting
from stellaris.lab.language.learning import Tokens
from stellaris.reductions import reduce_loss

ENV = Answering(Sorting(most=3), group=4)


def tokens(log_ratio):
    """Four answers of up to three tokens, with ratios on both sides of every bound, and one answer that is missing."""
    valid = jnp.arange(3)[:, None] < jnp.array([3, 1, 2, 0])
    advantage = jnp.broadcast_to(jnp.array([1.0, -2.0, 0.5, 3.0]), valid.shape) * valid
    log_ratio = jnp.where(valid, log_ratio, 0.0)
    return Tokens(log_ratio - 1.0, log_ratio, jax.lax.stop_gradient(log_ratio), advantage, valid, None)


RATIO = jnp.log(jnp.array([[0.4, 6.0, 1.1, 1.0], [2.5, 1.0, 0.7, 1.0], [1.2, 1.0, 1.0, 1.0]]))


@pytest.mark.parametrize("name", METHODS)
def test_the_switch_is_the_method(name):
    """Value and gradient of the reduced loss are those of the method by itself."""

    def of(algorithm):
        def loss(log_ratio):
            now = tokens(log_ratio)
            return reduce_loss(algorithm.policy_loss(now), valid=now.valid, over=algorithm.over)

        return jax.value_and_grad(loss)(RATIO)

    own, switched = of(METHODS[name](ENV)), of(Switched(ENV, method=float([*METHODS].index(name))))
    for one, other in zip(own, switched, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_the_switch_needs_one_gradient_per_batch():
    with pytest.raises(ValueError, match="epochs=2"):
        Switched(ENV, epochs=2)
