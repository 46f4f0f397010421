"""Every theorem with few instances: bounds hold, controls break, and half of what was met is found to be too little."""

import dataclasses

import numpy as np
import pytest

from theory_checks import check, command, convergence, rates, schedules

#: Controls that only the adversary breaks; compiling it takes longer than everything else.
NEEDS_THE_ADVERSARY = {"half the excess of rho"}
THEOREMS = {t.name: t for module in command.CHECKS.values() for t in module.THEOREMS}


@pytest.fixture(scope="module")
def short():
    """Shorter runs on the platform, where the run-time type checker looks at every call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates, "_ARRIVALS", 128)
        patch.setattr(convergence, "AGGREGATORS", dict(list(convergence.AGGREGATORS.items())[2:3]))
        left_out = list(schedules.DELAYS)[2:]
        patch.setattr(schedules, "DELAYS", {name: schedules.DELAYS[name] for name in list(schedules.DELAYS)[:2]})
        yield left_out
    for module in (rates, convergence):
        module.recorded.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", THEOREMS)
def test_holds_and_half_of_what_was_met_is_caught(name, short):
    theorem = THEOREMS[name]
    first = next(iter(theorem.families.values()))
    alike = {name: f for name, f in theorem.families.items() if f.draw is first.draw or not theorem.compiled}
    alike = {name: f for name, f in alike.items() if name not in short}
    theorem = dataclasses.replace(theorem, families=alike, steps=0)
    instances = 16 if theorem.at_most else 200
    outcomes = check.verify(theorem, instances=instances)
    assert {o.claim.name for o in outcomes if not o.as_expected} <= NEEDS_THE_ADVERSARY
    half = {o.claim.name: o.kappa / 2 for o in outcomes if not o.claim.control}
    planted = check.verify(theorem, instances=instances, multiplier=half)
    assert all(o.violations for o in planted if not o.claim.control)


@pytest.mark.slow
def test_the_adversary_breaks_what_random_instances_do_not():
    theorem = THEOREMS["improvement"]
    claims = tuple(claim for claim in theorem.claims if claim.name in NEEDS_THE_ADVERSARY)
    theorem = dataclasses.replace(theorem, claims=claims, families={"tiny": theorem.families["tiny"]})
    (outcome,) = check.verify(theorem, instances=200)
    assert outcome.as_expected


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, module in command.CHECKS.items() if hasattr(module, "picture")])
def test_pictures(name, tmp_path, monkeypatch):
    made_up = np.random.default_rng(0).uniform(0.1, 1.0, size=(9, 32))
    monkeypatch.setattr(command.CHECKS["rates"], "measured", lambda name, delay, seed: made_up)
    tightness = {"log rho": made_up[:4, :8], "1 - 1/rho": made_up[4:8, :8]}
    monkeypatch.setattr(command.CHECKS["improvement"], "tightness", lambda seed: tightness)
    command.CHECKS[name].picture(tmp_path / f"{name}.png", 0)
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
