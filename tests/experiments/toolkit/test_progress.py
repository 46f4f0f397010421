"""Progress: curves on a terminal, lines elsewhere, and how long it will take at most."""

import io
import math
from typing import Any

import pytest
from rich.console import Console

from experiments.toolkit import progress
from stellaris.systems import Budget


def run(budget: Budget, *rows: dict[str, float]) -> progress.Run:
    """One with these rounds behind it."""
    made = progress.Run(label="one seed 0", budget=budget, colour="blue")
    made.begin()
    for row in rows:
        made.add(row)
    return made


def row(seconds: float, value: float = 10.0) -> dict[str, float]:
    """A round's."""
    numbers = dict.fromkeys(("cost_demo", "cost_pay_per_use"), 0.5)
    return {
        "seconds": seconds,
        "steps": 100.0 * seconds,
        "episode_return": value,
        "staleness_mean": math.nan,
        **numbers,
    }


@pytest.mark.parametrize(
    ("budget", "share"),
    [
        (Budget(seconds=8.0), 0.25),
        (Budget(steps=1000), 0.2),
        (Budget(seconds=8.0, steps=1000), 0.25),
        (Budget(seconds=1.0), 1.0),
    ],
)
def test_the_share_that_is_done(budget: Budget, share: float) -> None:
    """Of the limit that is nearest; and so much longer, if it goes on like that."""
    halfway = run(budget, row(2.0))
    halfway.wall_seconds = 6.0
    assert halfway.done == share
    assert halfway.seconds_left == pytest.approx(6.0 / share - 6.0)


def test_nothing_is_known_at_the_beginning() -> None:
    """Nor is it said."""
    beginning = run(Budget(seconds=1.0))
    assert beginning.done == 0.0
    assert math.isnan(beginning.seconds_left)


def test_a_run_that_is_done_has_used_what_it_needed() -> None:
    """It has reached its target before the budget was used up."""
    done = run(Budget(seconds=100.0, target_return=5.0), row(2.0))
    done.status = "done"
    assert done.done == 1.0


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([], ""), ([0.0, 10.0], "▁█"), ([math.nan, 5.0], "▅"), ([-3.0, 12.0], "▁█")],
)
def test_a_short_curve(values: list[float], drawn: str) -> None:
    """A character a value; what is no number is left out."""
    assert progress.curve(values, top=10.0) == drawn


def test_a_long_curve() -> None:
    """Of thirty characters, up to the newest value."""
    got = progress.curve([float(i) for i in range(75)], top=74.0)
    assert len(got) == 30
    assert (got[0], got[-1]) == ("▁", "█")
    assert list(got) == sorted(got, key=progress._BARS.index)


def shown(*, terminal: bool, rounds: int) -> str:
    """What is printed during a run, and after it."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=150, height=40)
    going: Any = run(Budget(seconds=10.0))
    with progress.Display(console) as display:
        display.begin(going)
        for i in range(rounds):
            going.add(row(i + 1.0, 7.0 * i))
            display.row(going)
        going.status = "done"
        display.end(going)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_lines_where_there_is_no_terminal() -> None:
    """One now and then, and one at the end; nothing that moves a cursor."""
    text = shown(terminal=False, rounds=5)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert 1 <= len(lines) <= 3
    assert lines[-1].startswith("one seed 0 ")
    assert lines[-1].endswith("done")
    assert "staleness -" in lines[-1]


def test_curves_on_a_terminal() -> None:
    """A table that is drawn anew; at the end its last line stays."""
    text = shown(terminal=True, rounds=5)
    assert "▁▃▅▆█" in text
    assert "return 28" in text


def test_a_run_without_a_round_says_nothing() -> None:
    """There is nothing to say."""
    assert shown(terminal=False, rounds=0) == ""
