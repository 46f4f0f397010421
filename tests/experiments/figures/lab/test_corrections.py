"""The study of corrections: its losses on the policy that acted and by hand, its lags, and its tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from experiments import command
from experiments.figures.lab import corrections, lag
from experiments.figures.lab.rules import RULES, Ruled
from experiments.lab.patterns import pattern
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


@pytest.mark.slow
def test_rules_around_the_newest_policy_by_hand():
    """The newest policy has twice the probability of the one that acted, or six times."""
    one = jnp.ones(1)
    # The ratio to the newest is 1.1, inside its trust region; to the one that acted it is 2.2.
    np.testing.assert_allclose(gradient("AReaL", np.log([2.2]), np.log(2.0), -3.0, one), [-2.2], rtol=1e-5)
    np.testing.assert_allclose(gradient("AReaL", np.log([6.6]), np.log(6.0), -3.0, one), [0.0], atol=1e-7)
    np.testing.assert_allclose(gradient("KPop", np.log([2.2]), np.log(2.0), -3.0, one), [-2.2], rtol=1e-5)
    # From 0.2 to 0.6: 0.6 log 3 + 0.4 log 0.5 = 0.38 nats are more than 0.1.
    np.testing.assert_allclose(gradient("KPop", np.log([3.0]), np.log(3.0), np.log(0.2), one), [0.0], atol=1e-7)


@pytest.mark.parametrize("kind", ["constant", "sawtooth", "maximum", "mixed"])
def test_patterns_have_the_same_mean(kind):
    of = pattern(kind, 8, actors=16)
    ages = of.ages_of(2, actors=16) if kind == "mixed" else of.ages(17_000)
    assert ages.mean() == pytest.approx(8, abs=0.1)
    assert (ages.min(), ages.max()) == ((8, 8) if kind == "constant" else (0, 16))


def test_runs_without_numbers_have_the_floor(monkeypatch, tmp_path):
    """A run whose loss becomes NaN and one in which no episode ends have an untrained policy's return."""
    updates = 40
    returns = np.stack([np.full(updates, value) for value in (-100.0, -120.0, np.nan)])
    loss = np.stack([np.where(np.arange(updates) < 30, 1.0, np.nan), np.ones(updates), np.ones(updates)])
    columns = {
        "episode_return": returns,
        "episodes": np.where(np.isnan(returns), 0, 2),
        "effective_sample_fraction": np.ones_like(returns),
        "loss": loss,
    }
    dimensions = ("algorithm", "lag", "algorithm.learning_rate", "seed", "update")
    variables = {name: (dimensions, column[None, None, None]) for name, column in columns.items()}
    result = xr.Dataset(variables, {"update": np.arange(1, updates + 1), "updates": updates})
    monkeypatch.setattr(corrections, "sweep", lambda *_, **__: result)
    part = corrections.Part(("PPO",), (2,), (1e-3,), updates=updates)
    broken, good, silent = corrections.run(lag.PRESETS["small"], "Acrobot-v1", part, tmp_path)
    floor = corrections.floor_of("Acrobot-v1")
    assert floor == pytest.approx(-500, abs=2)
    found = (broken["final_return"], silent["final_return"], silent["best_return"])
    assert found == pytest.approx((floor,) * 3, abs=0.1)
    assert (broken["diverged"], broken["mean_return"], broken["best_return"]) == (31, -100.0, -100.0)
    assert (good["final_return"], good["diverged"]) == (-120.0, 0)


@pytest.mark.slow
def test_the_study(tmp_path):
    """A row per run in a table per part, with the settings of the cell."""
    assert command.main(["lab-corrections", "--preset", "smoke", "--out", str(tmp_path)]) == 0
    found = rows(tmp_path / "lags_CartPole.csv.gz")
    assert len(found) == 2 * 2 * 2 * 2
    assert {row["method"] for row in found} == {"PPO", "SAPO"}
    assert all(float(row["final_return"]) > 5 for row in found)
    assert {row["kind"] for row in rows(tmp_path / "patterns_CartPole.csv.gz")} == {"sawtooth"}
    assert {row["updates"] for row in rows(tmp_path / "border_CartPole.csv.gz")} == {"40"}
    (mixed,) = rows(tmp_path / "mixed.csv")
    assert (mixed["method"], mixed["mean_lag"]) == ("PPO", "2")
    answers = {path: path.read_text() for path in tmp_path.glob("*.csv")}
    assert {"best.csv", "q1.csv", "q2.csv", "q3.csv", "q4.csv", "recommended.csv"} <= {path.name for path in answers}
    evaluated = rows(tmp_path / "newest_CartPole.csv.gz")
    # The same runs, scored by the last evaluation, which has two episodes.
    assert [row["best_return"] for row in evaluated] == [row["best_return"] for row in found]
    assert [row["final_return"] for row in evaluated] != [row["final_return"] for row in found]
    assert all((2 * float(row["final_return"])).is_integer() for row in evaluated)
    assert (tmp_path / "newest_half.csv").exists()
    assert (tmp_path / "newest_CartPole.png").exists()
    assert command.main(["lab-corrections", "--preset", "smoke", "--parts", "report", "--out", str(tmp_path)]) == 0
    assert {path: path.read_text() for path in tmp_path.glob("*.csv")} == answers
    assert command.main(["lab-corrections", "--tasks", "Maze", "--out", str(tmp_path)]) == 2
