"""Tunes Stellaris and PAR-RL on the HPC testbed, with eight settings each, for the return at equal time.

Written down before the first run: every setting learns for 5 virtual seconds, on seeds that no result uses; chosen is
the setting with the greatest mean return at the end. (There were to be two seeds; of seven runs that were made first,
two of the same setting had 52 and 338, so there are four.) Five seconds are about as long as Stellaris needed for the
300,000 steps of `stellaris-hpc` with its earlier settings; with the chosen ones it needs three. Stellaris has two
learning rates, two minibatches and both ways of sampling. PAR-RL samples in one way, and a gradient of a large shard
takes it as long as one of a small shard, so it has four minibatches.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rich.console import Console

from experiments import tuning
from experiments.figures.stellaris import hpc
from experiments.figures.stellaris.hpc import IN_ROUNDS, PAR_RL, SAMPLING_ON, STELLARIS, Setting
from experiments.study import study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.study.variants import column
from experiments.toolkit.statistics import estimate
from stellaris.systems import Budget

DESCRIPTION = "run Stellaris and PAR-RL on the HPC testbed with eight settings each, and rank them by return"

SECONDS = 5.0
_WAYS = {"in rounds": IN_ROUNDS, "sampling on": SAMPLING_ON}
SETTINGS = {
    STELLARIS: {
        f"{rate:g}, {items} items, {way}": Setting(rate, items, control)
        for rate in (1e-4, 3e-4)
        for items in (1920, 3840)
        for way, control in _WAYS.items()
    },
    PAR_RL: {
        f"{rate:g}, {items} items": Setting(rate, items)
        for rate in (3e-4, 1e-3)
        for items in (1920, 3840, 7680, 15_360)
    },
}
SIZES = {
    "smoke": Size(("CartPole-v1",), 3 * hpc.ACTORS * hpc.FRAGMENT, 1),
    "small": Size(("Hopper-v4",), 10_000_000, 4),
}


def _variants(environment: str) -> Sequence[Variant]:
    return [
        hpc.variant(environment, name, setting)._replace(setting=f"{name}: {words}", limits=Budget(seconds=SECONDS))
        for name, settings in SETTINGS.items()
        for words, setting in settings.items()
    ]


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Shows one row per setting, each system's best first."""
    rows = []
    for environment, groups in study.by_environment(results).items():
        for name, settings in SETTINGS.items():
            own = {words: groups[variant] for words in settings if (variant := f"{name}: {words}") in groups}
            for words, of in sorted(own.items(), key=lambda one: -fmean(column(one[1], "final_return"))):
                numbers = (f"{fmean(column(of, counted)):,.0f}" for counted in ("steps", "gradients"))
                rows.append((environment, name, words, str(estimate(column(of, "final_return"))), *numbers))
    headings = ("environment", "system", "setting", "return", "steps", "gradients")
    tidy.show(f"return after {SECONDS:g} s", headings, rows, out, console)


STUDY = Study("stellaris-hpc-tuning", SIZES, _variants, _report, seed=tuning.SEED)
add_arguments, main = STUDY.add_arguments, STUDY.main
