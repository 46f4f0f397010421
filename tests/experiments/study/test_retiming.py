"""Returns of one run at the times and costs of another deployment."""

import dataclasses
from unittest import mock

import pytest

from experiments.study import cells
from experiments.study.retiming import retime
from experiments.tasks import presets
from experiments.tasks.testbed import Assumed
from stellaris.systems import Budget, DataParallel
from tests.experiments.study.test_cells import PPO_CONFIG, tiny


def learned(cell, folder):
    folder.mkdir()
    cells.run(cell, folder, mock.Mock(), out=folder.parent)
    folder.rename(folder.parent / "cells" / cell.key)
    return cells.finished(cell, folder.parent)


@pytest.mark.slow
@pytest.mark.parametrize(("parallel", "steps"), [(False, 256), (True, 256), (False, 288), (True, 288)])
def test_times_are_those_of_a_run_and_returns_those_of_another(tmp_path, parallel, steps):
    """A dry run has the clock and the bills of a run that learns, to the last digit; the returns are the other's.

    Also if the budget is spent within a round: the last row then has the fragments that were delivered by then.
    """
    (tmp_path / "cells").mkdir()
    base = dataclasses.replace(tiny(), budget=Budget(steps=steps))
    if parallel:
        system = DataParallel(PPO_CONFIG, learners=2)
        base = dataclasses.replace(base, contender=presets.contender("parallel", system, colour="#000000"))
    slow = presets.contender(
        base.contender.name, base.contender.system, colour="#000000", assumed=Assumed(gradient=0.1, variation=1.0)
    )
    run = learned(base, tmp_path / "base")
    timed = dataclasses.replace(base, contender=slow, retimes=base)
    outcome = timed.outcome()
    retime(timed.workload, outcome, run.history)
    real = learned(dataclasses.replace(timed, retimes=None), tmp_path / "real")
    assert len(outcome.history) == len(real.history) >= 3
    for row, own, other in zip(outcome.history, real.history, run.history, strict=True):
        for name in ("seconds", "cost_demo", "cost_pay_per_use"):
            assert row[name] == own[name] != other[name]
        assert {name: row[name] for name in ("steps", "episodes", "loss") if name in other} == {
            name: other[name] for name in ("steps", "episodes", "loss") if name in other
        }
    again = learned(timed, tmp_path / "again")
    assert again.history[-1]["seconds"] == real.history[-1]["seconds"]
    assert len({base.key, timed.key, real.cell.key}) == 3


def test_rounds_must_be_the_same():
    cell = tiny()
    base = dataclasses.replace(cell, budget=Budget(steps=128))
    outcome = base.outcome()
    rows = [{"round": 1.0, "steps": 64.0, "version": 0.0, "gradients": 0.0}]
    with pytest.raises(ValueError, match="synchronous: the rounds of the dry run are not those"):
        retime(cell.workload, outcome, rows)
