"""Real kills, and each check on a course of events written by hand: one that is wrong is named."""

import re
import sys
from unittest import mock

import pytest

from experiments import command
from experiments.cluster import faults
from experiments.cluster.faults import Outcome, run, violations
from stellaris.runtime import Trace

pytestmark = pytest.mark.slow

#: An actor is killed and tried again, a learner learns, and a version follows.
CREATED, ENDED = (("container_created", "actor", -1, 0.0), ("container_ended", "actor", -1, 0.0))
SOUND = (
    *(("published", "", -1, 0.0), ("submitted", "actor", 0, 0.0), CREATED, ("acquired", "actor", 0, 1.0)),
    *(("started", "actor", 0, 0.0), ("crashed", "actor", 0, 0.0), ENDED, ("submitted", "actor", 1, 0.0), CREATED),
    *(("acquired", "actor", 1, 1.0), ("started", "actor", 1, 0.0), ("completed", "actor", 1, 0.0)),
    *(("sampled", "actor", 1, 16.0), ("submitted", "learner", 2, 2.0), ("acquired", "learner", 2, 1.0)),
    *(("started", "learner", 2, 0.0), ("completed", "learner", 2, 0.0), *2 * (("staleness", "learner", 2, 0.0),)),
    *(("published", "", -1, 1.0), ("submitted", "learner", 3, 3.0), ("cancelled", "learner", 3, 0.0), ENDED),
)
#: The events of a learner's invocation, two gradients of which are applied.
APPLIED = ("submitted", "acquired", "started", "completed", "staleness", "staleness")


def found(*rows):
    """What is wrong with a course of events."""
    trace = Trace()
    for time, (event, function, invocation, value) in enumerate(rows):
        trace.append(time, event, function=function, invocation=invocation, value=value)
    return list(violations(trace, None))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((("completed", "learner", 2, 0.0),), "invocation 2 did not end once"),
        ((("submitted", "actor", 4, 4.0), ("acquired", "actor", 4, 0.0)), "invocation 4 did not end once"),
        ((("submitted", "actor", 4, 4.0), ("started", "actor", 4, 0.0), ("crashed", "actor", 4, 0.0)), "another order"),
        ([(event, "learner", 4, 2.0) for event in APPLIED], r"learner 2 counted more than once: invocations \[2, 4\]"),
        ((("sampled", "actor", 0, 16.0),), r"actor 0 counted more than once: invocations \[0, 1\]"),
        ((("staleness", "learner", 3, 0.0),), "learner 3 counted, but did not complete"),
        ((("published", "", -1, 3.0),), "versions are"),
        ((CREATED,), "3 containers were made, 2 ended"),
    ],
)
def test_what_is_wrong_is_named(rows, said):
    assert any(re.search(said, violation) for violation in found(*SOUND, *rows))


def test_a_gradient_that_was_applied_again_is_named():
    assert found(*SOUND) == []
    assert found(*SOUND, *((event, "learner", 4, 4.0) for event in APPLIED[:-1])) == [
        "invocations had different numbers of their gradients applied: {2: 2, 4: 1}"
    ]


@pytest.mark.parametrize(("system", "after"), [("synchronous", 0.3), ("stellaris", 4.0)])
def test_a_run_survives_a_kill(ray_on_this_machine, system, after):
    outcome = run(system, after=after, seed=1, rounds=20)
    assert outcome.violations == []
    assert outcome.ended == "completed"
    assert outcome.killed or outcome.seconds < after + 1.0
    assert outcome.events["container_lost"] <= outcome.killed


@pytest.fixture
def machines(monkeypatch):
    """No machine is started, nor has to be mended."""
    monkeypatch.setattr(faults, "_Machines", mock.MagicMock())


@pytest.mark.usefixtures("machines")
def test_a_run_is_reported_before_the_next_begins(monkeypatch, tmp_path):
    """On the disk, where standard output is a file: the process may end without notice."""
    report = tmp_path / "report.txt"
    runs = []

    def ran(name, **options):
        assert [line.split()[0] for line in report.read_text().splitlines()] == [str(n + 1) for n in range(len(runs))]
        runs.append(name)
        return Outcome(name, "container", options["after"], True, "completed", 2.0)

    monkeypatch.setattr(faults, "run", ran)
    with report.open("w", buffering=2**20) as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert command.main(["cluster-faults", "--runs", "3"]) == 0
    assert len(runs) == 3


@pytest.mark.usefixtures("machines")
def test_the_command_counts_kills_and_tells_what_was_violated(monkeypatch, capsys):
    """Runs in which nothing was killed do not count; a violation is an exit status of 1."""
    runs = []

    def ran(name, **options):
        runs.append(options)
        victim = "container" if options["node"] is None else "node"
        broken = ["[it] broke"] if len(runs) == 4 else []
        return Outcome(name, victim, options["after"], len(runs) > 1, "completed", 2.0, violations=broken)

    monkeypatch.setattr(faults, "run", ran)
    assert command.main(["cluster-faults", "--runs", "2"]) == 0
    assert len(runs) == 3
    assert "nothing killed: completed after 2.0 s" in capsys.readouterr().out
    assert command.main(["cluster-faults", "--runs", "2"]) == 1
    assert "violated: [it] broke" in capsys.readouterr().out
