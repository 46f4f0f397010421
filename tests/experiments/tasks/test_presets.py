"""Presets: a system is a row, and nothing differs between systems but what belongs to them."""

import json
from dataclasses import replace

import pytest

from experiments.tasks.presets import ACTORS, ATARI, LEARNERS, PRESETS, architectures, minionsrl_max
from stellaris._core.describe import describe, differences
from stellaris.acting.envs import make
from stellaris.acting.networks import ConvolutionTowers
from stellaris.runtime.delays import Constant


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("environment", ["Hopper-v4", "CartPole-v1", "Own-v0"])
def test_every_system_has_the_functions_that_it_needs(name, environment):
    preset = PRESETS[name](environment)
    for row in preset.contenders:
        assert set(row.system.functions) <= row.functions.keys()
        assert [sheet.name for sheet in row.prices] == ["demo", "pay_per_use"]
    for column in ("colour", "line", "name"):
        assert len({getattr(row, column) for row in preset.contenders}) == len(preset.contenders)


@pytest.mark.parametrize("game", ATARI)
def test_atari(game):
    """Three frames, MinionsRL's convolutions, and what learning sees of the game is in the record."""
    workload = PRESETS["tuned"](game).workload
    env = make(workload.environment, slots=1)
    assert env.spec.observation_shape == (3, 84, 84)
    assert isinstance(workload.make_policy(env.spec).network, ConvolutionTowers)
    options = dict(describe(workload)["environment"]["options"])
    assert options == {"stack_num": 3, "episodic_life": True, "reward_clip": True, "repeat_action_probability": 0.25}


def test_every_architecture_has_the_functions_that_it_needs():
    """And only those; what is serverless starts on demand, and what is reserved costs by the clock."""
    preset = architectures("CartPole-v1")
    assert len({row.colour for row in preset.contenders}) == len(preset.contenders) == 6
    for row in preset.contenders:
        assert set(row.system.functions) == set(row.functions)
        on_demand = {name for name, spec in row.functions.items() if spec.cold_start != Constant(0.0)}
        assert on_demand == set(row.system.serverless)
        demo, by_use = row.prices
        assert bool(by_use.functions) == bool(on_demand)
        assert bool(demo.machines)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (
            "CartPole-v1",
            "tuned on CartPole-v1): learning rate 0.0006, 10 epochs of 1024; "
            "Stellaris learning rate 0.0006, 10 epochs of 1024, actors sampling on",
        ),
        (
            "Walker2d-v4",
            "tuned on Hopper-v4): learning rate 0.0003, 10 epochs of 1024; "
            "Stellaris learning rate 0.0003, 10 epochs of 512, actors sampling on",
        ),
        (
            "Qbert-v5",
            "the papers' own for Atari): learning rate 0.00025, 3 epochs of 256; "
            "Stellaris learning rate 0.00025, 3 epochs of 256, actors in rounds",
        ),
    ],
)
def test_the_tuned_preset_says_what_it_is(environment, said):
    assert PRESETS["tuned"](environment).summary == f"ours ({said}"


def test_the_papers_systems_differ_in_their_minibatches():
    """Each learner takes its part of a batch, and the central one all of it; nothing else."""
    one, other = (describe(row.system.algorithm) for row in PRESETS["paper"]("Hopper-v4").contenders)
    assert list(differences(one, other)) == [("minibatch_size", ACTORS * 256 // LEARNERS, ACTORS * 256)]


def test_settings_are_recorded_as_they_are():
    preset = PRESETS["tuned"]("Hopper-v4")
    record = json.dumps(preset.settings(), allow_nan=False)
    assert json.loads(record)["systems"]["stellaris"]["system"]["rho"] == 2.0
    first, *rest = preset.contenders
    other = replace(preset, contenders=(replace(first, system=replace(first.system, rho=3.0)), *rest))
    assert [name for name, _, _ in differences(preset.settings(), other.settings())] == ["systems.stellaris.system.rho"]


def test_minionsrl_max_learns_as_the_synchronous_system():
    """All that differs is what runs it: everything on demand, and by use nothing else is paid for."""
    row = minionsrl_max("Hopper-v4")
    (synchronous,) = (one for one in PRESETS["tuned"]("Hopper-v4").contenders if one.name == "synchronous")
    assert row.system == synchronous.system
    assert {*row.functions} == {"actor", "learner"}
    assert all(spec.cold_start != Constant(0.0) for spec in row.functions.values())
    _, by_use = row.prices
    assert not by_use.machines
