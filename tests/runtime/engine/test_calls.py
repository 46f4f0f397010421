"""Calls: what a body's context knows."""

import jax

from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant
from tests.runtime.helpers import drain


def test_context():
    def body(context):
        return context.number, context.attempt, context.now, jax.random.key_data(context.key).tolist()

    keys = {}
    for seed in (0, 0, 1):
        with SimulatedPlatform({"f": FunctionSpec(Constant(1.0), queueing=Constant(0.5))}, seed=seed) as platform:
            for _ in range(3):
                platform.invoke("f", body)
            results = [i.result() for i in drain(platform)]
        assert [result[:3] for result in results] == [(0, 1, 0.5), (1, 1, 0.5), (2, 1, 0.5)]
        drawn = [tuple(result[3]) for result in results]
        assert len(set(drawn)) == 3
        assert keys.setdefault(seed, drawn) == drawn
    assert set(keys[0]).isdisjoint(keys[1])
