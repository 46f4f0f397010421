"""MinionsRL's testbed, prices and tasks, by hand and by the paper."""

import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from experiments.tasks import minionsrl, presets, testbed, testbeds
from experiments.tasks.minionsrl import ACTOR, LEARNER
from experiments.toolkit import shell
from stellaris import Batch
from stellaris.runtime import Function, SimulatedPlatform
from stellaris.runtime.costs.billing import bill
from stellaris.runtime.delays import Constant, LogNormal
from stellaris.scheduling import Maximum
from stellaris.systems import CircularReplay, Evaluation, MinionsRL, Synchronous

#: USD a second. Azure's GB, virtual processor and V100; of an actor 4, 1 and none, of the learner 16, 1 and 1.
GB, CORE, V100 = 0.00445 / 3600, 0.0405 / 3600, 0.00085
ACTOR_SECOND = 4 * GB + CORE
LEARNER_SECOND = 16 * GB + CORE + V100


def test_a_second_of_each_function():
    """Eq. 2: unit prices times resources; 54 times as much for the learner. Both bills have the same prices."""
    for sheet in minionsrl.serverless_prices():
        assert sheet.functions["actor"].usd_per_second(ACTOR) == pytest.approx(ACTOR_SECOND, rel=1e-4)
        assert sheet.functions["learner"].usd_per_second(LEARNER) == pytest.approx(LEARNER_SECOND, rel=1e-4)
        assert not sheet.machines
        assert "2026-03-31" in sheet.source
    assert pytest.approx(54.4, abs=0.1) == LEARNER_SECOND / ACTOR_SECOND


def still(monkeypatch):
    monkeypatch.setattr(testbed, "VARIATION", 0.0)
    monkeypatch.setattr(testbed, "ASSUMED", testbed.Assumed(variation=0.0))


def test_what_is_billed(monkeypatch):
    """By Eq. 2 the time that functions run; Azure bills a container's whole life, however many calls are in it."""
    still(monkeypatch)
    functions = minionsrl.functions()
    body = Function(lambda context: None, upload=0)
    platform = SimulatedPlatform(functions, seed=0)
    for at in (0.0, 2.0, 4.0, 4.5):
        platform.invoke("actor", body, work=128, at=at)
    platform.invoke("learner", body, work=20)
    while platform.next_completion() is not None:
        pass
    calls = platform.trace.invocations()
    ran = {name: float(sum((calls.ended - calls.started)[calls.function == i])) for i, name in enumerate(calls.names)}
    # 128 steps of a millisecond, 20 gradients of ten; nothing to be transferred but what a call itself takes.
    assert ran == pytest.approx({"actor": 4 * 0.128, "learner": 0.2}, abs=0.01)
    by_use, azure = minionsrl.serverless_prices()
    paid = bill(platform.trace, by_use, until=10.0, functions=functions)
    expected = {"actor": ran["actor"] * ACTOR_SECOND, "learner": ran["learner"] * LEARNER_SECOND}
    assert paid.parts == pytest.approx(expected, rel=1e-4)
    rented = bill(platform.trace, azure, until=10.0, functions=functions)
    assert rented.parts == pytest.approx({"actor": 10 * ACTOR_SECOND, "learner": 10 * LEARNER_SECOND}, rel=1e-4)


#: Of the authors' learner, by environment and testbed.
AUTHORS = [
    (environment, name)
    for environment in minionsrl.TARGETS
    for name in minionsrl.testbeds_of(environment)
    if name.startswith("authors")
]


def test_testbeds():
    """One has the tuned settings, and the others the authors' learner at a rate; none has a budget of its own."""
    assert [*minionsrl.testbeds_of("CartPole-v1")] == ["tuned", "authors"]
    assert [*minionsrl.testbeds_of("Hopper-v4")] == ["tuned", "authors-0.0003"]
    assert [*minionsrl.testbeds_of("Qbert-v5")] == ["tuned", "authors"]
    for environment, target in minionsrl.TARGETS.items():
        tasks = minionsrl.testbeds_of(environment)
        tuned, authors = tasks["tuned"], [task for name, task in tasks.items() if name.startswith("authors")]
        assert tuned.evaluation is None
        assert tuned.workload.fragment * tuned.workload.actors == presets.ACTORS * presets.FRAGMENT
        assert [one.ppo.learning_rate for one in authors] == [minionsrl.RATES.get(environment, 5e-5)]
        for one in (tuned, *authors):
            assert presets.workload(environment).environment == one.workload.environment
            assert (one.target, one.limits.cost) == (target, math.inf)
            longer = one is tuned and environment.endswith("-v4")
            assert one.limits.steps == (2_000_000 if longer else 400_000 / 128 * one.workload.fragment)


def test_faster_settings_are_one_more_testbed():
    """Named after their learning rate, and otherwise the same task."""
    tuned, retuned = (minionsrl.testbeds_of("Acrobot-v1")[name] for name in ("tuned", "tuned-0.0012"))
    assert retuned == replace(tuned, ppo=replace(tuned.ppo, learning_rate=0.0012, minibatch_size=1024))
    assert minionsrl.label("tuned-0.0012") == "the tuned learner, rate 0.0012"
    assert ("Acrobot-v1", "tuned-0.0012") in minionsrl.BUDGETS


@pytest.mark.parametrize("environment", ["Hopper-v4", "HalfCheetah-v4", "Humanoid-v4", "Qbert-v5"])
def test_the_tuned_learner_has_the_presets_settings(environment):
    """But on the classic tasks, whose many results have older ones."""
    rows = {row.name: row.system for row in presets.architectures(environment).contenders}
    task = minionsrl.tuned_task(environment)
    assert task.ppo == rows["synchronous"].algorithm
    assert {row.name: row.system for row in minionsrl.baselines(environment, task)}["IMPACT"] == rows["IMPACT"]


def test_both_learners():
    """Those of the testbeds; a game without a target has them, too."""
    known = minionsrl.testbeds_of("CartPole-v1")
    assert minionsrl.both_learners("CartPole-v1") == {name: known[name] for name in ("tuned", "authors")}
    tuned, authors = minionsrl.both_learners("Gravitar-v5").values()
    assert math.isinf(tuned.target)
    assert authors.ppo.learning_rate == 5e-5
    with pytest.raises(shell.UsageError, match="--env Gravitar-v5 has no target; choose one of CartPole-v1, "):
        minionsrl.testbeds_of("Gravitar-v5")


def test_every_testbed_of_cartpole_has_a_budget():
    """As every one is of a testbed that exists."""
    of = {testbed for environment, testbed in minionsrl.BUDGETS if environment == "CartPole-v1"}
    assert of == {*minionsrl.testbeds_of("CartPole-v1")}
    assert all(testbed in minionsrl.testbeds_of(environment) for environment, testbed in minionsrl.BUDGETS)


@pytest.mark.parametrize(("environment", "name"), AUTHORS)
def test_the_authors_learner(environment, name):
    """A round has 30 gradients for any number of actors, each on all of its samples; then comes an evaluation."""
    task = minionsrl.testbeds_of(environment)[name]
    fragment = task.workload.fragment
    assert (task.ppo.epochs, task.ppo.minibatch_size) == (30, 32 * fragment)
    for actors in (1, 5, 32):
        samples = jax.ShapeDtypeStruct((actors * fragment,), np.float32)
        rows = jax.eval_shape(task.ppo.minibatches, jax.random.key(0), Batch(*[samples] * 7, samples))
        assert rows.shape == (30, actors * fragment)
    assert task.evaluation == Evaluation(every=1, episodes=10)
    assert (task.limits.target_evaluation, task.limits.target_return) == (task.target, math.inf)


@pytest.mark.parametrize(("environment", "name"), [one for one in AUTHORS if one[0] != "Qbert-v5"])
def test_what_a_round_of_the_authors_learner_takes(environment, name):
    """2,048 steps of a millisecond, or 128 that take as long; if all sample, actors have three quarters of its cost."""
    task = minionsrl.testbeds_of(environment)[name]
    steps, milliseconds = (128, 16) if environment in ("CartPole-v1", "Acrobot-v1") else (2048, 1)
    assert task.workload.fragment == steps
    assert task.functions["actor"].compute == LogNormal(milliseconds / 1000, 0.1)
    actors = 32 * steps * milliseconds / 1000
    learner = 30 * task.functions["learner"].compute.mean
    assert actors == pytest.approx(32 * 2.048)
    share = actors * ACTOR_SECOND / (actors * ACTOR_SECOND + learner * LEARNER_SECOND)
    assert share == pytest.approx(0.75, abs=0.02)


def test_containers_start_as_the_paper_says(monkeypatch):
    """In 300 and 1500 ms; those that are not pre-warmed end with their invocation."""
    task = minionsrl.tuned_task("CartPole-v1")
    warm, cold = (
        minionsrl.minions(minionsrl.MAX, Maximum(), task, prewarmed=prewarmed).functions for prewarmed in (True, False)
    )
    for functions, kept in ((warm, 600.0), (cold, 0.0)):
        assert functions["actor"].cold_start == LogNormal(0.3, 0.1)
        assert functions["learner"].cold_start == LogNormal(1.5, 0.1)
        assert {name: spec.keep_alive for name, spec in functions.items()} == {"actor": kept, "learner": kept}
        assert {name: spec.max_concurrency for name, spec in functions.items()} == {"actor": 32, "learner": 1}
    transfer = warm["actor"].transfer
    # The paper's measure: 6,144 stacks of three frames in 0.8 s; and MuJoCo's 65,536 steps in less than 0.1 s.
    assert 6144 * 3 * 84 * 84 / transfer.bandwidth == pytest.approx(0.8)
    assert 65_536 * 4 * 11 / transfer.bandwidth < 0.1


def test_the_published_settings():
    """Table 1 as the authors' code runs it; and the steps of its communication's breakdown."""
    for environment, steps in (("Hopper-v4", 65_536), ("Qbert-v5", 6_144)):
        task = minionsrl.authors_task(environment)
        ppo = task.ppo
        assert (ppo.learning_rate, ppo.discount, ppo.lambda_, ppo.clip) == (5e-5, 0.99, 1.0, 0.3)
        assert (ppo.kl_coefficient, ppo.entropy_coefficient, ppo.value_coefficient) == (0.2, 0.0, 1.0)
        assert (ppo.epochs, ppo.minibatch_size) == (30, steps)
        assert task.workload.actors == 32
        assert task.workload.actors * task.workload.fragment == steps


def test_the_end_of_a_run():
    """By Eq. 3 and 4, which is what the scheduler is rewarded for."""
    for name, evaluated in (("tuned", False), ("authors", True)):
        task = replace(minionsrl.testbeds_of("CartPole-v1")[name], budget=0.012)
        limits, objective = task.limits, task.objective()
        targets = (limits.target_evaluation, limits.target_return)
        assert targets == ((450.0, math.inf) if evaluated else (math.inf, 450.0))
        assert (limits.cost, limits.window) == (0.012, 32)
        assert (objective.budget, objective.target, objective.window) == (0.012, 450.0, 32)
        assert objective.sheet == minionsrl.serverless_prices()[0].name == minionsrl.reserved()[1][0].name
        assert (objective.evaluated, objective.failure, objective.minimise) == (evaluated, 1.0, "time")
        assert task.objective("cost", failure=None).minimise == "cost"
        assert task.objective("cost", failure=None).failure is None


def test_the_systems():
    """MinionsRL's variants learn by the task's PPO, pre-warmed; Azure ML does, too, and IMPACT by its own algorithm."""
    task = minionsrl.tuned_task("CartPole-v1")
    own = minionsrl.minions(minionsrl.MAX, Maximum(), task).system
    assert own == MinionsRL(task.ppo, Maximum(), prewarm=True)
    azure, impact = minionsrl.baselines("CartPole-v1", task)
    assert (azure.name, impact.name) == ("Azure ML", "IMPACT")
    assert azure.system == Synchronous(task.ppo)
    assert isinstance(impact.system, CircularReplay)
    assert len({*minionsrl.STYLES.values()}) == 5
    assert len({line for _, line in minionsrl.STYLES.values()}) == 5  # in print, colours do not tell them apart


def test_baselines_are_on_reserved_machines():
    """One with a V100 and four of eight cores, by the clock under both bills: 7.092 USD an hour, busy or idle."""
    machines = testbeds.minionsrl_azure().machines
    rows = {row.name: row for row in minionsrl.baselines("CartPole-v1", minionsrl.tuned_task("CartPole-v1"))}
    for name in ("Azure ML", "IMPACT"):
        assert [sheet.name for sheet in rows[name].prices] == ["pay_per_use", "azure"]
        for sheet in rows[name].prices:
            assert sheet.machines == machines
            assert not sheet.functions
            hour = bill(SimulatedPlatform(rows[name].functions, seed=0).trace, sheet, until=3600.0).total
            assert hour == pytest.approx(3.06 + 4 * 1.008)
        assert {spec.cold_start for spec in rows[name].functions.values()} == {Constant(0.0)}
        assert all(math.isinf(spec.keep_alive) for spec in rows[name].functions.values())
    serverless = minionsrl.functions()
    for function, spec in rows["Azure ML"].functions.items():
        assert (spec.compute, spec.transfer) == (serverless[function].compute, serverless[function].transfer)
