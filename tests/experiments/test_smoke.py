"""The smallest preset of every study, with a small network: its runs learn something."""

import argparse
import math
from dataclasses import replace
from unittest import mock

import pytest

from experiments import catalogue
from experiments.study import runs
from experiments.tasks import presets
from stellaris.acting import ActorCritic

STUDIES = [name for name, entry in catalogue.EXPERIMENTS.items() if hasattr(entry.load(), "STUDY")]
#: Of the studies that take long, the variants whose first update comes last.
LAST = {
    "tuning": (
        "synchronous: 0.0006, 20 x 1024",
        "stellaris: 0.0006, 1024 items, in rounds",
        "stellaris, IMPACT: 0.0006, 1024 items, sampling on",
        "asynchronous actors, PPO: 0.0006, 1024 items, sampling on",
        "asynchronous actors: 0.0001, 4 items, in rounds",
        "IMPACT: 0.0006, 1024 items, in rounds",
    ),
    "tuning-steps": ("8 x 256 steps, 10 x 64, 0.0003, lambda 0.95", "8 x 256 steps, 10 x 256, 0.001, lambda 0.95"),
    "stellaris-hpc-sweeps": ("stellaris, variation 1", "stellaris, gradient 4"),
    "stellaris-hpc-tuning": (
        "stellaris: 0.0003, 1920 items, in rounds",
        "stellaris: 0.0003, 3840 items, sampling on",
        "PAR-RL: 0.001, 1920 items",
    ),
    "stellaris-scaling": ("stellaris, actors 4", "stellaris, actors 64", "stellaris, learners 1"),
}
#: Runs that several studies have in common are done once.
DONE = set()


class Enough(Exception):
    """A run has made an update."""


def until_an_update(run):
    if run.history[-1]["version"] >= 1:
        raise Enough


def alike(cell):
    """A cell on the same schedule: when its updates come depends on no learning rate, and on no evaluation."""
    system = cell.contender.system
    system = replace(system, algorithm=replace(system.algorithm, learning_rate=1e-3))
    budget = replace(cell.budget, target_evaluation=math.inf)
    contender = replace(cell.contender, system=system)
    return replace(cell, contender=contender, budget=budget, evaluation=None, replay=None)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("name", STUDIES)
def test_every_run_makes_an_update(name, monkeypatch):
    small, workload = ActorCritic(hidden=(8,)), presets.workload
    monkeypatch.setattr(
        presets, "workload", lambda environment, **how: replace(workload(environment, **how), policy=small)
    )
    study = catalogue.EXPERIMENTS[name].load().STUDY
    parser = argparse.ArgumentParser()
    study.add_arguments(parser)
    words = [word for variant in LAST.get(name, ()) for word in ("--variant", variant)]
    for cell in map(alike, study.cells(parser.parse_args(["--preset", "smoke", *words]))):
        if cell.key not in DONE:
            with pytest.raises(Enough):
                runs.run(cell.workload, cell.outcome(), threads=1, watcher=mock.Mock(row=until_an_update))
            DONE.add(cell.key)
