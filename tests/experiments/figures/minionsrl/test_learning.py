"""Schedulers trained in several ways: the settings that are searched, what is chosen, and what is reported."""

import argparse
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from experiments.figures.minionsrl import ceiling, learning, outcomes
from experiments.figures.minionsrl.learning import PRESETS, Trained
from experiments.figures.minionsrl.outcomes import References
from experiments.figures.minionsrl.ways import WAYS, WHOLE, drawn, settings
from experiments.tasks import minionsrl
from experiments.toolkit import shell
from experiments.toolkit.output import read_rows
from stellaris.lab import Played
from stellaris.lab.rounds.program import Row
from stellaris.scheduling import Learned


def played(*seconds: float) -> Played:
    """Runs of one round that took so long, with 4 actors, and cost a tenth in USD."""
    column = np.array(seconds)
    reached = np.isfinite(column)
    zeros = {name: np.zeros((len(column), 1)) for name in Row._fields}
    spent = np.where(reached, column, 99.0)[:, None]
    rows = Row(**{**zeros, "actors": zeros["actors"] + 4, "seconds": spent, "costs": spent[:, :, None] / 10})
    return Played(np.ones(len(column), int), reached, reached, rows, cast(Any, {"w": column}), ("usd",))


def test_the_settings_that_are_searched() -> None:
    """Are distinct, and the first of more; a decision for the whole run is learned from with more runs."""
    everything = drawn(10_000)
    assert len(everything) == len(set(everything)) == 3**5 * 4
    assert drawn(24) == everything[:24]
    assert {(way.hold, way.together) for way in everything} == {
        *((hold, together) for hold in (1, 5) for together in (1, 2, 4)),
        *((WHOLE, together) for together in (4, 8, 16)),
    }
    for name, count in (("learning_rate", 3), ("clip", 3), ("entropy_coefficient", 3), ("value_coefficient", 4)):
        assert len({settings(way)[name] for way in everything}) == count
    assert all(way.failure == 4.0 and way.held_out and way.ppo.kl_target is None for way in everything)


def test_runs_are_seeded_apart() -> None:
    """What is reported is neither chosen by nor trained on, and the search trains on runs of its own."""
    preset = PRESETS["small"]
    trained = {
        learning.TRAINING * (seed + 1) + i
        for seed in (*range(preset.seeds), *range(learning.SEARCH, learning.SEARCH + preset.searched))
        for i in range(preset.episodes)
    }
    assert len(trained) == (preset.seeds + preset.searched) * preset.episodes
    assert not trained & {*preset.reported, *preset.held_out}
    assert not {*preset.reported} & {*preset.held_out}


def test_a_budget_is_for_those_who_observe_it() -> None:
    """The comparisons have none."""
    for testbed, of in ceiling.TESTBEDS.items():
        bench = learning.bench(PRESETS["smoke"], testbed, 4)
        assert bench.task.budget == bench.of.budget.cost == minionsrl.BUDGETS[of]
        target = PRESETS["smoke"].ceiling.target
        goal = (bench.of.budget.target_return, bench.of.budget.target_evaluation)
        assert goal == ((target, np.inf) if of[1].startswith("tuned") else (np.inf, target))
        assert (bench.of.evaluation is None) == of[1].startswith("tuned")


class Made:
    """In place of compiled rounds: notes who decides, and how many seeds there are."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, float | None]] = []

    def play(self, deciders: Any, seeds: Any, *, block: int | None, cost: float | None) -> Played:
        self.seen.append((len(deciders), block or 0, cost))
        return played(*map(float, seeds))


def test_only_limited_runs_have_the_budget() -> None:
    made = Made()
    bench = learning.Bench(cast(Any, None), cast(Any, made), block=3)
    first, second = bench.play([[1], [2]], (5, 6))
    assert made.seen == [(4, 3, np.inf)]
    assert [outcomes.outcome(one, "time").tolist() for one in (first, second)] == [[5.0, 6.0]] * 2
    bench.play([[1]], (5,), limited=True)
    assert made.seen[1:] == [(1, 3, None)]  # the budget of the rounds
    bench.unbound([first], (5, 6))
    assert [cost for *_, cost in made.seen] == [np.inf, None, np.inf]


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    learning.add_arguments(parser)
    return parser.parse_args(["--preset", "small", "--testbeds", "tuned", *words])


@pytest.mark.parametrize(
    ("words", "seeds", "searched"),
    [((), 2, 6), (("--trainings", "5"), 5, 6), (("--searched", "0"), 2, 0), (("--searched", "9"), 2, 9)],
)
def test_the_number_of_trainings(
    words: tuple[str, ...], seeds: int, searched: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is the preset's, or as asked; 0 settings are none. What did best for each objective is saved."""
    presets: list[Any] = []

    def compared(on: Any, preset: Any, ways: Any, save: Any) -> Any:
        presets.append(preset)
        for minimise, most in (("cost", 2), ("time", 3)):
            save(minimise, Learned.untrained(most=most, seed=0))
        yield "schedulers", [{"way": "none"}]

    monkeypatch.setattr(learning, "compared", compared)
    assert learning.main(options(*words, "--out", str(tmp_path))) == 0
    assert (presets[0].seeds, presets[0].searched) == (seeds, searched)
    saved = {minimise: Learned.load(tmp_path / f"tuned-{minimise}.npz").most for minimise in ("cost", "time")}
    assert saved == {"cost": 2, "time": 3}


def test_parts_of_runs() -> None:
    first, second = outcomes.parts(played(1.0, 2.0, 3.0, np.inf), 2)
    assert [outcomes.outcome(one, "time").tolist() for one in (first, second)] == [[1.0, 2.0], [3.0, np.inf]]
    assert outcomes.outcome(second, "cost").tolist() == [pytest.approx(0.3), np.inf]
    assert first.sheets == second.sheets == ("usd",)
    assert cast(Any, second.policy)["w"].tolist() == [3.0, np.inf]


def test_the_share_of_the_gap() -> None:
    """Of pairs of seeds, to the fixed number with the least median; without a gap there is none."""
    everyone = played(10.0, 12.0, 14.0, np.inf)
    fixed = [played(1.0, np.inf, np.inf, np.inf), played(6.0, 8.0, 10.0, 5.0), played(9.0, 9.0, 9.0, 9.0)]
    found = outcomes.closed(played(8.0, np.inf, 11.0, 3.0), References(everyone, fixed), "time")
    assert found == {"closed": 0.625, "closed_low": 0.5, "closed_high": 0.75}
    assert outcomes.closed(everyone, References(everyone, fixed), "cost")["closed"] == 0.0
    assert outcomes.closed(fixed[1], References(everyone, [everyone]), "time") == {}
    assert outcomes.closed(played(*[np.inf] * 4), References(everyone, fixed), "time") == {}


def tried(minimise: Any, seed: int, *held_out: float | None) -> Trained:
    one = Trained("", WAYS["held for five rounds"], minimise, seed)
    one.rows.extend({"held_out": mean, "entropy": 0.5} for mean in held_out)
    return one


def test_the_setting_that_is_chosen() -> None:
    """By the best version on held-out seeds, for each objective."""
    several = [
        tried("cost", 1, None, -3.0, None, -2.0),
        tried("time", 1, -1.0, -4.0),
        tried("cost", 2, -1.5, -9.0),
        tried("time", 2, -3.0),
    ]
    rows = learning.search_rows(several)
    assert [row["chosen"] for row in rows] == [False, True, True, False]
    assert [(row["held_out"], row["held_out_last"]) for row in rows[:3]] == [(-2.0, -2.0), (-1.0, -4.0), (-1.5, -9.0)]
    assert {"learning_rate", "runs", "clip", "hold", "entropy"} <= {*rows[0]}


def test_the_version_with_the_best_training_run() -> None:
    """Is the one that decided in that run, not the one that learned from it."""
    one = tried("cost", 0)
    one.scheduler = one.best = cast(Any, "untrained")
    for number, reward in enumerate((-5.0, -2.0, -3.0)):
        progress = SimpleNamespace(
            rewards=[reward, -9.0], reached=[True, False], episodes=2, metrics={"entropy": 1.0}, held_out=None
        )
        one._on_progress(cast(Any, progress), cast(Any, f"version {number}"))
    assert (one.best, one.scheduler) == ("version 0", "version 2")
    assert [row["reached"] for row in one.rows] == [1, 1, 1]
    assert [row["closed"] for row in one.rows] == [None] * 3


def test_the_share_of_the_gap_is_logged() -> None:
    """In rewards on the held-out seeds: all actors have -8 on average, and the better fixed number -4."""
    one = tried("time", 0)
    runs = {number: [[number]] * 2 for number in (-8.0, -4.0, -12.0)}
    objective = SimpleNamespace(rewards=lambda history: np.array(history))
    task = SimpleNamespace(objective=lambda minimise, failure: objective)
    on = SimpleNamespace(task=task, of=SimpleNamespace(workload=SimpleNamespace(actors=32)))
    preset = replace(PRESETS["smoke"], start=Learned.untrained(most=32, seed=0, hold=one.way.hold, width=one.way.width))
    training = one.training(cast(Any, on), preset, cast(Any, [*runs.values()]))
    assert one.gap == (-8.0, -4.0)
    assert training.objective is objective
    for held_out, share in ((None, None), (-8.0, 0.0), (-5.0, 0.75), (-3.0, 1.25)):
        progress = SimpleNamespace(
            rewards=[1.0], reached=[True], episodes=2, metrics={"entropy": 1.0}, held_out=held_out
        )
        one._on_progress(cast(Any, progress), cast(Any, "a version"))
        assert one.rows[-1]["closed"] == share
    one.gap = -4.0, -4.0
    assert one._closed(-3.0) is None  # all actors are best


def test_what_is_fine_tuned(tmp_path: Path) -> None:
    """A scheduler that the ways train; trainings start from it, and with fewer episodes if that is asked."""
    for name, most, hold in (("whole", 32, WHOLE), ("five", 32, 5), ("small", 4, WHOLE)):
        Learned.untrained(most=most, seed=3, hold=hold).save(tmp_path / f"{name}.npz")
    start = learning.started(tmp_path / "whole.npz", ["held for the run"], None)
    assert start is not None
    assert learning.started(None, ["held for the run"], 6) is None
    preset = replace(learning.PRESETS["small"], start=start, episodes=16)
    on: Any = SimpleNamespace(
        of=SimpleNamespace(workload=SimpleNamespace(actors=32)),
        task=replace(minionsrl.testbeds_of("CartPole-v1")["authors"], budget=1.0),
        histories=None,
    )
    training = Trained("", WAYS["held for the run"], "time", 0).training(on, preset)
    assert (training.scheduler, training.episodes) == (start, 16)
    for name, ways, said in (
        ("five", ["held for five rounds", "held for the run"], "which 'held for the run' of --ways does not train"),
        ("small", ["held for the run"], "decides for up to 4 actors: choose a scheduler for up to 32"),
        ("none", ["held for the run"], "No such file"),
    ):
        with pytest.raises(shell.UsageError, match=said):
            learning.started(tmp_path / f"{name}.npz", ways, 0)
    with pytest.raises(shell.UsageError, match="--searched 2: the settings of a search are trained from scratch"):
        learning.started(tmp_path / "whole.npz", ["held for the run"], 2)


def test_surfaces_need_a_run_that_has_reached_its_target() -> None:
    with pytest.raises(ValueError, match="none of 2 random schedules has reached the target"):
        learning.fitted(np.array([[1, 2], [3, 4]]), np.array([np.inf, np.inf]), 4)


@pytest.mark.slow
def test_smoke(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    learning.add_arguments(parser)
    words = ["--preset", "smoke", "--testbeds", "authors", "--ways", "held for five rounds", "--block", "4"]
    assert learning.main(parser.parse_args([*words, "--out", str(tmp_path)])) == 0
    rows = read_rows(tmp_path / "schedulers_authors.csv")
    assert [row["way"] for row in rows[:2]] == ["all actors", "always 4"]
    assert [row["minimise"] for row in rows[2:]] == ["cost", "time"] + ["cost", "cost", "time", "time"] * 2
    assert all(row["way"].startswith("a quadratic surface: ") for row in rows[2:4])
    assert [row["way"].startswith("searched: ") for row in rows[4:]] == [False] * 4 + [True] * 4
    closed = [row["closed"] for row in read_rows(tmp_path / "training_authors.csv")]
    assert all(np.isfinite(float(share)) for share in closed if share)
    search = read_rows(tmp_path / "search_authors.csv")
    assert [(row["minimise"], row["seed"]) for row in search] == [
        (minimise, seed) for seed in ("1000", "1001") for minimise in ("cost", "time")
    ]
    assert [row["chosen"] for row in search].count("True") == 2
    assert {path.name for path in tmp_path.glob("*.npz")} == {"authors-cost.npz", "authors-time.npz"}
    assert {row["way"].split(":")[0] for row in read_rows(tmp_path / "training_authors.csv")} == {
        "held for five rounds",
        "searched",
    }
