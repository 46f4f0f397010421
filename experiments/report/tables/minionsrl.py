"""The tables of results on MinionsRL."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from experiments.figures.minionsrl import training, tuning
from experiments.figures.minionsrl.ceiling import TESTBEDS, Schedule
from experiments.report.tables.results import first, rounded, rows
from experiments.report.tables.table import Table
from experiments.tasks import minionsrl
from experiments.toolkit.statistics import Estimate, estimate, interquartile_mean

_CEILING = "minionsrl-ceiling"
#: The testbeds of the ceiling.
_TESTBEDS = ("authors", "tuned", "acrobot", "acrobot-tuned-0.0012")
_OBJECTIVES = {"time": "least time", "cost": "least cost", "cost at equal time": "least cost at Max's time"}


def ceiling() -> Table:
    """Returns the best fixed number and the best two levels by testbed and objective, relative to all actors."""
    lines = []
    for testbed in _TESTBEDS:
        environment, learner = TESTBEDS[testbed]
        label = f"{environment}, {minionsrl.label(learner)}"
        for row in rows(f"{_CEILING}/best_{testbed}.csv"):
            numbers = Schedule(*(int(row[column]) for column in ("first", "then", "change")))
            ratios = (f"{_ratio(row, column):.2f}" for column in ("time", "cost"))
            lines.append((label, _OBJECTIVES[row["objective"]], str(numbers), *ratios))
            label = ""
    headings = ("chosen on 20 runs, compared on 20 others", "chosen for", "actors", "time / Max's", "cost / Max's")
    return Table(headings, lines, left=headings[1:3])


def tuned() -> Table:
    """Returns the settings of the tuned learner on CartPole and Acrobot, the fastest first, with all actors."""
    lines = []
    for testbed in tuning.TESTBEDS:
        label = TESTBEDS[testbed][0]
        for name, reached, middle, least, most, usd, steps, ratio in tuning.table(
            rows(f"minionsrl-tuning/runs_{testbed}.csv")
        ):
            lines.append((label, name, reached, f"{middle} ({least} to {most})", usd, steps, ratio))
            label = ""
    spent = ("median s (least to most)", "median USD", "median steps", "time / its own's")
    return Table(("all 32 actors, seeds 100 to 103", "setting", "reached", *spent), lines, left=("setting",))


#: The testbeds of trainings, in the page's words, each with the folders of its results; and the ways of training.
_TRAININGS = (
    ("authors", "", ("fresh", "as-published", "shared")),
    ("tuned", "", ("penalty-4", "shared")),
    ("tuned", ", again", ("again",)),
)
_WAYS = {
    "one run, one epoch, raw states": "as published",
    "held for the run": "numbers by themselves",
    "held for the run, neighbours share": "neighbours share",
}


def trained() -> Table:
    """Returns fixed numbers and trained schedulers by testbed: actors, runs within the budget, time and cost."""
    lines = []
    for testbed, again, folders in _TRAININGS:
        label = f"{minionsrl.label(testbed)}{again}"
        paths = [f"minionsrl-learning/{folder}/schedulers_{testbed}.csv" for folder in folders]
        several = {_name(row): row for path in paths for row in rows(path)}
        for name, row in sorted(several.items(), key=lambda item: bool(item[1]["seed"])):  # fixed numbers first
            within = f"{row['within_budget']} of {row['runs']}" if row.get("within_budget") else ""
            # Without the runs that missed the target, ratios would flatter.
            whole = row["reached"] == row["runs"]
            ratios = (f"{_ratio(row, column):.2f}" if whole else "" for column in ("time", "cost"))
            lines.append((label, name, f"{float(row['actors']):.1f}", within, *ratios))
            label = ""
    headings = ("seeds 60 to 79", "scheduler", "actors", "within the budget", "time / Max's", "cost / Max's")
    return Table(headings, lines, left=headings[1:2])


def _name(row: Mapping[str, str]) -> str:
    """Returns the name of a scheduler: a fixed number, a surface, or a training by its way and its number."""
    if not row["seed"]:
        return row["way"]
    way, *best = row["way"].split(": ")
    if way not in _WAYS:
        return f"{way} {int(row['seed']) + 1}: {best[0]}"
    return f"{_WAYS[way]}, training {int(row['seed']) + 1}{', by its best run' if best else ''}"


#: The trainings on Acrobot by testbed: their folders, each with the words for the scheduler that it trained.
_ON_ACROBOT = {
    "acrobot": {"scratch": "trained on 100 runs", "tuned": "CartPole's, 16 more runs"},
    "acrobot-tuned": {
        "scratch": "trained on 100 runs",
        "published": "trained on 100 runs, as published",
        "tuned": "CartPole's, 16 more runs",
    },
    "acrobot-tuned-0.0012": {"retuned": "trained on 100 runs"},
}


def on_acrobot() -> Table:
    """Returns fixed numbers and schedulers on Acrobot by testbed, with the shares of the gap in time that they close.

    A training has the version that did best on held-out runs. Without a share, no fixed number that was run takes less
    time than all actors.
    """
    lines = []
    for testbed, folders in _ON_ACROBOT.items():
        label = minionsrl.label(TESTBEDS[testbed][1])
        several = {}
        for folder, name in folders.items():
            for row in rows(f"minionsrl-learning/acrobot/{folder}/schedulers_{testbed}.csv"):
                if row["way"] in _WAYS:
                    again = f", training {int(row['seed']) + 1}" if int(row["seed"]) else ""
                    several[f"{name}{again}"] = row
                elif ": " not in row["way"]:  # not a training's version with the best run
                    several[row["way"].replace("before fine-tuning", "CartPole's, as it is")] = row
        for name, row in several.items():
            within = f"{row['within_budget']} of {row['runs']}" if row["within_budget"] else ""
            # Without the runs that missed the target, ratios would flatter.
            shown = row["reached"] == row["runs"]
            ratios = (f"{_ratio(row, of):.2f}" if shown and row.get(of) else "" for of in ("time", "cost", "closed"))
            lines.append((label, name, f"{float(row['actors']):.1f}", within, *ratios))
            label = ""
    spent = "time / Max's", "cost / Max's", "share of the gap in time"
    headings = ("seeds 60 to 79", "scheduler", "actors", "within the budget", *spent)
    return Table(headings, lines, left=headings[1:2])


_STUDY = "small/minionsrl-training"
#: Runs of `minionsrl-training`, by their place: with a trained scheduler, and without one.
_TRAINED, _FIXED = ("hopper", "hopper-tuned", "halfcheetah"), ("halfcheetah-tuned",)
#: Runs with further seeds or schedulers, which were made later, by the place whose runs they continue.
_CONTINUED = {_STUDY: (f"{_STUDY}/cartpole-more",)} | {
    f"{_STUDY}/{place}": tuple(f"{_STUDY}/{place}-{part}" for part in parts)
    for place, parts in {
        "hopper": ("baselines", "baselines-more", "impact"),
        "hopper-tuned": ("more", "impact"),
        "halfcheetah": ("more", "baselines", "baselines-more", "impact"),
    }.items()
}
#: Runs of trained schedulers that were played on without their budget, by the place whose failed runs they are.
_PLAYED_ON = {f"{_STUDY}/{place}": (f"{_STUDY}/{place}-played-on",) for place in _TRAINED}
#: The places whose runs are shown; those that continue them are pooled with them.
SHOWN = (_STUDY, *(f"{_STUDY}/{place}" for place in (*_TRAINED, *_FIXED)))
TRAINING = (*SHOWN, *(folder for of in (_CONTINUED, _PLAYED_ON) for folders in of.values() for folder in folders))


def compared() -> Table:
    """Returns fixed numbers, trained schedulers and baselines on the event loop, by task and testbed."""
    lines = []
    before = "", ""
    for folder, row in ((place, row) for place in SHOWN for row in rows_of(place)):
        spends = (rounded(row[name], digits) for name, digits in (("s", 1), ("USD", 4)))
        azure = f"{first(row['USD, Azure']):.4f}" if row["USD, Azure"] else ""
        ratios = (rounded(row[f"{name} / all"]) for name in ("s", "USD", "USD, Azure"))
        name = f"{row['actors']} actors" if row["actors"].isdigit() else row["actors"]
        papers = (row[name].split(" ")[0] for name in ("paper's s", "paper's USD"))
        label = f"{row['environment']}, {minionsrl.label(row['testbed'])}"
        shown = "" if (folder, label) == before else label
        if shown and label == before[1]:
            shown = f"the same, the first {row['reached'].split(' ')[-1]} seeds"
        lines.append((shown, name, row["reached"], row["mean actors"], *spends, azure, *ratios, *papers))
        before = folder, label
    spent = ("virtual s", "USD by Eq. 2", "as Azure bills")
    relative = (f"{name} / Max's" for name in ("s", "USD", "Azure's"))
    headings = ("", "scheduler", "reached", "actors", *spent, *relative, "paper's s", "paper's USD")
    return Table(headings, lines, left=headings[1:2])


def places(place: str) -> Sequence[str]:
    """Returns the folders of a place: its own, and the ones whose runs continue it."""
    return (place, *_CONTINUED.get(place, ()))


def rows_of(place: str) -> Sequence[Mapping[str, str]]:
    """Returns the rows of a place's table, the fixed numbers of actors of each testbed first.

    The table is computed anew from the runs if others continue them.
    """
    folders = places(place)
    found = pooled(*folders) if len(folders) > 1 else rows(f"{place}/table.csv")
    testbeds = [*dict.fromkeys((row["environment"], row["testbed"]) for row in found)]

    def order(row: Mapping[str, str]) -> tuple[int, float]:
        fixed = float(row["actors"]) if row["actors"].isdigit() else 0.0
        return testbeds.index((row["environment"], row["testbed"])), -fixed

    return sorted(found, key=order)


def pooled(*places: str) -> Sequence[Mapping[str, str]]:
    """Returns the rows of the table of all runs of several places, as `minionsrl-training` writes them."""
    return [dict(zip(training.HEADINGS, row, strict=True)) for row in training.to_target(_runs(*places))]


def counted() -> Table:
    """Returns what trained schedulers take of Max's time and cost, without the failed runs and with all runs.

    A run whose budget ended before the target counts as it was played on without a budget. If it was not, it counts at
    the time and at the cost at which it ended, so that the ratio of all runs is a lower bound, and their share of a gap
    an upper one.
    """
    lines = []
    for place in SHOWN:
        folders = (*places(place), *_PLAYED_ON.get(place, ()))
        runs, exceeding = _runs(*folders), _runs(*folders, of=_exceeding)
        for (environment, testbed, name), of in runs.items():
            if not name.startswith(training.LEARNED) or name.endswith(training.PLAYED_ON):
                continue
            on = {
                **exceeding.get((environment, testbed, name), {}),
                **runs.get((environment, testbed, f"{name}{training.PLAYED_ON}"), {}),
            }
            own = {other: seeds for (*where, other), seeds in runs.items() if where == [environment, testbed]}
            label = f"{environment}, {minionsrl.label(testbed)}"
            lines.append((label, name, *_numbers(of, on, own)))
    relative = (f"{spent} / Max's, {which}" for spent in ("s", "USD") for which in ("of these", "of all"))
    headings = ("", "scheduler", "reached", *relative, "share of the gap in s", "share in USD")
    return Table(headings, lines, left=headings[1:2])


_BySeed = Mapping[int, training.Run]


def _numbers(of: _BySeed, on: _BySeed, schedules: Mapping[str, _BySeed]) -> Sequence[str]:
    """Returns the numbers of a trained scheduler.

    Args:
      of: its runs.
      on: those that failed, as they were played on.
      schedules: the runs of all schedules of its testbed by name, all actors and fixed numbers among them.
    """
    everyone = schedules[str(training.ALL)]
    reached = [(run, everyone[seed]) for seed, run in of.items() if run.reached]
    every = {seed: run if run.reached else on.get(seed, run) for seed, run in of.items()}
    pairs = [(run, everyone[seed]) for seed, run in every.items()]
    at_least, at_most = ("", "") if all(run.reached for run in every.values()) else ("at least ", "at most ")
    ratios = (
        f"{said}{estimate([run.spent[column] / other.spent[column] for run, other in several]):.2f}"
        for column in (0, 1)
        for said, several in (("", reached), (at_least, pairs))
    )
    fixed = [seeds for name, seeds in schedules.items() if name.isdigit()]
    shares = (_share(every, everyone, fixed, column) for column in (0, 1))
    return (f"{len(reached)} of {len(of)}", *ratios, *(f"{at_most}{share:.2f}" if share else "" for share in shares))


def _share(every: _BySeed, everyone: _BySeed, fixed: Sequence[_BySeed], column: int) -> Estimate | None:
    """Returns the share that runs close of the gap between all actors and the best fixed number, in time or cost.

    As in `outcomes.closed`: what a run spares, divided by the interquartile mean of what the fixed number with the
    least median on these seeds spares. Returns None if no fixed number spares anything.
    """

    def spent(run: training.Run) -> float:
        return run.spent[column] if run.reached else math.inf

    best = min(fixed, key=lambda of: median(map(spent, of.values())))
    gap = interquartile_mean([spent(run) - spent(best[seed]) for seed, run in everyone.items()])
    return (
        estimate([(spent(everyone[seed]) - run.spent[column]) / gap for seed, run in every.items()])
        if gap > 0
        else None
    )


def _runs(
    *places: str, of: Callable[[Mapping[str, str]], training.Run | None] | None = None
) -> Mapping[tuple[str, str, str], Mapping[int, training.Run]]:
    """Returns the runs of several places by seed, by environment, testbed and schedule.

    Args:
      places: the folders of the runs.
      of: returns a run from its row, or None to leave the row out; by default all runs.
    """
    runs: dict[tuple[str, str, str], dict[int, training.Run]] = {}
    for row in (row for place in places for row in rows(f"{place}/runs.csv")):
        if run := (of or _run)(row):
            runs.setdefault((row["environment"], row["testbed"], row["schedule"]), {})[int(row["seed"])] = run
    return runs


def _exceeding(row: Mapping[str, str]) -> training.Run | None:
    """Returns a run that reached the target in the round that exceeded its budget, as one that reached it."""
    run = _run(row)
    return run._replace(reached=True) if row["seconds_to_target"] and not run.reached else None


def _run(row: Mapping[str, str]) -> training.Run:
    """Returns a run from its row in `runs.csv`."""
    environment, testbed, schedule = row["environment"], row["testbed"], row["schedule"]
    # Only learned schedulers have a budget. A run may reach the target in the round that exceeds it.
    limited = schedule.startswith(training.LEARNED) and not schedule.endswith(training.PLAYED_ON)
    budget = minionsrl.BUDGETS[environment, testbed] if limited else math.inf
    reached = row["seconds_to_target"] != "" and float(row["cost_pay_per_use"]) <= budget
    fragment = _fragment(environment, testbed)
    in_rounds = schedule not in (minionsrl.AZURE, minionsrl.IMPACT)
    actors = float(row["steps"]) / fragment / float(row["versions"]) if in_rounds else None
    return training.Run(
        reached, actors, [float(row[name]) for name in ("virtual_seconds", "cost_pay_per_use", "cost_azure")]
    )


@functools.cache
def _fragment(environment: str, testbed: str) -> int:
    """Returns the steps of a fragment."""
    return minionsrl.testbeds_of(environment)[testbed].workload.fragment


def _ratio(row: Mapping[str, str], column: str) -> Estimate:
    middle, low, high = (float(row[f"{column}{end}"]) for end in ("", "_low", "_high"))
    return Estimate(middle, low, high, claim=True)
