"""Tunes every system with the same number of settings, for the return at equal time, on seeds that no result uses."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.study import tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import presets
from experiments.tasks.presets import LEARNERS, contender
from experiments.toolkit.statistics import estimate
from stellaris import IMPACT, IMPALA, PPO, ActorCritic, staleness_aware
from stellaris.systems import (
    AsynchronousActors,
    Budget,
    CircularReplay,
    StalenessControl,
    Stellaris,
    Synchronous,
    System,
)

DESCRIPTION = "run every system with the same number of settings, and rank the settings by return at equal time"

#: The first seed of tuning. Results use seeds from 0, so settings chosen on these seeds were not selected on results.
SEED = 100
#: Seconds of virtual time after which the returns are compared.
SECONDS = 60.0

#: Makes a system from a learning rate, the items of a minibatch, and the control of its actors.
Make = Callable[[float, int, StalenessControl], System]


def _settings(make: Make, rates: tuple[float, float, float], items: tuple[int, int]) -> Mapping[str, System]:
    """Returns eight settings: three rates with both ways of sampling, and the middle rate with other minibatches."""
    ways = {"sampling on": StalenessControl(pace=1), "in rounds": StalenessControl(pace=0)}
    pairs = [(rate, items[0]) for rate in rates] + [(rates[1], items[1])]
    return {
        f"{rate:g}, {number} items, {name}": make(rate, number, way)
        for rate, number in pairs
        for name, way in ways.items()
    }


_PPO = PPO(epochs=10, minibatch_size=512)
_RATES = (3e-4, 6e-4, 1.2e-3)


def _synchronous(rate: float, epochs: int, items: int) -> System:
    return Synchronous(PPO(learning_rate=rate, epochs=epochs, minibatch_size=items))


def _stellaris(rate: float, items: int, control: StalenessControl) -> System:
    ppo = replace(_PPO, learning_rate=rate, minibatch_size=items)
    return Stellaris(
        ppo,
        learners=LEARNERS,
        aggregator=staleness_aware(LEARNERS, decay=1.0, combine="sequential"),
        rho=2.0,
        control=control,
    )


def _stellaris_impact(rate: float, items: int, control: StalenessControl) -> System:
    impact = IMPACT(learning_rate=rate, epochs=10, minibatch_size=items)
    return replace(_stellaris(rate, items, control), algorithm=impact)  # type: ignore[type-var]


def _one_learner(rate: float, items: int, control: StalenessControl) -> System:
    return AsynchronousActors(replace(_PPO, learning_rate=rate, minibatch_size=items), control=control)


def _impala(rate: float, items: int, control: StalenessControl) -> System:
    return AsynchronousActors(IMPALA(learning_rate=rate, epochs=4, minibatch_size=items), control=control)


def _impact(rate: float, items: int, control: StalenessControl) -> System:
    impact = IMPACT(learning_rate=rate, epochs=1, minibatch_size=items)
    return CircularReplay(impact, passes=10, buffer=1, control=control)


#: The settings of each system. The synchronous system samples in one way only, so it has more minibatches and epochs.
SETTINGS: Mapping[str, Mapping[str, System]] = {
    "synchronous": {
        f"{rate:g}, {epochs} x {items}": _synchronous(rate, epochs, items)
        for rate, epochs, items in (
            *[(rate, 10, items) for rate in _RATES for items in (512, 1024)],
            (6e-4, 5, 512),
            (6e-4, 20, 1024),
        )
    },
    "stellaris": _settings(_stellaris, _RATES, (512, 1024)),
    "stellaris, IMPACT": _settings(_stellaris_impact, _RATES, (512, 1024)),
    "asynchronous actors, PPO": _settings(_one_learner, _RATES, (512, 1024)),
    "asynchronous actors": _settings(_impala, (1e-4, 3e-4, 1e-3), (4, 2)),
    "IMPACT": _settings(_impact, _RATES, (512, 1024)),
}


SIZES = {
    "smoke": Size(("Hopper-v4",), 12_288, 1),
    "small": Size(("Hopper-v4",), 10_000_000, 4),
    "paper": Size(("Hopper-v4", "HalfCheetah-v4"), 10_000_000, 4),
}


#: The baseline's name.
BASELINE = "synchronous"
#: The best setting of each system: the greatest mean return over the tuning seeds of Hopper-v4.
CHOSEN: Mapping[str, str] = {
    "synchronous": "0.0003, 10 x 1024",
    "asynchronous actors, PPO": "0.0006, 1024 items, sampling on",
    "IMPACT": "0.0012, 512 items, sampling on",
    "asynchronous actors": "0.001, 4 items, in rounds",
    "stellaris": "0.0003, 512 items, sampling on",
    "stellaris, IMPACT": "0.0003, 512 items, in rounds",
}
#: Colours and lines of pictures.
_STYLES: Mapping[str, tuple[str, Any]] = {
    "synchronous": ("#D55E00", "--"),
    "asynchronous actors, PPO": ("#E69F00", "-."),
    "IMPACT": ("#56B4E9", (0, (1, 3))),
    "asynchronous actors": ("#009E73", (0, (6, 1, 1, 1, 1, 1))),
    "stellaris": ("#0072B2", "-"),
    "stellaris, IMPACT": ("#CC79A7", ":"),
}


def variant(environment: str, name: str, setting: str) -> Variant:
    """Returns a system with one of its settings, whose runs end after `SECONDS` virtual seconds."""
    # Rewards are scaled, as the common implementations of PPO do; the presets of the other studies do not.
    scaled = ActorCritic(scaling_discount=PPO.discount)  # type: ignore[arg-type]
    workload = replace(presets.workload(environment), policy=scaled)
    colour, line = _STYLES[name]
    row = contender(name, SETTINGS[name][setting], colour=colour, line=line)
    return Variant(row, workload, limits=Budget(seconds=SECONDS))


def _variants(environment: str) -> Sequence[Variant]:
    """Returns one variant per system and setting."""
    return [
        variant(environment, name, setting)._replace(setting=f"{name}: {setting}")
        for name, settings in SETTINGS.items()
        for setting in settings
    ]


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Shows one table row per setting: the return at the end, over seeds; each system's best first."""
    groups: dict[tuple[str, str, str], list[Finished]] = {}
    for result in results:
        cell = result.cell
        groups.setdefault((cell.environment, cell.contender.name, cell.setting.split(": ")[1]), []).append(result)

    def mean(group: Sequence[Finished], column: str) -> float:
        return statistics.fmean(result.summary[column] for result in group)

    order = list(dict.fromkeys(name[:2] for name in groups))
    ranked = sorted(groups.items(), key=lambda item: (order.index(item[0][:2]), -mean(item[1], "final_return")))
    rows = [
        (
            *name,
            str(estimate([result.summary["final_return"] for result in group])),
            f"{mean(group, 'steps'):,.0f}",
            f"{mean(group, 'gradients'):,.0f}",
        )
        for name, group in ranked
    ]
    headings = ("environment", "system", "setting", "return", "steps", "gradients")
    tidy.show(f"return after {SECONDS:g} virtual s", headings, rows, out, console)


STUDY = Study("tuning", SIZES, _variants, _report, seed=SEED)
add_arguments, main = STUDY.add_arguments, STUDY.main
