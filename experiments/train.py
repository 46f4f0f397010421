"""Trains one system with any of its settings, or a sweep over them, with several seeds."""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments import settings
from experiments.settings import Setup
from experiments.study import curves, logs, study, tidy, variants
from experiments.study.cells import POLICY, Finished
from experiments.study.study import PROCESSORS, Size, Study, Variant
from experiments.tasks import presets
from experiments.toolkit import options, plots
from experiments.toolkit.shell import UsageError
from experiments.toolkit.statistics import estimate
from stellaris.systems import Budget

DESCRIPTION = "train one system with any settings, and sweep over them, with several seeds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--system", default="stellaris", help="a system by its name, such as synchronous or asynchronous-actors")
    add("--env", nargs=1, default=["CartPole-v1"], help="environment, from EnvPool or Gymnasium")
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    help_ = "a field of the system or of its parts: rho=2, algorithm.clip=0.1, workload.actors=8, budget.seconds=60, "
    help_ += "'platform.learner.compute=LogNormal(0.02, 1.0)'"
    add("--set", metavar="NAME=VALUE", help=help_, **several)
    add("--sweep", metavar="NAME=VALUE,...", help="settings with several values each", **several)
    add("--steps", type=options.whole(1), default=100_000, help="environment steps of every run")
    add("--seeds", type=options.whole(1), default=1, help="number of seeds")
    add("--seed", type=options.whole(0), default=0, help="first seed")
    add("--jobs", type=options.whole(1), default=PROCESSORS, help="concurrent processes")
    add("--resume", action="store_true", help="reuse the finished runs in the results folder")
    logs.add_argument(parser)
    add("--only", metavar="KEY", default=argparse.SUPPRESS, help="do only the run with this key, in this process")
    add("--out", type=options.folder, default=Path("results"), help="results folder")
    # Every study has these two options; here there is one size, and the settings name the variants.
    add("--preset", choices=("small",), default="small", help=argparse.SUPPRESS)
    add("--variant", action="append", help=argparse.SUPPRESS)


def main(arguments: argparse.Namespace) -> int:
    """Runs the study that the options describe."""
    made = made_variants(arguments.system, arguments.env[0], arguments.set, arguments.sweep)
    size = Size(arguments.env, arguments.steps, arguments.seeds)
    own = Study("train", {"small": size}, lambda environment: made, _report, ("train", "swept"))
    return own.main(arguments)


def made_variants(system: str, environment: str, given: Sequence[str], axes: Sequence[str]) -> list[Variant]:
    """Returns a variant for each combination of the swept settings.

    Raises:
      UsageError: if the system, a setting or a value is unknown or refused.
    """
    preset = presets.architectures(environment)
    rows = {row.name: row for row in preset.contenders}
    name = next((known for known in rows if known.replace(" ", "-").lower() == system.replace(" ", "-").lower()), None)
    if name is None:
        raise UsageError(f"--system {system}: choose one of {', '.join(known.replace(' ', '-') for known in rows)}")
    setup = Setup(rows[name], preset.workload, Budget(steps=10**9))
    fixed = dict(map(settings.named, given))
    made = []
    for chosen in settings.swept(axes):
        of = settings.applied(setup, {**fixed, **chosen})
        words = ", ".join(f"{key}={value}" for key, value in chosen.items())
        made.append(Variant(of.contender, of.workload, words, limits=of.budget, keep_policy=True, factors=chosen))
    return made


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Shows the returns, times and costs of every variant, and draws the curves."""
    rows = []
    _copy_policies(results, out / "policies")
    for environment, groups in study.by_environment(results).items():
        if len(groups) <= len(plots.LINES):
            labelled = {name: _labelled(of, name, i) for i, (name, of) in enumerate(groups.items())}
            curves.draw(labelled, out / f"train_{environment}", title=environment, over=plots.TIME_AND_STEPS)
        else:
            bars = {name: variants.column(of, "final_return") for name, of in groups.items()}
            colours = dict.fromkeys(groups, results[0].cell.contender.colour)
            caption = plots.caption(environment, results[0].cell.budget.steps, seeds=max(map(len, groups.values())))
            plots.bars(bars, colours, out / f"swept_{environment}", title=caption)
        for name, of in groups.items():
            returns = estimate(variants.column(of, "final_return")), estimate([one.mean_return for one in of])
            spent = [variants.middle(of, figure) for figure in _SPENT.values()]
            rows.append((environment, name, *map(str, returns), str(len(of)), *spent))
    headings = ("environment", "variant", "return", "mean over the run", "seeds", *_SPENT)
    tidy.show(results[0].cell.contender.name, headings, rows, out, console)


def _copy_policies(results: Sequence[Finished], folder: Path) -> None:
    """Replaces the policies in a folder by the runs' own; a run that an earlier study has done has kept none."""
    folder.mkdir(exist_ok=True)
    for earlier in folder.glob("*.safetensors"):
        earlier.unlink()
    for result in results:
        cell = result.cell
        name = "_".join(
            word for word in (cell.environment, cell.setting.replace(", ", "_"), f"seed{cell.seed}") if word
        )
        if (result.folder / POLICY).exists():
            shutil.copyfile(result.folder / POLICY, folder / f"{name}.safetensors")


_SPENT: Mapping[str, str] = {
    "virtual s": "virtual_seconds",
    "gradients": "gradients",
    "staleness": "staleness_mean",
    "USD demo": "cost_demo",
    "USD use": "cost_pay_per_use",
}


def _labelled(of: Sequence[Finished], name: str, number: int) -> Sequence[Finished]:
    """Returns the runs with the variant's name and a distinct line style."""
    style = plots.LINES[number]
    return [variants.styled(one, name, style["color"], style["linestyle"]) for one in of]
