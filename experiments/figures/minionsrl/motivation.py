"""MinionsRL's motivation: a constant, a growing and a shrinking number of actors, with the same total."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from experiments.study import curves, study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import minionsrl
from experiments.toolkit import plots
from stellaris.scheduling import Fixed, Scheduler, Stepped
from stellaris.systems import Evaluation

DESCRIPTION = "reward with a fixed, an increasing and a decreasing number of actors, with the same total"

#: Rounds of a run, and actors in a round on average. The other schedules add or remove ten actors every ten rounds.
#: Source: the paper; the number of actors in the first rounds is an assumption.
_ROUNDS, _MEAN = 30, 20
#: Returns are those of evaluations: with few actors the last training episodes are many rounds old.
_EVALUATION = Evaluation(every=1, episodes=10)
SCHEDULES: dict[str, tuple[Scheduler, str, str]] = {
    "fixed": (Fixed(_MEAN), "#000000", ":"),
    "increase": (Stepped(_MEAN - 10, 10), "#009E73", "--"),
    "decrease": (Stepped(_MEAN + 10, -10), "#CC79A7", "-"),
}
SIZES = {
    "smoke": Size(("CartPole-v1",), 8_192, 1),
    "small": Size(("CartPole-v1",), _ROUNDS * _MEAN * minionsrl.FRAGMENT, 10),
    "paper": Size(("CartPole-v1",), _ROUNDS * _MEAN * minionsrl.FRAGMENT, 10),
}


def _variants(environment: str) -> Sequence[Variant]:
    """Returns one variant per schedule, with both learners."""
    rows = []
    for testbed, task in minionsrl.both_learners(environment).items():
        for name, (scheduler, colour, line) in SCHEDULES.items():
            row = minionsrl.minions(name, scheduler, task)
            factors = {"testbed": testbed, "schedule": name}
            row = replace(row, colour=colour, line=line)
            rows.append(Variant(row, task.workload, f"{testbed}: {name}", _EVALUATION, factors=factors))
    return rows


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    rows = []
    for environment, groups in study.by_environment(results).items():
        over = {"round": "round", "cost_pay_per_use": "cost by Eq. 2 (USD)"}
        columns = ("evaluation_return", "seconds", "cost_pay_per_use", "cost_azure")
        testbeds = study.by_factors(groups, "testbed", "schedule")
        for testbed, own in testbeds.items():
            drawn = [plots.Curves(of[0].cell.contender, [one.history for one in of]) for of in own.values()]
            title = f"{environment}, {minionsrl.label(testbed)}: {plots.counted(len(drawn[0].histories))}"
            path = out / f"motivation_{testbed}_{environment}"
            plots.learning(drawn, path, title=title, over=over, evaluated=_EVALUATION.episodes)
            rows += [
                (environment, testbed, name, *(str(curves.last(of, column)) for column in columns))
                for name, of in own.items()
            ]
        several = next(iter(testbeds.values())).values()  # both learners have the same schedules
        drawn = [plots.Curves(of[0].cell.contender, [of[0].history]) for of in several]
        plots.per_run(
            drawn, out / f"schedules_{environment}", title=environment, xlabel="round", panels={"actors": "actors"}
        )
    headings = ("environment", "testbed", "actors", "return", "virtual s", "USD by Eq. 2", "USD, Azure")
    tidy.show(f"{_ROUNDS * _MEAN} actors in total", headings, rows, out, console)


_PICTURES = ("motivation_tuned", "motivation_authors", "schedules")
STUDY = Study("minionsrl-motivation", SIZES, _variants, _report, _PICTURES)
add_arguments, main = STUDY.add_arguments, STUDY.main
