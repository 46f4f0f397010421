"""Stellaris with parts of it switched off is an algorithm that is known already."""

import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import IMPACT, IMPALA, fully_asynchronous, staleness_aware
from stellaris.acting import PolicyVersion, envs
from stellaris.algorithms import Algorithm, update
from stellaris.algorithms.batch import take
from stellaris.runtime.delays import Constant, Uniform
from stellaris.systems import StalenessControl, Stellaris, Synchronous, programs
from stellaris.systems.batches import GradientTask
from tests.systems import tiny

PPO = tiny.PPO_CONFIG
NO_THRESHOLD = {"decay": 1.0, "max_staleness": math.inf}


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, GradientTask, PolicyVersion]]:
    """What every learner invocation computed: number, work and the version that it computed on."""
    seen: list[tuple[int, GradientTask, PolicyVersion]] = []
    make = programs.learner

    def spying(*args: Any) -> programs.Function:
        program = make(*args)

        def body(context: Any, version: Any, held: Any, work: GradientTask) -> programs.Learned:
            seen.append((context.number, work, version))
            return program.body(context, version, held, work)

        return programs.Function(body)

    monkeypatch.setattr(programs, "learner", spying)
    return seen


def assert_same(one: Any, other: Any, rtol: float = 0.0) -> None:
    chex.assert_trees_all_close(one, other, rtol=rtol, atol=rtol)


def test_one_learner_without_delays_is_plain_ppo(learned: list[Any]) -> None:
    """One learner, zero delays, no threshold: the updates are plain PPO's on the same data, over several rounds."""
    system = Stellaris(PPO, learners=1, aggregator=staleness_aware(1, **NO_THRESHOLD), control=StalenessControl(pace=0))
    result = tiny.run(system, tiny.deployment(Constant(0), Constant(0), Constant(0)))
    policy = programs_policy()
    rounds = [learned[i : i + tiny.GRADIENTS_A_ROUND] for i in range(0, len(learned), tiny.GRADIENTS_A_ROUND)]
    complete = [r for r in rounds if len(r) == tiny.GRADIENTS_A_ROUND]
    assert len(complete) >= 3
    version = complete[0][0][2].value
    params, opt_state = version.params, PPO.optimizer().init(version.params)
    for gradients in complete:
        data, start = gradients[0][1].data, gradients[0][2].value
        assert_same(start.params, params, rtol=2e-5)

        def apply(p: Any, observation: Any, start: PolicyVersion = start) -> Any:
            return policy.apply(start._replace(params=p), observation)

        params, opt_state, _ = update(PPO, apply, params, opt_state, data.batch, data.indices)
    if len(complete) == len(rounds):
        assert_same(result.policy.params, params, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [PPO, IMPACT(epochs=2, minibatch_size=8), IMPALA(epochs=2, minibatch_size=1)])
def test_in_step_with_one_learner_it_is_the_synchronous_system(algorithm: Algorithm) -> None:
    """Over several rounds without delays: to 1e-6, as a gradient is compiled alone here, and in a scan there."""
    aggregator = staleness_aware(1, **NO_THRESHOLD)
    system = Stellaris(algorithm, learners=1, aggregator=aggregator, control=StalenessControl(pace=0))
    functions = tiny.deployment(Constant(0), Constant(0), Constant(0))
    budget = {"budget": tiny.Budget(steps=32 * 4)}
    asynchronous, synchronous = (tiny.run(s, functions, **budget) for s in (system, Synchronous(algorithm)))
    assert asynchronous.history[-1]["gradients"] == synchronous.history[-1]["gradients"] > 3
    assert asynchronous.history[-1]["episodes"] == synchronous.history[-1]["episodes"] > 0
    assert_same(asynchronous.policy, synchronous.policy, rtol=1e-6)


@pytest.mark.slow
def test_without_cap_weights_and_threshold_it_is_fully_asynchronous_ppo(learned: list[Any]) -> None:
    """rho = smoothness = max_staleness = inf: every gradient as it comes, on the version that its learner held."""
    delays = tiny.deployment(Constant(0.01), Uniform(0.1, 0.3), Constant(0))
    aggregator = staleness_aware(3, smoothness=math.inf, **NO_THRESHOLD)
    result = tiny.run(Stellaris(PPO, learners=3, aggregator=aggregator, rho=math.inf), delays)
    staleness = result.trace.select("staleness").value
    assert staleness.max() >= 2  # otherwise this shows nothing

    held = {number: (work, version) for number, work, version in learned}
    twin = tiny.run(Stellaris(PPO, learners=3, aggregator=fully_asynchronous(capacity=6), rho=math.inf), delays)
    assert_same(result.policy, twin.policy)

    policy, optimizer = programs_policy(), PPO.optimizer()
    pushed = result.trace.select("pushed").invocation.tolist()
    versions = {0: held[min(held)][1].value}
    params, opt_state = versions[0].params, optimizer.init(versions[0].params)
    for clock, number in enumerate(pushed[: len(staleness)]):
        work, version = held[number]
        assert clock - version.version == staleness[clock]
        minibatch = take(work.data.batch, jnp.asarray(work.indices))

        def loss(p: Any, version: Any = version, minibatch: Any = minibatch) -> Any:
            return PPO.loss(policy.apply, version.value._replace(params=p), minibatch)[0]

        gradient = jax.grad(loss)(versions[version.version].params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        params = optax.apply_updates(params, updates)
        versions[clock + 1] = PolicyVersion(params, None)
    assert_same(result.policy.params, params, rtol=2e-4)


def programs_policy() -> Any:
    return tiny.WORKLOAD.make_policy(envs.make(tiny.WORKLOAD.environment, slots=1).spec)


@pytest.mark.slow
def test_the_cap_and_the_weights_do_something() -> None:
    delays = tiny.deployment(Constant(0.01), Uniform(0.1, 0.3), Constant(0))

    def params(**options: Any) -> np.ndarray:
        smoothness = options.pop("smoothness", math.inf)
        aggregator = staleness_aware(3, smoothness=smoothness, **NO_THRESHOLD)
        result = tiny.run(Stellaris(PPO, learners=3, aggregator=aggregator, **options), delays)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(result.policy.params)])

    plain = params(rho=math.inf)
    assert np.abs(params(rho=1.0) - plain).max() > 1e-4
    assert np.abs(params(rho=math.inf, smoothness=3.0) - plain).max() > 1e-4
