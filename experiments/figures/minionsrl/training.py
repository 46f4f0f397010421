"""Compares MinionsRL with its variants and baselines: returns, decisions, and time and cost up to the target."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from experiments.study import study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import minionsrl
from experiments.toolkit import output, plots
from experiments.toolkit.statistics import estimate

DESCRIPTION = "returns over rounds and time, decisions over rounds, time and cost up to the target, and the paper's"

#: The variants of MinionsRL, in the order of their pictures.
OWN = (minionsrl.LEARNED, minionsrl.FOR_COST, minionsrl.MAX, minionsrl.ADAPT)


def _variants(environment: str) -> Sequence[Variant]:
    """Returns each system with the same target and budget."""
    minionsrl.check_goal(environment)
    return _of(minionsrl.task(environment), environment)


def _papers_own(environment: str) -> Sequence[Variant]:
    """Returns each system with the paper's settings."""
    minionsrl.check_goal(environment)
    return _of(minionsrl.paper(environment), environment)


def _of(task: minionsrl.Task, environment: str) -> Sequence[Variant]:
    return [Variant(row, task.workload, limits=task.limits) for row in minionsrl.contenders(environment, task)]


SIZES = {
    "smoke": Size(("CartPole-v1",), 8_192, 1),
    "small": Size(("CartPole-v1", "Hopper-v4", "HalfCheetah-v4"), 1_000_000, 10),
    # The paper's environments that have a target in `GOALS`.
    "paper": Size(("Hopper-v4", "Humanoid-v4", "HalfCheetah-v4", "Qbert-v5"), 20_000_000, 5, _papers_own),
}


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    rows = []
    for environment, groups in study.by_environment(results).items():
        limits = next(iter(groups.values()))[0].cell.budget
        seeds = max(map(len, groups.values()))
        goal = f"to {limits.target_return:g}, {limits.cost:g} USD at most"
        title = f"{environment}: {goal}, {plots.counted(seeds)}"
        curves = {name: plots.Curves(of[0].cell.contender, [one.history for one in of]) for name, of in groups.items()}
        returns = {"round": "round", "seconds": "virtual time (s)"}
        own = [curves[name] for name in OWN if name in curves]
        for kind, drawn in (("training", [*curves.values()]), ("ablation", own)):
            if drawn:  # empty if only baselines were selected
                path = out / f"{kind}_{environment}"
                plots.learning(drawn, path, title=title, over=returns, window=limits.window)
        if own:
            decided = {"actors": "actors", "episode_return": "return"}
            plots.per_run(own, out / f"decisions_{environment}", title=title, xlabel="round", panels=decided)
        rows += [(environment, name, *spent(of), *_papers(environment, name)) for name, of in groups.items()]
    own_columns = ("reached", "virtual s", "USD by Eq. 2", "USD, Azure", "actors")
    headings = ("environment", "system", *own_columns, "paper's s", "paper's USD")
    tidy.show("up to the target", headings, rows, out, console)


def spent(of: Sequence[Finished]) -> Sequence[str]:
    """Returns the cells of a row: how many runs reached the target, then estimates over all runs.

    The estimates are the virtual seconds, both costs and the mean number of actors, each at the end of a run.
    """
    reached = sum(_reached(one) for one in of)
    columns = ("seconds", "cost_pay_per_use", "cost_azure")
    spent = [str(estimate([one.history[-1][column] for one in of])) for column in columns]
    actors = [[row["actors"] for row in one.history if "actors" in row] for one in of]
    mean = str(estimate([sum(one) / len(one) for one in actors])) if all(actors) else ""
    return (f"{reached} of {len(of)}", *spent, mean)


def _reached(one: Finished) -> bool:
    """Whether a run ended within its budget at a target: of a full window of episodes, or of an evaluation."""
    limits, last = one.cell.budget, one.history[-1]
    within = last["cost_pay_per_use"] <= limits.cost
    trained = last["episodes"] >= limits.window and last["episode_return"] >= limits.target_return
    return within and (trained or last.get("evaluation_return", math.nan) >= limits.target_evaluation)


def _papers(environment: str, system: str) -> Sequence[str]:
    """Returns the time and the cost in the paper's Table 2, mean ± deviation of five runs, or "" if missing."""
    row = papers_table().get((environment.split("-")[0], system))
    if row is None:
        return ("", "")
    return tuple(f"{row[name]} ± {row[f'{name}_std']}" for name in ("time_s", "cost_usd"))


def papers_table() -> Mapping[tuple[str, str], Mapping[str, str]]:
    """Reads Table 2 of the paper, by environment and system."""
    rows = output.read_rows(Path(__file__).with_name("minionsrl_table2.csv"))
    return {(row["environment"], row["baseline"]): row for row in rows}


STUDY = Study("minionsrl-training", SIZES, _variants, _report, ("training", "ablation", "decisions"))
add_arguments, main = STUDY.add_arguments, STUDY.main
