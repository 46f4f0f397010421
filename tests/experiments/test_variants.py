"""Studies of variants: each differs from the first in what its name says, and in nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from experiments import (
    command,
    presets,
    stellaris_ablation,
    stellaris_aggregators,
    stellaris_sensitivity,
    stellaris_why,
    variants,
)
from experiments.presets import Contender
from stellaris.acting import ActorCritic
from stellaris.configuration import described, differences
from stellaris.systems import Workload

STUDIES = (stellaris_ablation, stellaris_aggregators, stellaris_sensitivity, stellaris_why)


def fields(one: Contender, other: Contender) -> set[str]:
    """What of the system and around it differs, to the first field."""
    places = differences(described(one), described(other))
    return {".".join(name.split(".")[:2]) if name.startswith("system") else name.split(".")[0] for name, _, _ in places}


@pytest.mark.parametrize("module", [stellaris_ablation, stellaris_aggregators, stellaris_sensitivity])
@pytest.mark.parametrize("environment", ["Hopper-v4", "Qbert-v5"])
def test_variants_differ_in_a_field_of_the_system(module: Any, environment: str) -> None:
    """The first is `tuned`'s Stellaris; the testbed and its prices are the same for all."""
    rows: Mapping[str, Contender] = module._variants(environment)
    first, *others = rows.values()
    assert first.system == presets.tuned(environment).contenders[0].system
    for name, row in zip(list(rows)[1:], others, strict=True):
        changed = fields(first, row)
        assert changed <= {"system.learners", "system.rho", "system.aggregator"}
        assert len(changed) == (2 if name == "neither" else 1)
    assert len({repr(described(row.system)) for row in rows.values()}) == len(rows)


def test_the_way_from_the_baseline_to_the_demo() -> None:
    """One change at a time: it begins and ends with the preset `paper`."""
    rows = stellaris_why._variants("Hopper-v4")
    stellaris, baseline = presets.paper("Hopper-v4").contenders
    first, *_, last = rows.values()
    assert first == baseline
    assert last == stellaris
    assert fields(rows["baseline"], rows["quarter minibatches"]) == {"system.algorithm"}
    assert fields(rows["asynchronous learners"], rows["the cap"]) == {"system.rho"}
    assert fields(rows["the cap"], rows["weights, threshold"]) == {"system.aggregator"}
    algorithms = [row.system.algorithm for row in rows.values()]  # type: ignore[attr-defined]
    gradients = [algorithm.epochs * 4096 // algorithm.minibatch_size for algorithm in algorithms]
    assert gradients == [10, 40, 40, 40, 40, 40]


def test_what_is_printed_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row a variant, with both bills, and a picture an environment."""

    def workload(environment: str) -> Workload:
        return Workload(environment, policy=ActorCritic(hidden=(8,)), actors=16, fragment=16)

    whole = stellaris_ablation._variants

    def few(environment: str) -> Mapping[str, Contender]:
        rows = whole(environment)
        return {name: rows[name] for name in ("Stellaris", "no cap")}

    monkeypatch.setattr(presets, "workload", workload)
    options = ["--preset", "smoke", "--steps", "1024", "--jobs", "2", "--out", str(tmp_path)]
    monkeypatch.setattr(stellaris_ablation, "_variants", few)
    assert command.main(["stellaris-ablation", *options]) == 0
    home = tmp_path / "stellaris-ablation"
    assert (home / "stellaris-ablation_CartPole-v1.png").exists()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("\u2502")]
    assert ["no cap" in rows[-1], "Stellaris" in rows[-2]] == [True, True]
    assert variants.SIZES["smoke"].seeds == 1
