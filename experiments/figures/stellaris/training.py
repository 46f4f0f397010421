"""The paper's training curves and final bars: return over time and over steps, by system and environment.

Registered before the runs of SpaceInvaders and Gravitar, 200,000 steps each, the budget of two cores: synchronous
PPO (three seeds and two) has learned a game if on every seed the mean return of the last 100 training episodes is at
least 1.25 times that of the episodes of the first 8,192 steps. Stellaris is compared with it, on the same seeds, where
it has learned, because a ratio of two untrained policies says nothing.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from experiments.study import curves, study, tidy, variants
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks.presets import architectures, minionsrl_max
from experiments.toolkit import plots
from experiments.toolkit.statistics import estimate
from stellaris.acting import envs
from stellaris.acting.policies import PolicyVersion
from stellaris.acting.rollout import Actors, start
from stellaris.systems import Workload
from stellaris.types import Versioned

DESCRIPTION = "train Stellaris and the systems it is compared with on every environment"

#: The systems that the paper compares, by their names in `presets`.
SYSTEMS = ("synchronous", "asynchronous actors", "IMPACT", "stellaris", "MinionsRL-Max")
#: The word in the names of variants that have the learning rate of the synchronous system.
SHARED = "shared"

#: Rounds that the untrained policy plays.
_ROUNDS = 8


SIZES = {
    "smoke": Size(("CartPole-v1",), 20_000, 2),
    "small": Size(("Hopper-v4", "Humanoid-v4", "Walker2d-v4"), 300_000, 5),
    "paper": Size(
        ("Hopper-v4", "Humanoid-v4", "Walker2d-v4", "Gravitar-v5", "SpaceInvaders-v5", "Qbert-v5"), 1_000_000, 5
    ),
}


def tuned(environment: str) -> Sequence[Variant]:
    """Returns each system with its tuned settings."""
    rows = variants.of_preset(architectures(environment), SYSTEMS)
    return [*rows, Variant(minionsrl_max(environment), rows[0].workload)]


def _variants(environment: str) -> Sequence[Variant]:
    """Returns each system with its tuned settings, and with the synchronous system's learning rate if that differs.

    The shared rate was chosen for the synchronous system, so it is biased against the other systems.
    """
    rows = tuned(environment)
    rates = {row.name: row.contender.system.algorithm.learning_rate for row in rows}  # type: ignore[attr-defined]
    shared = rates["synchronous"]
    return [*rows, *(_at(shared, row) for row in rows if rates[row.name] != shared)]


def _at(rate: float, variant: Variant) -> Variant:
    """Returns a variant with another learning rate."""
    row = variant.contender
    system: Any = row.system
    changed = replace(system, algorithm=replace(system.algorithm, learning_rate=rate))
    return variant._replace(contender=replace(row, system=changed), setting=f"{row.name}, {SHARED} rate")


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Shows a table of final returns and draws one picture per environment."""
    rows = []
    for environment, groups in study.by_environment(results).items():
        tuned = {name: of for name, of in groups.items() if not of[0].cell.setting}
        curves.draw(tuned or groups, out / f"training_{environment}", title=environment, over=plots.TIME_AND_STEPS)
        workload = next(iter(groups.values()))[0].cell.workload
        rows.append((environment, "untrained", _untrained(workload), "", "", "mean, standard error"))
        for name, of in groups.items():
            final, seconds = curves.last(of, "episode_return"), curves.last(of, "seconds")
            mean = estimate([one.mean_return for one in of])
            rows.append((environment, name, str(final), str(mean), f"{seconds.middle:,.0f}", curves.interval(final)))
    title = f"mean return of the last 100 training episodes after {results[0].cell.budget.steps:,.0f} steps"
    tidy.show(
        title, ("environment", "system", "return", "mean over the run", "virtual s", "interval"), rows, out, console
    )


def _untrained(workload: Workload) -> str:
    """Returns mean and standard error of the initial policy's training returns; its actions are nearly random."""
    env = envs.make(workload.environment, slots=workload.actors)
    policy = workload.make_policy(env.spec)
    version = PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser())
    actors, slots = Actors(policy, env, workload.fragment), range(workload.actors)
    states = [start(env, slot) for slot in slots]
    returns: list[float] = []
    for key in jax.random.split(jax.random.key(1), _ROUNDS):
        fragments, states = actors.rollout(
            [Versioned(0, version)] * len(slots), slots, states, jax.random.split(key, len(slots))
        )
        returns += [episode.episode_return for fragment in fragments for episode in fragment.episodes]
    env.close()
    return f"{statistics.mean(returns):,.4g} ± {statistics.stdev(returns) / len(returns) ** 0.5:,.2g}"


STUDY = Study("stellaris-training", SIZES, _variants, _report, ("training",))
add_arguments, main = STUDY.add_arguments, STUDY.main
