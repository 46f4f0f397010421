"""Progress: curves on a terminal, lines elsewhere, and how long it will take at most."""

import io
import math

import pytest
from rich.console import Console

from experiments.toolkit import progress
from stellaris.systems import Budget


def run(budget, *rows):
    made = progress.Run(label="one seed 0", budget=budget, colour="blue")
    made.begin()
    for row in rows:
        made.add(row)
    return made


def row(seconds, value=10.0):
    numbers = {"seconds": seconds, "steps": 100.0 * seconds, "episode_return": value, "staleness_mean": math.nan}
    return {**numbers, "cost_demo": 0.5, "cost_pay_per_use": 0.5}


@pytest.mark.parametrize(
    ("budget", "share"),
    [
        (Budget(seconds=8.0), 0.25),
        (Budget(steps=1000), 0.2),
        (Budget(seconds=8.0, steps=1000), 0.25),
        (Budget(seconds=1.0), 1.0),
    ],
)
def test_the_share_that_is_done(budget, share):
    halfway = run(budget, row(2.0))
    halfway.wall_seconds = 6.0
    assert halfway.done == share
    assert halfway.seconds_left == pytest.approx(6.0 / share - 6.0)


def test_a_run_that_is_done_has_used_what_it_needed():
    done = run(Budget(seconds=100.0, target_return=5.0), row(2.0))
    done.status = "done"
    assert done.done == 1.0


@pytest.mark.parametrize(
    ("values", "drawn"), [([], ""), ([0.0, 10.0], "▁█"), ([math.nan, 5.0], "▅"), ([-3.0, 12.0], "▁█")]
)
def test_a_short_curve(values, drawn):
    assert progress.curve(values, top=10.0) == drawn


def shown(*, terminal, rounds, before=()):
    """What is printed during a run, and after it."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=150, height=40)
    going = run(Budget(seconds=10.0))
    with progress.Display(console) as display:
        display.begin(going)
        for unknown in before:
            going.add(row(0.5, unknown))
        for i in range(rounds):
            going.add(row(i + 1.0, 7.0 * i))
            display.row(going)
        going.status = "done"
        display.end(going)
    return console.file.getvalue()


def test_lines_where_there_is_no_terminal():
    text = shown(terminal=False, rounds=5)
    assert "\x1b" not in text
    lines = text.splitlines()
    assert 1 <= len(lines) <= 3
    assert lines[-1].startswith("one seed 0 ")
    assert lines[-1].endswith("done")
    assert "staleness -" in lines[-1]


def test_a_curve_from_the_first_episode_on():
    """Until one has ended, the return is not a number."""
    text = shown(terminal=True, rounds=5, before=[math.nan])
    assert "▁▃▅▆█" in text


def test_curves_on_a_terminal():
    text = shown(terminal=True, rounds=5)
    assert "▁▃▅▆█" in text
    assert "return 28" in text
