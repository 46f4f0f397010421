"""Shows the paper's challenges: stale gradients, diverging policies, and a varying number of learners in use."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from experiments.study import study, tidy, variants
from experiments.study.cells import Finished
from experiments.study.study import Study, Variant
from experiments.toolkit import plots
from experiments.toolkit.statistics import estimate

DESCRIPTION = "staleness over rounds, divergence of the policies with and without the cap, learners in use over time"


def _variants(environment: str) -> Sequence[Variant]:
    """Returns the tuned Stellaris with and without the cap on ratios."""
    return variants.of_stellaris(environment, {"cap": {}, "no cap": {"rho": math.inf}})


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Draws staleness, two divergences and the learners in use, and shows a table of means.

    "kl" is the divergence of the learners' policies from the behaviour policy, by `approximate_kl`. "policy_kl" is the
    exact divergence between the policies after successive batches.
    """
    rows = []
    for environment, groups in study.by_environment(results).items():
        caption = plots.caption(environment, results[0].cell.budget.steps, seeds=max(map(len, groups.values())))
        colour = results[0].cell.contender.colour
        for column, label in (
            ("staleness_mean", "staleness of applied\ngradients (versions)"),
            ("kl", "KL of the learners' policies\nfrom the behaviour policy"),
            ("policy_kl", "KL of a batch's policy\nfrom the one before"),
        ):
            plots.lines(
                {name: [_column(one, column) for one in of] for name, of in groups.items()},
                out / f"challenges_{column}_{environment}",
                colour=colour,
                title=caption,
                xlabel="round",
                ylabel=label,
                log=column == "policy_kl",
            )
        name, (one, *_) = next(iter(groups.items()))
        plots.lines(
            {name: [_in_use(one)]},
            out / f"challenges_learners_{environment}",
            colour=colour,
            title=f"{environment}, seed {one.cell.seed}: {one.cell.budget.steps:,.0f} steps",
            xlabel="virtual time (s)",
            ylabel="learner functions in use",
        )
        rows += [(environment, name, *_summary(of)) for name, of in groups.items()]
    tidy.show(
        "challenges", ("environment", "variant", "staleness", "KL", "KL of successive", "return"), rows, out, console
    )


def _summary(of: Sequence[Finished]) -> Sequence[str]:
    means = [
        [float(np.mean(_column(one, column)[1])) for one in of] for column in ("staleness_mean", "kl", "policy_kl")
    ]
    finals = [one.history[-1]["episode_return"] for one in of]
    return [str(estimate(values)) for values in (*means, finals)]


def _column(result: Finished, column: str) -> tuple[Any, Any]:
    """Returns the rounds with a finite value in a column, and the values; leaves out a row after the last round."""
    rounds = itertools.pairwise(({"round": 0.0}, *result.history))
    known = [
        row for before, row in rounds if row["round"] > before["round"] and math.isfinite(row.get(column, math.nan))
    ]
    return [row["round"] for row in known], [row[column] for row in known]


def _in_use(result: Finished) -> tuple[Any, Any]:
    """Returns the midpoints of 200 intervals of a run, and the mean number of running learner functions in each."""
    calls = result.trace.invocations()
    learners = calls.function == calls.names.index("learner")
    started, ended = calls.started[learners], calls.ended[learners]
    ran = np.isfinite(started) & np.isfinite(ended)
    edges = np.linspace(0.0, result.history[-1]["seconds"], 201)
    # The total running time of all invocations up to each edge.
    until = np.array([np.clip(np.minimum(ended[ran], edge) - started[ran], 0.0, None).sum() for edge in edges])
    return (edges[1:] + edges[:-1]) / 2, np.diff(until) / np.diff(edges)


_PICTURES = [f"challenges_{what}" for what in ("staleness_mean", "kl", "policy_kl", "learners")]
STUDY = Study("stellaris-challenges", variants.SIZES, _variants, _report, _PICTURES)
add_arguments, main = STUDY.add_arguments, STUDY.main
