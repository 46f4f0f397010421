"""Compares Stellaris with PAR-RL on the paper's HPC testbed: 960 cores and 16 GPUs.

The paper does not state its settings on this testbed. Assumptions: one actor per core; fragments of 16 steps, so that a
run has enough rounds; one learner per GPU in both systems; the same PPO in both systems, each with its own learning
rate, minibatches and, in Stellaris, control of its actors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from experiments.study import curves, study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import presets, testbed, testbeds
from experiments.tasks.presets import Contender
from experiments.toolkit import plots
from experiments.toolkit.statistics import estimate
from stellaris import PPO, staleness_aware
from stellaris.runtime import PriceSheet, Rate
from stellaris.systems import DataParallel, StalenessControl, Stellaris

DESCRIPTION = "reward and cost against PAR-RL's synchronous data-parallel learners, with 960 cores and 16 GPUs"

ACTORS, FRAGMENT, GPUS = 960, 16, 16
STELLARIS, PAR_RL = "stellaris", "PAR-RL"
SIZES = {
    "smoke": Size(("CartPole-v1",), 3 * ACTORS * FRAGMENT, 1),
    "small": Size(("Hopper-v4",), 300_000, 5),
    "paper": Size(
        ("Hopper-v4", "Humanoid-v4", "Walker2d-v4", "Gravitar-v5", "SpaceInvaders-v5", "Qbert-v5"), 10_000_000, 5
    ),
}


@dataclass(frozen=True)
class Setting:
    """What is tuned on this testbed."""

    learning_rate: float
    minibatch: int
    control: StalenessControl = StalenessControl()  #: of Stellaris' actors; PAR-RL's sample in rounds.


IN_ROUNDS, SAMPLING_ON = StalenessControl(pace=0), StalenessControl(pace=1)
#: The best of each system's eight settings after five virtual seconds, from `stellaris-hpc-tuning`.
CHOSEN = {STELLARIS: Setting(1e-4, 3840, SAMPLING_ON), PAR_RL: Setting(1e-3, 15_360)}


def variants(environment: str, assumed: testbed.Assumed = testbed.ASSUMED) -> Sequence[Variant]:
    """Returns Stellaris and PAR-RL on the same workload, with one GPU per learner."""
    return [variant(environment, name, setting, assumed) for name, setting in CHOSEN.items()]


def variant(environment: str, name: str, setting: Setting, assumed: testbed.Assumed = testbed.ASSUMED) -> Variant:
    """Returns one of both systems with a setting, under the testbed's assumptions."""
    preset = presets.tuned(environment)
    own, _ = preset.contenders
    assert isinstance(own.system, Stellaris)
    assert isinstance(own.system.algorithm, PPO)
    ppo = replace(own.system.algorithm, learning_rate=setting.learning_rate, minibatch_size=setting.minibatch)
    workload = replace(preset.workload, actors=ACTORS, fragment=FRAGMENT)
    if name == PAR_RL:
        return Variant(_par_rl(ppo, assumed), workload)
    aggregator = staleness_aware(GPUS, decay=1.0, combine="sequential")
    system = replace(own.system, algorithm=ppo, learners=GPUS, aggregator=aggregator, control=setting.control)
    none_shares = replace(assumed, gpu_sharing=0.0)
    functions = testbed.serverless(actors=ACTORS, learners=GPUS, samples=ppo.minibatch_size, assumed=none_shares)
    return Variant(replace(own, system=system, functions=functions, prices=_serverless_prices()), workload)


def _par_rl(ppo: PPO, assumed: testbed.Assumed) -> Contender:
    shard = ppo.minibatch_size // GPUS
    functions = testbed.reserved(actors=ACTORS, learners=GPUS, samples=shard, assumed=assumed)
    return Contender(PAR_RL, DataParallel(ppo, learners=GPUS), functions, _reserved_prices(), "#CC79A7", ":")


def _reserved_prices() -> tuple[PriceSheet, PriceSheet]:
    """Returns both bills of the testbed's machines; each charges wall-clock time."""
    source = "the HPC testbed's machines by wall-clock time"
    machines = testbeds.stellaris_hpc().machines
    return PriceSheet("demo", machines=machines, source=source), PriceSheet(
        "pay_per_use", machines=machines, source=source
    )


def _serverless_prices() -> tuple[PriceSheet, PriceSheet]:
    """Returns two bills: the demo's and one by use.

    The demo's bill charges all machines all the time. In the bill by use, a learner that runs costs as much as one GPU.
    """
    machines = testbeds.stellaris_hpc().machines
    gpu = sum(machine.per_second for machine in machines.values() if "learner" in machine.runs) / GPUS
    demo = PriceSheet("demo", machines=machines, source="the authors' demo bills its run by duration")
    by_use = PriceSheet(
        "pay_per_use",
        {
            "actor": Rate(per_second=testbed.ACTOR_FUNCTION),
            "learner": Rate(per_second=gpu),
            "parameter": Rate(per_second=testbed.PARAMETER_FUNCTION),
        },
        source="the time that functions run; a GPU at the eighth of a p3.16xlarge",
    )
    return demo, by_use


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    rows = []
    for environment, groups in study.by_environment(results).items():
        curves.draw(groups, out / f"hpc_{environment}", title=environment, over=plots.TIME_AND_COST)
        for name, of in groups.items():
            columns = ("episode_return", "seconds", "cost_demo", "cost_pay_per_use")
            rows.append((environment, name, *(str(curves.last(of, column)) for column in columns)))
        pair = (groups.get(STELLARIS, ()), groups.get(PAR_RL, ()))
        if curves.paired(*pair):
            ratios = (
                curves.at_equal_time(*pair),
                *(curves.ratios(*pair, column) for column in ("seconds", "cost_demo", "cost_pay_per_use")),
            )
            rows.append((environment, "ratio, return at equal time", *(str(estimate(ratio)) for ratio in ratios)))
    headings = ("environment", "system", "return", "virtual s", "USD demo", "USD use")
    tidy.show("960 cores, 16 GPUs", headings, rows, out, console)


STUDY = Study("stellaris-hpc", SIZES, variants, _report, ("hpc",))
add_arguments, main = STUDY.add_arguments, STUDY.main
