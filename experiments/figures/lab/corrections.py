"""Every correction at every imposed lag: more methods, other patterns of lag, and the border of stability.

The questions, the settings and the criteria for an answer were written down in docs/registrations/lab-corrections.md
before the first run. Seven methods at constant lags are the runs of `lab-lag`, which has the same settings.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures.lab import answers, lag, newest
from experiments.figures.lab.falls import falls
from experiments.figures.lab.methods import Corrected, Decoupled
from experiments.figures.lab.outcomes import short
from experiments.figures.lab.rules import RULES, Ruled
from experiments.figures.lab.surface import floor_of
from experiments.lab.command import shown
from experiments.lab.patterns import Kind, pattern
from experiments.toolkit import options, output, provenance, shell
from stellaris import ActorCritic, Workload
from stellaris.algorithms import Algorithm
from stellaris.lab import imposed, mean_evaluation, mean_return, sweep
from stellaris.systems import Evaluation

DESCRIPTION = "every correction at every imposed lag: more methods, patterns of lag, the border of stability"


@dataclass(frozen=True)
class Part:
    """Runs of methods with one pattern of lag and one length."""

    methods: Sequence[str]
    lags: Sequence[int]  #: mean ages of the data, in batches.
    rates: Sequence[float]
    kind: Kind = "constant"
    updates: int = 512
    seeds: int | None = None  #: None for as many as `lab-lag`.
    evaluation: Evaluation | None = None  #: of the newest policy; None to score the policies that sampled.


_RATES = lag.PRESETS["small"].rates
_WIDE = (*_RATES, 3e-2, 1e-1)
_KINDS: tuple[Kind, ...] = ("sawtooth", "maximum")
_EVALUATED = newest.PRESETS["small"]
_SIX = ("no correction", "PPO", "decoupled PPO", "truncated weights", "M2PO, clip", "SAPO")
#: The parts whose outcome is that of the newest policy.
EVALUATED = NEWEST, MIXED = "newest", "mixed"
#: The parts of the study, by name.
PARTS: Mapping[str, Sequence[Part]] = {
    # With PPO once more, so that new methods are compared with a PPO of the same device.
    "lags": [Part(tuple(RULES), lag.PRESETS["small"].tasks["CartPole"].lags, _RATES)],
    # The constant lags of the four other methods are in the part `lags`.
    "patterns": [
        *(Part(_SIX, (8, 32), _RATES, kind) for kind in _KINDS),
        Part(tuple(name for name in _SIX if name not in RULES), (8, 32), _RATES),
    ],
    "border": [Part(("no correction", "PPO"), (1, 4, 16, 64), _WIDE, updates=updates) for updates in (128, 512, 2048)],
    # Compared with the PPO of `lab-newest`, which has the same settings and seeds.
    NEWEST: [
        Part(
            tuple(name for name in RULES if name != "PPO"),
            lag.PRESETS["small"].tasks["CartPole"].lags,
            _RATES,
            seeds=_EVALUATED.seeds,
            evaluation=_EVALUATED.evaluation,
        )
    ],
    # Compared with constant lags: those of the part `newest`, and of `lab-newest`.
    MIXED: [Part(_SIX, (8, 32, 128), _RATES, "mixed", seeds=_EVALUATED.seeds, evaluation=_EVALUATED.evaluation)],
}
#: In the list of parts: the answers, from the tables that the folder holds.
REPORT = "report"
SMOKE: Mapping[str, Sequence[Part]] = {
    "lags": [Part(("PPO", "SAPO"), (0, 2), (1e-3, 3e-3), updates=32)],
    "patterns": [Part(("PPO",), (2,), (1e-3, 3e-3), "sawtooth", updates=32)],
    NEWEST: [Part(("PPO", "SAPO"), (0, 2), (1e-3, 3e-3), updates=32, evaluation=Evaluation(every=8, episodes=2))],
    MIXED: [Part(("PPO",), (2,), (1e-3, 3e-3), "mixed", updates=32, evaluation=Evaluation(every=8, episodes=2))],
    "border": [Part(("PPO",), (1, 2), (1e-3, 3e-3), updates=40)],
}
#: The preset's parts, and its tasks and seeds, which are those of `lab-lag`.
PRESETS = {"smoke": SMOKE, "small": PARTS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="the size of the study")
    parts = (*PARTS, REPORT)
    add("--parts", nargs="+", choices=parts, default=[*parts], help="parts to run; report reads the others' tables")
    add("--tasks", nargs="+", help="environments (default: the preset's)")
    add("--block", type=options.whole(1), help="most runs at a time (default: 8 per CPU core, 256 per GPU)")
    add("--out", type=options.folder, default=Path("results/lab-corrections"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Runs the parts on every environment; each writes its own table when it is done."""
    size = lag.PRESETS[arguments.preset]
    if unknown := sorted({*(arguments.tasks or ())} - {*size.tasks}):
        raise shell.UsageError(f"--tasks {' '.join(unknown)}: the preset has {', '.join(size.tasks)}")
    out: Path = arguments.out
    with output.usable(out):
        out.mkdir(parents=True, exist_ok=True)
    for name in (part for part in arguments.parts if part != REPORT):
        for task in arguments.tasks or size.tasks:
            print(f"{name}, {task}:")
            several = (
                run(size, task, part, out / "blocks", arguments.block) for part in PRESETS[arguments.preset][name]
            )
            found = [row for rows in several for row in rows]
            output.write_rows(out / f"{name}_{task}.csv.gz", found)
            parts = repr(PRESETS[arguments.preset][name])
            provenance.write(out / f"provenance_{name}_{task}.json", parts=parts, size=repr(size))
    if REPORT in arguments.parts:
        answers.report(out, size)
    return 0


def made(name: str, size: lag.Preset) -> Algorithm:
    """Returns a method by its name."""
    same: dict[str, Any] = {"epochs": size.epochs, "minibatch_size": size.minibatch_size}
    own = {"no correction": Corrected(**same), "decoupled PPO": Decoupled(**same)}
    return own[name] if name in own else Ruled(**same, rule=name)


def run(
    size: lag.Preset, task: str, part: Part, blocks: Path | None = None, block: int | None = None
) -> Iterator[dict[str, Any]]:
    """Runs a part on an environment, and yields one row per run; at most `block` runs are computed at a time."""
    environment = size.tasks[task].make()
    workload = Workload(environment, ActorCritic(hidden=size.hidden), actors=size.actors, fragment=size.fragment)
    # An environment that takes longer has fewer lags.
    lags = [mean for mean in part.lags if part.updates != 512 or mean in size.tasks[task].lags] or [*part.lags]
    result = sweep(
        workload,
        {name: made(name, size) for name in part.methods},
        lambda lag: imposed(part.updates, actors=size.actors, data=pattern(part.kind, lag, size.actors)),
        {"lag": lags, "algorithm.learning_rate": [*part.rates]},
        seeds=part.seeds or size.seeds,
        evaluation=part.evaluation,
        block=block,
        directory=blocks,
        on_progress=shown(),
    )
    outcome = mean_return if part.evaluation is None else mean_evaluation
    final, mean = (outcome(result, max(1, round(share * part.updates))).values for share in (lag.TAIL, 1.0))
    floor = floor_of(task)
    fell = falls(result.episode_return.values, result.effective_sample_fraction.values, result.loss.values, floor=floor)
    for place in np.ndindex(final.shape):
        method, age, rate, seed = place
        yield {
            "method": part.methods[method],
            "kind": part.kind,
            "lag": lags[age],
            "updates": part.updates,
            "learning_rate": part.rates[rate],
            "seed": seed,
            # What a policy without numbers gets says nothing about the method.
            "final_return": _finite(floor if fell.diverged[place] else final[place], floor),
            "mean_return": _finite(mean[place], floor),
            "best_return": _finite(fell.best[place], floor),
            "return_fell": int(fell.fell[place]),
            "effective_fell": int(fell.effective_fell[place]),
            "effective_low": int(fell.effective_low[place]),
            "diverged": int(fell.diverged[place]),
        }


def _finite(value: Any, floor: float) -> float:
    """Rounds a return; a run in which no episode ended has an untrained policy's."""
    return short(float(value) if math.isfinite(value) else floor)
