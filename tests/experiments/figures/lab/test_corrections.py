"""The study of corrections: its losses on the policy that acted and by hand, its lags, and the fall of a return."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from experiments import command
from experiments.figures.lab import corrections
from experiments.figures.lab.rules import RULES, Ruled
from stellaris.algorithms.actor_critic import Evaluated
from tests.experiments.csv_rows import rows

ADVANTAGE = jnp.array([1.0, -2.0, 0.5, 0.0])


def policy(log_ratio, log_prob=-1.0):
    log_ratio = jnp.asarray(log_ratio, jnp.float32)
    zeros = jnp.zeros_like(log_ratio)
    return Evaluated(log_prob + log_ratio, log_ratio, zeros, zeros)


def gradient(rule, log_ratio, newest=0.0, log_prob=-1.0, advantage=ADVANTAGE):
    """The derivatives of the samples' losses by their log-probabilities under the policy that learns."""

    def loss(moved):
        of = policy(moved, log_prob)
        return Ruled(rule=rule).policy_loss(of, jnp.full_like(moved, newest), advantage).sum()

    return jax.grad(loss)(jnp.asarray(log_ratio, jnp.float32))


@pytest.mark.parametrize("rule", RULES)
def test_without_staleness_every_rule_is_the_policy_gradient(rule):
    np.testing.assert_allclose(gradient(rule, jnp.zeros(4)), -ADVANTAGE, rtol=1e-5)


@pytest.mark.parametrize(
    ("rule", "ratio", "slope"),
    [
        # Ratios that moved outward, and back, by an advantage of 1: the weight of the policy gradient, by hand.
        ("PPO", [1.3, 0.7], [0.0, 0.7]),
        ("wide clip", [1.25, 1.3, 0.7], [1.25, 0.0, 0.7]),
        ("truncated weights", [1.3, 3.0, 0.1], [1.3, 2.0, 0.1]),
        ("masked weights", [0.4, 0.6, 4.0, 6.0], [0.0, 0.6, 4.0, 0.0]),
        ("CISPO", [1.3, 0.7], [1.2, 0.7]),
        ("SAPO", [2.0], [4 * 2.0 * 0.19661193]),  # 4 r s (1 - s) for s = sigmoid(1)
        # Of the squares 0.01 and 0.16 the mean is above 0.04, and the first alone is below.
        ("M2PO, mask", [np.exp(0.1), np.exp(0.4), np.exp(-0.9)], [np.exp(0.1), 0.0, np.exp(-0.9)]),
        # exp(-1) = 0.37 has moved to 0.55, by more than 0.15, and to 0.44.
        ("probability mask", [1.5, 1.2, 0.2], [0.0, 1.2, 0.2]),
    ],
)
def test_rules_by_hand(rule, ratio, slope):
    found = gradient(rule, np.log(ratio), advantage=jnp.ones(len(ratio)))
    np.testing.assert_allclose(found, -np.array(slope), rtol=1e-5, atol=1e-7)


def test_rules_around_the_newest_policy_by_hand():
    """The newest policy has twice the probability of the one that acted, or six times."""
    one = jnp.ones(1)
    # The ratio to the newest is 1.1, inside its trust region; to the one that acted it is 2.2.
    np.testing.assert_allclose(gradient("AReaL", np.log([2.2]), np.log(2.0), -3.0, one), [-2.2], rtol=1e-5)
    np.testing.assert_allclose(gradient("AReaL", np.log([6.6]), np.log(6.0), -3.0, one), [0.0], atol=1e-7)
    np.testing.assert_allclose(gradient("KPop", np.log([2.2]), np.log(2.0), -3.0, one), [-2.2], rtol=1e-5)
    # From 0.2 to 0.6: 0.6 log 3 + 0.4 log 0.5 = 0.38 nats are more than 0.1.
    np.testing.assert_allclose(gradient("KPop", np.log([3.0]), np.log(3.0), np.log(0.2), one), [0.0], atol=1e-7)


def test_a_fall_is_one_that_lasts():
    """The mean of 16 updates stays below half of its best; a return that recovers or never falls does not count."""
    steps = np.arange(100)
    returns = np.stack([np.where(steps < 50, 10.0, 1.0), np.where(abs(steps - 50) < 20, 1.0, 10.0), 10.0 + steps])
    result = xr.Dataset({"episode_return": (("seed", "update"), returns)})
    found = corrections.fallen(result, "episode_return").tolist()
    # With n of the 16 updates after the 50th the mean is 10 - 9 n / 16: below 5 from n = 9 on, so after update 59.
    assert found == [59, 0, 0]


@pytest.mark.parametrize("kind", ["constant", "sawtooth", "maximum"])
def test_patterns_have_the_same_mean(kind):
    ages = corrections.pattern(kind, 8).ages(17_000)
    assert ages.mean() == pytest.approx(8, abs=0.1)
    assert (ages.min(), ages.max()) == ((8, 8) if kind == "constant" else (0, 16))


@pytest.mark.slow
def test_the_study(tmp_path):
    """A row per run in a table per part, with the settings of the cell."""
    assert command.main(["lab-corrections", "--preset", "smoke", "--out", str(tmp_path)]) == 0
    found = rows(tmp_path / "lags_CartPole.csv")
    assert len(found) == 2 * 2 * 2 * 2
    assert {row["method"] for row in found} == {"truncated weights", "SAPO"}
    assert all(float(row["final_return"]) > 5 for row in found)
    assert {row["kind"] for row in rows(tmp_path / "patterns_CartPole.csv")} == {"sawtooth"}
    assert {row["updates"] for row in rows(tmp_path / "border_CartPole.csv")} == {"40"}
    assert command.main(["lab-corrections", "--tasks", "Maze", "--out", str(tmp_path)]) == 2
