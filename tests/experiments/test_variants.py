"""Studies of variants: each differs from the first in what its name says, and in nothing else."""

from collections.abc import Mapping
from typing import Any

import pytest

from experiments import (
    presets,
    stellaris_ablation,
    stellaris_aggregators,
    stellaris_sensitivity,
    stellaris_why,
)
from experiments.presets import Contender
from stellaris.configuration import described, differences


def fields(one: Contender, other: Contender) -> set[str]:
    """What of the system and around it differs, to the first field."""
    places = differences(described(one), described(other))
    return {".".join(name.split(".")[:2]) if name.startswith("system") else name.split(".")[0] for name, _, _ in places}


@pytest.mark.parametrize("module", [stellaris_ablation, stellaris_aggregators, stellaris_sensitivity])
@pytest.mark.parametrize("environment", ["Hopper-v4", "Qbert-v5"])
def test_variants_differ_in_a_field_of_the_system(module: Any, environment: str) -> None:
    """The first is `tuned`'s Stellaris; the testbed and its prices are the same for all."""
    rows: Mapping[str, Contender] = {row.setting: row.contender for row in module.STUDY.variants(environment)}
    first, *others = rows.values()
    assert first.system == presets.tuned(environment).contenders[0].system
    for name, row in zip(list(rows)[1:], others, strict=True):
        changed = fields(first, row)
        assert changed <= {"system.learners", "system.rho", "system.aggregator"}
        assert len(changed) == (2 if name == "neither" else 1)
    assert len({repr(described(row.system)) for row in rows.values()}) == len(
        [name for name in rows if "replayed" not in name]
    )


def test_the_way_from_the_baseline_to_the_demo() -> None:
    """One change at a time: it begins and ends with the preset `paper`."""
    rows = {row.setting: row.contender for row in stellaris_why.STUDY.variants("Hopper-v4")}
    stellaris, baseline = presets.paper("Hopper-v4").contenders
    first, *_, last = rows.values()
    assert first == baseline
    assert last == stellaris
    assert fields(rows["baseline"], rows["4 x gradients"]) == {"system.algorithm"}
    assert fields(rows["4 x gradients"], rows["minibatches / 4"]) == {"system.algorithm"}
    assert fields(rows["asynchrony"], rows["cap"]) == {"system.rho"}
    assert fields(rows["cap"], rows["weights, threshold"]) == {"system.aggregator"}
    algorithms = [row.system.algorithm for row in rows.values()]  # type: ignore[attr-defined]
    gradients = [algorithm.epochs * 4096 // algorithm.minibatch_size for algorithm in algorithms]
    assert gradients == [10, 40, 40, 40, 40, 40]
