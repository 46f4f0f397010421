"""The engine on a theorem that is known: of two numbers in (0, 1), neither exceeds 1, and the first is `x`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from theory_checks import check
from theory_checks.check import Claim, Family, Instance, Sides, Theorem


def _draw(key, index, scale):
    del index
    return Instance({"x": scale * jax.random.normal(key, (2,))}, {"two": jnp.array(2.0)})


def _sides(instance):
    x = jax.nn.sigmoid(instance.free["x"])
    return {
        "below one": Sides(x, 1.0),
        "itself": Sides(x * instance.fixed["two"], 2 * x),
        "below a half": Sides(x, 0.5),
        "hard to find": Sides(x.max(), 0.999),
        "another": Sides(x, 1 - x),
    }


TOY = Theorem(
    "toy",
    claims=(
        Claim("below one", "x <= 1"),
        Claim("itself", "2 x = 2 x", equality=True),
        Claim("below a half", "x <= 1/2", control=True),
        Claim("hard to find", "max x <= 0.999", control=True),
        Claim("another", "x = 1 - x", control=True, equality=True),
    ),
    families={"near": Family(_draw, settings={"scale": 0.5}), "far": Family(_draw, settings={"scale": 1.0})},
    sides=_sides,
)


def outcomes(theorem=TOY, **arguments):
    return {outcome.claim.name: outcome for outcome in check.verify(theorem, **{"instances": 200, **arguments})}


@pytest.mark.slow
def test_outcomes():
    seen = outcomes()
    bound = seen["below one"]
    assert (bound.instances, bound.searched) == (200, 2 * 2 * 8)
    assert bound.violations == 0
    assert 0 < bound.slack < 0.3
    assert 0.5 < bound.tightness < 0.9
    assert seen["itself"].kappa == 1.0
    assert seen["below a half"].violations > 100
    assert (seen["another"].violations, seen["another"].found) == (200, 32)
    assert all(o.as_expected for o in seen.values())


@pytest.mark.slow
def test_what_is_no_number_breaks_a_bound_and_no_control():
    nothing = Theorem(
        "nothing",
        claims=(Claim("bound", "nan <= 1"), Claim("control", "nan <= 1", control=True)),
        families=TOY.families,
        sides=lambda instance: dict.fromkeys(("bound", "control"), Sides(jnp.nan * instance.free["x"], 1.0)),
    )
    seen = outcomes(nothing)
    assert (seen["bound"].violations, seen["bound"].found) == (200, 32)
    assert seen["control"].violations == 0
    assert not any(o.as_expected for o in seen.values())


@pytest.mark.slow
def test_the_adversary_finds_what_random_instances_do_not():
    random = outcomes(dataclasses.replace(TOY, steps=0))
    assert random["hard to find"].violations == 0
    seen = outcomes()
    assert (seen["hard to find"].violations, seen["hard to find"].found > 0) == (0, True)
    assert all(witness.searched for witness in seen["hard to find"].witnesses)
    assert random["below one"].kappa < 0.98 < 0.999 < seen["below one"].kappa <= 1


def test_a_right_side_that_is_too_small_is_caught():
    seen = outcomes(dataclasses.replace(TOY, steps=0), multiplier={"below one": 0.7, "itself": 1 + 1e-6})
    assert seen["below one"].violations > 0
    assert seen["itself"].violations == 200
    assert outcomes(dataclasses.replace(TOY, steps=0), multiplier=0.7)["below one"].violations > 0


@pytest.mark.slow
def test_witnesses_come_back():
    for name in ("below a half", "hard to find"):
        worst = max(outcomes(seed=3)[name].witnesses, key=lambda witness: witness.left)
        parts = worst.label.split("/", 3)
        assert parts[0] == "toy"
        claim = parts[3] if worst.searched else None
        _, sides = check.replay(TOY, parts[1], int(parts[2]), claim, seed=3)
        assert np.max(sides[name].left) == worst.left


def test_all_there_are():
    """A family that counts is looked at whole, however few instances were asked for; and one by one in plain Python."""

    def count(key, index):
        return Instance((), {"digit": index})

    def sides(instance):
        return {"digits": Sides(jnp.asarray(instance.fixed["digit"]), 9)}

    whole = Theorem(
        "whole",
        (Claim("digits", "i <= 9"),),
        {"all": Family(count, count=10), "too far": Family(count, count=11)},
        sides,
    )
    for theorem in (dataclasses.replace(whole, steps=0), dataclasses.replace(whole, compiled=False)):
        (outcome,) = check.verify(theorem, instances=1)
        assert outcome.instances == 21
        assert [witness.index for witness in outcome.witnesses] == [10]
