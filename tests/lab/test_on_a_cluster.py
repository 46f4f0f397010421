"""What a run on a Ray cluster has done, the lab learns again."""

import pytest

from stellaris import PPO
from stellaris.lab import recorded
from stellaris.runtime import FunctionSpec, RayPlatform
from stellaris.runtime.delays import Measured
from stellaris.systems import Budget, Stellaris, train
from tests.lab import equality

pytestmark = pytest.mark.slow


def test_a_recorded_run_is_learned_again(ray_on_this_machine):
    system = Stellaris(PPO(epochs=1, minibatch_size=24), learners=1)
    configuration = equality.configure(system, seed=2)
    functions = {name: FunctionSpec(Measured(), max_concurrency=1) for name in configuration.functions}
    platform = RayPlatform(functions)
    result = train(system, configuration.workload, platform=platform, budget=Budget(steps=48 * 4), seed=2)
    schedule = recorded(result.trace)
    assert schedule.updates >= 3
    assert equality.distance(equality.follow(configuration, schedule), result.policy) < 1e-5
