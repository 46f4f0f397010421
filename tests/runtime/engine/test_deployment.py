"""Deployments: compared, and refused if something in them cannot be."""

import dataclasses
import math
from typing import Any

import pytest

from stellaris.runtime import Faults, FunctionSpec, Node, SimulatedPlatform, StoreFaults
from stellaris.runtime.delays import Constant
from stellaris.runtime.engine.deployment import Deployment

FUNCTIONS = {"f": FunctionSpec(Constant(1.0))}


OTHERS: dict[str, Any] = {
    "functions": {"f": FunctionSpec(Constant(2.0))},
    "nodes": (Node("one", memory=8.0, vcpus=8.0),),
    "placement": "spread",
    "max_concurrency": 3,
    "keep_versions": 3,
    "store_capacity": 1e6,
    "faults": {"f": Faults(lose=0.1)},
    "store_faults": StoreFaults(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_differs_is_named(name: str) -> None:
    one = Deployment(FUNCTIONS)
    assert one == Deployment(dict(FUNCTIONS))
    assert one.differences(dataclasses.replace(one, **{name: OTHERS[name]})) == [name]
    with SimulatedPlatform(**({"functions": FUNCTIONS} | {name: OTHERS[name]})) as platform:
        assert platform.deployment.differences(one) == [name]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"functions": {"f": 1.0}}, TypeError, r"functions=\{'f': 1.0\}: expected FunctionSpec"),
        (
            {"functions": [FunctionSpec(Constant(1.0))]},
            TypeError,
            r"functions=\[.*: expected a mapping, such as \{'name'",
        ),
        ({"faults": Faults()}, TypeError, r"faults=Faults.*: expected a mapping, such as \{'name': Faults"),
        ({"faults": {"f": 0.5}}, TypeError, r"faults=\{'f': 0.5\}: expected Faults"),
        ({"nodes": [Node("a"), "b"]}, TypeError, r"nodes=\[\.\.\., 'b', \.\.\.\]: expected Node\("),
        ({"nodes": Node("a")}, TypeError, r"nodes=Node\(.*: expected a sequence, such as \[Node\("),
        ({"store_faults": 3}, TypeError, r"store_faults=3: expected StoreFaults\("),
        ({"faults": {"g": Faults()}}, LookupError, r"faults=\['g'\]: no such function is deployed"),
        ({"max_concurrency": 0}, ValueError, "max_concurrency=0 is below 1"),
        ({"max_concurrency": math.nan}, ValueError, "max_concurrency=nan is below 1"),
        ({"max_concurrency": 2.5}, TypeError, r"max_concurrency=2\.5 is not a whole number"),
        ({"keep_versions": 1.5}, TypeError, r"keep_versions=1\.5 is not a whole number"),
        ({"keep_versions": math.nan}, ValueError, "keep_versions=nan is below 1"),
        ({"keep_versions": 0}, ValueError, "keep_versions=0 is below 1"),
        ({"store_capacity": 0.0}, ValueError, r"store_capacity=0\.0 is not positive"),
        ({"store_capacity": math.nan}, ValueError, "store_capacity=nan is not positive"),
    ],
)
def test_what_is_refused(unchecked: None, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Deployment(**({"functions": FUNCTIONS} | arguments))
