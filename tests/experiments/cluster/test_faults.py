"""Real kills, and each check on a course of events written by hand: one that is wrong is named."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments import command
from experiments.cluster import faults
from experiments.cluster.faults import Outcome, run, violations
from stellaris.runtime import Trace

pytestmark = pytest.mark.slow

Row = tuple[str, str, int, float]

#: An actor is killed and tried again, a learner learns, and a version follows.
SOUND: tuple[Row, ...] = (
    ("published", "", -1, 0.0),
    ("submitted", "actor", 0, 0.0),
    ("container_created", "actor", -1, 0.0),
    ("acquired", "actor", 0, 1.0),
    ("started", "actor", 0, 0.0),
    ("crashed", "actor", 0, 0.0),
    ("container_ended", "actor", -1, 0.0),
    ("submitted", "actor", 1, 0.0),
    ("container_created", "actor", -1, 0.0),
    ("acquired", "actor", 1, 1.0),
    ("started", "actor", 1, 0.0),
    ("completed", "actor", 1, 0.0),
    ("sampled", "actor", 1, 16.0),
    ("submitted", "learner", 2, 2.0),
    ("acquired", "learner", 2, 1.0),
    ("started", "learner", 2, 0.0),
    ("completed", "learner", 2, 0.0),
    ("staleness", "learner", 2, 0.0),
    ("staleness", "learner", 2, 0.0),
    ("published", "", -1, 1.0),
    ("submitted", "learner", 3, 3.0),
    ("cancelled", "learner", 3, 0.0),
    ("container_ended", "actor", -1, 0.0),
)


def found(*rows: Row) -> list[str]:
    """What is wrong with a course of events."""
    trace = Trace()
    for time, (event, function, invocation, value) in enumerate(rows):
        trace.append(time, event, function=function, invocation=invocation, value=value)
    return list(violations(trace, None))


def test_a_sound_run_passes() -> None:
    """In which a killed actor was tried again."""
    assert found(*SOUND) == []


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((("completed", "learner", 2, 0.0),), "invocation 2 did not end once"),
        ((("submitted", "actor", 4, 4.0), ("acquired", "actor", 4, 0.0)), "invocation 4 did not end once"),
        ((("submitted", "actor", 4, 4.0), ("started", "actor", 4, 0.0), ("crashed", "actor", 4, 0.0)), "another order"),
        (
            (
                *((event, "learner", 4, 2.0) for event in ("submitted", "acquired", "started", "completed")),
                *2 * (("staleness", "learner", 4, 0.0),),
            ),
            r"learner 2 counted more than once: invocations \[2, 4\]",
        ),
        ((("sampled", "actor", 0, 16.0),), r"actor 0 counted more than once: invocations \[0, 1\]"),
        ((("staleness", "learner", 3, 0.0),), "learner 3 counted, but did not complete"),
        ((("published", "", -1, 3.0),), "versions are"),
        ((("container_created", "actor", -1, 0.0),), "3 containers were made, 2 ended"),
    ],
)
def test_what_is_wrong_is_named(rows: tuple[Row, ...], said: str) -> None:
    """By what broke."""
    assert any(re.search(said, violation) for violation in found(*SOUND, *rows))


def test_a_gradient_that_was_applied_again_is_named() -> None:
    """Also if its invocation completed once."""
    more = [(event, "learner", 4, 4.0) for event in ("submitted", "acquired", "started", "completed", "staleness")]
    assert found(*SOUND, *more) == ["invocations had different numbers of their gradients applied: {2: 2, 4: 1}"]


@pytest.mark.parametrize(("system", "after"), [("synchronous", 0.3), ("stellaris", 4.0)])
def test_a_run_survives_a_kill(ray_on_this_machine: None, system: str, after: float) -> None:
    """Of a container, while it is made or while it works."""
    outcome = run(system, after=after, seed=1, rounds=20)
    assert outcome.violations == []
    assert outcome.ended == "completed"
    assert outcome.killed or outcome.seconds < after + 1.0
    assert outcome.events["container_lost"] <= outcome.killed


class Machines:
    """Stands for a cluster."""

    second = 7

    def __enter__(self) -> "Machines":
        return self

    def __exit__(self, *details: object) -> None:
        """Nothing is to be ended."""

    def mend(self) -> None:
        """Nothing is broken."""


def test_a_run_is_reported_before_the_next_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On the disk, where standard output is a file: the process may end without notice."""
    report = tmp_path / "report.txt"
    runs: list[str] = []

    def ran(name: str, **options: Any) -> Outcome:
        assert [line.split()[0] for line in report.read_text().splitlines()] == [str(n + 1) for n in range(len(runs))]
        runs.append(name)
        return Outcome(name, "container", options["after"], True, "completed", 2.0)

    monkeypatch.setattr(faults, "_Machines", Machines)
    monkeypatch.setattr(faults, "run", ran)
    with report.open("w", buffering=2**20) as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert command.main(["cluster-faults", "--runs", "3"]) == 0
    assert len(runs) == 3


def test_the_command_counts_kills_and_tells_what_was_violated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs in which nothing was killed do not count; a violation is an exit status of 1."""
    runs: list[dict[str, Any]] = []

    def ran(name: str, **options: Any) -> Outcome:
        runs.append(options)
        victim = "container" if options["node"] is None else "node"
        broken = ["[it] broke"] if len(runs) == 4 else []
        return Outcome(name, victim, options["after"], len(runs) > 1, "completed", 2.0, violations=broken)

    monkeypatch.setattr(faults, "_Machines", Machines)
    monkeypatch.setattr(faults, "run", ran)
    assert command.main(["cluster-faults", "--runs", "2"]) == 0
    assert len(runs) == 3
    assert "nothing killed: completed after 2.0 s" in capsys.readouterr().out
    assert command.main(["cluster-faults", "--runs", "2"]) == 1
    assert "violated: [it] broke" in capsys.readouterr().out
