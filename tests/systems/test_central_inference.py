"""Central inference: what local inference samples, at the price of two messages a step."""

from dataclasses import replace
from typing import Any

import chex
import numpy as np
import pytest

from stellaris.acting.rollout import Fragment
from stellaris.runtime import Faults, FunctionSpec, Retry, SimulatedPlatform, Transfer
from stellaris.runtime.delays import Constant, Delay, Exponential, LogNormal
from stellaris.runtime.endings import ENDINGS
from stellaris.systems import Budget, CentralInference, Result, Synchronous, Workload, train
from tests.systems import tiny

SYSTEM = CentralInference(tiny.PPO_CONFIG)
STEP, INFERENCE = Constant(0.01), Constant(0.002)


def functions(actor: Delay = STEP, inference: Delay = INFERENCE, **more: Any) -> dict[str, FunctionSpec]:
    delays = {"actor": actor, "inference": inference, "learner": Constant(0.1)}
    return {name: FunctionSpec(delay, **more) for name, delay in delays.items()}


def run(
    deployed: dict[str, FunctionSpec], *, steps: int = 32 * 4, workload: Workload = tiny.WORKLOAD, **more: Any
) -> Result:
    return train(SYSTEM, workload, platform=SimulatedPlatform(deployed, **more), budget=Budget(steps=steps))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v4"])
def test_it_samples_what_local_inference_does(name: str) -> None:
    """The same episodes, and parameters to 1e-5, over several rounds, where each actor keeps its environment."""
    # Rewards are scaled, so the statistics of returns are the same, too.
    workload = replace(tiny.WORKLOAD, environment=name, policy=replace(tiny.WORKLOAD.policy, scaling_discount=0.9))
    central = run(functions(), workload=workload)
    in_turn = {name: replace(spec, reuse="least_recent") for name, spec in tiny.deployment().items()}
    local = tiny.run(Synchronous(tiny.PPO_CONFIG), in_turn, workload=workload, budget=Budget(steps=32 * 4))
    assert central.history[-1]["gradients"] == local.history[-1]["gradients"] == 3 * tiny.GRADIENTS_A_ROUND
    for event in ("sampled", "episode", "episode_length", "reset"):
        np.testing.assert_allclose(central.trace.select(event).value, local.trace.select(event).value, rtol=1e-5)
    assert central.policy.normaliser.reward > 0
    chex.assert_trees_all_close(central.policy, local.policy, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_fragments_continue_one_another() -> None:
    """Each begins where the one before of the same environment ended, as replay tables require."""
    fragments: list[Fragment] = []
    budget = Budget(steps=32 * 4)
    train(SYSTEM, tiny.WORKLOAD, platform=SimulatedPlatform(functions()), budget=budget, on_fragment=fragments.append)
    for slot in {fragment.slot for fragment in fragments}:
        own = [fragment for fragment in fragments if fragment.slot == slot]
        assert [one.follows for one in own[:-1]] == [(two.slot, two.environment, two.first) for two in own[1:]]
    assert len(fragments) > 2 * tiny.WORKLOAD.actors


@pytest.mark.slow
def test_a_step_costs_a_round_trip() -> None:
    """10 ms a step, 2 ms an inference, and messages of 1 ms each way and at each end: 17 observations, 16 steps."""
    wire = Transfer(Constant(0.001), float("inf"))
    deployed = {name: replace(spec, transfer=wire) for name, spec in functions().items()}
    result = run(deployed, workload=_workload(actors=1), steps=40)
    learner = result.trace.select("submitted", function="learner").time
    first_look = 0.001  # no step yet
    assert learner[0] == pytest.approx(first_look + 16 * (0.002 + 0.001 + 0.01 + 0.001))


@pytest.mark.slow
def test_actors_are_served_together() -> None:
    """Those whose observations have come while the machine was busy: fewer calls than steps."""
    result = run(functions(actor=LogNormal(0.001, 0.5), inference=Constant(0.01)), workload=_workload(actors=6))
    calls, steps = (len(result.trace.select("completed", function=name).time) for name in ("inference", "actor"))
    assert calls < 0.5 * steps


def _workload(**changes: Any) -> Workload:
    return replace(tiny.WORKLOAD, **changes)


def test_what_is_lost_is_sampled_anew() -> None:
    """Crashes and lost messages: no fragment has a step from elsewhere, so rewards and episodes add up."""
    faults = Faults(crash_during=0.02, lose=0.02, duplicate=0.02, notice_after=Exponential(0.05))
    result = run(functions(), faults=dict.fromkeys(("actor", "inference"), faults), steps=32 * 6)
    trace = result.trace
    assert len(trace.select("crashed").time) > 3
    assert len(trace.select("lost").time) > 3
    spent = sum(trace.select(event).value.sum() for event in ("learned", "waiting", "reset", "lost_steps"))
    assert trace.select("sampled").value.sum() == spent >= 32 * 6
    # CartPole gives 1 a step: an episode's return is its length, wherever it was interrupted.
    np.testing.assert_array_equal(trace.select("episode").value, trace.select("episode_length").value)


@pytest.mark.slow
def test_lost_steps_are_counted() -> None:
    """Of every actor invocation but those that only report its environment: a step that is learned from or lost."""
    faults = {"actor": Faults(at={30: ("crash_before",), 90: ("crash_before",)})}
    deployed = functions(retry=Retry(limit=3))
    one = replace(tiny.WORKLOAD, actors=1, fragment=32)
    result = run(deployed, steps=32 * 5, workload=one, faults=faults)
    last, calls = result.history[-1], result.trace.invocations()
    completed = (calls.function == calls.names.index("actor")) & (calls.ending == ENDINGS.index("completed"))
    assert completed.sum() - 3 == last["steps"]
    # The first fragment loses its 29 steps, and the third its 26; two of them only reset the environment.
    abandoned = [steps for steps in result.trace.select("sampled").value.tolist() if steps < 32]
    assert (abandoned, last["lost_steps"]) == ([29.0, 26.0], 53.0)


def test_an_episode_is_lost_with_all_of_its_steps() -> None:
    """Also those of the fragment that was not whole: each is of an episode that ended, was lost, or goes on."""
    faults = {"actor": Faults(at={30: ("crash_before",), 50: ("crash_before",), 90: ("crash_before",)})}
    delivered: list[Fragment] = []
    platform = SimulatedPlatform(functions(retry=Retry(limit=3)), faults=faults)
    one, budget = replace(tiny.WORKLOAD, actors=1, fragment=32), Budget(steps=32 * 5)
    trace = train(SYSTEM, one, platform=platform, budget=budget, on_fragment=delivered.append).trace
    sampled, reset, ended, lost = (
        trace.select(event).value.sum() for event in ("sampled", "reset", "episode_length", "lost_episode")
    )
    assert lost > 0
    assert sampled - reset == ended + lost + delivered[-1].unfinished


@pytest.mark.slow
def test_environments_that_never_live_long_enough() -> None:
    with pytest.raises(RuntimeError, match=r"actor \d has lost its environment 1000 times before fragment=16 steps"):
        run(functions(keep_alive=0.0))


@pytest.mark.parametrize(
    ("changes", "limit", "message"),
    [
        ({"restart": True}, None, "restart=True, refresh=None: with central inference"),
        ({"refresh": 4}, None, "restart=False, refresh=4: with central inference"),
        ({}, 1, "max_concurrency=1 of 'actor' is below actors=2: each actor needs a container"),
    ],
)
def test_errors(changes: dict[str, Any], limit: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(functions(max_concurrency=limit), workload=_workload(**changes))
