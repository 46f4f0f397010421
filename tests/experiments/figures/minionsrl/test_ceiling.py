"""The ceiling: which schedules are compared, which is the best, and how much it gains on other seeds."""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from experiments.figures.minionsrl import ceiling
from experiments.figures.minionsrl.ceiling import PRESETS, Runs, Schedule, best
from experiments.tasks import minionsrl


def runs(*seconds: float) -> Runs:
    """Runs that took so long; a run that took longer cost less."""
    column = np.array(seconds)
    return Runs(column, np.where(np.isfinite(column), 10 - column, np.inf), column, column)


def test_schedules() -> None:
    assert (Schedule(8, 2, 3).numbers, Schedule(5, 5, 0).numbers) == ([8, 8, 8, 2], [5])
    schedules = [*PRESETS["small"].schedules()]
    assert [one.first for one in schedules if one.change == 0] == [*range(1, 33)]
    assert len(schedules) == len(set(schedules)) == 32 + 7 * 6 * 5
    assert all(one.first != one.then for one in schedules if one.change)


def test_the_best_has_the_least_median() -> None:
    """Of its kind; a schedule fails if most of its runs do."""
    failed = float("inf")
    them = {
        Schedule(1, 1, 0): runs(3.0, 9.0, 9.0),
        Schedule(2, 2, 0): runs(8.0, 7.0, failed),
        Schedule(3, 3, 0): runs(1.0, failed, failed),
        Schedule(2, 1, 4): runs(5.0, 5.0, 5.0),
    }
    assert best(them, "seconds", fixed=True) == Schedule(2, 2, 0)
    assert best(them, "seconds", fixed=False) == Schedule(2, 1, 4)
    assert best(them, "cost", fixed=True) == Schedule(1, 1, 0)


def test_ratios_are_of_seeds_that_both_have() -> None:
    ratio = ceiling._ratio("gain", np.array([1.0, 6.0, np.inf, 4.0]), np.array([2.0, 4.0, 5.0, np.inf]))
    assert ratio == {"gain": 1.0, "gain_low": 0.5, "gain_high": 1.5, "gain_seeds": 2}


def test_testbeds() -> None:
    """With the authors' learner, every round has 30 gradients, and 32 actors have three quarters of a round's cost."""
    for ppo, functions in list(ceiling.testbeds().values())[1:]:
        assert (ppo.epochs, ppo.minibatch_size) == (30, 32 * 128)
        rate = minionsrl.serverless_prices()[0].functions["actor"]
        seconds = {name: spec.compute.mean for name, spec in functions.items()}  # type: ignore[attr-defined]
        price = {name: rate.usd_per_second(spec.resources) for name, spec in functions.items()}
        actors = 32 * 128 * seconds["actor"] * price["actor"]
        assert actors / (actors + 30 * seconds["learner"] * price["learner"]) == pytest.approx(0.75, abs=0.02)


def test_runs_belong_to_their_schedules() -> None:
    """Also if several schedules are run together; a run that failed took forever."""

    class Made:
        def play(self, each: Sequence[Sequence[int]], seeds: Sequence[int], *, block: int | None) -> Any:
            assert block == 12
            values = np.array([100.0 * sum(numbers) + seed for numbers, seed in zip(each, seeds, strict=True)])
            last = {"seconds": values, "costs": values[:, None] + 0.5, "steps": values + 1}
            return SimpleNamespace(reached=np.array(seeds) != 7, rounds=values + 2, last=last.__getitem__)

    several = [Schedule(3, 3, 0), Schedule(1, 2, 2)]
    found = ceiling.measured(cast(Any, Made()), several, (5, 7), block=12)
    assert [*found] == several
    assert found[several[0]].seconds.tolist() == [305.0, np.inf]
    assert found[several[1]].cost.tolist() == [405.5, np.inf]
    assert found[several[1]].rounds.tolist() == [407.0, np.inf]


@pytest.mark.slow
def test_smoke(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    ceiling.add_arguments(parser)
    words = ["--preset", "smoke", "--testbeds", "tuned", "--out", str(tmp_path)]
    assert ceiling.main(parser.parse_args(words)) == 0
    with (tmp_path / "schedules_tuned.csv").open(newline="") as file:
        assert [(row["first"], row["then"], row["reached"]) for row in csv.DictReader(file)] == [
            ("2", "2", "2"),
            ("4", "4", "2"),
            ("2", "4", "2"),
            ("4", "2", "2"),
        ]
    with (tmp_path / "best_tuned.csv").open(newline="") as file:
        assert [row["objective"] for row in csv.DictReader(file)] == ["seconds", "cost"]
    assert (tmp_path / "ceiling_tuned.png").stat().st_size > 0
