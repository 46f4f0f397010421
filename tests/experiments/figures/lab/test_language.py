"""The study on the language task: its switch between losses, its rows by hand, and its answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

from experiments import command
from experiments.figures.lab.language import Age, Part, rows
from experiments.figures.lab.language_report import dip
from experiments.figures.lab.outcomes import Cells
from experiments.figures.lab.switched import METHODS, Switched
from stellaris.lab.language import Answering, Sorting
from stellaris.lab.language.learning import Tokens
from stellaris.reductions import reduce_loss
from tests.experiments.csv_rows import rows as csv_rows

ENV = Answering(Sorting(most=3), group=4)


def tokens(log_ratio):
    """Four answers of up to three tokens, with ratios on both sides of every bound, and one answer that is missing."""
    valid = jnp.arange(3)[:, None] < jnp.array([3, 1, 2, 0])
    advantage = jnp.broadcast_to(jnp.array([1.0, -2.0, 0.5, 3.0]), valid.shape) * valid
    log_ratio = jnp.where(valid, log_ratio, 0.0)
    return Tokens(log_ratio - 1.0, log_ratio, jax.lax.stop_gradient(log_ratio), advantage, valid, None)


RATIO = jnp.log(jnp.array([[0.4, 6.0, 1.1, 1.0], [2.5, 1.0, 0.7, 1.0], [1.2, 1.0, 1.0, 1.0]]))


@pytest.mark.slow
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


def result(part, exact, loss=None):
    """The result of a sweep of `part` in which the share of exact answers, and the reward, is `exact` in every run."""
    shape = (len(part.methods), len(part.ages), len(part.rates), part.seeds, part.updates)
    values = np.broadcast_to(np.asarray(exact, float), shape)
    several = {
        "exact": values,
        "reward": values,
        "effective_answers": np.ones(shape),
        "loss": values if loss is None else np.broadcast_to(loss, shape),
        "data_lag_mean": np.full(shape, 3.0),
        "gradient_cosine": np.concatenate([np.zeros((*shape[:-1], 1)), np.full(shape, 0.5)[..., 1:]], axis=-1),
    }
    names = ("method", "age", "rate", "seed", "update")
    return xr.Dataset({name: (names, column) for name, column in several.items()})


PART = Part(("GRPO",), [Age("constant", 0)], (1e-3,), seeds=1, updates=40)


def test_a_row_by_hand():
    """The last fifth are 8 of 40 updates; the mean of 16 falls below half of its best with the eighth low update."""
    exact = np.where(np.arange(40) < 20, 0.8, 0.05)
    exact[0] = 0.1  # of the untrained policy
    (row,) = rows(PART, result(PART, exact))
    assert (row["final_exact"], row["mean_exact"], row["untrained"]) == (0.05, 0.4075, 0.1)
    assert (row["measured_lag"], row["cosine"], row["diverged"]) == (3.0, 0.5, 0)
    # 0.7 above the floor, then 0.05 below it: (16 - n) 0.7 - n 0.05 is below 16 * 0.35 from n = 8 on: after update 28.
    assert (row["reward_fell"], row["effective_fell"], row["best_reward"]) == (28, 0, 0.8)


def test_a_run_without_numbers_has_the_outcome_of_the_untrained_policy():
    exact = np.where(np.arange(40) < 1, 0.1, 0.9)
    (row,) = rows(PART, result(PART, exact, np.where(np.arange(40) < 30, 0.0, np.nan)))
    assert (row["final_exact"], row["diverged"]) == (0.1, 31)


def test_the_dip_is_judged_at_the_nearest_rate():
    """At 6e-3, the nearest to 2e-2, one of two seeds has a dip; at 1e-3 none has."""
    table = [
        {"method": "GRPO", "lag": lag, "learning_rate": rate, "seed": seed, "final_return": high, "mean_return": 0}
        for lag in (1, 2, 4, 8)
        for rate in (1e-3, 6e-3)
        for seed in (0, 1)
        for high in [0.1 if (lag, rate, seed) == (4, 6e-3, 1) else 0.8]
    ]
    cells = Cells(["GRPO"], [0], [2e-2], np.zeros(0), np.zeros(0), floor=0.0)
    (row,) = dip(table, cells, 2e-2)
    assert (row["learning_rate"], row["seeds"], row["share"]) == (6e-3, 2, 0.5)
    assert row["expected"] == pytest.approx(1 / 6, rel=1e-4)


def test_a_report_needs_the_part_lags(tmp_path, capsys):
    assert command.main(["lab-language", "--parts", "report", "--out", str(tmp_path)]) == 2
    assert "run the part lags first" in capsys.readouterr().err


@pytest.mark.slow
def test_the_study(tmp_path):
    """A row per run in a table per part, and the answers, which the report writes anew from these tables."""
    assert command.main(["lab-language", "--preset", "smoke", "--out", str(tmp_path)]) == 0
    found = csv_rows(tmp_path / "lags.csv")
    assert len(found) == 2 * 2 * 2 * 2
    assert {row["method"] for row in found} == {"GRPO", "SAPO"}
    assert {row["measured_lag"] for row in found if row["lag"] == "0"} == {"0.0"}
    assert {row["kind"] for row in csv_rows(tmp_path / "patterns.csv")} == {"sawtooth", "maximum"}
    assert {row["updates"] for row in csv_rows(tmp_path / "border.csv")} == {"18", "20"}
    answers = {name: (tmp_path / f"{name}.csv").read_text() for name in ("best", "half", "q1", "q2", "q5", "q6")}
    assert command.main(["lab-language", "--parts", "report", "--out", str(tmp_path)]) == 0
    assert {name: (tmp_path / f"{name}.csv").read_text() for name in answers} == answers
