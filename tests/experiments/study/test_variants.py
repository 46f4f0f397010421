"""Studies of variants: each differs from the first in what its name says, and in nothing else."""

import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from experiments.figures.stellaris import (
    ablation,
    aggregators,
    demo_sweeps,
    hpc,
    hpc_sweeps,
    scaling,
    sensitivity,
    sweeps,
    why,
)
from experiments.study import variants
from experiments.tasks import presets, testbed
from stellaris._core.describe import describe, differences
from stellaris.runtime.costs import prices
from stellaris.runtime.delays import LogNormal


def fields(one, other):
    """What of the system and around it differs, to the first field."""
    places = differences(describe(one), describe(other))
    names = [re.sub(r"\[.*", "", name).split(".") for name, _, _ in places]
    return {".".join(name[:2]) if name[0] == "system" else name[0] for name in names}


@pytest.mark.parametrize("module", [ablation, aggregators, sensitivity])
@pytest.mark.parametrize("environment", ["Hopper-v4", "Qbert-v5"])
def test_variants_differ_in_a_field_of_the_system(module, environment):
    """The first is `tuned`'s Stellaris; the testbed and its prices are the same for all."""
    rows = {row.setting: row.contender for row in module.STUDY.variants(environment)}
    first, *others = rows.values()
    assert first.system == presets.tuned(environment).contenders[0].system
    for name, row in zip(list(rows)[1:], others, strict=True):
        changed = fields(first, row)
        if name == "one learner":
            assert changed == {"system.learners", "system.aggregator", "functions", "prices"}
            continue
        assert changed <= {"system.learners", "system.rho", "system.aggregator"}
        assert len(changed) == (2 if name == "neither" else 1)
    systems = {repr(describe(row.system)) for row in rows.values()}
    assert len(systems) == sum("replayed" not in name for name in rows)


def test_the_way_from_the_baseline_to_the_demo():
    """One change at a time, from the baseline of the preset `paper` to its Stellaris, and to the paper's weights."""
    both = {row.setting: row.contender for row in why.STUDY.variants("Hopper-v4")}
    rows = {name: row for name, row in both.items() if not name.endswith(", 0 s")}
    for name, row in rows.items():
        assert {where.split(".")[0] for where in fields(row, both[f"{name}, 0 s"])} <= {"functions", "prices"}
    stellaris, baseline = presets.paper("Hopper-v4").contenders
    assert (rows["baseline"], rows["no waiting"]) == (baseline, stellaris)
    changes = [fields(rows[one], rows[other]) for one, other in itertools.pairwise(rows)]
    assert changes[0] == changes[1] == {"system.algorithm"}
    assert changes[2] == {"functions", "prices"}
    assert {"system", "functions"} <= changes[3]  # Stellaris, on functions for its learners
    assert changes[4:] == [
        {"system.rho"},
        {"system.aggregator"},
        {"system.control"},
        {"system.aggregator"},
    ]
    algorithms = [row.system.algorithm for row in rows.values()]
    assert len({*algorithms[2:]}) == 1
    gradients = [algorithm.epochs * 4096 // algorithm.minibatch_size for algorithm in algorithms]
    assert gradients == [10, *[40] * 8]
    grouped, weighted = (describe(rows[name].system.aggregator) for name in ("no waiting", "weights"))
    assert [name for name, _, _ in differences(grouped, weighted)] == ["smoothness"]


def test_a_number_that_no_run_has_is_blank():
    """Not 0, which would read as fresh gradients; runs that have it count alone."""
    none, two, four = (SimpleNamespace(summary={"staleness_mean": value}) for value in (None, 2.0, 4.0))
    shown = [variants.middle(of, "staleness_mean") for of in ([none, none], [none, two], [two, none, four])]
    assert shown == ["", "2", "3"]


def test_one_learner_has_a_gpu_to_itself():
    """It is not slowed by others that there are not, nor does it pay a part of a GPU."""
    rows = {row.setting: row.contender for row in ablation.STUDY.variants("Hopper-v4")}
    alone = rows["one learner"]
    assert alone.functions["learner"].compute.mean == testbed.GRADIENT
    assert alone.prices[1].functions["learner"].per_second == testbed.SERVER_LEARNER
    assert rows["Stellaris"].functions["learner"].compute.mean > testbed.GRADIENT


def test_testbeds_differ_in_what_is_swept():
    """The system and its algorithm stay; either durations or prices change; the middle is what is assumed elsewhere."""
    rows = {row.setting: row.contender for row in sweeps.STUDY.variants("Hopper-v4")}
    tuned = {row.name: row for row in presets.tuned("Hopper-v4").contenders}
    assert len(rows) == 2 * (5 + 3 + 3 + 3 + 4 + 3 + 2 + 2)
    for name, row in rows.items():
        assert fields(tuned[row.name], row) <= ({"prices"} if "places" in name or "idle" in name else {"functions"})
        if name.endswith(("variation 0.1", "gradient 1", "sharing 2", "update 1", "step 1", "places 48", "idle 0")):
            assert row == tuned[row.name]
    still = rows["stellaris, variation 0"].functions["actor"]
    assert still.compute == LogNormal(testbed.ENVIRONMENT_STEP, 0.0)
    slow = rows["stellaris, gradient 4"].functions["learner"].compute
    fast = rows["stellaris, gradient 1"].functions["learner"].compute
    assert slow == LogNormal(4 * fast.mean, fast.cv)
    shared = [rows[f"stellaris, sharing {slow_down}"].functions["learner"].compute for slow_down in (1, 2, 4)]
    assert [delay.mean for delay in shared] == [0.01, 0.02, 0.04]


def test_what_grows_with_the_samples():
    """The demo's baseline has four times Stellaris' samples; each of PAR-RL's learners a quarter: 15,360 / 16."""
    for sweep, other, factor in ((demo_sweeps, "synchronous", 4), (hpc_sweeps, "PAR-RL", 1 / 4)):
        rows = {row.setting: row.contender for row in sweep.STUDY.variants("Hopper-v4")}
        time = {name: row.functions["learner"].compute.mean for name, row in rows.items()}
        sharing = time["stellaris, growth 0"] / time[f"{other}, growth 0"]
        grown = time["stellaris, growth 1"] / time[f"{other}, growth 1"]
        assert grown * factor == pytest.approx(sharing)
        assert {name.split(", ")[1].split()[0] for name in rows} >= {"variation", "gradient", "growth"}


def test_samples_of_a_gradient():
    """A minibatch; of IMPALA's the steps of its fragments; of data-parallel learners a shard."""
    rows = {row.name: row for row in presets.architectures("Hopper-v4").contenders}
    samples = {name: presets._samples(row.system) for name, row in rows.items()}
    assert (samples["synchronous"], samples["data-parallel"], samples["asynchronous actors"]) == (1024, 256, 1024)


def test_scaling_keeps_the_batch():
    """Of 1 to 1,024 actors; and all systems of a sweep have the same workload."""
    rows = scaling.STUDY.variants("Hopper-v4")
    assert {row.workload.actors * row.workload.fragment for row in rows} == {4096}
    assert {row.workload.actors for row in rows if "actors" in row.setting} == {1, 4, 16, 64, 256, 1024}
    for row in rows:
        assert row.contender.functions["actor"].max_concurrency == row.workload.actors
        if "learners" in row.setting:
            assert row.setting.endswith(f" {row.contender.system.learners}")


def test_the_hpc_testbed():
    """Both systems learn from the same data by one algorithm, of which two settings are tuned, on the same machines.

    A learner has a GPU, an actor a core.
    """
    stellaris, par_rl = hpc.STUDY.variants("Hopper-v4")
    assert stellaris.workload == par_rl.workload
    assert (stellaris.workload.actors, stellaris.workload.fragment) == (960, 16)
    one, other = stellaris.contender.system, par_rl.contender.system
    tuned = {"learning_rate": 1e-3, "minibatch_size": 15_360}
    assert replace(one.algorithm, **tuned) == other.algorithm
    assert one.learners == other.learners == 16
    alone = stellaris.contender.functions["learner"].compute
    assert alone == par_rl.contender.functions["learner"].compute
    by_clock, by_use = stellaris.contender.prices
    assert by_clock.machines == par_rl.contender.prices[0].machines
    a_sixteenth = 2 * prices.machine("aws_ec2", "p3.16xlarge").per_second / 16
    assert by_use.functions["learner"].per_second == pytest.approx(a_sixteenth)
