"""Logs of other stacks become durations and ages; an error names the file, the line and the column."""

import dataclasses

import numpy as np
import pytest

from stellaris import PPO, ActorCritic
from stellaris.lab import CartPole, Logged, dry_run, imposed
from stellaris.runtime import SimulatedPlatform, Work, WorkLog
from stellaris.runtime.delays import Empirical
from stellaris.systems import AsynchronousActors, Budget, Workload

TEXT = """function,started,seconds,work,version,staleness
learner,1.0,0.4,2,3,
actor,0.0,2.0,4,3,
learner,2.5,0.6,2,4,1.5

actor,2.0,3.0,4,4,
learner,5.0,0.5,,6,0
"""


def written(tmp_path, text):
    path = tmp_path / "log.csv"
    path.write_text(text)
    return path


def test_a_file_by_hand(tmp_path):
    """Rows are sorted by their starts; an empty size is 1, and other empty values are unknown."""
    log = WorkLog.from_csv(written(tmp_path, TEXT))
    assert log.rows == (
        Work("actor", 2.0, work=4.0, started=0.0, version=3),
        Work("learner", 0.4, work=2.0, started=1.0, version=3),
        Work("actor", 3.0, work=4.0, started=2.0, version=4),
        Work("learner", 0.6, work=2.0, started=2.5, version=4, staleness=1.5),
        Work("learner", 0.5, started=5.0, version=6, staleness=0.0),
    )
    functions = log.functions(block=2)
    assert {name: spec.compute for name, spec in functions.items()} == {
        "actor": Empirical((0.5, 0.75), block=2),
        "learner": Empirical((0.2, 0.3, 0.5), block=2),
    }
    assert log.ages.tolist() == [1.5, 0.0]
    assert log.versions_per_second() == (6 - 3) / (5.0 - 1.0)


def test_two_columns_are_enough(tmp_path):
    """Rows then stay in the order of the file, as they do if one of them has no start."""
    for text in (
        "seconds,function\n2,b\n1,a\n",
        "seconds, function\n2, b\n1, a\n",
        "seconds,function,started\n2,b,9\n1,a,\n",
    ):
        log = WorkLog.from_csv(written(tmp_path, "\ufeff" + text))
        assert [(row.function, row.seconds) for row in log.rows] == [("b", 2.0), ("a", 1.0)]
    with pytest.raises(ValueError, match="has no staleness"):
        log.ages  # noqa: B018
    with pytest.raises(ValueError, match="function='learner': fewer than two of its rows have `version`"):
        log.versions_per_second()


def test_what_is_saved_is_read(tmp_path):
    log = WorkLog.from_csv(written(tmp_path, TEXT))
    log.save(tmp_path / "again.csv")
    assert WorkLog.from_csv(tmp_path / "again.csv") == log
    WorkLog((Work("actor", 0.1),)).save(tmp_path / "short.csv")
    assert (tmp_path / "short.csv").read_text() == "function,seconds,work\nactor,0.1,1.0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("function,second\nactor,1\n", r"has the columns \['function', 'second'\]: column 'seconds' is missing"),
        ("function,seconds,stalenes\nactor,1,1\n", "unknown column 'stalenes': remove it, or rename it to one of"),
        ("", "column 'function' is missing$"),
        ("function,seconds,work,seconds\na,1,2,9\n", "has the column 'seconds' 2 times: leave one"),
        (
            "function;seconds\nactor;1\n",
            r"\['function;seconds'\]: column 'function' is missing; separate columns by com",
        ),
        ("function,seconds\n", "has no rows: expected one for each piece of work"),
        ("function,seconds\nactor,1\nactor,fast\n", "line 3: seconds='fast' is not a number"),
        ("function,seconds\nactor,\n", "line 2: seconds='' is not a number"),
        ("function,seconds\nactor,nan\n", "line 2: seconds=nan is negative or not finite"),
        ("function,seconds\nactor,-1\n", "line 2: seconds=-1.0 is negative or not finite"),
        ("function,seconds\n,1\n", "line 2: function='' has no name"),
        ("function,seconds\nactor,1,5\n", "line 2: the row has too many or too few values"),
        ("function,seconds\nactor\n", "line 2: the row has too many or too few values"),
        ("function,seconds,work\nactor,1,0\n", "line 2: work=0.0 is not positive"),
        ("function,seconds,version\nactor,1,2.5\n", "line 2: version='2.5' is not a whole number"),
        ("function,seconds,version\nactor,1,-1\n", "line 2: version=-1"),
        ("function,seconds,staleness\nactor,1,-0.5\n", "line 2: staleness=-0.5 is negative"),
        ("function,seconds,started\nactor,1,inf\n", "line 2: started=inf is not finite"),
        ("function,seconds\n\x00actor,\xff", "log.csv"),
    ],
)
def test_errors_name_the_file_the_line_and_the_column(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as error:
        WorkLog.from_csv(written(tmp_path, text))
    assert "log.csv" in str(error.value)


@pytest.mark.slow
def test_a_system_runs_on_the_deployment_of_a_log():
    """Rollouts of 16 steps take 1.6 s and training steps of 4 gradients 2 s: a version every 2 s."""
    log = WorkLog((Work("actor", 1.6, work=16), Work("learner", 2.0, work=4)))
    workload = Workload(CartPole(), ActorCritic(hidden=(4,)), actors=2, fragment=16)
    system = AsynchronousActors(PPO(epochs=2, minibatch_size=16))
    platform = SimulatedPlatform(log.functions())
    schedule = dry_run(system, workload, platform=platform, budget=Budget(seconds=20.0))
    assert np.diff(schedule.seconds)[2:] == pytest.approx(2.0)
    limited = {name: dataclasses.replace(spec, max_concurrency=1) for name, spec in log.functions().items()}
    slower = dry_run(system, workload, platform=SimulatedPlatform(limited), budget=Budget(seconds=20.0))
    assert np.diff(slower.seconds)[2:] == pytest.approx(3.2)  # one actor at a time, and two for each batch


def test_the_ages_of_a_log_are_imposed():
    log = WorkLog(tuple(Work("learner", 1.0, staleness=age) for age in (0.0, 1.5, 0.5)))
    schedule = imposed(9, actors=2, data=Logged(log.ages))
    assert schedule.data_lag.tolist() == [0.0, 1.0, 0.5, 0.0, 1.5, 0.5, 0.0, 1.5, 0.5]
