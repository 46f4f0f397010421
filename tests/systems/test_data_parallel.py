"""Data-parallel learners: together they are one learner, and the all-reduce takes its time."""

from dataclasses import replace

import chex
import pytest

from stellaris import IMPALA, PPO
from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant, Delay, LogNormal
from stellaris.runtime.references import size
from stellaris.systems import Budget, DataParallel, Result, Synchronous, Workload, train
from tests.systems import tiny

LEARNER = Constant(0.1)


def run(
    system: DataParallel,
    *,
    learner: Delay = LEARNER,
    per_byte: float = 0.0,
    steps: int = 32 * 4,
    workload: Workload = tiny.WORKLOAD,
) -> Result:
    functions = tiny.deployment(Constant(0.01), learner)
    del functions["parameter"]
    functions["all_reduce"] = FunctionSpec(Constant(per_byte))
    return train(system, workload, platform=SimulatedPlatform(functions), budget=Budget(steps=steps))


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 2, 4])
@pytest.mark.parametrize(
    "algorithm",
    [
        tiny.PPO_CONFIG,
        replace(tiny.PPO_CONFIG, kl_coefficient=1.0, kl_target=0.01),  # whose weight depends on whole batches
        IMPALA(epochs=2, minibatch_size=4),
    ],
    ids=["ppo", "penalty", "impala"],
)
def test_shards_are_one_learner_on_the_whole(learners: int, algorithm: PPO | IMPALA) -> None:
    """To 1e-5 after several rounds, also where shards have different numbers of valid samples; so are the metrics."""
    if isinstance(algorithm, IMPALA):
        learners = min(learners, 2)  # a batch has two trajectories
    sharded = run(DataParallel(algorithm, learners))
    functions = tiny.deployment(Constant(0.01), Constant(0.1))
    whole = tiny.run(Synchronous(algorithm), functions, budget=Budget(steps=32 * 4))
    assert sharded.history[-1]["gradients"] == whole.history[-1]["gradients"] > 0
    chex.assert_trees_all_close(sharded.policy, whole.policy, rtol=1e-5, atol=1e-5)
    for row, other in zip(sharded.history, whole.history, strict=True):
        metrics = [
            name for name in row if name in ("loss", "entropy", "kl", "data_lag_max") or name.startswith("lag0_")
        ]
        assert [row[name] for name in metrics] == pytest.approx([other[name] for name in metrics], rel=1e-3, abs=1e-5)


def test_the_slowest_learner_is_waited_for() -> None:
    """At every gradient: none begins before all of the last are done."""
    result = run(DataParallel(tiny.PPO_CONFIG, 4), learner=LogNormal(0.1, 1.0))
    started = result.trace.select("started", function="learner").time
    ended = result.trace.select("completed", function="learner").time
    whole = len(ended) // 4 * 4
    ends = ended[:whole].reshape(-1, 4).max(axis=1)
    assert len(ends) > 20
    assert all(started[4 * (i + 1)] >= end for i, end in enumerate(ends[:-1]) if 4 * (i + 1) < len(started))


@pytest.mark.slow
@pytest.mark.parametrize(("learners", "crossing"), [(1, 0.0), (2, 1.0), (4, 1.5)])
def test_the_all_reduce_costs_time_by_bytes(learners: int, crossing: float) -> None:
    """A ring's: 2 (N - 1) / N times the bytes of a gradient, over the bandwidth."""
    bandwidth = 1e4
    result = run(DataParallel(tiny.PPO_CONFIG, learners), per_byte=1 / bandwidth)
    durations = [
        end - start
        for start, end in zip(
            result.trace.select("started", function="all_reduce").time,
            result.trace.select("completed", function="all_reduce").time,
            strict=False,
        )
    ]
    assert durations == pytest.approx([crossing * size(result.policy.params) / bandwidth] * len(durations))
    assert len(durations) >= 2 * tiny.GRADIENTS_A_ROUND


def test_a_shard_of_padding_has_no_metrics() -> None:
    """Three trajectories leave a place in two minibatches of two; its learner has neither an entropy nor a version."""
    system = DataParallel(IMPALA(minibatch_size=2), learners=2)
    last = run(system, workload=replace(tiny.WORKLOAD, actors=3), steps=48 * 3).history[-1]
    assert last["version"] == 2
    assert (last["data_lag_mean"], last["version_oldest"], last["version_mean"]) == (0.0, 1.0, 1.0)
    assert last["entropy"] > 0.65  # nearly ln(2), as of a policy that is hardly trained


def test_the_trace_names_the_function_that_applies_a_gradient() -> None:
    """An invocation that has applied a gradient is one of the function in the same row."""
    trace = run(DataParallel(tiny.PPO_CONFIG, 2), steps=32 * 2).trace
    applied = trace.select("staleness", function="all_reduce").invocation
    assert len(applied) == len(trace.select("staleness").value) > 0
    assert set(applied) <= set(trace.select("submitted", function="all_reduce").invocation)


def test_a_minibatch_must_be_divisible() -> None:
    with pytest.raises(ValueError, match="learners=3 do not divide a minibatch of 8"):
        run(DataParallel(tiny.PPO_CONFIG, 3))
    with pytest.raises(ValueError, match="learners=0 is below 1"):
        DataParallel(learners=0)
