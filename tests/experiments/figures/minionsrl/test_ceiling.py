"""The ceiling: which schedules are compared, which is the best, and how much it gains on other seeds."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest

from experiments.figures.minionsrl import ceiling
from experiments.figures.minionsrl.ceiling import PRESETS, Runs, Schedule, best
from experiments.toolkit import output
from experiments.toolkit.output import read_rows
from stellaris.scheduling import State


def runs(*seconds: float) -> Runs:
    """Runs that took so long; a run that took longer cost less."""
    column = np.array(seconds)
    return Runs(column, np.where(np.isfinite(column), 10 - column, np.inf), column, column)


def spent(*pairs: tuple[float, float]) -> Runs:
    """Runs that took such seconds, and cost so much."""
    seconds, cost = np.array(pairs).T
    return Runs(seconds, cost, seconds, seconds)


def test_schedules() -> None:
    assert (Schedule(8, 2, 3).numbers, Schedule(5, 5, 0).numbers) == ([8, 8, 8, 2], [5])
    schedules = [*PRESETS["small"].schedules()]
    assert [one.first for one in schedules if one.change == 0] == [*range(1, 33)]
    assert len(schedules) == len(set(schedules)) == 32 + 7 * 6 * 5
    assert all(one.first != one.then for one in schedules if one.change)


def test_a_schedule_decides() -> None:
    """By the number of the round, which is that of the states; the last number holds."""
    states = [State(round_, *[0.0] * 7) for round_ in range(1, 8)]
    for schedule, numbers in (
        (Schedule(5, 5, 0), [5] * 7),
        (Schedule(8, 2, 1), [8] + [2] * 6),
        (Schedule(8, 2, 3), [8] * 3 + [2] * 4),
    ):
        key = jax.random.key(0)
        assert [schedule.decide(states[:k], most=8, key=key) for k in range(1, 8)] == numbers


def test_names_of_schedules() -> None:
    """Say the round of the first change, and are distinct."""
    assert [str(one) for one in (Schedule(5, 5, 0), Schedule(8, 2, 3))] == ["5", "8, then 2 from round 4"]
    schedules = [*PRESETS["small"].schedules()]
    assert len({str(one) for one in schedules}) == len(schedules)


def test_the_best_has_the_least_median() -> None:
    """Of its kind; a schedule fails if most of its runs do."""
    failed = float("inf")
    them = {
        Schedule(1, 1, 0): runs(3.0, 9.0, 9.0),
        Schedule(2, 2, 0): runs(8.0, 7.0, failed),
        Schedule(3, 3, 0): runs(1.0, failed, failed),
        Schedule(2, 1, 4): runs(5.0, 5.0, 5.0),
    }
    assert best(them, "time", fixed=True) == Schedule(2, 2, 0)
    assert best(them, "time", fixed=False) == Schedule(2, 1, 4)
    assert best(them, "cost", fixed=True) == Schedule(1, 1, 0)


def test_the_least_cost_at_equal_time() -> None:
    """Only schedules within five percent of the time of all actors compete, by medians."""
    them = {
        Schedule(4, 4, 0): spent((10.0, 8.0), (10.0, 8.0), (99.0, 8.0)),
        Schedule(2, 2, 0): spent((10.5, 6.0), (10.5, 6.0), (99.0, 9.0)),
        Schedule(1, 1, 0): spent((10.6, 2.0), (10.6, 2.0), (1.0, 2.0)),
        Schedule(1, 6, 8): spent((10.6, 1.0), (10.6, 1.0), (1.0, 1.0)),
    }
    assert ceiling.everyone(them) == Schedule(4, 4, 0)
    assert best(them, "cost", fixed=True) == Schedule(1, 1, 0)
    assert best(them, "cost at equal time", fixed=True) == Schedule(2, 2, 0)
    assert best(them, "cost at equal time", fixed=False) is None
    them[Schedule(4, 2, 8)] = spent((9.0, 7.0), (9.0, 7.0), (9.0, 7.0))
    assert best(them, "cost at equal time", fixed=False) == Schedule(4, 2, 8)


def test_ratios_are_of_seeds_that_both_have() -> None:
    ratio = ceiling._ratio("gain", np.array([1.0, 6.0, np.inf, 4.0]), np.array([2.0, 4.0, 5.0, np.inf]))
    assert ratio == {"gain": 1.0, "gain_low": 0.5, "gain_high": 1.5, "gain_seeds": 2}


class Made:
    """In place of compiled rounds: what a run takes follows from its numbers and its seed; that of seed 7 fails."""

    def __init__(self, block: int | None = None) -> None:
        self.block = block
        self.seen: list[tuple[str, int]] = []
        self.left = 10**9  #: the calls until one is interrupted.

    def play(self, each: Sequence[Sequence[int]], seeds: Sequence[int], *, block: int | None) -> Any:
        assert block == self.block
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        self.seen += [(str(numbers), seed) for numbers, seed in zip(each, seeds, strict=True)]
        values = np.array([100.0 * sum(numbers) + seed for numbers, seed in zip(each, seeds, strict=True)])
        last = {"seconds": values / 7, "costs": values[:, None] + 0.5, "steps": values + 1}
        return SimpleNamespace(reached=np.array(seeds) != 7, rounds=values + 2, last=last.__getitem__)


def test_runs_belong_to_their_schedules() -> None:
    """Also if several schedules are run together; a run that failed took forever."""
    several = [Schedule(3, 3, 0), Schedule(1, 2, 2)]
    found = ceiling.measured(cast(Any, Made(block=12)), several, (5, 7), block=12)
    assert [*found] == several
    assert found[several[0]].seconds.tolist() == [305.0 / 7, np.inf]
    assert found[several[1]].cost.tolist() == [405.5, np.inf]
    assert found[several[1]].rounds.tolist() == [407.0, np.inf]


def test_ratios_are_to_all_actors_on_other_seeds() -> None:
    """And those of two levels also to the best fixed number, in what is minimised."""
    few, all_, two = Schedule(2, 2, 0), Schedule(4, 4, 0), Schedule(1, 2, 1)
    first = {few: spent((5.0, 9.0)), all_: spent((9.0, 9.5)), two: spent((4.0, 8.0))}
    made = Made()
    rows = ceiling.compared(cast(Any, made), first, (0, 100), None)
    assert {seed for _, seed in made.seen} == {0, 100}
    assert [(row["objective"], row["kind"]) for row in rows] == [
        (objective, kind) for objective in ceiling.OBJECTIVES for kind in ("fixed", "two levels")
    ]
    assert [(row["first"], row["then"], row["change"]) for row in rows] == [(2, 2, 0), (1, 2, 1)] * 3
    # By hand: 100 a number in the list, and the seed: 200 and 300 with two, 400 and 500 with all, 300 and 400.
    fixed, levels = rows[0], rows[1]
    assert fixed["time"] == pytest.approx((200 / 400 + 300 / 500) / 2)
    assert fixed["cost"] == pytest.approx((200.5 / 400.5 + 300.5 / 500.5) / 2)
    assert levels["time"] == pytest.approx((300 / 400 + 400 / 500) / 2)
    assert levels["to_fixed"] == pytest.approx((300 / 200 + 400 / 300) / 2)
    assert rows[3]["to_fixed"] == pytest.approx((300.5 / 200.5 + 400.5 / 300.5) / 2)
    assert "to_fixed" not in fixed
    assert (levels["median_seconds"], levels["median_cost"], levels["time_seeds"]) == (pytest.approx(50.0), 350.5, 2)


def test_the_kind_without_a_schedule_has_no_row() -> None:
    first = {Schedule(4, 4, 0): spent((9.0, 9.0)), Schedule(1, 2, 1): spent((99.0, 1.0))}
    rows = ceiling.compared(cast(Any, Made()), first, (0,), None)
    assert [row["kind"] for row in rows if row["objective"] == "cost at equal time"] == ["fixed"]


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    """To the last digit; those that failed are infinite."""
    schedules = [Schedule(3, 3, 0), Schedule(1, 2, 2)]
    written = {one: spent((1 / 3 + i, 0.1), (np.inf, np.inf)) for i, one in enumerate(schedules)}
    output.write_rows(tmp_path / "runs.csv.gz", [*ceiling._rows(written)])
    found = ceiling.read(tmp_path / "runs.csv.gz")
    assert [*found] == schedules
    for schedule, own in written.items():
        for one, other in zip(own, found[schedule], strict=True):
            assert one.tolist() == other.tolist()


def measure(out: Path, *words: str) -> int:
    parser = argparse.ArgumentParser()
    ceiling.add_arguments(parser)
    return ceiling.main(
        parser.parse_args(["--preset", "smoke", "--testbeds", "tuned", "--block", "1", *words, "--out", str(out)])
    )


TABLES = ("runs_tuned.csv.gz", "schedules_tuned.csv", "best_tuned.csv")


def test_resume_runs_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are those of a run at one go. The comparison on other seeds is not kept."""
    preset = PRESETS["smoke"]
    made = Made(block=1)
    monkeypatch.setattr(ceiling, "rounds", lambda *of: made)
    assert measure(tmp_path / "at once") == 0
    at_once = {name: (tmp_path / "at once" / name).read_bytes() for name in TABLES}
    everything = [(str(one.numbers), seed) for one in preset.schedules() for seed in range(preset.seeds)]
    assert made.seen[: len(everything)] == everything
    others = made.seen[len(everything) :]
    assert {seed for _, seed in others} == {2, 3}

    made.seen, made.left = [], 1
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path / "again")
    begun = made.seen
    assert everything[: len(begun)] == begun
    assert 0 < len(begun) < len(everything)
    made.seen, made.left = [], 10**9
    assert measure(tmp_path / "again", "--resume") == 0
    assert made.seen == [*everything[len(begun) :], *others]
    assert {name: (tmp_path / "again" / name).read_bytes() for name in TABLES} == at_once

    made.seen = []
    assert measure(tmp_path / "again", "--resume") == 0
    assert made.seen == others
    assert {name: (tmp_path / "again" / name).read_bytes() for name in TABLES} == at_once


def test_fixed_numbers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All actors are among them, with whom the others are compared; more actors than those are refused."""
    made = Made(block=1)
    monkeypatch.setattr(ceiling, "rounds", lambda *of: made)
    assert measure(tmp_path, "--fixed", "2", "1") == 0
    rows = read_rows(tmp_path / "schedules_tuned.csv")
    assert [row["then"] for row in rows] == ["1", "2", "32"]
    with pytest.raises(SystemExit):
        measure(tmp_path, "--fixed", "33")


@pytest.mark.slow
def test_smoke(tmp_path: Path) -> None:
    """Runs that are read from the folder give the same tables as those that were made."""
    assert measure(tmp_path, "--block", "4") == 0
    assert [(row["first"], row["then"], row["reached"]) for row in read_rows(tmp_path / "schedules_tuned.csv")] == [
        ("2", "2", "2"),
        ("4", "4", "2"),
        ("2", "4", "2"),
        ("4", "2", "2"),
    ]
    best_rows = read_rows(tmp_path / "best_tuned.csv")
    assert [row["objective"] for row in best_rows if row["kind"] == "fixed"] == [*ceiling.OBJECTIVES]
    assert (tmp_path / "ceiling_tuned.png").stat().st_size > 0
    before = {name: (tmp_path / name).read_bytes() for name in TABLES}
    assert measure(tmp_path, "--block", "4", "--resume") == 0
    assert {name: (tmp_path / name).read_bytes() for name in TABLES} == before


def test_schedules_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixed numbers alone, with all actors; two levels only if they are named as well."""
    made = Made(block=1)
    monkeypatch.setattr(ceiling, "rounds", lambda *of: made)

    def ran(*words: str) -> list[Schedule]:
        out = tmp_path / "-".join(words)
        assert measure(out, *words) == 0
        return [*ceiling.read(out / "runs_tuned.csv.gz")]

    fixed = [Schedule(2, 2, 0), Schedule(32, 32, 0)]
    assert ran("--fixed", "2") == fixed
    levels = [Schedule(*of) for of in ((1, 3, 4), (1, 3, 6), (3, 1, 4), (3, 1, 6))]
    assert ran("--fixed", "2", "--levels", "1", "3", "--changes", "4", "6") == [*fixed, *levels]
    assert ran("--changes", "5") == [*(Schedule(n, n, 0) for n in (2, 4)), Schedule(2, 4, 5), Schedule(4, 2, 5)]
