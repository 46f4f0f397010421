"""The answers about what a scheduler of actors could save are those of the committed tables."""

import functools
import statistics

import pytest

from experiments.tasks import minionsrl
from tests.experiments.committed import RESULTS, missing, shown
from tests.experiments.csv_rows import rows

PAGE = "docs/results.md"
STUDY = RESULTS / "minionsrl-ceiling"
TESTBEDS = AUTHORS, TUNED = "authors", "tuned"


@functools.cache
def best(testbed):
    """The rows of the best schedules, by objective and kind."""
    return {(row["objective"], row["kind"]): row for row in rows(STUDY / f"best_{testbed}.csv")}


@functools.cache
def fixed(testbed):
    """The rows of the fixed numbers, by number."""
    return {int(row["then"]): row for row in rows(STUDY / f"schedules_{testbed}.csv") if row["change"] == "0"}


def ratio(row, column):
    middle, low, high = (f"{float(row[column + end]):.2f}" for end in ("", "_low", "_high"))
    return f"{middle} ({low} to {high})"


def test_the_runs() -> None:
    runs = {testbed: rows(STUDY / f"runs_{testbed}.csv.gz") for testbed in TESTBEDS}
    assert {len(of) for of in runs.values()} == {242 * 20}
    assert not [row for of in runs.values() for row in of if row["seconds"] == "inf"]
    for testbed, of in runs.items():  # the tables are those of the runs
        for number, row in fixed(testbed).items():
            own = [float(one["seconds"]) for one in of if one["change"] == "0" and int(one["then"]) == number]
            assert statistics.median(own) == float(row["seconds"])
    assert sum(map(len, runs.values())) == 9680
    assert not missing(PAGE, "All fixed numbers of actors and 210 schedules of two levels were run", "9,680 runs")
    for testbed in TESTBEDS:
        assert "NVIDIA H100" in (STUDY / f"provenance_{testbed}.json").read_text()


def test_the_authors_learner() -> None:
    row = best(AUTHORS)["cost at equal time", "fixed"]
    assert row["then"] == "14"
    rounds = [float(fixed(AUTHORS)[number]["rounds"]) for number in range(14, 33)]
    assert (min(rounds), max(rounds)) == (28.5, 32.0)
    costs = [float(fixed(AUTHORS)[number]["cost"]) for number in (14, 20, 26, 32)]
    assert costs == sorted(costs)
    assert not missing(
        PAGE,
        "From 14 to 32 actors the number of rounds hardly changes (medians of 28.5 to 32)",
        f"14 actors take {ratio(row, 'time')} times as long as 32 and cost {ratio(row, 'cost')} of it.",
    )
    for number in (8, 4):
        assert float(fixed(AUTHORS)[number]["cost"]) < float(fixed(AUTHORS)[14]["cost"])
        assert float(fixed(AUTHORS)[number]["seconds"]) > float(fixed(AUTHORS)[14]["seconds"])


def test_budgets_are_three_quarters_of_the_cost_of_all_actors() -> None:
    for testbed in TESTBEDS:
        all_ = float(fixed(testbed)[32]["cost"])
        assert minionsrl.BUDGETS["CartPole-v1", testbed] == pytest.approx(0.75 * all_, rel=0.01)


def test_two_levels() -> None:
    several = {(t, name): row for t in TESTBEDS for (name, kind), row in best(t).items() if kind == "two levels"}
    below = [case for case, row in several.items() if float(row["to_fixed_high"]) < 1]
    assert below == [(AUTHORS, "time")]
    assert len(several) == 6
    assert all(
        float(row["to_fixed_low"]) < 1 < float(row["to_fixed_high"]) for c, row in several.items() if c != below[0]
    )
    row = several[AUTHORS, "time"]
    saved = [round(100 * (1 - float(row[f"to_fixed{end}"]))) for end in ("", "_high", "_low")]
    lucky = best(AUTHORS)["time", "fixed"]
    at_equal_time = float(several[AUTHORS, "cost at equal time"]["time"])
    assert not missing(
        PAGE,
        f"by {saved[0]} % ({saved[1]} to {saved[2]}), where the fixed number was an unlucky choice "
        f"({lucky['then']} takes {float(lucky['time']):.2f} times as long as 32 on other seeds)",
        f"that were chosen at Max's time take {at_equal_time:.2f} times Max's time on other seeds",
    )


def test_the_tuned_learner_and_the_budget() -> None:
    row = best(TUNED)["cost", "fixed"]
    assert row["then"] == "15"
    said = f"15 actors take {ratio(row, 'time')} times as long as 32, and cost {ratio(row, 'cost')}."
    assert not missing(PAGE, said)
    numbers = fixed(AUTHORS)
    within = [number for number, of in numbers.items() if float(of["cost"]) <= 0.75 * float(numbers[32]["cost"])]
    fast = [number for number in within if float(of_time(numbers[number])) <= 1.05 * of_time(numbers[32])]
    assert max(within) == 19
    assert [number for number in fast if number >= 13] == [*range(14, 20)]
    assert min(fast) == 14
    assert not missing(
        PAGE,
        "Within a budget of three quarters of 32 actors' median cost are up to 19 actors, and 14 to 19 of them take at "
        "most 1.05 times the median time of 32.",
    )


def test_a_scheduler_that_learned_to_fail() -> None:
    home = RESULTS / "minionsrl-learning" / "penalty-1"
    table = {one["way"]: one for one in rows(home / "schedulers_authors.csv")}
    row, sixteen = table["held for the run"], table["always 16"]
    assert [one["episodes"] for one in rows(home / "training_authors.csv")][-1] == "100"
    assert not missing(
        PAGE,
        f"it chose {float(row['actors']):.1f} actors on average, with which {row['within_budget']} of {row['runs']} "
        "other runs reach the target within the budget",
        f"they take {ratio(row, 'time')} times Max's time and cost {ratio(row, 'cost')}.",
        f"On them 16 actors in every round take {ratio(sixteen, 'time')} times Max's time and cost "
        f"{ratio(sixteen, 'cost')}.",
    )


def test_a_scheduler_that_learned() -> None:
    home = RESULTS / "minionsrl-learning" / "penalty-4"
    row = {one["way"]: one for one in rows(home / "schedulers_authors.csv")}["held for the run"]
    assert float(row["time"]) <= 1.05
    assert float(row["cost_high"]) <= 0.75
    assert not missing(
        PAGE,
        f"{float(row['actors']):.1f} actors on average, {row['within_budget']} of {row['runs']} runs within the "
        f"budget; without the budget they take {ratio(row, 'time')} times Max's time and cost {ratio(row, 'cost')}. "
        "It is one training",
    )


def test_the_event_loop() -> None:
    home = RESULTS / "minionsrl-numbers"
    table = {row["actors"]: row for row in rows(home / "table.csv")}
    runs = rows(home / "runs.csv")
    assert {int(row["seed"]) for row in runs} == {*range(40, 60)}
    budget = minionsrl.BUDGETS["CartPole-v1", AUTHORS]
    within = {
        name: sum(float(row["cost_pay_per_use"]) <= budget for row in runs if row["schedule"] == name) for name in table
    }
    assert within["learned, for time"] == int(table["learned, for time"]["reached"].split(" ")[0])
    sixteen, eight = ([shown(table[name][column]) for column in ("s / all", "USD / all")] for name in ("16", "8"))
    assert not missing(
        PAGE,
        f"16 actors take {sixteen[0]} times Max's time and cost {sixteen[1]}, 8 actors {eight[0]} and {eight[1]}.",
        f"{within['32']} of 20 runs with 32 actors reach the target, {within['16']} with 16, {within['8']} with 8, and "
        f"{within['learned, for time']} under the learned scheduler, with {table['learned, for time']['mean actors']} "
        "actors on average.",
    )


def of_time(row):
    return float(row["seconds"])
