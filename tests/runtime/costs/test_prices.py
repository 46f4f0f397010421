"""The catalogue of prices: sources, dates, rates and machines."""

import re

import pytest

from stellaris.runtime import FunctionSpec, PriceSheet, Resources, SimulatedPlatform
from stellaris.runtime.costs.prices import catalogue, machine, rate
from stellaris.runtime.delays import Constant
from tests.runtime.helpers import drain, nothing


def test_every_price_has_a_source_and_a_date():
    assert set(catalogue()) == {"aws_lambda", "aws_lambda_provisioned", "azure_aci", "aws_ec2", "azure_vm"}
    for entry in catalogue().values():
        assert len(entry["source"]) > 10
        assert entry["region"]
        assert re.fullmatch(r"(after |before )?20(2[0-6])-(0[1-9]|1[0-2])(-\d\d)?", entry["dated"])


def test_rates_of_services():
    """A second of Lambda with 1.769 GB is rounded up to a millisecond; a container instance is billed idle as well."""
    spec = FunctionSpec(Constant(1.0), resources=Resources(memory=2.0))
    with SimulatedPlatform({"f": spec}) as platform:
        platform.invoke("f", nothing, work=0.0101)
        platform.next_completion()
        got = platform.bill(PriceSheet("p", {"f": rate("aws_lambda")}))
        assert got.total == pytest.approx(2.0 * 0.011 * 0.0000166667 + 0.2e-6)
    assert rate("aws_lambda_provisioned").per_gb_second < rate("aws_lambda").per_gb_second
    aci = rate("azure_aci")
    assert (aci.granularity, aci.cold, aci.idle) == (0.0, True, True)
    assert aci.usd_per_second(Resources(memory=1.0)) * 3600 == pytest.approx(0.00445, rel=1e-4)
    assert aci.usd_per_second(Resources(vcpus=1.0)) * 3600 == pytest.approx(0.0405)
    assert aci.usd_per_second(Resources(gpu_slots=1)) * 3600 == pytest.approx(3.06)


def test_a_container_instance_is_billed_for_its_life():
    """Two hundred invocations of 0.4 s, each as long as a second for a bill by the invocation."""
    spec = FunctionSpec(Constant(0.4), max_concurrency=1, resources=Resources(memory=1.0, vcpus=1.0))
    with SimulatedPlatform({"f": spec}) as platform:
        for i in range(200):
            platform.invoke("f", nothing, at=i * 0.5)
        drain(platform)
        got = platform.bill(PriceSheet("p", {"f": rate("azure_aci")}))
    assert got.total == pytest.approx(99.9 * rate("azure_aci").usd_per_second(spec.resources))


def test_machines_by_the_hour():
    vm = machine("azure_vm", "Standard_E16-8s_v5", runs=("actor",), places=8)
    assert (vm.per_second, vm.runs, vm.places) == (1.008 / 3600, ("actor",), 8)
    for provider in ("aws_ec2", "azure_vm"):
        for kind, price in catalogue()[provider]["per_hour"].items():
            assert machine(provider, kind).per_second * 3600 == pytest.approx(price)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: rate("gcp"),
            "service='gcp' has no rates: choose one of aws_lambda, aws_lambda_provisioned, azure_aci",
        ),
        (lambda: rate("aws_ec2"), "service='aws_ec2' has no rates: choose one of"),
        (
            lambda: machine("aws_lambda", "x"),
            "provider='aws_lambda' rents no machines: choose one of aws_ec2, azure_vm",
        ),
        (
            lambda: machine("azure_vm", "p3.2xlarge"),
            "kind='p3.2xlarge' is unknown at azure_vm: choose one of Standard_NC6s_v3",
        ),
    ],
)
def test_prices_that_nobody_looked_up(call, message):
    with pytest.raises(LookupError, match=message):
        call()
