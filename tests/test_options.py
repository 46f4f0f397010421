"""The tables of other projects' options in `docs/options.md`: their calls compute what those projects compute."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stellaris
from tests.option_tables import VALID, B, T, calls_of, defaults_of, named, normal, policies, rows_of

ROWS = rows_of("options.md")
CALLS = calls_of(ROWS)

_random = np.random.default_rng(0)
_normal = functools.partial(normal, _random)
_log_mu, _log_prox, _log_pi = policies(_random)
_valid = VALID
#: Of dual clips: within the data, and beyond every clip width.
CAP = 1.5
#: Geometric means of sequences lie below, between and above.
BOUNDS = {"low": 0.685, "high": 0.9}
#: Numbers for options whose default is None, 0 or beyond the data.
GIVEN = {
    "epsilon_high": 0.28,
    "eps_clip_higher": 0.28,
    "eps_clip_high": 0.28,
    "delta": CAP,
    "max_staleness": 4,
    "c_clip": CAP,
    "clip_ratio_c": CAP,
    "dual_clip": CAP,
    "eps_clip_c": CAP,
    "ratio_clip_c": CAP,
    "upper": 1.2,
    "dro_beta": 0.3,
    "m2_threshold": 0.04,
    "off_policy_mask_threshold": 0.1,
    "loss_scale_factor": 8.0,
    "max_completion_length": 8.0,
    "top_entropy_quantile": 0.2,
    "low": 0.5,
    "high": 1.5,
    "rs_lower_bound": 0.5,
    "rs_upper_bound": 1.5,
    "rs_veto_threshold": 0.36,
    "opsm_delta": 0.1,
    "seq_logprob_error_threshold": 2.0,
    "kl_loss_coef": 0.1,
    "kl_loss_type": "k3",
    "kl_coef": 0.1,
    "length_adaptive_alpha": 0.4,
    "advantage_clip_low": -0.5,
    "advantage_clip_high": 0.8,
    "cliprange": 0.3,
    "positive_example_nll_weight": 0.1,
    "max_response_length": 8.0,
    "epsilon_low": 0.2,
    "epsilon_c": CAP,
    "max_seq_len": 8.0,
    "kl_estimator_type": "k3",
    "kl_penalty_coef": 0.1,
    "max_steps_off_policy": 4,
    "token_mask_is_threshold_low": 0.5,
    "token_mask_is_threshold_high": 1.5,
    "geo_mask_low": BOUNDS["low"],
    "geo_mask_high": BOUNDS["high"],
    "outlier_token_is_threshold_low": 0.36,
    "outlier_token_is_threshold_high": 1.9,
}
#: Each project's defaults as its table has them, and the numbers above.
OPTIONS = {
    project: defaults_of(ROWS, project) | GIVEN | (BOUNDS if project in ("OpenRLHF", "NeMo-RL") else {})
    for project, _ in ROWS
}
#: The page's notation.
NAMES = {name: getattr(stellaris, name) for name in stellaris.__all__ if name[0].islower()} | {
    **{name: getattr(jnp, name) for name in ("where", "exp", "log", "abs", "min", "max", "std", "sign", "inf")},
    **{name: getattr(jnp, name) for name in ("minimum", "maximum", "mean", "sum", "sqrt", "cumsum", "broadcast_to")},
    **{name: getattr(jnp, name) for name in ("clip", "concatenate", "eye", "arange", "sort", "argsort")},
    "take_along_axis": jnp.take_along_axis,
    "stop_gradient": jax.lax.stop_gradient,
    "nan": jnp.nan,
    "nanquantile": jnp.nanquantile,
    "vmap": jax.vmap,
    "kl": stellaris.approximate_kl,
    "log_pi": _log_pi,
    "log_prox": _log_prox,
    "log_mu": _log_mu,
    "log_ref": -jnp.abs(_log_pi + _normal(T, B, spread=0.8)),
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
    "mean_reward": jnp.array([0.5, 0.5, 0.5, -0.2, -0.2, -0.2]),
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
    "d": _normal(T, B),
    "cut": 0.5,
    "drawn": _valid,
    "token_version": jnp.array([[4, 3, 4, 2, 4, 4]] * 2 + [[4] * B] * (T - 2)),
    "truncated": jnp.array([False, True, False, False, True, False]),
    "mean_kl": 0.015,
    "kl_target": 0.013,
    "sequences": 64,
    "groups": 2,
    "n": 3,
    "R": _normal(2, 3),
    "deviation": jnp.array([0.0, 0.5, 2.0, 0.1, 0.0, 1.0]),
    "S": _normal(B),
    "V": _normal(T + 1, B),
    "lam": jnp.asarray(_random.uniform(size=B), jnp.float32),
    "rewards": _normal(2, B),
    "reward_weights": jnp.array([1.0, 0.3]),
    "gdpo_reward_weights": jnp.array([1.0, 0.3]),
    "order": jnp.argsort(~_valid, axis=0, stable=True),
    "baseline": _normal(T, B),
}


def evaluate(project: str, call: str, log_pi=None):
    """The value of the call, for the policy that learns as above or for another one."""
    names = NAMES | OPTIONS[project]
    if call.startswith("gae("):
        names |= {"reward": _normal(T, B)}
    if log_pi is not None:
        names |= {"log_pi": log_pi, "l": log_pi - _log_mu, "u": log_pi - _log_prox}
    return eval(call, names)


@pytest.mark.parametrize(("project", "option", "call"), CALLS)
def test_a_call_of_the_table_runs(project: str, option: str, call: str) -> None:
    """On one batch; the numbers are finite."""
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(evaluate(project, call)))


def mean_over_steps(x):
    """The mean over the valid steps of each sequence."""
    return np.where(_valid, x, 0.0).sum(axis=0) / np.asarray(_valid).sum(axis=0)


def numbers(name: str):
    return np.asarray(NAMES[name], np.float64)


def clipped(ratio, advantage, low, high):
    return -np.minimum(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)


def trl_two_sided():
    """Only the unclipped term is bounded by `delta`."""
    ratio, advantage = np.exp(numbers("u")), numbers("A")
    return -np.minimum(np.minimum(ratio, CAP) * advantage, np.clip(ratio, 0.8, 1.28) * advantage)


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


def whitened(x, ddof=1):
    there = np.asarray(_valid)
    return (x - x[there].mean()) / x[there].std(ddof=ddof)


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


def lead_over_the_second():
    """The best of each group has its distance to the second best, in deviations of the group; the others have 0."""
    found = np.zeros(B)
    for first, rewards in ((0, numbers("R")[0]), (3, numbers("R")[1])):
        second, best = np.sort(rewards)[-2:]
        found[first + rewards.argmax()] = (best - second) / (rewards.std(ddof=1) + 1e-6)
    return found


def weighted_sum_of_advantages(epsilon):
    """Each reward's advantages in its groups, weighted."""
    found = np.zeros(B)
    for weight, rewards in zip((1.0, 0.3), numbers("rewards"), strict=True):
        deviation = np.repeat(rewards.reshape(2, 3).std(axis=1, ddof=1), 3)
        found += weight * by_group(rewards)[0] / (deviation + epsilon)
    return found


def kl_cov_as_skyrl_has_it():
    """The mean of the losses, and the sum of the penalties of the chosen tokens."""
    there, chosen = np.asarray(_valid), np.asarray(_valid) & (numbers("cov") >= 0.5)
    return (-np.exp(u) * numbers("A"))[there].mean() + np.abs(u)[chosen].sum()


def high_entropy():
    entropy = numbers("entropy")
    return np.where(entropy >= np.quantile(entropy[np.asarray(_valid)], 0.8), numbers("loss"), 0.0)


def covariance():
    there, advantage, log_prob = np.asarray(_valid), numbers("A"), numbers("log_pi")
    return (advantage - advantage[there].mean()) * (log_prob - log_prob[there].mean())


def dual_clipped(ratio, advantage, low, high):
    """A loss with a negative advantage is at most `-CAP A`."""
    loss = clipped(ratio, advantage, low, high)
    return np.where(advantage < 0, np.minimum(-CAP * advantage, loss), loss)


def kept_within(ratio, low, high):
    return (ratio >= low) & (ratio <= high)


def kept(ratio):
    return kept_within(ratio, BOUNDS["low"], BOUNDS["high"])


def weights_of_kept_sequences():
    """The geometric mean keeps or drops a sequence; its tokens have their own ratios."""
    return kept(np.exp(mean_over_steps(lp))) * np.exp(lp)


def estimated_kl(log_ratio, kind):
    """Of the first policy from the second, from the log-ratio of the first to the second."""
    return {"k1": log_ratio, "k2": log_ratio**2 / 2, "k3": np.exp(-log_ratio) - 1 + log_ratio}[kind]


def generalized_advantages(lambda_):
    """Backward over all tokens, from a value of 0; padding has neither reward nor value."""
    value, advantage = np.where(_valid, numbers("v"), 0.0), np.zeros((T + 1, B))
    for t in reversed(range(T)):
        following = value[t + 1] if t < T - 1 else 0.0
        delta = numbers("token_reward")[t] + 0.9 * following - value[t]
        advantage[t] = delta + 0.9 * lambda_ * advantage[t + 1]
    return advantage[:T]


def length_adaptive():
    """A value for λ per sequence."""
    value, advantage = numbers("V"), np.zeros((T + 1, B))
    for t in reversed(range(T)):
        delta = numbers("token_reward")[t] + 0.9 * value[t + 1] - value[t]
        advantage[t] = delta + 0.9 * numbers("lam") * advantage[t + 1]
    return advantage[:T]


def members(reward):
    """Each reward with the others of its group."""
    for i, one in enumerate(reward):
        yield one, np.array([reward[j] for j in range(B) if j // 3 == i // 3 and j != i])


def normalised_without_oneself():
    """The baseline is the mean of the others, the divisor a given deviation of the others, unless that is 0."""
    return np.array(
        [
            (one - others.mean()) / (deviation + 1e-6 if deviation > 0 else 1.0)
            for (one, others), deviation in zip(members(numbers("reward")), numbers("deviation"), strict=True)
        ]
    )


def clipped_value_loss(width):
    """The larger of two squares."""
    value, old, target = numbers("v"), numbers("old_value"), numbers("target")
    return np.maximum((value - target) ** 2, (np.clip(value, old - width, old + width) - target) ** 2)


def over_sequences(x):
    return mean_over_steps(x).mean()


def sums_of_sequences():
    return np.where(_valid, numbers("loss"), 0.0).sum(axis=0)


def mean_of_prompts():
    there = np.asarray(_valid)
    return np.mean([numbers("loss")[:, members][there[:, members]].mean() for members in ([0, 1, 2], [3, 4, 5])])


def icepop():
    """Tokens whose ratio to the behaviour policy is outside the widths have no gradient."""
    ratio = np.exp(numbers("l"))
    return np.where(kept_within(ratio, 0.8, 1.28), -ratio * numbers("A") * numbers("log_pi"), 0.0)


def dppo():
    """A token is dropped if its probability has moved outward by more than 0.2."""
    moved, advantage = np.exp(numbers("log_pi")) - np.exp(numbers("log_mu")), numbers("A")
    dropped = np.where(advantage > 0, moved > 0.2, -moved > 0.2)
    return np.where(dropped, 0.0, -np.exp(numbers("l")) * advantage)


def without_outliers():
    ratio, there = np.exp(lp), np.asarray(_valid)
    return ~(there & ((ratio < 0.36) | (ratio > 1.9))).any(axis=0)


def luspo():
    """Each answer's loss times its tokens, averaged over the answers."""
    of_sequence = clipped(np.exp(mean_over_steps(u)), numbers("A_of_sequence"), 0.2, 0.28)
    return (of_sequence * np.asarray(_valid).sum(axis=0)).mean()


lp, u = numbers("lp"), numbers("u")
#: What the projects' code computes, by project, the start of the option's cell and the number of the call in the row.
ORACLES = {
    ("verl", '`loss_mode="vanilla"`', 0): lambda: dual_clipped(np.exp(u), numbers("A"), 0.2, 0.2),
    ("verl", '`loss_mode="cispo"`', 0): lambda: -np.clip(np.exp(u), 0.8, 1.2) * numbers("A") * numbers("log_pi"),
    ("verl", '`rollout_is="token"`', 0): lambda: np.minimum(np.exp(lp), 2.0),
    ("verl", '`rollout_is="sequence"`', 0): lambda: np.minimum(np.exp(np.where(_valid, lp, 0.0).sum(axis=0)), 2.0),
    ("verl", '`rollout_rs="token_k1"`', 0): lambda: (-lp >= np.log(0.5)) & (-lp <= np.log(1.5)),
    ("verl", '`rollout_rs="token_k2"`', 0): lambda: 0.5 * lp**2 <= 1.5,
    ("verl", '`rollout_rs="token_k2"`', 1): lambda: np.exp(lp) - 1 - lp <= 1.5,
    ("verl", '`rollout_rs="seq_sum_k3"`', 0): lambda: np.where(_valid, np.exp(lp) - 1 - lp, 0.0).sum(axis=0) <= 1.5,
    ("verl", '`rollout_rs="seq_sum_k3"`', 1): lambda: np.where(_valid, np.exp(lp) - 1 - lp, 0.0).max(axis=0) <= 1.5,
    ("verl", '`loss_agg_mode="seq-mean-token-sum"`', 0): lambda: (
        np.where(_valid, numbers("loss"), 0.0).sum(axis=0).mean()
    ),
    ("verl", '`loss_mode="geo_mean"`', 0): gmpo,
    ("verl", '`loss_mode="gpg"`', 0): lambda: -numbers("log_pi") * numbers("A"),
    ("verl", '`loss_mode="dro"`', 0): lambda: -(numbers("log_pi") * numbers("A") - 0.5 * 0.3 * u**2),
    ("verl", '`loss_mode="kl_cov"`', 0): lambda: (
        -np.exp(u) * numbers("A") + np.where(numbers("cov") >= 0.5, 0.1 * np.abs(u), 0.0)
    ),
    ("verl", '`loss_mode="kl_cov"`', 1): covariance,
    ("verl", '`loss_mode="clip_cov"`', 0): lambda: np.where(_valid, 0.0, clipped(np.exp(u), numbers("A"), 0.2, 0.2)),
    ("verl", '`loss_agg_mode="token-sum"`', 0): lambda: numbers("loss")[np.asarray(_valid)].sum(),
    ("verl", '`adv_estimator="grpo_passk"`', 0): lead_over_the_second,
    ("verl", '`adv_estimator="gdpo"`', 0): lambda: np.broadcast_to(numbers("S"), (T, B)),
    ("verl", '`adv_estimator="gdpo"`', 1): lambda: whitened(numbers("A")),
    ("verl", '`adv_estimator="gdpo"`', 2): lambda: weighted_sum_of_advantages(1e-6),
    ("verl", '`adv_estimator="opo"`', 0): opo,
    ("verl", '`adv_estimator="reinforce_plus_plus"`', 0): lambda: discounted(numbers("token_reward")),
    ("verl", '`adv_estimator="reinforce_plus_plus"`', 1): lambda: whitened(numbers("returns")),
    ("verl", '`adv_estimator="reinforce_plus_plus_baseline"`', 0): lambda: by_group(numbers("reward")),
    ("verl", '`adv_estimator="reinforce_plus_plus_baseline"`', 1): lambda: whitened(numbers("A")),
    ("verl", '`adv_estimator="optimal_token_baseline"`', 0): optimal_token_baseline,
    ("verl", '`adv_estimator="optimal_token_baseline"`', 1): lambda: np.cumsum(
        np.where(_valid, 1 - 2 * np.exp(numbers("log_prox")) + numbers("sum_pi_squared"), 0.0), axis=0
    ),
    ("verl", "`cliprange_value=0.5`", 0): lambda: 0.5 * clipped_value_loss(0.5),
    ("TRL", "`top_entropy_quantile=1.0`", 0): high_entropy,
    ("TRL", "`delta=None`", 0): trl_two_sided,
    ("TRL", '`loss_type="cispo"`', 0): lambda: -np.minimum(np.exp(u), 0.28) * numbers("A") * numbers("log_pi"),
    ("TRL", '`loss_type="dr_grpo"`', 0): lambda: np.where(_valid, numbers("loss"), 0.0).sum() / (B * 8),
    ("TRL", '`loss_type="luspo"`', 0): luspo,
    ("TRL", "`off_policy_mask_threshold=None`", 0): lambda: (
        (numbers("A_of_sequence") >= 0) | (mean_over_steps(-numbers("l")) <= 0.1)
    ),
    ("TRL", '`multi_objective_aggregation="normalize_then_sum"`', 0): lambda: (
        (numbers("S") - numbers("S").mean()) / (numbers("S").std(ddof=1) + 1e-4)
    ),
    ("TRL", '`multi_objective_aggregation="normalize_then_sum"`', 1): lambda: weighted_sum_of_advantages(1e-4),
    ("TRL", "`mask_truncated_completions=False`", 0): lambda: numbers("loss")[
        np.asarray(_valid) & ~np.asarray(NAMES["truncated"])
    ].mean(),
    ("AReaL", '`prox_logp_method="reuse_train_logp"`', 0): lambda: -numbers("A"),
    ("AReaL", "`eps_clip=0.2`", 0): lambda: np.minimum(
        clipped(np.exp(numbers("l")), numbers("A"), 0.2, 0.28), np.sign(numbers("A")) * CAP * numbers("A")
    ),
    ("AReaL", "`use_decoupled_loss=False`", 0): lambda: clipped(np.exp(u), numbers("A"), 0.2, 0.2),
    ("AReaL", '`level="token"`', 0): lambda: (
        np.where(np.exp(lp) <= 1.2, np.exp(lp), 0.0) * clipped(np.exp(u), numbers("A"), 0.2, 0.2)
    ),
    ("AReaL", '`level="sequence"`', 0): lambda: np.where(
        np.exp(mean_over_steps(lp)) <= 1.2, np.exp(mean_over_steps(lp)), 0.0
    ),
    ("AReaL", '`metric="kl_k1"`', 0): lambda: areal_kl(lp),
    ("AReaL", '`metric="kl_k1"`', 1): lambda: areal_kl(0.5 * lp**2),
    ("AReaL", '`metric="kl_k1"`', 2): lambda: areal_kl(np.exp(-lp) - 1 + lp),
    ("prime-rl", '`loss.type="default"`', 0): lambda: prime_rl(drop_outward_only=True),
    ("prime-rl", '`algo.type="max_rl"`', 0): lambda: np.where(
        numbers("mean_reward") > 0, by_group(numbers("reward"))[0] / numbers("mean_reward"), 0.0
    ),
    ("prime-rl", '`algo.type="max_rl"`', 1): lambda: np.repeat(numbers("R").mean(axis=1), 3),
    ("prime-rl", '`loss.type="ipo"`', 0): lambda: prime_rl(drop_outward_only=False),
    ("OpenRLHF", "`actor.eps_clip=0.2`", 0): lambda: dual_clipped(np.exp(u), numbers("A"), 0.2, 0.2),
    ("OpenRLHF", '`actor.policy_loss_type="gspo"`', 0): lambda: dual_clipped(
        np.exp(mean_over_steps(u)), numbers("A_of_sequence"), 0.2, 0.2
    ),
    ("OpenRLHF", "`advantage.is_correction_enable=False`", 0): lambda: np.clip(
        np.exp(lp), BOUNDS["low"], BOUNDS["high"]
    ),
    ("OpenRLHF", '`is_correction_type="icepop"`', 0): lambda: np.exp(lp) * kept(np.exp(lp)),
    ("OpenRLHF", '`is_correction_type="seq-mask-tis"`', 0): weights_of_kept_sequences,
    ("OpenRLHF", '`advantage.estimator="gae"`', 0): lambda: generalized_advantages(1.0),
    ("OpenRLHF", '`advantage.estimator="gae"`', 1): lambda: whitened(numbers("A"), ddof=0),
    ("OpenRLHF", '`advantage.estimator="reinforce"`', 0): lambda: discounted(numbers("token_reward")),
    ("OpenRLHF", '`advantage.estimator="reinforce"`', 1): lambda: whitened(numbers("returns"), ddof=0),
    ("OpenRLHF", '`advantage.estimator="reinforce_baseline"`', 0): lambda: by_group(numbers("reward")),
    ("OpenRLHF", '`advantage.estimator="reinforce_baseline"`', 1): lambda: whitened(numbers("A"), ddof=0),
    ("OpenRLHF", '`advantage.estimator="group_norm"`', 0): lambda: (
        by_group(numbers("reward"))[0] / (np.repeat(numbers("reward").reshape(2, 3).std(axis=1, ddof=1), 3) + 1e-9)
    ),
    ("OpenRLHF", '`advantage.estimator="group_norm"`', 1): lambda: np.array(
        [one - others.mean() for one, others in members(numbers("reward"))]
    ),
    ("OpenRLHF", '`advantage.estimator="group_norm"`', 2): lambda: by_group(numbers("reward"))[0],
    ("OpenRLHF", "`kl.init_coef=0.01`", 0): lambda: discounted(
        numbers("token_reward") - 0.01 * estimated_kl(numbers("log_prox") - numbers("log_ref"), "k1")
    ),
    ("OpenRLHF", "`kl.use_loss=True`", 0): lambda: 0.01 * estimated_kl(numbers("log_pi") - numbers("log_ref"), "k2"),
    ("OpenRLHF", "`kl.target=None`", 0): lambda: 0.01 * (1 + (0.015 / 0.013 - 1) * 64 / 10_000),
    ("OpenRLHF", "`critic.value_clip=0.5`", 0): lambda: 0.5 * clipped_value_loss(0.5),
    ("slime", "`eps_clip=0.2`", 0): lambda: dual_clipped(np.exp(u), numbers("A"), 0.2, 0.28),
    ("slime", "`use_rollout_logprobs=False`", 0): lambda: dual_clipped(np.exp(numbers("l")), numbers("A"), 0.2, 0.28),
    ("slime", '`advantage_estimator="gspo"`', 0): lambda: dual_clipped(
        np.exp(mean_over_steps(u)), numbers("A_of_sequence"), 0.2, 0.28
    ),
    ("slime", '`advantage_estimator="cispo"`', 0): lambda: (
        -np.clip(np.exp(u), 0.8, 1.28) * numbers("A") * numbers("log_pi")
    ),
    ("slime", "`use_tis=False`", 0): lambda: np.clip(np.exp(lp), 0.0, 2.0),
    ("slime", "`custom_tis_function_path`", 0): lambda: np.exp(lp) * kept_within(np.exp(lp), 0.0, 2.0),
    ("slime", '`tis_mode="truncate"`', 0): lambda: np.minimum(np.exp(lp), 2.0),
    ("slime", '`tis_mode="truncate"`', 1): lambda: np.minimum(np.exp(np.where(_valid, lp, 0.0).sum(axis=0)), 2.0),
    ("slime", '`tis_mode="clip"`', 0): lambda: np.clip(np.exp(lp), 0.5, 2.0),
    ("slime", "`use_rs=True`", 0): lambda: kept_within(np.exp(lp), 0.5, 1.5),
    ("slime", "`rs_veto_threshold=1e-4`", 0): lambda: ~((lp < np.log(0.36)) & np.asarray(_valid)).any(axis=0),
    ("slime", "`tis_batch_normalize=True`", 0): lambda: (
        numbers("weight") / numbers("weight")[np.asarray(_valid)].mean()
    ),
    ("slime", "`use_opsm=False`", 0): lambda: ~((numbers("A_of_sequence") < 0) & (mean_over_steps(-u) > 0.1)),
    ("slime", "`use_kl_loss=False`", 0): lambda: 0.1 * estimated_kl(numbers("log_pi") - numbers("log_ref"), "k3"),
    ("slime", "`use_kl_loss=False`", 1): lambda: (
        0.1 * np.exp(u) * estimated_kl(numbers("log_pi") - numbers("log_ref"), "k3")
    ),
    ("slime", "`kl_coef=0.0`", 0): lambda: (
        numbers("token_reward") - 0.1 * estimated_kl(numbers("log_prox") - numbers("log_ref"), "k3")
    ),
    ("slime", '`advantage_estimator="grpo"`', 0): lambda: (
        by_group(numbers("reward"))[0] / (np.repeat(numbers("reward").reshape(2, 3).std(axis=1, ddof=1), 3) + 1e-6)
    ),
    ("slime", '`advantage_estimator="grpo"`', 1): lambda: by_group(numbers("reward"))[0],
    ("slime", '`advantage_estimator="reinforce_plus_plus"`', 0): lambda: discounted(numbers("token_reward")),
    ("slime", '`advantage_estimator="reinforce_plus_plus"`', 1): lambda: whitened(numbers("returns")),
    ("slime", '`advantage_estimator="reinforce_plus_plus_baseline"`', 0): lambda: by_group(numbers("reward")),
    ("slime", '`advantage_estimator="ppo"`', 0): lambda: generalized_advantages(1.0),
    ("slime", "`normalize_advantages=False`", 0): lambda: whitened(numbers("A")),
    ("slime", "`value_clip=0.2`", 0): lambda: clipped_value_loss(0.2),
    ("slime", "`calculate_per_token_loss=False`", 0): lambda: over_sequences(numbers("loss")),
    ("slime", "`calculate_per_token_loss=False`", 1): lambda: numbers("loss")[np.asarray(_valid)].mean(),
    ("slime", "`partial_rollout=False`", 0): lambda: numbers("loss")[
        np.asarray(_valid) & (np.asarray(NAMES["token_version"]) == 4)
    ].mean(),
    ("NeMo-RL", "`ratio_clip_min=0.2`", 0): lambda: dual_clipped(np.exp(u), numbers("A"), 0.2, 0.2),
    ("NeMo-RL", "`sequence_level_importance_ratios=False`", 0): lambda: dual_clipped(
        np.exp(mean_over_steps(u)), numbers("A_of_sequence"), 0.2, 0.2
    ),
    ("NeMo-RL", "`use_cispo=False`", 0): lambda: -np.clip(np.exp(u), 0.8, 1.2) * numbers("A") * numbers("log_pi"),
    ("NeMo-RL", "`disable_ppo_ratio=False`", 0): lambda: -numbers("log_pi") * numbers("A"),
    ("NeMo-RL", "`use_importance_sampling_correction=False`", 0): lambda: np.exp(lp),
    ("NeMo-RL", "`use_importance_sampling_correction=False`", 1): lambda: np.exp(np.where(_valid, lp, 0.0).sum(axis=0)),
    ("NeMo-RL", '`truncated_importance_sampling_type="tis"`', 0): lambda: np.clip(
        np.exp(lp), BOUNDS["low"], BOUNDS["high"]
    ),
    ("NeMo-RL", '`truncated_importance_sampling_type="tis"`', 1): lambda: np.exp(lp) * kept(np.exp(lp)),
    ("NeMo-RL", '`truncated_importance_sampling_type="seq-mask-tis"`', 0): weights_of_kept_sequences,
    ("NeMo-RL", "`seq_logprob_error_threshold=None`", 0): lambda: mean_over_steps(np.exp(np.abs(lp))) <= 2.0,
    ("NeMo-RL", "`reference_policy_kl_penalty=0.01`", 0): lambda: (
        0.01 * estimated_kl(numbers("log_pi") - numbers("log_ref"), "k3")
    ),
    ("NeMo-RL", "`use_on_policy_kl_approximation=False`", 0): lambda: (
        0.01 * np.exp(numbers("l")) * estimated_kl(numbers("log_pi") - numbers("log_ref"), "k3")
    ),
    ("NeMo-RL", "`use_kl_in_reward=False`", 0): lambda: (
        numbers("A") - 0.01 * estimated_kl(numbers("log_prox") - numbers("log_ref"), "k3")
    ),
    ("NeMo-RL", '`adv_estimator.name="grpo"`', 0): normalised_without_oneself,
    ("NeMo-RL", '`adv_estimator.name="grpo"`', 1): lambda: np.array(
        [others.std(ddof=1) for _, others in members(numbers("R").ravel())]
    ),
    ("NeMo-RL", "`use_leave_one_out_baseline`, set to False", 0): lambda: (
        by_group(numbers("reward"))[0] / (np.repeat(numbers("reward").reshape(2, 3).std(axis=1, ddof=1), 3) + 1e-6)
    ),
    ("NeMo-RL", "`normalize_rewards`, set to False", 0): lambda: np.array(
        [one - others.mean() for one, others in members(numbers("reward"))]
    ),
    ("NeMo-RL", '`adv_estimator.name="gdpo"`', 0): lambda: (
        (numbers("S") - numbers("S").mean()) / numbers("S").std(ddof=1)
    ),
    ("NeMo-RL", '`adv_estimator.name="reinforce_plus_plus"`', 0): lambda: by_group(numbers("reward")),
    ("NeMo-RL", '`adv_estimator.name="reinforce_plus_plus"`', 1): lambda: whitened(numbers("A"), ddof=0),
    ("NeMo-RL", "`advantage_clip_low=None`", 0): lambda: np.minimum(np.maximum(numbers("A"), -0.5), 0.8),
    ("NeMo-RL", '`adv_estimator.name="gae"`', 0): lambda: generalized_advantages(0.95),
    ("NeMo-RL", '`adv_estimator.name="gae"`', 1): lambda: whitened(numbers("A")),
    ("NeMo-RL", "`length_adaptive_alpha=0.0`", 0): length_adaptive,
    ("NeMo-RL", "`length_adaptive_alpha=0.0`", 1): lambda: np.clip(
        1 - 1 / np.maximum(0.4 * np.asarray(_valid).sum(axis=0), 1), 0, 1
    ),
    ("NeMo-RL", "`value_loss_fn.cliprange=None`", 0): lambda: 0.5 * clipped_value_loss(0.3),
    ("NeMo-RL", "`positive_example_nll_weight=0.0`", 0): lambda: (
        -0.1 * numbers("log_pi")[np.asarray(_valid) & (numbers("reward") > 0)].mean()
    ),
    ("NeMo-RL", "`token_level_loss=True`", 1): lambda: over_sequences(numbers("loss")),
    ("NeMo-RL", "`overlong_filtering=False`", 0): lambda: numbers("loss")[
        np.asarray(_valid) & ~np.asarray(NAMES["truncated"])
    ].mean(),
    ("NeMo-RL", "metrics", 0): lambda: np.exp(np.abs(lp))[np.asarray(_valid)].mean(),
    ("NeMo-RL", "metrics", 1): lambda: estimated_kl(-lp, "k3")[np.asarray(_valid)].mean(),
    ("SkyRL", '`policy_loss_type="regular"`', 0): lambda: clipped(np.exp(u), numbers("A"), 0.2, 0.28),
    ("SkyRL", '`policy_loss_type="dual_clip"`', 0): lambda: dual_clipped(np.exp(u), numbers("A"), 0.2, 0.28),
    ("SkyRL", '`policy_loss_type="importance_sampling"`', 0): lambda: -np.exp(u) * numbers("A"),
    ("SkyRL", '`policy_loss_type="kl_cov"`', 0): kl_cov_as_skyrl_has_it,
    ("SkyRL", '`policy_loss_type="kl_cov"`', 1): covariance,
    ("SkyRL", '`policy_loss_type="clip_cov"`', 0): lambda: np.where(
        _valid, 0.0, clipped(np.exp(u), numbers("A"), 0.2, 0.28)
    ),
    ("SkyRL", '`policy_loss_type="gspo"`', 0): lambda: clipped(
        np.exp(mean_over_steps(u)), numbers("A_of_sequence"), 0.2, 0.28
    ),
    ("SkyRL", '`policy_loss_type="cispo"`', 0): lambda: (
        -np.clip(np.exp(u), 0.0, 5.0) * numbers("A") * numbers("log_pi")
    ),
    ("SkyRL", '`policy_loss_type="rollout_is"`', 0): icepop,
    ("SkyRL", '`policy_loss_type="dppo"`', 0): dppo,
    ("SkyRL", '`tis_ratio_type="token"`', 0): lambda: np.minimum(np.exp(lp), 2.0),
    ("SkyRL", '`tis_ratio_type="sequence"`', 0): lambda: np.minimum(np.exp(np.where(_valid, lp, 0.0).sum(axis=0)), 5.0),
    ("SkyRL", "`token_mask_is_threshold_low=None`", 0): lambda: kept_within(np.exp(lp), 0.5, 1.5),
    ("SkyRL", '`sequence_mask_metric="geometric"`', 0): lambda: kept(np.exp(mean_over_steps(lp))),
    ("SkyRL", '`sequence_mask_metric="product"`', 0): lambda: kept_within(
        np.exp(np.where(_valid, lp, 0.0).sum(axis=0)), 0.5, 2.0
    ),
    ("SkyRL", "`outlier_token_is_threshold_low=None`", 0): without_outliers,
    ("SkyRL", '`loss_reduction="token_mean"`', 0): lambda: numbers("loss")[np.asarray(_valid)].mean(),
    ("SkyRL", '`loss_reduction="token_mean"`', 1): lambda: over_sequences(numbers("loss")),
    ("SkyRL", '`loss_reduction="token_mean"`', 2): lambda: sums_of_sequences().sum() / (B * 8.0),
    ("SkyRL", '`loss_reduction="prompt_mean"`', 0): mean_of_prompts,
    ("SkyRL", "`use_kl_loss=True`", 0): lambda: 0.1 * estimated_kl(numbers("log_pi") - numbers("log_ref"), "k3"),
    ("SkyRL", '`advantage_estimator="grpo"`', 0): lambda: (
        by_group(numbers("reward"))[0] / (np.repeat(numbers("reward").reshape(2, 3).std(axis=1, ddof=1), 3) + 1e-6)
    ),
    ("SkyRL", '`advantage_estimator="grpo"`', 1): lambda: by_group(numbers("reward"))[0],
    ("SkyRL", '`advantage_estimator="rloo"`', 0): lambda: np.array(
        [one - others.mean() for one, others in members(numbers("reward"))]
    ),
    ("SkyRL", '`advantage_estimator="maxrl"`', 0): lambda: (
        by_group(numbers("reward"))[0] / (np.repeat(numbers("R").mean(axis=1), 3) + 1e-6)
    ),
    ("SkyRL", '`advantage_estimator="reinforce++"`', 0): lambda: discounted(numbers("token_reward")),
    ("SkyRL", '`advantage_estimator="reinforce++"`', 1): lambda: whitened(numbers("returns")),
    ("SkyRL", "`value_clip=0.2`", 0): lambda: 0.5 * clipped_value_loss(0.2),
    ("Tinker", '`loss_fn="importance_sampling"`', 0): lambda: -np.exp(numbers("l")) * numbers("A"),
    ("Tinker", '`loss_fn="ppo"`', 0): lambda: clipped(np.exp(numbers("l")), numbers("A"), 0.2, 0.2),
    ("Tinker", '`loss_fn="cispo"`', 0): lambda: (
        -np.clip(np.exp(numbers("l")), 0.8, 1.2) * numbers("A") * numbers("log_pi")
    ),
    ("Tinker", '`loss_fn="dro"`', 0): lambda: (
        -(numbers("log_pi") * numbers("A") - 0.5 * 0.05 * (numbers("log_pi") - numbers("log_mu")) ** 2)
    ),
    ("Tinker", "all of them", 0): lambda: numbers("loss")[np.asarray(_valid)].sum(),
    ("Tinker", "advantages of the cookbook", 0): lambda: by_group(numbers("reward"))[0],
    ("Tinker", "`kl_penalty_coef=0.0`", 0): lambda: (
        numbers("A") + 0.1 * (numbers("d")[np.asarray(_valid)].mean() - numbers("d"))
    ),
    ("Tinker", "metrics", 0): lambda: (numbers("log_mu") - numbers("log_pi"))[np.asarray(_valid)].mean(),
    ("Tinker", "metrics", 1): lambda: 0.5 * ((numbers("log_mu") - numbers("log_pi"))[np.asarray(_valid)] ** 2).mean(),
    ("Tunix", "`use_rollout_logps=True`", 0): lambda: clipped(np.exp(numbers("l")), numbers("A"), 0.2, 0.28),
    ("Tunix", "`sampler_is=None`", 0): lambda: (
        np.minimum(np.exp(lp), 2.0) * clipped(np.exp(u), numbers("A"), 0.2, 0.28)
    ),
    ("Tunix", '`loss_algo="gspo-token"`', 0): lambda: clipped(
        np.exp(mean_over_steps(numbers("l"))), numbers("A_of_sequence"), 0.2, 0.28
    ),
    ("Tunix", '`loss_agg_mode="sequence-mean-token-mean"`', 0): lambda: over_sequences(numbers("loss")),
    ("Tunix", '`loss_agg_mode="sequence-mean-token-mean"`', 1): lambda: numbers("loss")[np.asarray(_valid)].mean(),
    ("Tunix", '`loss_agg_mode="sequence-mean-token-scale"`', 0): lambda: sums_of_sequences().mean() / 8.0,
    ("Tunix", '`loss_agg_mode="sequence-mean-token-scale"`', 1): lambda: sums_of_sequences().mean(),
    ("Tunix", '`loss_agg_mode="sequence-mean-token-sum-norm"`', 0): lambda: sums_of_sequences().sum() / B,
    ("Tunix", "`beta=0.04`, `kl_loss_mode", 0): lambda: 0.04 * (numbers("log_pi") - numbers("log_ref")),
    ("Tunix", "`beta=0.04`, `kl_loss_mode", 1): lambda: 0.02 * (numbers("log_pi") - numbers("log_ref")) ** 2,
    ("Tunix", "`beta=0.04`, `kl_loss_mode", 2): lambda: (
        0.04 * estimated_kl(numbers("log_pi") - numbers("log_ref"), "k3")
    ),
    ("Tunix", '`advantage_estimator="grpo"`', 0): lambda: (
        by_group(numbers("reward"))[0] / (np.repeat(numbers("reward").reshape(2, 3).std(axis=1, ddof=1), 3) + 1e-6)
    ),
    ("Tunix", '`advantage_estimator="grpo"`', 1): lambda: by_group(numbers("reward"))[0],
    ("Tunix", '`advantage_estimator="grpo"`', 2): lambda: np.array(
        [one - others.mean() for one, others in members(numbers("reward"))]
    ),
    ("Tunix", "`epsilon_low=None`", 0): lambda: dual_clipped(np.exp(numbers("l")), numbers("A"), 0.2, 0.28),
    ("Tunix", '`advantage_estimator="gae"`', 0): lambda: generalized_advantages(0.95),
    ("Tunix", '`advantage_estimator="gae"`', 1): lambda: whitened(numbers("A")),
    ("Tunix", "`beta=0.04`, `kl_method", 0): lambda: (
        numbers("token_reward") - 0.04 * estimated_kl(numbers("log_mu") - numbers("log_ref"), "k3")
    ),
    ("Tunix", "`clip_range_value=0.2`", 0): lambda: 0.5 * clipped_value_loss(0.2),
    ("Tunix", "metric", 0): lambda: -numbers("l")[np.asarray(_valid)].mean(),
}


@pytest.mark.parametrize(("project", "start", "number"), ORACLES)
def test_a_call_computes_what_the_project_computes(project: str, start: str, number: int) -> None:
    found = evaluate(project, named(ROWS, project, start, number))
    np.testing.assert_allclose(np.asarray(found), ORACLES[project, start, number](), rtol=2e-5, atol=1e-6)


def slope(ratio, advantage, low, high, cap=CAP):
    """Of a clipped loss with a dual clip, in the log-ratio."""
    held = np.where(advantage > 0, ratio > 1 + high, (ratio < 1 - low) | (ratio > cap))
    return np.where(held, 0.0, -ratio * advantage)


def slope_of_sequences(low, high, cap=CAP):
    """The derivative of a geometric mean is shared by the valid tokens."""
    of_sequence = slope(np.exp(mean_over_steps(u)), numbers("A_of_sequence"), low, high, cap)
    shared = of_sequence / np.asarray(_valid).sum(axis=0)
    return np.where(_valid, shared, 0.0)


def slope_of_weighted_kl(ratio):
    """Of `ratio * k3` where the ratio has the derivative of a probability."""
    to_reference = numbers("log_pi") - numbers("log_ref")
    return ratio * (estimated_kl(to_reference, "k3") + 1 - np.exp(-to_reference))


def slope_of_kl_cov():
    """Only the loss is divided by the number of valid tokens."""
    there, chosen = np.asarray(_valid), np.asarray(_valid) & (numbers("cov") >= 0.5)
    return np.where(there, -np.exp(u) * numbers("A") / there.sum(), 0.0) + np.where(chosen, np.sign(u), 0.0)


#: The derivatives of the projects' losses in `log_pi`, worked out by hand.
SLOPES = {
    ("AReaL", '`prox_logp_method="reuse_train_logp"`', 0): lambda: -numbers("A"),
    ("OpenRLHF", "`actor.eps_clip=0.2`", 0): lambda: slope(np.exp(u), numbers("A"), 0.2, 0.2),
    ("OpenRLHF", '`actor.policy_loss_type="gspo"`', 0): lambda: slope_of_sequences(0.2, 0.2),
    ("OpenRLHF", "`kl.use_loss=True`", 0): lambda: 0.01 * (numbers("log_pi") - numbers("log_ref")),
    ("slime", "`eps_clip=0.2`", 0): lambda: slope(np.exp(u), numbers("A"), 0.2, 0.28),
    ("slime", '`advantage_estimator="gspo"`', 0): lambda: slope_of_sequences(0.2, 0.28),
    ("slime", '`advantage_estimator="cispo"`', 0): lambda: -np.clip(np.exp(u), 0.8, 1.28) * numbers("A"),
    ("slime", "`use_kl_loss=False`", 0): lambda: 0.1 * (1 - np.exp(numbers("log_ref") - numbers("log_pi"))),
    ("slime", "`use_kl_loss=False`", 1): lambda: 0.1 * slope_of_weighted_kl(np.exp(u)),
    ("NeMo-RL", "`ratio_clip_min=0.2`", 0): lambda: slope(np.exp(u), numbers("A"), 0.2, 0.2),
    ("NeMo-RL", "`sequence_level_importance_ratios=False`", 0): lambda: slope_of_sequences(0.2, 0.2),
    ("NeMo-RL", "`use_cispo=False`", 0): lambda: -np.clip(np.exp(u), 0.8, 1.2) * numbers("A"),
    ("NeMo-RL", "`disable_ppo_ratio=False`", 0): lambda: -numbers("A"),
    ("SkyRL", '`policy_loss_type="dual_clip"`', 0): lambda: slope(np.exp(u), numbers("A"), 0.2, 0.28),
    ("SkyRL", '`policy_loss_type="importance_sampling"`', 0): lambda: -np.exp(u) * numbers("A"),
    ("SkyRL", '`policy_loss_type="kl_cov"`', 0): slope_of_kl_cov,
    ("SkyRL", '`policy_loss_type="gspo"`', 0): lambda: slope_of_sequences(0.2, 0.28, cap=np.inf),
    ("SkyRL", '`policy_loss_type="cispo"`', 0): lambda: -np.clip(np.exp(u), 0.0, 5.0) * numbers("A"),
    ("SkyRL", '`policy_loss_type="rollout_is"`', 0): lambda: icepop() / numbers("log_pi"),
    ("SkyRL", '`policy_loss_type="dppo"`', 0): dppo,
    ("SkyRL", "`use_kl_loss=True`", 0): lambda: 0.1 * (1 - np.exp(numbers("log_ref") - numbers("log_pi"))),
    ("Tinker", '`loss_fn="importance_sampling"`', 0): lambda: -np.exp(numbers("l")) * numbers("A"),
    ("Tinker", '`loss_fn="cispo"`', 0): lambda: -np.clip(np.exp(numbers("l")), 0.8, 1.2) * numbers("A"),
    ("Tinker", '`loss_fn="dro"`', 0): lambda: -numbers("A") + 0.05 * numbers("l"),
    ("Tunix", "`beta=0.04`, `kl_loss_mode", 0): lambda: np.full((T, B), 0.04),
    ("NeMo-RL", "`reference_policy_kl_penalty=0.01`", 0): lambda: 0.01 * slope_of_weighted_kl(1.0),
    ("NeMo-RL", "`use_on_policy_kl_approximation=False`", 0): lambda: 0.01 * slope_of_weighted_kl(np.exp(numbers("l"))),
}


@pytest.mark.parametrize(("project", "start", "number"), SLOPES)
def test_a_call_has_the_gradient_of_the_project(project: str, start: str, number: int) -> None:
    call = named(ROWS, project, start, number)
    found = jax.grad(lambda log_pi: jnp.sum(evaluate(project, call, log_pi)))(_log_pi)
    np.testing.assert_allclose(np.asarray(found), SLOPES[project, start, number](), rtol=2e-5, atol=1e-6)


def test_the_data_tell_the_bounds_apart() -> None:
    """Samples lie on both sides of each bound, so that an inverted or relative bound would show."""
    ratio = np.exp(lp)
    assert (ratio < 0.5).any()
    assert ((ratio > 0.5) & (ratio < 1 / 1.5)).any()
    assert ((ratio > 1.5) & (ratio < 2.0)).any()
    assert (np.exp(u) > 1.28).any()
    assert (np.exp(u) < 0.8).any()
    assert ((np.exp(u) > CAP) & (numbers("A") < 0)).any()
    geometric_mean = np.exp(mean_over_steps(lp))
    assert (geometric_mean < BOUNDS["low"]).any()
    assert kept(geometric_mean).any()
    assert (geometric_mean > BOUNDS["high"]).any()


def test_m2po_as_areal_has_it() -> None:
    """The largest squares are dropped until the mean of the rest is below the bound, whatever the advantage."""
    there = np.asarray(_valid)
    squares = np.sort(lp[there] ** 2)
    kept = [n for n in range(1, len(squares) + 1) if squares[:n].mean() < 0.04]
    limit = squares[max(kept) - 1]
    found = evaluate("AReaL", named(ROWS, "AReaL", "`m2_threshold", 0))
    np.testing.assert_array_equal(np.asarray(found), there & (lp**2 <= limit))


def test_optimal_token_baseline_of_several_turns_as_verl_has_it() -> None:
    """The first valid tokens of the answers of a group share a baseline, the second ones, and so on."""
    there, group = np.asarray(_valid).copy(), np.asarray(NAMES["group"])
    there[1, 0], there[0, 3], there[2, 4] = False, False, False
    returns, weight = numbers("returns"), np.cumsum(np.where(there, numbers("path"), 0.0), axis=0)
    expected = returns.copy()
    for members in ([0, 1, 2], [3, 4, 5]):
        steps = [np.flatnonzero(there[:, i]) for i in members]
        for k in range(max(len(t) for t in steps)):
            cells = [(t[k], i) for t, i in zip(steps, members, strict=True) if k < len(t)]
            baseline = sum(weight[cell] * returns[cell] for cell in cells) / sum(weight[cell] for cell in cells)
            for cell in cells:
                expected[cell] -= baseline if len(cells) > 1 else 0.0
    lengths = there.sum(axis=0)
    assert all(sorted(lengths[group == g])[-1] > sorted(lengths[group == g])[-2] for g in (0, 1))
    names = NAMES | {"valid": jnp.asarray(there), "path": jnp.asarray(weight, jnp.float32)}
    for number, name in ((1, "order"), (2, "baseline"), (0, "advantage")):
        names[name] = eval(named(ROWS, "verl", '`adv_estimator="tir_optimal_token_baseline"`', number), names)
    np.testing.assert_allclose(np.asarray(names["advantage"])[there], expected[there], rtol=2e-5, atol=1e-6)


def test_kl_cov_as_skyrl_has_it_from_the_covariances() -> None:
    """Over divided advantages the tokens of the largest covariances are the same."""
    there = np.asarray(_valid)
    number = there.sum()
    advantage = numbers("A") / number
    cov = (advantage - advantage[there].mean()) * (numbers("log_pi") - numbers("log_pi")[there].mean())
    largest = np.sort(cov[there])[-int(0.2 * number) :]
    expected = (-advantage * np.exp(u) + np.where(cov >= largest[0], np.abs(u), 0.0))[there].sum()
    names = NAMES | OPTIONS["SkyRL"]
    names["cov"] = eval(named(ROWS, "SkyRL", '`policy_loss_type="kl_cov"`', 1), names)
    names["cut"] = np.sort(np.asarray(names["cov"])[there])[-len(largest)]
    found = eval(named(ROWS, "SkyRL", '`policy_loss_type="kl_cov"`', 0), names)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=2e-5)
