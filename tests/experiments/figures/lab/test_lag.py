"""Return against lag: its outcomes by hand, and the study from start to end at its smallest."""

import math
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import command
from experiments.figures.lab import lag, newest
from experiments.figures.lab.methods import Capped, methods
from experiments.figures.lab.outcomes import Cells, at_best, curves, free_lag, half_lag, halves, shared_rate
from stellaris.algorithms.actor_critic import Evaluated
from stellaris.lab import CartPole
from tests.experiments.committed import RESULTS
from tests.experiments.csv_rows import rows


def test_the_lag_at_which_half_is_lost_by_hand():
    lags = (0, 1, 3, 7)
    assert half_lag(lags, np.array([10.0, 9.0, 4.0, 0.0])) == pytest.approx(2**1.8 - 1, abs=1e-3)
    assert half_lag(lags, np.array([10.0, 5.0, 9.0, 9.0])) == 1.0
    assert half_lag(lags, np.array([10.0, 9.0, 8.0, 5.1])) == math.inf
    assert math.isnan(half_lag(lags, np.array([-1.0, 0.0, 0.0, 0.0])))


def test_the_best_rate_is_chosen_on_the_seeds_that_are_not_reported():
    """Seeds 0 and 2 favour rate 0, seeds 1 and 3 rate 1: each half reports what the other half has chosen."""
    score = np.array([[[[9.0, 1.0, 9.0, 1.0], [2.0, 8.0, 2.0, 8.0]]]])
    assert at_best(score).tolist() == [[[2.0, 1.0, 2.0, 1.0]]]
    same = np.array([[[[1.0, 2.0], [3.0, 4.0]]]])
    assert at_best(same).tolist() == [[[3.0, 4.0]]]


def test_the_shared_rate_is_the_best_of_ppo_without_lag():
    score = np.zeros((2, 2, 3, 4))
    score[0, 0, 0] = score[1, 1, 1] = 9.0
    score[1, 0, 2] = 1.0
    assert shared_rate(score, ["V-trace", "PPO"]) == 2


def test_the_free_lag_by_hand():
    """The largest lag that keeps nine tenths, even if a smaller one does not."""
    assert free_lag((0, 1, 2, 4), np.array([10.0, 8.9, 9.0, 8.0])) == 2
    assert free_lag((0, 1), np.array([10.0, 0.0])) == 0


def test_the_curves():
    """Means above the floor at both rates; equal seeds have no interval, and different ones have one."""
    final = np.zeros((2, 2, 2, 4))
    final[0, 0], final[1, 1] = [[10.0], [30.0]], [[20.0, 40.0, 20.0, 40.0], [0.0] * 4]
    rows = {
        (row["method"], row["rate"], row["lag"]): (row["low"], row["score"], row["high"])
        for row in curves("task", Cells(["PPO", "other"], (0, 3), (1e-3, 1e-2), final, final, floor=5.0))
    }
    assert rows["PPO", "best", 0] == rows["PPO", "shared", 0] == (25.0, 25.0, 25.0)
    assert rows["other", "best", 3][1] == 25.0
    assert rows["other", "best", 3][0] < 25.0 < rows["other", "best", 3][2]
    assert rows["other", "shared", 3] == (-5.0, -5.0, -5.0)


def test_an_interval_beyond_the_last_lag_says_so():
    final = np.broadcast_to(np.array([100.0, 90.0, 80.0])[None, :, None, None], (1, 3, 1, 4)).copy()
    cells = Cells(["PPO"], (0, 1, 2), (1e-3,), final, final, floor=0.0)
    best, shared = halves("task", cells)
    assert (best["half"], best["interval"], shared["learning_rate"]) == ("> 2", "> 2 to > 2", 1e-3)


def ratios(own, newest):
    """A policy with these ratios to the behaviour policy, and the newest one's log-ratios."""
    own = jnp.log(jnp.asarray(own))
    return Evaluated(own, own, jnp.zeros_like(own), jnp.zeros_like(own)), jnp.log(jnp.asarray(newest))


@pytest.mark.parametrize(
    ("bounded", "truncated"),
    [
        # Ratios 1.15 and 1.1: the demo's cap is 1.1, the theorem's 1. Ratios 1.15 and 0.9: caps of 1 and 0.9.
        (False, [1.1, 1.0, 0.95, 1.0]),
        (True, [1.0, 0.9, 0.95, 1.0]),
    ],
)
def test_both_caps_by_hand(bounded, truncated):
    method = Capped(bounded=bounded)
    policy, newest = ratios([1.15, 1.15, 0.95, 1.0], [1.1, 0.9, 1.1, 1.0 + 1e-7])
    np.testing.assert_allclose(method.policy_loss(policy, newest, jnp.ones(4)), -np.array(truncated), rtol=1e-5)
    slope = jax.grad(lambda x: method.policy_loss(policy._replace(log_ratio=x), newest, jnp.ones(4)).sum())
    # Truncated samples have no gradient; the last one is at the cap but for rounding, and has all of it.
    np.testing.assert_allclose(slope(policy.log_ratio), [0, 0, -0.95, -1.0], rtol=1e-5)


def test_all_methods_have_as_many_gradients_of_as_many_samples():
    several = methods(epochs=2, minibatch_size=128, fragment=16)
    assert len(several) == 7
    for name, method in several.items():
        per_item = 16 if name == "V-trace" else 1
        assert (method.epochs, method.minibatch_size * per_item) == (2, 128), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "answer"),
    [
        ("lab-lag", "half.csv"),
        ("lab-newest", "half.csv"),
        ("lab-corrections", "mixed.csv"),
        ("lab-language", "best.csv"),
        ("lab-gradients", "best.csv"),
    ],
)
def test_the_committed_tables_are_written_again(study, answer, tmp_path):
    """The part `report` reads the runs, and writes the same tables; one of them is removed before."""
    copy = tmp_path / study
    shutil.copytree(RESULTS / study, copy)
    (copy / answer).unlink()
    assert command.main([study, "--parts", "report", "--out", str(copy)]) == 0
    for path in (RESULTS / study).glob("*.csv"):
        assert (copy / path.name).read_text() == path.read_text(), path.name


@pytest.mark.slow
def test_tables_keep_the_tasks_of_earlier_commands(tmp_path, monkeypatch):
    """Two commands of one task each write the files that one command of both tasks writes."""
    task = lag.Task(CartPole(), (0, 2))
    preset = replace(lag.PRESETS["smoke"], tasks={"one": task, "two": task})
    monkeypatch.setitem(lag.PRESETS, "smoke", preset)
    rng = np.random.default_rng(0)
    shape = (7, 2, len(preset.rates), preset.seeds)
    names = [*methods(epochs=2, minibatch_size=128, fragment=16)]
    outcomes = [rng.integers(0, 500, shape) / 10 for _ in range(4)]
    outcomes[0][0, 0, 0, 0] = math.nan  # no episode ended
    several = {
        0: Cells(names, task.lags, preset.rates, outcomes[0], outcomes[1], floor=3.5),
        1: Cells(names, task.lags, preset.rates, outcomes[2], outcomes[3], floor=7.5),
    }

    def study(folder, *tasks_and_cells):
        for tasks, cells in tasks_and_cells:
            made = iter(cells)
            monkeypatch.setattr(lag, "run", lambda *_, made=made: several[next(made)])
            assert command.main(["lab-lag", "--preset", "smoke", "--tasks", *tasks, "--out", str(folder)]) == 0
        return [(folder / name).read_text() for name in ("runs.csv", "half.csv")]

    together = study(tmp_path / "together", (["one", "two"], [0, 1]))
    assert study(tmp_path / "apart", (["two"], [1]), (["one"], [0])) == together
    # With other settings, the earlier runs are not of this study.
    monkeypatch.setitem(lag.PRESETS, "smoke", replace(preset, updates=16))
    assert "two" not in study(tmp_path / "apart", (["one"], [0]))[0]


@pytest.mark.slow
def test_the_study_from_start_to_end(tmp_path, capsys):
    assert command.main(["lab-lag", "--preset", "smoke", "--out", str(tmp_path)]) == 0
    tables = {path: path.read_text() for path in tmp_path.glob("*.csv")}
    (tmp_path / "best.png").unlink()
    assert command.main(["lab-lag", "--preset", "smoke", "--parts", "report", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "best.png").exists()
    assert {path: path.read_text() for path in tmp_path.glob("*.csv")} == tables
    empty = str(tmp_path / "empty")
    assert command.main(["lab-lag", "--preset", "smoke", "--parts", "report", "--out", empty]) == 2
    table = rows(tmp_path / "runs.csv")
    preset = lag.PRESETS["smoke"]
    assert len(table) == 7 * 2 * len(preset.rates) * preset.seeds
    assert len({row["final_return"] for row in table}) > 20
    assert {row["rate"] for row in rows(tmp_path / "half.csv")} == {"best", "shared"}
    assert all((tmp_path / f"{name}.png").stat().st_size > 10_000 for name in ("best", "shared"))
    assert "CartPole:" in capsys.readouterr().out
    assert command.main(["lab-lag", "--tasks", "Maze"]) == 2


def test_the_newest_policys_outcome_is_of_the_last_evaluations():
    """Of 20 updates the last fifth are four, of which two were evaluated; the sampled episodes do not count."""
    xarray = pytest.importorskip("xarray")
    preset = replace(newest.PRESETS["smoke"], updates=20)
    evaluated = np.full((1, 1, 1, 2, 20), np.nan)
    evaluated[..., [9, 17, 19]] = [[100.0, 10.0, 30.0], [100.0, 1.0, 2.0]]
    dims = ("algorithm", "lag", "algorithm.learning_rate", "seed", "update")
    result = xarray.Dataset(
        {
            "evaluation_return": (dims, evaluated),
            "episode_return": (dims, np.full(evaluated.shape, 7.0)),
            "episodes": (dims, np.ones(evaluated.shape, int)),
        },
        {"update": np.arange(1, 21), "updates": (dims[:-1], np.full(evaluated.shape[:-1], 20))},
    )
    assert lag.returns(preset, result, lag.TAIL).tolist() == [[[[20.0, 1.5]]]]
    assert lag.returns(preset, result, 1.0).ravel() == pytest.approx([140 / 3, 103 / 3], rel=1e-4)
    assert lag.returns(replace(preset, evaluation=None), result, 1.0).tolist() == [[[[7.0, 7.0]]]]


@pytest.mark.slow
def test_the_newest_policys_runs(tmp_path, monkeypatch):
    """Evaluations play whole episodes of CartPole: two in each of the two evaluations of the last fifth."""
    few = {"PPO": methods(epochs=1, minibatch_size=128, fragment=16)["PPO"]}
    monkeypatch.setattr(lag, "methods", lambda **_: few)
    preset = newest.PRESETS["smoke"]
    cells = lag.run(preset, preset.tasks["CartPole"], tmp_path)
    assert cells.final.shape == (1, 2, 2, 2)
    assert all((4 * x).is_integer() for x in cells.final.ravel().tolist())
    assert cells.floor > 8
