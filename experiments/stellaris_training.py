"""Return over time and over steps, of each system on each environment: the paper's training curves and final bars."""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import jax
from rich.console import Console

from experiments import curves, plots, runs, study
from experiments.cells import Finished
from experiments.presets import architectures
from experiments.study import Size, Study
from stellaris.acting import envs
from stellaris.acting.evaluation import evaluate
from stellaris.acting.policies import PolicyVersion
from stellaris.systems import Workload

DESCRIPTION = "train every environment by Stellaris and by the systems that it is compared with"

#: The systems that the paper compares, by their names in `presets`.
SYSTEMS = ("synchronous", "asynchronous actors", "IMPACT", "stellaris")

#: Episodes of the untrained policy.
_EPISODES = 100


SIZES = {
    "smoke": Size(("CartPole-v1",), 20_000, 2),
    "small": Size(("Hopper-v4", "Humanoid-v4", "Walker2d-v4"), 300_000, 5),
    "paper": Size(
        ("Hopper-v4", "Humanoid-v4", "Walker2d-v4", "Gravitar-v5", "SpaceInvaders-v5", "Qbert-v5"), 1_000_000, 5
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line's options."""
    parser.add_argument("--system", action="append", choices=SYSTEMS, help="instead of all; several times for several")
    study.add_arguments(parser, SIZES)


def main(arguments: argparse.Namespace) -> int:
    """Runs every system on every environment, and draws the curves."""
    size, seeds = study.chosen(arguments, SIZES)
    cells = []
    for environment in size.environments:
        preset = architectures(environment)
        runs.check(preset.workload)
        cells += curves.cells(preset, arguments.system or SYSTEMS, size.steps, seeds)
    return study.main(Study("stellaris-training", cells, _report), arguments)


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """A table of final returns, and for each environment a picture."""
    rows = []
    for environment, groups in curves.by_environment(results):
        curves.draw(groups, out / f"training_{environment}", title=environment, over=plots.TIME_AND_STEPS)
        workload = next(iter(groups.values()))[0].cell.workload
        rows.append((environment, "untrained", _untrained(workload), "", "mean, standard error"))
        for name, of in groups.items():
            final, seconds = curves.last(of, "episode_return"), curves.last(of, "seconds")
            rows.append((environment, name, str(final), f"{seconds.middle:,.0f}", curves.interval(final)))
    title = f"mean return of the last 100 training episodes after {results[0].cell.budget.steps:,.0f} steps"
    console.print(study.table(title, ("environment", "system", "return", "virtual s", "interval"), rows))


def _untrained(workload: Workload) -> str:
    """What a policy that has learned nothing comes to: nearly random actions."""
    policy = workload.make_policy(envs.make(workload.environment, slots=1).spec)
    version = PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser())
    played = evaluate(policy, version, workload.environment, episodes=_EPISODES, seed=0)
    returns = [episode.episode_return for episode in played]
    return f"{statistics.mean(returns):,.4g} ± {statistics.stdev(returns) / _EPISODES**0.5:,.2g}"
