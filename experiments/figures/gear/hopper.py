"""Compares a Decision Transformer with behaviour cloning on one table of trajectories, filled by a run on the platform.

GEAR's own model, a multi-agent transformer, is out of scope.
"""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table as Printed

from experiments.figures.gear.learning import Learning, begin, draw, learn, normaliser
from experiments.figures.gear.models import BehaviourCloning, DecisionTransformer, Model
from experiments.figures.gear.playing import play
from experiments.study import runs
from experiments.tasks import presets
from experiments.toolkit import options, output, plots, progress, provenance, shell
from stellaris import PPO
from stellaris._core.describe import describe
from stellaris.acting import envs
from stellaris.acting.rollout import Fragment
from stellaris.replay import Episodes, Table, Trajectories, check, columns_of, init, insert
from stellaris.runtime import FunctionError
from stellaris.systems import Budget, Synchronous, Workload
from stellaris.types import NDArray

DESCRIPTION = "learn Hopper from a table of trajectories: a Decision Transformer against behaviour cloning"

#: The models by name.
TRANSFORMER, CLONING = "transformer", "cloning"
#: The algorithm that collects the data.
_PPO = PPO(learning_rate=6e-4, epochs=10, minibatch_size=512)
#: Number of episodes that are inserted into the table at once.
_TOGETHER = 8


@dataclass(frozen=True)
class Preset:
    """The settings of collection, learning and evaluation, for each seed."""

    steps: int  #: environment steps of the run of PPO that fills the table.
    learning: Learning
    episodes: int  #: episodes that each model plays for each target return.
    seeds: int
    capacity: int = 4096  #: trajectories that the table holds; it keeps the newest.
    longest: int = 1000  #: the most steps of an episode, the environment's limit.
    width: int = 64  #: width of both models.
    layers: int = 3  #: layers of both models.
    #: The transformer's target returns, as fractions of the best return in the data; the last is compared with cloning.
    asked: Sequence[float] = (0.2, 0.4, 0.6, 0.8, 1.0)
    environment: str = "Hopper-v4"
    workload: Workload = Workload("Hopper-v4", actors=presets.ACTORS, fragment=presets.FRAGMENT)

    def models(self, actions: int) -> dict[str, Model]:
        """Makes both models, with equal width and depth."""
        return {
            TRANSFORMER: DecisionTransformer(actions, longest=self.longest, width=self.width, layers=self.layers),
            CLONING: BehaviourCloning(actions, width=self.width, layers=self.layers),
        }


PRESETS: Mapping[str, Preset] = {
    "smoke": Preset(
        steps=2 * 16 * 256,  # two rounds, so that PPO updates its policy between them
        learning=Learning(updates=20, batch=16, context=5),
        episodes=2,
        seeds=1,
        width=16,
        layers=1,
    ),
    "small": Preset(steps=500_000, learning=Learning(updates=2000), episodes=32, seeds=3),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="size of the data, the learning and the evaluation")
    add("--seed", type=options.whole(0), default=0, help="first seed, of environments, parameters and batches")
    add("--seeds", type=options.whole(1), help="number of seeds, run in sequence (default: the preset's)")
    add("--threads", type=options.whole(1), default=2, help="threads of environments; results do not depend on it")
    add("--out", type=options.folder, default=Path("results/gear-hopper"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Collects data, trains and evaluates the models for every seed, and writes the results, even if interrupted."""
    preset = PRESETS[arguments.preset]
    seeds = options.seeds("--seed", arguments.seed, arguments.seeds or preset.seeds)
    runs.check(preset.workload)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 100)
    done: list[Outcome] = []

    def work() -> None:
        for seed in seeds:
            outcome = _one(preset, seed, arguments.threads, console)
            done.append(outcome)
            _tell(outcome, console)

    with output.usable(arguments.out), output.locked(arguments.out):
        try:
            status = shell.INTERRUPTED if shell.interruptible(work) else 0
        except (FunctionError, LookupError, ValueError, ImportError, OSError) as error:
            shell.complain(error)
            status = shell.FAILED
        if done:
            console.print(_table(done, preset))
            with output.kept(arguments.out, lambda: "the table above shows the results that are missing there"):
                _write(done, preset, arguments.out)
            console.print(f"results: {arguments.out}/", markup=False)
    return status


# ---- one seed -------------------------------------------------------------------------------------------------------


class Played(NamedTuple):
    """The episodes that a model played for one target return."""

    model: str
    asked: float  #: the target return; NaN for cloning, which takes none.
    returns: Sequence[float]
    sampled: bool = True  #: whether actions were sampled; otherwise they were means.

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(np.mean(self.returns))

    @property
    def margin(self) -> float:
        """Half the width of the mean's 95 % confidence interval, by the normal approximation."""
        return 1.96 * float(np.std(self.returns, ddof=1)) / math.sqrt(len(self.returns))


@dataclass(frozen=True)
class Outcome:
    """The results of one seed."""

    seed: int
    data: Sequence[float]  #: returns of the trajectories in the table, oldest first.
    losses: Sequence[Mapping[str, float]]  #: a row per part of learning: last update, mean loss by model.
    played: Sequence[Played]
    seconds: Mapping[str, float]  #: seconds of real time, by part of the work.

    def of(self, model: str, *, sampled: bool = True) -> list[Played]:
        """Returns a model's episodes, by target return."""
        return [played for played in self.played if played.model == model and played.sampled == sampled]

    @property
    def rises(self) -> float:
        """Spearman's rank correlation between the transformer's target returns and its episodes' returns."""
        from scipy import stats

        asked, achieved = zip(*[(p.asked, r) for p in self.of(TRANSFORMER) for r in p.returns], strict=True)
        return float(stats.spearmanr(asked, achieved).statistic)


def _one(preset: Preset, seed: int, threads: int, console: Console) -> Outcome:
    clock = Clock()
    table = collected(preset, seed, threads, console)
    data = np.asarray(table.columns["reward"].sum(1))[np.argsort(table.number)]
    data = data[-int(table.size) :]
    normalise, best = normaliser(table), float(data.max())
    clock.lap("collecting")
    console.print(f"seed {seed}: {len(data):,} episodes, returns {data.min():,.0f} to {best:,.0f}")

    key, learning = jax.random.key(seed), preset.learning
    models = preset.models(table.columns["action"].shape[-1])
    learners = begin(models, draw(table, key, learning)[0], key, learning)
    at_once = max(learning.updates // 20, 1)
    losses: list[Mapping[str, float]] = []
    for first in range(0, learning.updates, at_once):
        shell.check()
        many = min(at_once, learning.updates - first)
        learners, mean = learn(models, learners, table, normalise, key, learning, first=first, updates=many)
        losses.append({"update": first + many, **mean})
        shown = ", ".join(f"{name} {loss:.4f}" for name, loss in mean.items())
        console.print(f"seed {seed}: update {first + many:,} of {learning.updates:,}, loss {shown}")
    clock.lap("learning")

    played = []
    for name, model in models.items():
        asked = [part * best for part in preset.asked] if name == TRANSFORMER else [math.nan]
        for returns, sampled in ((asked, True), (asked[-1:], False)):
            episodes = play(
                model,
                learners[name].params,
                normalise,
                preset.environment,
                np.nan_to_num(np.repeat(returns, preset.episodes)).tolist(),
                context=learning.context if name == TRANSFORMER else 1,
                longest=preset.longest,
                seed=_evaluation_seed(seed),
                threads=threads,
                sampled=sampled,
            ).reshape(len(returns), -1)
            played += [Played(name, *of, sampled) for of in zip(returns, episodes.tolist(), strict=True)]
    clock.lap("playing")
    return Outcome(seed, data.tolist(), losses, played, clock.seconds)


def _tell(outcome: Outcome, console: Console) -> None:
    for one in outcome.played:
        what = f", asked for {one.asked:,.0f}" if math.isfinite(one.asked) else ""
        what += "" if one.sampled else ", without noise"
        console.print(f"seed {outcome.seed}: {one.model}{what}: {one.mean:,.0f} ± {one.margin:,.0f}")
    took = ", ".join(f"{part} {seconds:,.0f} s" for part, seconds in outcome.seconds.items())
    console.print(f"seed {outcome.seed}: {took}")


class Clock:
    """A stopwatch that records the real seconds of each part of the work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def lap(self, part: str) -> None:
        """Ends a part, and records its seconds."""
        now = time.perf_counter()
        self.seconds[part] = now - self._since
        self._since = now


def collected(preset: Preset, seed: int, threads: int, console: Console) -> Table:
    """Fills a table with all episodes of a synchronous run of PPO, each weighted by its length."""
    workload = preset.workload
    contender = presets.contender(
        "synchronous",
        Synchronous(_PPO),
        colour="#D55E00",
        actors=workload.actors,
    )
    outcome = runs.Outcome(
        label=f"PPO seed {seed}",
        budget=Budget(steps=preset.steps),
        colour=contender.colour,
        contender=contender,
        seed=seed,
    )
    policy = workload.make_policy(envs.make(workload.environment, slots=1).spec)
    store = Store(init(columns_of(policy), capacity=preset.capacity, length=preset.longest))
    with progress.Display(console) as display:
        runs.run(workload, outcome, threads=threads, watcher=display, on_fragment=store.add)
    return store.filled()


class Store:
    """A table that a run fills while it is training.

    Args:
      table: the table to fill.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._episodes = Episodes(length=table.columns["reward"].shape[1])

    def add(self, fragment: Fragment) -> None:
        """Adds a fragment, and inserts the episodes that it completes."""
        self._episodes.add(fragment)
        while (batch := self._episodes.take(_TOGETHER)) is not None:
            self._insert(batch)

    def filled(self) -> Table:
        """Inserts the remaining episodes and returns the table.

        Raises:
          ValueError: if no episode has ended.
        """
        while (batch := self._episodes.take(1)) is not None:
            self._insert(batch)
        check(self._table)
        if not int(self._table.size):
            raise ValueError("no episode has ended: collect more steps")
        return self._table

    def _insert(self, batch: Trajectories) -> None:
        # The weight is the length, so that every step of every trajectory is drawn with the same probability.
        self._table = insert(self._table, **batch._asdict(), weight=batch.length.astype(np.float32))


def _evaluation_seed(seed: int) -> int:
    """Returns the seed of the evaluation's environments, which differs from training's seed."""
    return int(np.random.SeedSequence([seed, 1]).generate_state(1)[0] >> 1)


# ---- results --------------------------------------------------------------------------------------------------------


def _table(outcomes: Sequence[Outcome], preset: Preset) -> Printed:
    printed = Printed(title=f"{preset.environment}: mean return of {preset.episodes} episodes ± its 95 % interval")
    printed.add_column("")
    for outcome in outcomes:
        printed.add_column(f"seed {outcome.seed}", justify="right")
    printed.add_column("mean of seeds", justify="right")

    def row(label: str, cells: Sequence[str], values: Sequence[float], form: str = ",.0f") -> None:
        printed.add_row(label, *cells, format(float(np.mean(values)), form))

    best = [max(outcome.data) for outcome in outcomes]
    means = [float(np.mean(outcome.data)) for outcome in outcomes]
    row("data: mean return of an episode", [f"{value:,.0f}" for value in means], means)
    row("data: best return", [f"{value:,.0f}" for value in best], best)
    _row_of(row, "behaviour cloning", [outcome.of(CLONING)[0] for outcome in outcomes])
    for i, part in enumerate(preset.asked):
        asked = [outcome.of(TRANSFORMER)[i] for outcome in outcomes]
        _row_of(row, f"transformer, asked for {part:.0%} of the best", asked)
    for name, label in (
        (CLONING, "behaviour cloning"),
        (TRANSFORMER, f"transformer, asked for {preset.asked[-1]:.0%}"),
    ):
        without = [outcome.of(name, sampled=False)[0] for outcome in outcomes]
        _row_of(row, f"{label}, without noise", without)
    ratios = [outcome.of(TRANSFORMER)[-1].mean / outcome.of(CLONING)[0].mean for outcome in outcomes]
    row(
        f"transformer, asked for {preset.asked[-1]:.0%}, over cloning",
        [f"{ratio:.2f}" for ratio in ratios],
        ratios,
        ".2f",
    )
    rises = [outcome.rises for outcome in outcomes]
    row("rank correlation, asked and achieved", [f"{rise:.2f}" for rise in rises], rises, ".2f")
    seconds = [sum(outcome.seconds.values()) for outcome in outcomes]
    row("seconds of real time", [f"{value:,.0f}" for value in seconds], seconds)
    return printed


def _row_of(row: Any, label: str, played: Sequence[Played]) -> None:
    row(label, [f"{one.mean:,.0f} ± {one.margin:,.0f}" for one in played], [one.mean for one in played])


#: Points per seed in `data.csv`; each averages consecutive episodes.
_POINTS = 100


def _write(outcomes: Sequence[Outcome], preset: Preset, out: Path) -> None:
    """Writes tidy files, the settings with the provenance, and the picture."""
    output.write_rows(
        out / "played.csv",
        [
            {
                "seed": outcome.seed,
                "model": one.model,
                "actions": "sampled" if one.sampled else "mean",
                "asked": f"{one.asked:.1f}" if math.isfinite(one.asked) else "",
                "mean_return": f"{one.mean:.1f}",
                "margin_95": f"{one.margin:.1f}",
                "episodes": len(one.returns),
            }
            for outcome in outcomes
            for one in outcome.played
        ],
    )
    losses = [{"seed": outcome.seed, **row} for outcome in outcomes for row in outcome.losses]
    output.write_rows(out / "losses.csv", losses)
    output.write_rows(
        out / "data.csv",
        [
            {"seed": outcome.seed, "episode": last, "mean_return": f"{mean:.1f}", "best_return": f"{best:.1f}"}
            for outcome in outcomes
            for last, mean, best in _parts(outcome.data)
        ],
    )
    provenance.write(
        out / "provenance.json",
        preset=describe(preset),
        seeds=[outcome.seed for outcome in outcomes],
        seconds=[outcome.seconds for outcome in outcomes],
    )
    _draw(outcomes, preset, out / "gear_hopper.png")


def _parts(data: Sequence[float]) -> list[tuple[int, float, float]]:
    """Returns the number of the last episode, the mean and the best return of each of `_POINTS` parts of the data."""
    parts: list[NDArray] = [part for part in np.array_split(np.asarray(data), _POINTS) if len(part)]
    ends = np.cumsum([len(part) for part in parts]).tolist()
    return [(end, float(part.mean()), float(part.max())) for end, part in zip(ends, parts, strict=True)]


def _draw(outcomes: Sequence[Outcome], preset: Preset, path: Path) -> None:
    """Draws the returns of the data, the models' losses, and the returns that the models achieve by target return."""
    transformer, cloning = plots.LINES[0], plots.LINES[1]
    title = f"{preset.environment}, {plots.counted(len(outcomes))}"
    with plots.figure(path, title, columns=3, height=3.2) as (data, loss, achieved):
        for outcome in outcomes:
            ends, means, _ = zip(*_parts(outcome.data), strict=True)
            data.plot(ends, means, color="0.4", linewidth=0.9)
            for name, style in ((TRANSFORMER, transformer), (CLONING, cloning)):
                updates = [row["update"] for row in outcome.losses]
                loss.plot(updates, [row[name] for row in outcome.losses], linewidth=0.9, **style)
            played, alone = outcome.of(TRANSFORMER), outcome.of(CLONING)[0]
            asked = [one.asked for one in played]
            margins = [one.margin for one in played]
            achieved.errorbar(asked, [one.mean for one in played], margins, capsize=2, linewidth=1, **transformer)
            achieved.plot([0, asked[-1]], [alone.mean] * 2, linewidth=1, **cloning)
            achieved.axhspan(alone.mean - alone.margin, alone.mean + alone.margin, color=cloning["color"], alpha=0.1)
        best = max(max(outcome.data) for outcome in outcomes)
        achieved.plot([0, best], [0, best], color="black", linestyle=":", linewidth=0.8, label="as asked")
        achieved.plot([], [], label="Decision Transformer", **transformer)
        achieved.plot([], [], label="behaviour cloning", **cloning)
        data.set(xlabel="episode, in order", ylabel="return of the data")
        loss.set(xlabel="update", ylabel="negative log-likelihood (nats)")
        achieved.set(xlabel="return asked for", ylabel="mean return achieved", ylim=(0, None))
        plots.legend(achieved)
