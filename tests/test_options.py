"""The tables of other projects' options in `docs/options.md`: their calls compute what those projects compute."""

import ast
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stellaris

TABLES = (Path(__file__).parent.parent / "docs" / "options.md").read_text()
ROWS = [
    re.split(r"(?<!\\) \| ", line.strip("| ")) for line in TABLES.splitlines() if line.startswith(("| `", "| metric"))
]
#: Each call of the column "here", by its row.
CALLS = [(row[0], call) for row in ROWS for call in re.findall(r"`([^`]+)`", row[1]) if "(" in call]

T, B = 5, 6
_random = np.random.default_rng(0)


def _normal(*shape: int, spread: float = 1.0):
    return jnp.asarray(spread * _random.normal(size=shape), jnp.float32)


_log_mu = -jnp.abs(_normal(T, B))
_log_prox = -jnp.abs(_log_mu + _normal(T, B, spread=0.8))
_log_pi = -jnp.abs(_log_prox + _normal(T, B, spread=0.3))
_valid = jnp.arange(T)[:, None] < jnp.array([5, 3, 1, 4, 5, 2])
#: The options' defaults as the table has them, and numbers for options whose default is None or beyond the data.
OPTIONS = {name: ast.literal_eval(x) for row in ROWS for name, x in re.findall(r"(\w+)=(\d[\d.e-]*)", row[0])} | {
    "epsilon_high": 0.28,
    "eps_clip_higher": 0.28,
    "delta": 2.0,
    "c_clip": 3.0,
    "upper": 1.2,
    "m2_threshold": 0.04,
    "off_policy_mask_threshold": 0.1,
    "loss_scale_factor": 8.0,
    "max_completion_length": 8.0,
    "top_entropy_quantile": 0.2,
    "low": 0.5,
    "high": 1.5,
}
#: The page's notation.
NAMES = (
    {name: getattr(stellaris, name) for name in stellaris.__all__ if name[0].islower()}
    | OPTIONS
    | {
        **{name: getattr(jnp, name) for name in ("where", "exp", "abs", "max", "std", "sign", "inf")},
        **{
            name: getattr(jnp, name) for name in ("minimum", "maximum", "mean", "sum", "sqrt", "cumsum", "broadcast_to")
        },
        "nan": jnp.nan,
        "nanquantile": jnp.nanquantile,
        "vmap": jax.vmap,
        "kl": stellaris.approximate_kl,
        "log_pi": _log_pi,
        "log_prox": _log_prox,
        "log_mu": _log_mu,
        "log_ref": _log_mu,
        "l": _log_pi - _log_mu,
        "lp": _log_prox - _log_mu,
        "u": _log_pi - _log_prox,
        "A": _normal(T, B),
        "A_of_sequence": _normal(B),
        "valid": _valid,
        "kept": _valid,
        "loss": _normal(T, B),
        "weight": jnp.abs(_normal(T, B)),
        "reward": _normal(B),
        "group": jnp.array([0, 0, 0, 1, 1, 1]),
        "staleness": jnp.full((T, B), 3),
        "v": _normal(T, B),
        "target": _normal(T, B),
        "old_value": _normal(T, B),
        "version": 4,
        "begun": 40,
        "batch": 16,
        "token_reward": jnp.where(_valid, _normal(T, B), 0.0),
        "discount": jnp.full((T, B), 0.9),
        "value": _normal(T + 1, B),
        "returns": _normal(T, B),
        "path": jnp.abs(_normal(T, B)),
        "sum_pi_squared": jnp.asarray(_random.uniform(size=(T, B)), jnp.float32),
        "entropy": jnp.abs(_normal(T, B)),
        "cov": _normal(T, B),
        "cut": 0.5,
        "drawn": _valid,
    }
)


def evaluate(call: str):
    names = dict(NAMES)
    if call.startswith("gae("):
        names |= {"reward": _normal(T, B)}
    return eval(call, names)


@pytest.mark.parametrize(("option", "call"), CALLS)
def test_a_call_of_the_table_runs(option: str, call: str) -> None:
    """On one batch; the numbers are finite."""
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(evaluate(call)))


def mean_over_steps(x):
    """The mean over the valid steps of each sequence."""
    return np.where(_valid, x, 0.0).sum(axis=0) / np.asarray(_valid).sum(axis=0)


def numbers(name: str):
    return np.asarray(NAMES[name], np.float64)


def clipped(ratio, advantage, low, high):
    return -np.minimum(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)


def verl_vanilla():
    """`-c A` bounds the loss from above where the advantage is negative."""
    ratio, advantage = np.exp(numbers("u")), numbers("A")
    loss = clipped(ratio, advantage, 0.2, 0.2)
    return np.where(advantage < 0, np.minimum(-3.0 * advantage, loss), loss)


def trl_two_sided():
    """Only the unclipped term is bounded by `delta`."""
    ratio, advantage = np.exp(numbers("u")), numbers("A")
    return -np.minimum(np.minimum(ratio, 2.0) * advantage, np.clip(ratio, 0.8, 1.28) * advantage)


def prime_rl(drop_outward_only: bool):
    """The mask by probabilities, the plain ratio and the penalty."""
    moved, advantage = np.exp(numbers("log_pi")) - np.exp(numbers("log_mu")), numbers("A")
    outward = np.where(advantage > 0, moved > 0.2, moved < -0.2)
    dropped = outward if drop_outward_only else np.abs(moved) > 0.1
    return -np.where(dropped, 0.0, np.exp(numbers("l")) * advantage) + 1e-3 * numbers("l") ** 2


def areal_kl(metric):
    return np.where(metric <= 1.2, np.exp(numbers("lp")), 0.0)


def gmpo():
    """The geometric mean over each sequence of ratios whose logarithms are bounded on the side of the advantage."""
    sign = np.sign(numbers("A_of_sequence"))
    bounded = sign * np.minimum(sign * numbers("u"), sign * np.clip(numbers("u"), -0.2, 0.2))
    return -numbers("A_of_sequence") * np.exp(mean_over_steps(bounded))


def opo():
    """A group's baseline is the mean of its rewards, weighted by the number of tokens."""
    reward, tokens = numbers("reward").reshape(2, 3), np.asarray(_valid).sum(axis=0).reshape(2, 3)
    return (reward - (tokens * reward).sum(axis=1, keepdims=True) / tokens.sum(axis=1, keepdims=True)).ravel()


def discounted(reward):
    """Sums backward; padding has no reward."""
    found = np.zeros((T + 1, B))
    for t in reversed(range(T)):
        found[t] = reward[t] + 0.9 * found[t + 1]
    return found[:T]


def whitened(x):
    there = np.asarray(_valid)
    return (x - x[there].mean()) / x[there].std(ddof=1)


def by_group(reward):
    """Minus the mean of the group, at each token."""
    reward = reward.reshape(2, 3)
    return np.broadcast_to((reward - reward.mean(axis=1, keepdims=True)).ravel(), (T, B))


def optimal_token_baseline():
    """For each prompt and step, returns weighted by the variance of the path."""
    found, there = numbers("returns").copy(), np.asarray(_valid)
    for t in range(T):
        for members in ([0, 1, 2], [3, 4, 5]):
            weight = numbers("path")[t, members] * there[t, members]
            if weight.sum() > 0:
                found[t, members] -= (weight * numbers("returns")[t, members]).sum() / weight.sum()
    return found


def high_entropy():
    entropy = numbers("entropy")
    return np.where(entropy >= np.quantile(entropy[np.asarray(_valid)], 0.8), numbers("loss"), 0.0)


def covariance():
    there, advantage, log_prob = np.asarray(_valid), numbers("A"), numbers("log_pi")
    return (advantage - advantage[there].mean()) * (log_prob - log_prob[there].mean())


lp, u = numbers("lp"), numbers("u")
#: What the projects' code computes, by the start of the option's cell and the number of the call in the row.
ORACLES = {
    ('`loss_mode="vanilla"`', 0): verl_vanilla,
    ('`loss_mode="cispo"`', 0): lambda: -np.clip(np.exp(u), 0.8, 1.2) * numbers("A") * numbers("log_pi"),
    ('`rollout_is="token"`', 0): lambda: np.minimum(np.exp(lp), 2.0),
    ('`rollout_is="sequence"`', 0): lambda: np.minimum(np.exp(np.where(_valid, lp, 0.0).sum(axis=0)), 2.0),
    ('`rollout_rs="token_k1"`', 0): lambda: (-lp >= np.log(0.5)) & (-lp <= np.log(1.5)),
    ('`rollout_rs="token_k2"`', 0): lambda: 0.5 * lp**2 <= 1.5,
    ('`rollout_rs="token_k2"`', 1): lambda: np.exp(lp) - 1 - lp <= 1.5,
    ('`rollout_rs="seq_sum_k3"`', 0): lambda: np.where(_valid, np.exp(lp) - 1 - lp, 0.0).sum(axis=0) <= 1.5,
    ('`rollout_rs="seq_sum_k3"`', 1): lambda: np.where(_valid, np.exp(lp) - 1 - lp, 0.0).max(axis=0) <= 1.5,
    ('`loss_agg_mode="seq-mean-token-sum"`', 0): lambda: np.where(_valid, numbers("loss"), 0.0).sum(axis=0).mean(),
    ('`loss_mode="geo_mean"`', 0): gmpo,
    ('`loss_mode="gpg"`', 0): lambda: -numbers("log_pi") * numbers("A"),
    ('`loss_mode="kl_cov"`', 0): lambda: (
        -np.exp(u) * numbers("A") + np.where(numbers("cov") >= 0.5, 0.1 * np.abs(u), 0.0)
    ),
    ('`loss_mode="kl_cov"`', 1): covariance,
    ('`loss_mode="clip_cov"`', 0): lambda: np.where(_valid, 0.0, clipped(np.exp(u), numbers("A"), 0.2, 0.2)),
    ('`adv_estimator="opo"`', 0): opo,
    ('`adv_estimator="reinforce_plus_plus"`', 0): lambda: discounted(numbers("token_reward")),
    ('`adv_estimator="reinforce_plus_plus"`', 1): lambda: whitened(numbers("returns")),
    ('`adv_estimator="reinforce_plus_plus_baseline"`', 0): lambda: by_group(numbers("reward")),
    ('`adv_estimator="reinforce_plus_plus_baseline"`', 1): lambda: whitened(numbers("A")),
    ('`adv_estimator="optimal_token_baseline"`', 0): optimal_token_baseline,
    ('`adv_estimator="optimal_token_baseline"`', 1): lambda: np.cumsum(
        np.where(_valid, 1 - 2 * np.exp(numbers("log_prox")) + numbers("sum_pi_squared"), 0.0), axis=0
    ),
    ("`top_entropy_quantile=1.0`", 0): high_entropy,
    ("`cliprange_value=0.5`", 0): lambda: (
        0.5
        * np.maximum(
            (numbers("v") - numbers("target")) ** 2,
            (np.clip(numbers("v"), numbers("old_value") - 0.5, numbers("old_value") + 0.5) - numbers("target")) ** 2,
        )
    ),
    ("`delta=None`", 0): trl_two_sided,
    ('`loss_type="cispo"`', 0): lambda: -np.minimum(np.exp(u), 0.28) * numbers("A") * numbers("log_pi"),
    ('`loss_type="dr_grpo"`', 0): lambda: np.where(_valid, numbers("loss"), 0.0).sum() / (B * 8),
    ("`off_policy_mask_threshold=None`", 0): lambda: (
        (numbers("A_of_sequence") >= 0) | (mean_over_steps(-numbers("l")) <= 0.1)
    ),
    ("`eps_clip=0.2`", 0): lambda: np.minimum(
        clipped(np.exp(u), numbers("A"), 0.2, 0.28), np.sign(numbers("A")) * 3.0 * numbers("A")
    ),
    ("`use_decoupled_loss=True`", 0): lambda: clipped(np.exp(u), numbers("A"), 0.2, 0.2),
    ('`level="token"`', 0): lambda: (
        np.where(np.exp(lp) <= 1.2, np.exp(lp), 0.0) * clipped(np.exp(u), numbers("A"), 0.2, 0.2)
    ),
    ('`level="sequence"`', 0): lambda: np.where(np.exp(mean_over_steps(lp)) <= 1.2, np.exp(mean_over_steps(lp)), 0.0),
    ('`metric="kl_k1"`', 0): lambda: areal_kl(lp),
    ('`metric="kl_k1"`', 1): lambda: areal_kl(0.5 * lp**2),
    ('`metric="kl_k1"`', 2): lambda: areal_kl(np.exp(-lp) - 1 + lp),
    ('`loss.type="default"`', 0): lambda: prime_rl(drop_outward_only=True),
    ('`loss.type="ipo"`', 0): lambda: prime_rl(drop_outward_only=False),
}


@pytest.mark.parametrize(("start", "number"), ORACLES)
def test_a_call_computes_what_the_project_computes(start: str, number: int) -> None:
    (row,) = [row for row in ROWS if row[0].startswith(start)]
    call = [call for option, call in CALLS if option == row[0]][number]
    np.testing.assert_allclose(np.asarray(evaluate(call)), ORACLES[start, number](), rtol=2e-5, atol=1e-6)


def test_the_data_tell_the_bounds_apart() -> None:
    """Samples lie on both sides of each bound, so that an inverted or relative bound would show."""
    ratio = np.exp(lp)
    assert (ratio < 0.5).any()
    assert ((ratio > 0.5) & (ratio < 1 / 1.5)).any()
    assert ((ratio > 1.5) & (ratio < 2.0)).any()
    assert (np.exp(u) > 1.28).any()
    assert (np.exp(u) < 0.8).any()


def test_m2po_as_areal_has_it() -> None:
    """The largest squares are dropped until the mean of the rest is below the bound, whatever the advantage."""
    there = np.asarray(_valid)
    squares = np.sort(lp[there] ** 2)
    kept = [n for n in range(1, len(squares) + 1) if squares[:n].mean() < 0.04]
    limit = squares[max(kept) - 1]
    (call,) = [call for option, call in CALLS if option.startswith("`m2_threshold")]
    np.testing.assert_array_equal(np.asarray(evaluate(call)), there & (lp**2 <= limit))
