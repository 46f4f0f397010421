"""Returns after as many steps, from made-up sides: nothing is installed, and no peer is run."""

import pytest

from experiments import tuning_steps
from experiments.benchmarks import peers, returns
from experiments.benchmarks.running import Side
from experiments.benchmarks.sides import ours
from experiments.benchmarks.sides.protocol import Round
from stellaris.systems import Synchronous
from tests.experiments import csv_rows

pytestmark = pytest.mark.slow

NAMES = ("synchronous system, tuned", *(side.name for side in returns.PEERS))


@pytest.fixture
def chosen(monkeypatch):
    name = next(iter(tuning_steps.SETTINGS))
    monkeypatch.setattr(tuning_steps, "CHOSEN", name)
    return tuning_steps.SETTINGS[name]


@pytest.fixture
def ran(monkeypatch):
    """The sides that are run, each of which returns 100 times its place, and its seed more."""
    sides = []

    def run(side, way):
        sides.append(side)
        returned = 100.0 * (1 + NAMES.index(side.name)) + side.task.seed
        return [Round(1.0, 2048, None), Round(60.0, tuning_steps.STEPS, returned)]

    monkeypatch.setattr(returns, "run", run)
    monkeypatch.setattr(Side, "python", lambda side, say: None)
    return sides


def test_every_side_trains_in_turn_with_every_seed(chosen, ran, tmp_path):
    """By hand: over seeds 0 to 4 the interquartile means are 102, 202, 302 and 402, and 102 / 402 is judged."""
    said = []
    rows = list(peers.measure(said.append, returns=5, out=tmp_path))
    assert [(side.name, side.task.seed) for side in ran] == [(name, seed) for seed in range(5) for name in NAMES]
    assert {(side.task.steps, side.task.scale_rewards) for side in ran} == {(102_400, True)}
    assert len(said) == len(ran)
    assert [row.ratio for row in rows] == pytest.approx([102 / 202, 102 / 302, 102 / 402])
    assert [row.wanted for row in rows] == ["", "", ">= 0.95"]
    assert rows[0].what == f"{NAMES[0]}, return after 102,400 steps, against {NAMES[1]}, 5 seeds"
    assert rows[0].measured.startswith("102 (10")
    written = csv_rows.rows(tmp_path / "peers-returns" / "runs.csv")
    assert [float(row["return"]) for row in written if row["side"] == NAMES[2]] == [300, 301, 302, 303, 304]


def test_runs_are_kept_when_a_side_fails(chosen, ran, monkeypatch, tmp_path):
    run = returns.run
    monkeypatch.setattr(returns, "run", lambda side, way: run(side, way)[: 1 if side.task.seed else 2])
    with pytest.raises(RuntimeError, match="the last round was after 2,048 steps, not 102,400"):
        list(returns.measure(str, 2, tmp_path))
    assert [row["side"] for row in csv_rows.rows(tmp_path / "peers-returns" / "runs.csv")] == [*NAMES]


def test_a_run_without_a_result_is_an_error():
    side = returns.PEERS[0]
    assert returns.last_round(side, [Round(1.0, 2048, None), Round(2.0, tuning_steps.STEPS, 7.0)]).episode_return == 7.0
    with pytest.raises(RuntimeError, match=r"Stable-Baselines3, defaults: .* after 0 steps"):
        returns.last_round(side, [])
    with pytest.raises(RuntimeError, match="fewer than 100 episodes"):
        returns.last_round(side, [Round(2.0, tuning_steps.STEPS, None)])


@pytest.mark.parametrize("setting", tuning_steps.SETTINGS.values(), ids=lambda setting: setting.name)
def test_our_side_trains_what_was_tuned(monkeypatch, setting):
    trained = []
    monkeypatch.setattr(ours, "train", lambda system, workload, **options: trained.append((system, workload)))
    ours.main(returns.ours(setting).task, threads=1)
    tuned = tuning_steps.variant("Hopper-v4", setting)
    assert trained == [(Synchronous(setting.ppo), tuned.workload)]
    assert trained[0][0] == tuned.contender.system
