"""The systems' functions: what they carry to and fro, by its real size."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import PPO, staleness_aware
from stellaris.acting import envs
from stellaris.acting.policies import ActorCritic, Policy, PolicyVersion
from stellaris.acting.rollout import fragment_bytes
from stellaris.acting.vector import EnvSpec
from stellaris.algorithms.batch import Batch
from stellaris.runtime import Faults, FunctionSpec, Retry, SimulatedPlatform, Transfer
from stellaris.runtime.delays import Constant
from stellaris.runtime.endings import ENDINGS
from stellaris.runtime.references import size
from stellaris.systems import Budget, Stellaris, Synchronous, Workload, programs, train
from stellaris.systems.batches import LearnerBatch
from stellaris.types import Versioned

ALGORITHM = PPO(epochs=2, minibatch_size=24)
WORKLOAD = Workload("CartPole-v1", policy=ActorCritic(hidden=(8,)), actors=3, fragment=16)


BANDWIDTH = 1e6
SAMPLE = 16 + 4 + 4 * 4 + 4 + 1  # observation, action, four numbers, version, validity


def carried(system, *functions) -> tuple[dict[str, list[int]], Any]:
    """Bytes that each function's invocations carried, in order, where nothing but bytes costs time; and the run."""
    spec = FunctionSpec(Constant(0.0), transfer=Transfer(Constant(0.0), BANDWIDTH))
    platform = SimulatedPlatform(dict.fromkeys(functions, spec))
    result = train(system, WORKLOAD, platform=platform, budget=Budget(steps=5 * 48))
    table = result.trace.invocations()
    nbytes = np.rint((table.ended - table.started) * BANDWIDTH)
    completed = table.ending == ENDINGS.index("completed")
    return {name: nbytes[completed & (table.function == i)].tolist() for i, name in enumerate(table.names)}, result


@pytest.mark.slow
def test_what_the_synchronous_learner_carries():
    """The policy, the optimizer's state and the whole batch; back go parameters and state."""
    nbytes, result = carried(Synchronous(ALGORITHM), "actor", "learner")
    params = result.policy.params
    state = size(ALGORITHM.optimizer().init(params))
    assert set(nbytes["learner"]) == {size(result.policy) + state + 48 * SAMPLE + size(params) + state}
    assert len(nbytes["learner"]) >= 4
    env = envs.make("CartPole-v1", slots=1)
    fragment = fragment_bytes(ActorCritic(hidden=(8,))(env.spec), 16)
    assert set(nbytes["actor"]) == {size(result.policy) + size(0) + fragment}  # with the number of its noise


@pytest.mark.slow
@pytest.mark.parametrize(("rho", "most"), [(1.0, 3), (math.inf, 1)])
@pytest.mark.parametrize("combine", ["mean", "sequential"])
def test_what_stellaris_functions_carry(rho, most, combine):
    """A learner: its policy, the others' that differ if there is a cap, its minibatch; back goes a gradient.

    The parameter function: the gradients of its group, parameters and optimizer state; back go the latter two.
    """
    aggregator = staleness_aware(3, decay=0.9, combine=combine)
    system = Stellaris(ALGORITHM, learners=3, aggregator=aggregator, rho=rho)
    nbytes, result = carried(system, "actor", "learner", "parameter")
    params = size(result.policy.params)
    policies = {(n - 24 * SAMPLE - params) / size(result.policy) for n in nbytes["learner"]}
    assert policies <= set(range(1, most + 1))
    assert len(policies) > 1 or most == 1
    both = params + size(ALGORITHM.optimizer().init(result.policy.params))
    groups = [(n - 2 * both) / params for n in nbytes["parameter"]]
    assert set(groups) <= {1, 2, 3, 4, 5, 6}
    applied = len(result.trace.select("staleness").value)
    assert sum(groups) == pytest.approx(applied, abs=6)  # the last group may be under way


@pytest.mark.slow
def test_containers_that_were_made_ahead_have_environments():
    """More than there are actors: each of them is stepped sooner or later, as those before it crash."""
    functions = dict.fromkeys(("actor", "learner"), FunctionSpec(Constant(0.01), retry=Retry(limit=99)))
    platform = SimulatedPlatform(functions, faults={"actor": Faults(crash_during=0.2)})
    platform.prewarm("actor", 7)
    result = train(Synchronous(ALGORITHM), WORKLOAD, platform=platform, budget=Budget(steps=12 * 48))
    used = result.trace.invocations()
    slots = {number: slot for _, event, _, _, number, slot in result.trace.rows() if event == "container_created"}
    assert max(slots[number] for number in used.container.tolist() if number in slots) >= 6


@dataclass(frozen=True)
class Linear:
    """A network of one layer that counts how often it is traced."""

    passes = 0

    def init(self, key, observation):
        return jax.random.normal(key, (observation.shape[-1], 3))

    def apply(self, params, observation):
        Linear.passes += 1
        both = observation @ params
        return both[..., :2], both[..., 2]


def test_a_learner_evaluates_each_version_once():
    """Sixty-four learners hold three versions: a few passes through the network give the cap of all."""
    policy = Policy(EnvSpec("", np.zeros(4), actions=2, discrete=True), Linear(), normalise=False)
    own, *others = [
        Versioned(7 - i, PolicyVersion(policy.init(jax.random.key(i)), policy.statistics().normaliser()))
        for i in range(3)
    ]
    random = np.random.default_rng(0)
    observation, (value, advantage, target) = random.normal(size=(96, 4)), random.normal(size=(3, 96))
    log_prob = np.log(random.uniform(0.1, 0.9, 96))
    data = Batch(observation, np.arange(96) % 2, log_prob, value, advantage, target, np.full(96, 4), np.full(96, True))
    batch = LearnerBatch(
        number=1,
        batch=jax.tree.map(jnp.asarray, data),
        indices=np.arange(96)[None],
        statistics=policy.statistics(),
        unseen=np.ones(96, np.int32),
        left=1,
        rows=None,
        sample=observation,
    )
    learn, context = programs.learner(ALGORITHM, policy, rho=1.0).body, SimpleNamespace(number=1)
    (few, few_passes), (many, many_passes) = [
        (learn(context, own, [own, *others, *[own] * repeats], batch.minibatches[0]), Linear.passes)
        for repeats in (0, 61)
    ]
    assert many_passes - few_passes <= 1 + 4
    np.testing.assert_allclose(many.gradient, few.gradient, rtol=1e-5)
    alone = learn(context, own, [own] * 64, batch.minibatches[0])
    assert np.abs(alone.gradient - few.gradient).max() > 1e-3
