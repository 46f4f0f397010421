"""Sweeps an imposed lag and any setting of an algorithm, from the command line."""

import argparse
import dataclasses
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from experiments.lab.patterns import Kind, alike, pattern
from experiments.toolkit import options, output, plots, shell
from experiments.toolkit.computing import keep_compiled
from stellaris import IMPACT, IMPALA, PPO, ActorCritic, Workload
from stellaris.aggregation.synchronisation import fully_asynchronous
from stellaris.lab import CartPole, Gymnax, Schedule, imposed, mean_evaluation, mean_return, sweep
from stellaris.lab.sweep import Progress
from stellaris.runtime.files import atomic_write
from stellaris.systems import Evaluation

if TYPE_CHECKING:
    import xarray as xr

DESCRIPTION = "sweep an imposed lag and settings of an algorithm: every combination, many runs in one program"

_ALGORITHMS = {"ppo": PPO, "impala": IMPALA, "impact": IMPACT}

#: Axes that are arguments of the schedule, and not settings of the algorithm.
_LAGS = ("lag", "gradient_lag")

#: Seconds between two lines of progress.
_PROGRESS_EVERY = 5.0

#: The fraction of the updates, at the end of a run, over which the final return is averaged.
_TAIL = 0.2
#: How often the newest policy is evaluated in a run, and with how many episodes.
_EVALUATIONS, _EPISODES = 20, 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "--set",
        nargs="+",
        type=_axis,
        metavar="NAME=VALUE,...",
        default=[_axis("lag=0,1,2,4,8")],
        help="axes: lag (mean age of the data, in batches), gradient_lag (age of the gradients, in versions) and "
        "algorithm.FIELD; one VALUE for a FIELD sets it for all runs, and makes no axis",
    )
    parser.add_argument("--env", default="CartPole", help="CartPole, or the name of a gymnax environment")
    parser.add_argument("--algorithm", choices=_ALGORITHMS, default="ppo", help="algorithm whose settings are swept")
    parser.add_argument(
        "--pattern",
        choices=get_args(Kind),
        default="constant",
        help="pattern of the lags, with the same mean: constant; sawtooth, growing from 0 to twice the mean; maximum, "
        "drawn up to it; mixed, from 0 to it over the actors of each batch",
    )
    parser.add_argument("--updates", type=options.whole(1), default=100, help="number of batches that are learned from")
    parser.add_argument(
        "--actors", type=options.whole(1), default=16, help="number of actors; a batch has one fragment of each actor"
    )
    parser.add_argument("--fragment", type=options.whole(1), default=64, help="number of steps of a fragment")
    parser.add_argument("--hidden", type=options.whole(1), nargs="+", default=[64, 64], help="widths of the layers")
    parser.add_argument("--seed", type=options.whole(0), default=0, help="the first seed")
    parser.add_argument("--seeds", type=options.whole(1), default=8, help="number of seeds")
    parser.add_argument("--block", type=options.whole(1), help="most runs at a time (default: 8 per CPU core)")
    parser.add_argument("--out", type=options.folder, default=Path("results/lab"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Runs the sweep; writes a tidy table, the settings and a picture."""
    keep_compiled(arguments.out / "compiled")
    axes = _axes(arguments.set)
    algorithm, varied = _split(_ALGORITHMS[arguments.algorithm](), axes)
    lagged = "gradient_lag" in varied
    _check_lags(arguments, varied)
    with output.usable(arguments.out):
        arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        workload = Workload(
            CartPole() if arguments.env == "CartPole" else Gymnax(arguments.env),
            ActorCritic(hidden=tuple(arguments.hidden)),
            actors=arguments.actors,
            fragment=arguments.fragment,
        )
        result = sweep(
            workload,
            algorithm,
            _schedules(arguments, algorithm, workload, lagged=lagged),
            varied,
            seeds=options.seeds("--seed", arguments.seed, arguments.seeds),
            aggregator=fully_asynchronous(capacity=1) if lagged else None,
            evaluation=Evaluation(every=max(1, arguments.updates // _EVALUATIONS), episodes=_EPISODES),
            block=arguments.block,
            directory=arguments.out / "blocks",
            on_progress=shown(),
        )
    except (TypeError, ValueError) as error:
        raise shell.UsageError(error) from error
    table = _table(result, list(varied), max(1, round(_TAIL * arguments.updates)))
    output.write_rows(arguments.out / "lab.csv", table)
    with atomic_write(arguments.out / "settings.json") as file:
        file.write(json.dumps({"command": sys.argv[1:], **result.attrs}, indent=1))
    _draw(table, list(varied), arguments.out / "return", _title(arguments))
    print(f"{arguments.out}: lab.csv, settings.json, return.png, return.pdf")
    return 0


def _check_lags(arguments: argparse.Namespace, varied: Mapping[str, Sequence[Any]]) -> None:
    """Raises for a pattern that does not fit; says so if a run would learn from the untrained policy alone."""
    if arguments.pattern == "mixed" and "gradient_lag" in varied:
        raise shell.UsageError(
            "--pattern mixed: a gradient has one age; leave gradient_lag out, or choose another pattern"
        )
    if arguments.pattern == "mixed" and arguments.actors < 2:
        raise shell.UsageError(
            f"--pattern mixed: --actors {arguments.actors} is one actor, which has one age; take more"
        )
    beyond = [lag for lag in varied["lag"] if lag >= arguments.updates]
    if beyond and arguments.pattern == "constant":
        print(
            f"lag {', '.join(map(str, beyond))}: the untrained policy samples all {arguments.updates} batches; for "
            "data of newer policies raise --updates",
            flush=True,
        )


def _axis(text: str) -> tuple[str, list[float | int]]:
    """Parses `NAME=VALUE,VALUE`, an argument of `--set`."""
    name, equals, values = text.partition("=")
    try:
        numbers = [int(value) if value.lstrip("-").isdigit() else float(value) for value in values.split(",")]
    except ValueError:
        numbers = []
    if not equals or not numbers:
        raise argparse.ArgumentTypeError(f"{text} is not of the form NAME=NUMBER,NUMBER,...")
    return name, numbers


def _axes(pairs: Sequence[tuple[str, list[Any]]]) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for name, values in pairs:
        if name in axes:
            raise shell.UsageError(f"--set: {name} is given twice")
        if name not in _LAGS and not name.startswith("algorithm."):
            raise shell.UsageError(f"--set: {name} is neither {' nor '.join(_LAGS)} nor algorithm.FIELD")
        axes[name] = values
    axes.setdefault("lag", [0])
    return axes


def _split(algorithm: Any, axes: Mapping[str, list[Any]]) -> tuple[Any, dict[str, list[Any]]]:
    """Sets the fields that have one value; returns the algorithm and the axes: the lags and the other fields."""
    varied = {}
    for name, values in axes.items():
        field = name.removeprefix("algorithm.")
        if name in _LAGS:
            varied[name] = values
            continue
        if not hasattr(algorithm, field):
            raise shell.UsageError(f"--set: {type(algorithm).__name__} has no field {field}")
        kind = type(getattr(algorithm, field))
        values = [float(value) if kind is float else value for value in values]
        try:
            each = [dataclasses.replace(algorithm, **{field: value}) for value in values]
        except (TypeError, ValueError) as error:
            raise shell.UsageError(f"--set: {error}") from error
        if len(values) == 1:
            algorithm = each[0]
        else:
            varied[name] = values
    return algorithm, varied


def _schedules(
    arguments: argparse.Namespace, algorithm: Any, workload: Workload, *, lagged: bool
) -> Callable[..., Schedule]:
    samples = workload.actors * workload.fragment
    minibatches = algorithm.epochs * -(-samples // algorithm.minibatch_size) if lagged else 1

    def schedule(lag: int, gradient_lag: int | None = None, *, seed: int) -> Schedule:
        kind, actors = arguments.pattern, arguments.actors
        return imposed(
            arguments.updates,
            actors=actors,
            data=pattern(kind, lag, actors, seed),
            # Other draws than those of the data, so that the ages do not rise and fall together.
            gradients=None if gradient_lag is None else alike(kind, gradient_lag, seed + 1_000_003),
            minibatches=minibatches,
        )

    return schedule


def shown() -> Callable[[Progress], None]:
    """Returns a function that prints the progress of a sweep, every few seconds and at the end."""
    said = -math.inf

    def show(progress: Progress) -> None:
        nonlocal said
        if progress.block and time.monotonic() - said < _PROGRESS_EVERY:
            return
        said = time.monotonic()
        left = "" if np.isnan(progress.seconds_left) else f", {progress.seconds_left:.0f} s left"
        size = f"; a block of {progress.block} runs takes {progress.nbytes / 2**20:,.0f} MiB" if progress.block else ""
        print(f"{progress.done:,} of {progress.total:,} runs{left}{size}", flush=True)

    return show


def _table(result: "xr.Dataset", axes: Sequence[str], last: int) -> list[dict[str, Any]]:
    """Returns one row per run: settings, seed, mean returns, and the mean lag of the data.

    `final_return` scores the policies of the last updates, and `mean_return` the policies of all updates.
    `sampled_return` scores the episodes sampled during the last updates, by policies as old as the data.
    """
    final, whole = (mean_evaluation(result, updates) for updates in (last, result.sizes["update"]))
    sampled = mean_return(result, last)
    rows = []
    for place in np.ndindex(final.shape):
        coordinates = {name: final[name].values[i].item() for name, i in zip(final.dims, place, strict=True)}
        rows.append(
            {
                **{name: coordinates[name] for name in (*axes, "seed")},
                "final_return": float(final.values[place]),
                "mean_return": float(whole.values[place]),
                "sampled_return": float(sampled.values[place]),
                "data_lag": float(result.data_lag_mean.values[place].mean()),
            }
        )
    return rows


def _title(arguments: argparse.Namespace) -> str:
    return (
        f"{arguments.env}, {arguments.algorithm.upper()}, {arguments.pattern} lag: {arguments.updates} updates, "
        f"{plots.counted(arguments.seeds)}"
    )


class _Named:
    """The name and the style of a line in the picture."""

    def __init__(self, name: str, style: Mapping[str, Any]) -> None:
        self.name = name
        self.colour: str = style["color"]
        self.line: str = style["linestyle"]


def _draw(table: Sequence[Mapping[str, Any]], axes: Sequence[str], path: Path, title: str) -> None:
    """Draws return against lag, one line per combination of the other axes."""
    x = "gradient_lag" if "gradient_lag" in axes and len({row["lag"] for row in table}) == 1 else "lag"
    others = [name for name in axes if name != x and len({row[name] for row in table}) > 1]
    lines: dict[str, dict[float, list[float]]] = {}
    for row in table:
        name = ", ".join(f"{other.removeprefix('algorithm.')}={row[other]:g}" for other in others)
        lines.setdefault(name, {}).setdefault(row[x], []).append(row["final_return"])
    styles = itertools.cycle(plots.LINES)
    panel = plots.Panel(
        xlabel="age of the data (batches)" if x == "lag" else "age of the gradients (versions)",
        ylabel=f"mean return of the\nlast {_TAIL:.0%} of policies",
        log=True,
        lines=[plots.Line(_Named(name, style), points) for (name, points), style in zip(lines.items(), styles)],  # noqa: B905
    )
    plots.sweep([panel], path, title=title)
