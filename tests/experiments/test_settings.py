"""Settings from the command line: every field by its name, checked, and nothing else is evaluated."""

import math

import pytest

from experiments import settings, train
from experiments.toolkit.shell import UsageError
from stellaris import staleness_aware
from stellaris.runtime.delays import Constant, LogNormal
from stellaris.systems import StalenessControl


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-1e-3", -1e-3),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("none", None),
        ("True", True),
        ("sequential", "sequential"),
        ("(64, 64)", (64, 64)),
        ("[1, 2]", [1, 2]),
        ("{'a': 1}", {"a": 1}),
        ("LogNormal(0.02, cv=1.0)", LogNormal(0.02, 1.0)),
        ("StalenessControl(pace=0)", StalenessControl(pace=0)),
        ("staleness_aware(4, decay=0.9)", staleness_aware(4, decay=0.9)),
    ],
)
def test_values(text, value):
    assert settings.value_of(text) == value


@pytest.mark.parametrize(
    "text", ["__import__('os')", "os.system('true')", "open('x')", "1 + 1", "[x for x in (1,)]", "train()"]
)
def test_nothing_else_is_evaluated(text):
    with pytest.raises(UsageError, match="is not a"):
        settings.value_of(text)


def test_every_part_of_a_run():
    """Fields of the system, its algorithm, the workload, the deployment and the budget, in any order."""
    given = ["platform.learner.compute=Constant(0.3)", "workload.actors=8", "rho=3", "algorithm.clip=0.1"]
    given += ["control.pace=2", "workload.policy.hidden=(8,)", "budget.seconds=5", "learners=2"]
    (one,) = train.made_variants("Stellaris", "CartPole-v1", given, [])
    system = one.contender.system
    assert (system.rho, system.algorithm.clip, system.control.pace, system.learners) == (3, 0.1, 2, 2)
    assert one.contender.functions["learner"].compute == Constant(0.3)
    assert one.contender.functions["learner"].max_concurrency == 2
    assert one.contender.functions["actor"].max_concurrency == one.workload.actors == 8
    assert one.workload.policy.hidden == (8,)
    assert one.limits.seconds == 5


def test_sweeps_are_products():
    """Each combination is a variant with its factors; commas within a call separate no values."""
    axes = ["learners=1,4", "platform.actor.compute=LogNormal(0.01, 1.0),Constant(0.01)"]
    made = train.made_variants("stellaris", "CartPole-v1", ["rho=2"], axes)
    assert [one.contender.system.learners for one in made] == [1, 1, 4, 4]
    assert [one.contender.functions["actor"].compute for one in made[:2]] == [LogNormal(0.01, 1.0), Constant(0.01)]
    assert made[2].factors == {"learners": "4", "platform.actor.compute": "LogNormal(0.01, 1.0)"}
    assert len({one.name for one in made}) == 4
    assert [one.contender.name for one in train.made_variants("asynchronous-actors", "CartPole-v1", [], [])] == [
        "asynchronous actors"
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("algorithm.clp=1", r"algorithm.clp: PPO has no field 'clp'; did you mean 'clip'\?"),
        ("platform.lerner.compute=1", "'lerner' is not deployed; choose one of actor, learner, parameter"),
        ("platform.learner.compute=3", "platform.learner.compute=3: .*is not a delay"),
        ("learners=x", "learners=x: learners='x' is not a whole number"),
        ("rho=0.5", "rho=0.5: rho=0.5 is below 1"),
        ("budget=3", "budget=3: name a field of it, such as budget.seconds=60"),
        ("rho", "rho: expected NAME=VALUE"),
        ("rho=(1", r"rho=\(1: '\(1' is not a value"),
        ("rho=LogNorml(1)", r"'LogNorml' is not a public name of the library; did you mean 'LogNormal'\?"),
        ("algorithm.clip.deep=1", "algorithm.clip.deep: float has no field 'deep'; it has no fields"),
    ],
)
def test_errors(given, message):
    with pytest.raises(UsageError, match=message):
        train.made_variants("stellaris", "CartPole-v1", [given], [])


def test_unknown_systems():
    with pytest.raises(
        UsageError, match="--system steller: choose one of synchronous, central-inference, data-parallel"
    ):
        train.made_variants("steller", "CartPole-v1", [], [])
