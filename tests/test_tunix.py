"""The loss of `docs/tunix.md`, with doubles of the parts of Tunix that it calls.

With Tunix installed, `tests/test_docs.py` also registers the loss there.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.pages import blocks, run

PAGE = Path(__file__).parent.parent / "docs" / "tunix.md"
#: Answers of at most five tokens, `[B, T]` as in Tunix.
MASK = np.arange(5) < np.array([5, 3, 4, 1])[:, None]
ADVANTAGE = np.array([1.0, -2.0, 0.5, 1.5])


class Model(nnx.Module):
    """Its parameters are the log-probabilities of the answers' tokens."""

    def __init__(self, log_pi: np.ndarray) -> None:
        self.log_pi = nnx.Param(jnp.asarray(log_pi, jnp.float32))


def log_probabilities(graph, state, *, stop_gradient: bool, temperature: float, **_: object) -> jax.Array:
    """Those of the model; Tunix stops the gradient unless it is told not to."""
    found = nnx.merge(graph, state).log_pi[...] / temperature
    return jax.lax.stop_gradient(found) if stop_gradient else found


def mean_of_tokens(loss: jax.Array, mask: jax.Array, mode: str) -> jax.Array:
    """The only mode of this double."""
    assert mode == "token-mean"
    return jnp.sum(loss * mask) / jnp.sum(mask)


@pytest.fixture
def loss(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """What the page's block registers."""
    registered: dict[str, Callable[..., SimpleNamespace]] = {}
    common = SimpleNamespace(compute_per_token_logps=log_probabilities, aggregate_loss=mean_of_tokens)
    registry = SimpleNamespace(register_policy_loss_fn=lambda name: lambda f: registered.setdefault(name, f))
    doubles = {
        "tunix": {},
        "tunix.rl": {"common": common, "function_registry": registry},
        "tunix.sft": {},
        "tunix.sft.utils": {"LossOutput": lambda loss, metrics: SimpleNamespace(loss=loss, metrics=metrics)},
    }
    for name, attributes in doubles.items():
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    (block,) = blocks(PAGE)
    run(block, PAGE.name, {"__name__": "page"})
    return registered["m2po"]


def test_the_loss_on_the_page_is_m2pos(loss: Callable[..., SimpleNamespace]) -> None:
    """The largest outward log-ratios have no gradient; others have that of the plain ratio; padding has none."""
    random = np.random.default_rng(0)
    log_mu = -np.abs(random.normal(size=MASK.shape))
    log_pi = -np.abs(log_mu + random.normal(scale=0.4, size=MASK.shape))
    example = SimpleNamespace(
        prompt_ids=None,
        completion_ids=None,
        completion_mask=jnp.asarray(MASK, jnp.int32),
        advantages=jnp.asarray(ADVANTAGE, jnp.float32),
        old_per_token_logps=jnp.asarray(log_mu, jnp.float32),
    )
    config = SimpleNamespace(temperature=1.0, loss_agg_mode="token-mean")

    def of(model: Model) -> tuple[jax.Array, dict[str, jax.Array]]:
        found = loss(model, example, config, pad_id=0, eos_id=1, compute_logps_chunk_size=0)
        return found.loss, found.metrics

    (value, metrics), gradient = nnx.value_and_grad(of, has_aux=True)(Model(log_pi))

    log_ratio, advantage = log_pi - log_mu, np.broadcast_to(ADVANTAGE[:, None], MASK.shape)
    outward = MASK & (log_ratio * advantage > 0)
    squares = np.sort(log_ratio[outward] ** 2)
    within = [n for n in range(1, len(squares) + 1) if squares[:n].mean() <= 0.04]
    assert 0 < max(within) < len(squares)  # some are kept, and some dropped
    kept = MASK & (~outward | (log_ratio**2 <= squares[max(within) - 1]))
    expected = np.where(kept, -np.exp(log_ratio) * advantage, 0.0) / MASK.sum()
    np.testing.assert_allclose(value, expected.sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient.log_pi[...], expected, rtol=1e-5, atol=1e-7)
    weight = np.exp(log_ratio[MASK])
    np.testing.assert_allclose(
        metrics["effective_sample_fraction"], weight.sum() ** 2 / (weight**2).sum() / MASK.sum(), rtol=1e-5
    )
