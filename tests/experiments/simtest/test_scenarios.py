"""Scenarios: the seed decides everything, and many seeds reach all that a scenario can be."""

import math

import pytest

from experiments.simtest.scenarios import AGGREGATORS, scenario
from stellaris._core.describe import describe
from stellaris.systems import AsynchronousActors, CentralInference, CircularReplay, DataParallel, Stellaris, Synchronous

SEEDS = 200


@pytest.fixture(scope="module")
def plans():
    return [scenario(seed) for seed in range(SEEDS)]


def test_the_seed_decides_everything(plans):
    again = [describe(scenario(seed)) for seed in range(20)]
    assert again == [describe(plan) for plan in plans[:20]]
    without_seeds = [{**plan, "seed": None} for plan in again]
    assert all(plan not in without_seeds[:i] for i, plan in enumerate(without_seeds))


def test_systems(plans):
    """Every architecture, every aggregator, either truncation, and every way of acting and of controlling staleness."""
    architectures = {Stellaris, Synchronous, AsynchronousActors, CircularReplay, DataParallel, CentralInference}
    assert {type(plan.system) for plan in plans} == architectures
    systems = [plan.system for plan in plans if isinstance(plan.system, Stellaris)]
    for learners, aggregators in AGGREGATORS.items():
        used = [system.aggregator for system in systems if system.learners == learners]
        assert all(aggregator in used for aggregator in aggregators)
    assert {system.rho for system in systems} == {1.0, math.inf}
    assert {system.control.pace for system in systems} == {0, 1, 3}
    assert {(plan.workload.refresh, plan.workload.restart) for plan in plans} == {
        (None, False),
        (None, True),
        (4, False),
    }


def test_deployments(plans):
    """Each option of a deployment is used in some scenarios, and not in all."""
    specs = [spec for plan in plans for spec in plan.functions.values()]
    assert {spec.reuse for spec in specs} == {"newest", "most_recent", "least_recent"}
    assert {spec.overflow for spec in specs} == {"queue", "reject"}
    for field in ("max_concurrency", "reserved_concurrency", "timeout", "transfer"):
        assert {getattr(spec, field) is None for spec in specs} == {False, True}, field
    assert {spec.provisioned > 0 for spec in specs} == {False, True}
    options = [plan.options for plan in plans]
    assert {option["placement"] for option in options} == {"pack", "spread"}
    assert {option["keep_versions"] for option in options} == {1, 2, 3}
    for name in ("nodes", "faults", "store_faults", "max_concurrency"):
        assert {bool(option[name]) for option in options} == {False, True}, name


def test_faults(plans):
    """The chance of each fault is zero in some scenarios, and positive in others."""
    faults = [fault for plan in plans for fault in plan.options["faults"].values()]
    for name in ("throttle", "crash_before", "crash_during", "crash_after", "lose", "duplicate", "straggle"):
        assert {getattr(fault, name) > 0 for fault in faults} == {False, True}, name
    assert {fault.lifetime is None for fault in faults} == {False, True}
    assert {bool(fault.at) for fault in faults} == {False, True}
    assert {bool(fault.lose_containers_at) for fault in faults} == {False, True}
