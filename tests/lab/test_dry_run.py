"""Dry runs: what they refuse, and why."""

from dataclasses import replace

import numpy as np
import pytest

from stellaris import PPO, staleness_aware
from stellaris.lab import dry_run, recorded, sweep, throughput, throughputs
from stellaris.lab.plan import plan_of
from stellaris.runtime import Faults, FunctionSpec, Machine, PriceSheet, Rate, SimulatedPlatform, Trace
from stellaris.runtime.delays import Constant, LogNormal, Measured
from stellaris.scheduling import Maximum
from stellaris.systems import Budget, CentralInference, Stellaris, Synchronous, train
from tests.lab.equality import configure

OWN = configure(Synchronous(), seed=0)
SHEET = PriceSheet("demo", {"actor": Rate(per_second=1.0)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system": CentralInference()}, "expected one of Synchronous, DataParallel, AsynchronousActors"),
        ({"system": Synchronous(scheduler=Maximum())}, "scheduler=.*Maximum.* may depend on returns"),
        ({"budget": Budget(steps=1000, target_return=100)}, "target_return=100 depends on returns"),
        ({"budget": Budget(steps=1000, target_evaluation=9.0)}, "target_evaluation=9.0 depends on returns"),
        ({"budget": Budget(cost=1.0)}, "budget.cost=1.0 is not supported in a dry run: limit steps"),
        ({"workload": replace(OWN.workload, environment="CartPole-v1")}, "'CartPole-v1' is not written in JAX"),
        ({"workload": replace(OWN.workload, restart=True)}, "restart=True is not supported"),
        ({"functions": {"actor": FunctionSpec(Constant(1.0))}}, "function 'learner' is not deployed"),
        ({"functions": dict.fromkeys(("actor", "learner"), FunctionSpec(Measured()))}, "'actor' is Measured"),
        ({"workload": None}, "workload=None is not a Workload"),
        ({"budget": 96}, "budget=96 is not a Budget"),
        ({"seed": -1}, "seed=-1"),
        ({"prices": SHEET}, "prices is a single sheet, 'demo'"),
        ({"prices": [SHEET, SHEET]}, "prices: 2 sheets have the name 'demo'"),
    ],
)
def test_errors(changes, message):
    arguments = {"system": OWN.system, "workload": OWN.workload, "budget": Budget(steps=96)} | changes
    platform = SimulatedPlatform(arguments.pop("functions", OWN.functions))
    with pytest.raises((LookupError, TypeError, ValueError), match=message):
        dry_run(**arguments, platform=platform)


@pytest.mark.parametrize("prices", [SHEET, [SHEET, SHEET]])
def test_price_sheets_have_different_names(prices):
    """One cost would overwrite another. The arguments are checked before anything else is read."""
    with pytest.raises((TypeError, ValueError), match="prices"):
        throughput(OWN.system, OWN.workload, platform=OWN.platform(), budget=Budget(steps=96), prices=prices)
    with pytest.raises((TypeError, ValueError), match="prices"):
        recorded(Trace(), prices=prices)


@pytest.mark.slow
def test_a_schedule_has_the_platforms_clock():
    """Three actors of 16 steps at 10 ms, then 8 gradients at 100 ms."""
    functions = {"actor": FunctionSpec(Constant(0.01)), "learner": FunctionSpec(Constant(0.1))}
    schedule = dry_run(OWN.system, OWN.workload, platform=SimulatedPlatform(functions), budget=Budget(seconds=4.0))
    gradients = OWN.system.algorithm.epochs
    np.testing.assert_allclose(schedule.seconds, np.arange(len(schedule.seconds)) * (0.16 + 0.1 * gradients))
    assert schedule.updates == 3
    assert (schedule.data_lag == 0).all()


@pytest.mark.slow
def test_a_schedule_is_billed_up_to_each_version():
    """A second of an actor costs 1 USD, of a learner 10, and a server costs 100 per second of the clock."""
    functions = {"actor": FunctionSpec(Constant(0.01)), "learner": FunctionSpec(Constant(0.1))}
    sheet = PriceSheet("use", {"actor": Rate(1.0), "learner": Rate(10.0)}, {"server": Machine(100.0)})
    platform = SimulatedPlatform(functions)
    schedule = dry_run(OWN.system, OWN.workload, platform=platform, budget=Budget(seconds=4.0), prices=[sheet])
    gradients = OWN.system.algorithm.epochs
    one = 3 * 0.16 * 1.0 + 0.1 * gradients * 10.0 + (0.16 + 0.1 * gradients) * 100.0
    np.testing.assert_allclose(schedule.costs["use"], one * np.arange(4))
    result = sweep(OWN.workload, OWN.system.algorithm, schedule, seeds=2)
    np.testing.assert_allclose(result.cost_use.isel(seed=1), schedule.costs["use"][1:])


@pytest.mark.slow
def test_a_throughput_is_that_of_a_run():
    """Steps, updates, staleness and the bill, with faults, as `train` has them."""
    faults = {"actor": Faults(crash_during=0.05, lose=0.05), "learner": Faults(straggle=0.2)}
    own = configure(Stellaris(learners=3), seed=4, faults=faults)
    sheet = PriceSheet("use", {name: Rate(per_second=1e-4) for name in own.functions})
    budget = Budget(seconds=8.0)
    dry = throughput(own.system, own.workload, platform=own.platform(), budget=budget, prices=[sheet], seed=4)
    run = train(own.system, own.workload, platform=own.platform(), budget=budget, prices=[sheet], seed=4)
    last = run.history[-1]
    assert dry.seconds == 8.0
    assert (dry.steps * 8, dry.updates * 8, dry.gradients * 8) == pytest.approx(
        (last["steps"], last["version"], last["gradients"])
    )
    assert dry.staleness == pytest.approx(run.trace.select("staleness").value.mean())
    assert dry.data_lag == pytest.approx(run.trace.select("age:mean").value.mean())
    assert dry.cost["use"] * 8 == pytest.approx(run.bill["use"].total)


def test_a_run_without_time_has_no_throughput():
    platform = SimulatedPlatform(dict.fromkeys(("actor", "learner"), FunctionSpec(Constant(0.0))))
    with pytest.raises(ValueError, match=r"the run took 0 s of the platform's clock.* a compute time"):
        throughput(OWN.system, OWN.workload, platform=platform, budget=Budget(steps=96))


def at(seconds):
    """The throughput with gradients of so many seconds."""
    functions = {"actor": FunctionSpec(Constant(0.01)), "learner": FunctionSpec(Constant(seconds))}
    return throughput(
        OWN.system, OWN.workload, platform=SimulatedPlatform(functions), budget=Budget(seconds=9.0), seed=1
    )


@pytest.mark.slow
def test_many_deployments_are_measured_in_processes():
    """In the order of the cases, with the numbers that one process gets."""
    cases = [0.1, 0.05, 0.2]
    measured = throughputs(at, cases, processes=2)
    # NumPy's representation, because the staleness is NaN: no gradient is queued.
    assert repr(measured) == repr([at(case) for case in cases])
    assert measured[1].updates > measured[0].updates > measured[2].updates
    with pytest.raises(ValueError, match="processes=0"):
        throughputs(at, cases, processes=0)


def test_a_plan_holds_each_version_once():
    """Of eight learners, a gradient is capped by the few versions that others hold, and at least by its own."""
    system = Stellaris(PPO(epochs=2, minibatch_size=8), learners=8, aggregator=staleness_aware(8, decay=1.0))
    functions = dict.fromkeys(system.functions, FunctionSpec(LogNormal(0.1, 0.5)))
    schedule = dry_run(system, OWN.workload, platform=SimulatedPlatform(functions), budget=Budget(steps=384))
    held = np.asarray(plan_of(schedule)[1].gradient_held)[: len(schedule.gradient_held)]

    def distinct(rows):
        return [{*row.tolist()} - {own} for row, own in zip(rows, schedule.gradient_version, strict=True)]

    others = distinct(schedule.gradient_held)
    most = max(map(len, others))
    assert 1 <= most <= held.shape[1] < 2 * most < schedule.gradient_held.shape[1] == 7
    assert distinct(held) == others
    turned = replace(schedule, gradient_held=schedule.gradient_held[:, ::-1])  # a schedule of one's own, say
    assert distinct(np.asarray(plan_of(turned)[1].gradient_held)[: len(held)]) == others
