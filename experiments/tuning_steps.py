"""Tunes synchronous PPO for the return after as many steps, on seeds that no result uses.

Registered before the runs. Every setting learns 102,400 steps of Hopper-v4 with scaled rewards, on the seeds 100 to
103; the setting with the greatest mean return of the last 100 training episodes is chosen. `benchmarks peers --returns`
compares it with other libraries' presets, on the seeds from 0.

The settings differ in what the peers' presets suggest. Smaller batches than the 4,096 steps of the other studies: the
peers learn from 2,048, and here the statistics of observations change once per version, there at each step. Minibatches
of 64 at the peers' rate, which are 16,000 gradients, or of 256 at three times the rate, which are 4,000. A smaller
lambda for smaller batches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.console import Console

from experiments.study import study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import presets
from experiments.tasks.presets import contender
from experiments.toolkit.statistics import estimate
from stellaris import PPO, ActorCritic
from stellaris.systems import Synchronous

DESCRIPTION = "run synchronous PPO with eight settings, and rank them by the return at equal steps"

#: The first seed, so that settings are not chosen on seeds of results.
SEED = 100
#: The environment steps after which the returns are compared.
STEPS = 102_400


class Setting(NamedTuple):
    """A batch, and the hyperparameters of PPO that learns from it in ten epochs."""

    actors: int
    fragment: int
    minibatch: int
    rate: float
    lambda_: float

    @property
    def name(self) -> str:
        """The setting's name for `--variant`."""
        batch = f"{self.actors} x {self.fragment} steps"
        return f"{batch}, 10 x {self.minibatch}, {self.rate:g}, lambda {self.lambda_:g}"

    @property
    def ppo(self) -> PPO:
        """The algorithm."""
        return PPO(learning_rate=self.rate, lambda_=self.lambda_, epochs=10, minibatch_size=self.minibatch)


_BATCHES = ((8, 256), (8, 128), (4, 128))
SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        *(Setting(*batch, 64, 3e-4, 0.95) for batch in _BATCHES),
        *(Setting(*batch, 256, 1e-3, 0.95) for batch in _BATCHES),
        *(Setting(*batch, 64, 3e-4, 0.9) for batch in _BATCHES[1:]),
    )
}

#: The setting with the greatest mean return in the committed runs.
CHOSEN = "4 x 128 steps, 10 x 64, 0.0003, lambda 0.95"


def variant(environment: str, setting: Setting) -> Variant:
    """Returns the synchronous system with a setting."""
    workload = replace(
        presets.workload(environment),
        policy=ActorCritic(scaling_discount=PPO.discount),  # type: ignore[arg-type]
        actors=setting.actors,
        fragment=setting.fragment,
    )
    system = Synchronous(setting.ppo)
    row = contender("synchronous", system, colour="#D55E00", line="--", actors=setting.actors)
    return Variant(row, workload, setting.name)


def _variants(environment: str) -> Sequence[Variant]:
    """Returns one variant per setting."""
    return [variant(environment, setting) for setting in SETTINGS.values()]


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Shows one table row per setting, the greatest mean return first."""

    def returns(group: Sequence[Finished]) -> list[float]:
        return [one.summary["final_return"] for one in group]

    rows = [
        (
            environment,
            setting,
            f"{fmean(returns(of)):,.1f}",
            str(estimate(returns(of))),
            f"{fmean(one.summary['steps'] for one in of):,.0f}",
            f"{fmean(one.summary['gradients'] for one in of):,.0f}",
        )
        for environment, groups in study.by_environment(results).items()
        for setting, of in sorted(groups.items(), key=lambda item: -fmean(returns(item[1])))
    ]
    headings = ("environment", "setting", "mean return", "return", "steps", "gradients")
    tidy.show("return at equal steps", headings, rows, out, console)


SIZES = {"smoke": Size(("Hopper-v4",), 4_096, 1), "small": Size(("Hopper-v4",), STEPS, 4)}
STUDY = Study("tuning-steps", SIZES, _variants, _report, seed=SEED)
add_arguments, main = STUDY.add_arguments, STUDY.main
