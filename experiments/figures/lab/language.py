"""Which correction at which lag on a language task: twelve methods, patterns of lag, stability, AReaL's dip.

The questions, the settings and the criteria for an answer were written down in docs/registrations/lab-language.md
before the first run.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.figures.lab import language_report
from experiments.figures.lab.falls import falls
from experiments.figures.lab.outcomes import short
from experiments.figures.lab.switched import METHODS, Switched
from experiments.lab.command import shown
from experiments.lab.patterns import Kind, pattern
from experiments.toolkit import options, output, provenance
from stellaris.lab import Schedule, imposed, sweep
from stellaris.lab.language import Answering, Sorting, Transformer, workload
from stellaris.systems import Workload

if TYPE_CHECKING:
    import xarray as xr

DESCRIPTION = "every correction at every imposed lag on a language task, in the lab"

#: The fraction of the updates, at the end of a run, over which the outcome is averaged.
TAIL = 0.2


class Age(NamedTuple):
    """A pattern of lag with a mean; equal ages have equal schedules."""

    kind: Kind
    mean: int


@dataclass(frozen=True)
class Part:
    """The runs of one sweep: every method, age, learning rate and seed."""

    methods: Sequence[str]
    ages: Sequence[Age]
    rates: Sequence[float]
    seeds: int
    updates: int = 600


@dataclass(frozen=True)
class Preset:
    """The task, the model, and the sweeps of each part."""

    parts: Mapping[str, Sequence[Part]]
    most: int = 4  #: digits of the longest list.
    group: int = 8
    actors: int = 32
    width: int = 16
    layers: int = 2
    heads: int = 2

    def make(self) -> tuple[Answering, Workload]:
        """Makes the environment and the workload."""
        environment = Answering(Sorting(most=self.most), group=self.group)
        network = Transformer.of(environment.task, width=self.width, layers=self.layers, heads=self.heads)
        return environment, workload(environment, network, actors=self.actors)


def _ages(kind: Kind, *means: int) -> list[Age]:
    return [Age(kind, mean) for mean in means]


_RATES = (2e-4, 6.3e-4, 2e-3, 6.3e-3, 2e-2)
_WIDE = (*_RATES, 6.3e-2, 2e-1)
_CONSTANT = _ages("constant", 0, 1, 4, 8, 16, 32, 64, 256)
_FIVE = ("no correction", "GRPO", "AReaL", "TIS, tokens", "GSPO")
_BOTH = ("no correction", "GRPO")
_PATTERNS = [*_ages("sawtooth", 8, 32), *_ages("maximum", 8, 32)]

PRESETS: Mapping[str, Preset] = {
    "smoke": Preset(
        {
            "lags": [Part(("GRPO", "SAPO"), _ages("constant", 0, 8), (2e-3, 6.3e-3), seeds=2, updates=20)],
            "patterns": [
                Part(("GRPO",), [*_ages("sawtooth", 8), *_ages("maximum", 8)], (2e-3, 6.3e-3), seeds=2, updates=20)
            ],
            "border": [Part(("GRPO",), _ages("constant", 1, 4), (2e-3, 6.3e-3), 2, updates) for updates in (18, 20)],
            "dip": [Part(("GRPO",), _ages("constant", 2, 4, 8), (2e-3,), seeds=2, updates=20)],
        },
        most=2,
        group=4,
        actors=2,
        width=8,
        layers=1,
        heads=1,
    ),
    "small": Preset(
        {
            "lags": [Part((*METHODS,), _CONSTANT, _RATES, seeds=10)],
            "patterns": [Part(_FIVE, _PATTERNS, _RATES, seeds=10)],
            "border": [Part(_BOTH, _ages("constant", 1, 4, 16, 64), _WIDE, 10, updates) for updates in (150, 300, 600)],
            "dip": [Part(("GRPO",), _ages("constant", 1, 2, 4, 8), _RATES[1:4], seeds=64)],
        }
    ),
}
PARTS = (*PRESETS["small"].parts, "report")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="the size of the study")
    add("--parts", nargs="+", choices=PARTS, default=[*PARTS], help="parts to run; report reads the others' tables")
    add("--block", type=options.whole(1), help="most runs at a time (default: 8 per CPU core, 256 per other device)")
    add("--blocks", type=options.folder, help="folder that keeps finished blocks, to continue an interrupted part")
    add("--out", type=options.folder, default=Path("results/lab-language"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Runs the parts; each writes its own table when it is done."""
    preset, out = PRESETS[arguments.preset], arguments.out
    with output.usable(out):
        out.mkdir(parents=True, exist_ok=True)
    for name in preset.parts:
        if name not in arguments.parts:
            continue
        print(f"{name}:")
        found = [row for part in preset.parts[name] for row in run(preset, part, arguments.block, arguments.blocks)]
        output.write_rows(out / f"{name}.csv", found)
        provenance.write(out / f"provenance_{name}.json", part=name, preset=repr(preset))
    if "report" in arguments.parts:
        language_report.report(out)
    return 0


def run(preset: Preset, part: Part, block: int | None = None, blocks: Path | None = None) -> Iterator[dict[str, Any]]:
    """Runs a part as one sweep with one compiled program, and yields one row per run."""
    environment, task = preset.make()

    ages = {f"{age.kind} {age.mean}": age for age in part.ages}

    def schedule(age: str) -> Schedule:
        return imposed(part.updates, actors=preset.actors, data=pattern(*ages[age], preset.actors))

    axes: dict[str, list[Any]] = {
        "algorithm.method": [float([*METHODS].index(name)) for name in part.methods],
        "age": [*ages],
        "algorithm.learning_rate": [*part.rates],
    }
    minibatch = preset.group * preset.actors
    algorithm = Switched(environment, minibatch_size=minibatch)
    result = sweep(
        task, algorithm, schedule, axes, seeds=part.seeds, block=block, directory=blocks, on_progress=shown()
    )
    yield from rows(part, result)


def rows(part: Part, result: "xr.Dataset") -> Iterator[dict[str, Any]]:
    """Yields one row per run, from the result of the part's sweep."""
    exact, reward, effective, loss = (result[name].values for name in ("exact", "reward", "effective_answers", "loss"))
    last = max(1, round(TAIL * part.updates))
    # The first batch is answered by the untrained policy.
    untrained, floor = float(exact[..., 0].mean()), float(reward[..., 0].mean())
    fell = falls(reward, effective, loss, floor=floor)
    lag = result.data_lag_mean.mean("update").values
    cosine = result.gradient_cosine.values[..., 1:].mean(axis=-1)  # nothing precedes the first gradient
    for place in np.ndindex(lag.shape):
        method, age, rate, seed = place
        lost = bool(fell.diverged[place])  # the answers of a policy without numbers say nothing about the method
        yield {
            "method": part.methods[method],
            "kind": part.ages[age].kind,
            "lag": part.ages[age].mean,
            "measured_lag": short(float(lag[place])),
            "updates": part.updates,
            "learning_rate": part.rates[rate],
            "seed": seed,
            "final_exact": short(untrained if lost else float(exact[place][-last:].mean())),
            "mean_exact": short(untrained if lost else float(exact[place].mean())),
            "untrained": short(untrained),
            "untrained_reward": short(floor),
            "best_reward": short(float(fell.best[place])),
            "reward_fell": int(fell.fell[place]),
            "effective_fell": int(fell.effective_fell[place]),
            "effective_low": int(fell.effective_low[place]),
            "diverged": int(fell.diverged[place]),
            "cosine": short(float(cosine[place])),
        }
