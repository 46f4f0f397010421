"""Further sentences of the pages of results have the numbers of the committed results: costs, times and answers."""

import json
import re
import statistics
from typing import NamedTuple

import numpy as np
import pytest

from experiments import reproduce, tuning, tuning_steps
from experiments.figures.map import outcomes
from experiments.figures.map.command import WAYS
from experiments.figures.map.deployments import IN_ROUNDS, SAMPLING_ON
from experiments.report import claims, pages, recorded
from experiments.report.tables import TABLES
from experiments.report.tables.map import bounded
from experiments.study import repetition
from experiments.tasks import testbed
from experiments.toolkit.statistics import estimate
from tests.experiments.committed import (
    DEPLOYMENTS,
    HOPPER,
    MAP,
    RESULTS,
    SMALL,
    STELLARIS,
    by_variant,
    middle,
    missing,
    reached,
    result,
    shown,
    spent_until,
    table,
    times,
    tuned_runs,
)
from tests.experiments.csv_rows import rows

#: The columns of the map's table of answers.
KAPPAS = (0.25, 1.0, 4.0, 16.0)


def mid(of, column, spec):
    """The interquartile mean of a result of runs."""
    return middle(result(of, column, ".9f"), spec)


# ---- Stellaris -------------------------------------------------------------------------------------------------------


def test_at_equal_time():
    """The registered answers: Stellaris against synchronous PPO, and against one learner with asynchronous actors."""
    study, one_learner = "stellaris-equal-time", "asynchronous actors, PPO"
    runs, of = by_variant(SMALL / study), table(study, "system")
    points = {name: recorded.runs(rows(SMALL / study / "curves.csv"), HOPPER, name) for name in runs}

    def behind(name, other):
        return f"{estimate(_of_the_same_seed(runs, name, other)):.2f}"

    def paid(name):
        """The cost up to 600 relative to synchronous PPO's, on the seeds on which both reach it."""
        both = [(points[name][seed], points["synchronous"][seed]) for seed in points[name]]
        both = [pair for pair in both if all(run["episode_return"].max() >= 600 for run in pair)]
        assert len(both) == 7
        return f"{estimate([np.divide(*spent_until(600, pair)) for pair in both]):.2f}"

    end, until = ({name: shown(row[column]) for name, row in of.items()} for column in ("ratio", "ratio of means"))
    own, with_impact = "stellaris", "stellaris, IMPACT"
    assert not missing(
        STELLARIS,
        f"No. It has {end[own]} times the return at the end, and in the mean over the 60 s {until[own]} times,",
        f"With IMPACT's loss it is level within wide intervals: {end[with_impact]} and {until[with_impact]}.",
        f"No, it is behind: {behind(own, one_learner)}, and {behind(with_impact, one_learner)} with IMPACT's loss.",
        f"Such actors alone, {end[one_learner]} times synchronous PPO, are",
        f"Stellaris pays {paid(own)} times what synchronous PPO pays up to it,",
        f"with IMPACT's loss {paid(with_impact)} times.",
    )
    short = times(end[own]), times(behind(own, one_learner))
    assert not missing("README.md", f"At the end it has {short[0]}, and {short[1]} that of asynchronous actors")
    ranked = sorted(runs, key=lambda name: -float(mid(runs[name], "final_return", ".1f")))
    assert ranked == [one_learner, "IMPACT", "synchronous", with_impact, own, "asynchronous actors"]
    tuned = {row[0]: float(middle(row[2].replace(",", ""))) for row in TABLES["tuned-for-equal-time"]().rows}
    assert tuned["Stellaris, IMPACT"] < tuned["Stellaris, PPO"]
    share = tuned["Stellaris, PPO"] / tuned["synchronous PPO"]
    assert not missing(
        STELLARIS, f"[tuning](../systems.md#tuned-for-equal-time), {share:.2f}, and, unlike there, more with"
    )


def test_further_seeds_at_equal_time():
    """The answers of all 24 seeds, and of the fourteen new ones alone; recomputed from the runs."""
    folder = SMALL / "stellaris-equal-time"
    parts = by_variant(folder), by_variant(folder / "Hopper-v4-more")
    seeds = [{int(row["seed"]) for of in part.values() for row in of} for part in parts]
    assert seeds == [{*range(10)}, {*range(10, 24)}]
    one_learner, own, with_impact = "asynchronous actors, PPO", "stellaris", "stellaris, IMPACT"

    def ratio(name, other, column="mean_return", *, new=False):
        of = {(row["seed"], one): float(row[column]) for part in parts[new:] for one in part for row in part[one]}
        return estimate([of[seed, name] / of[seed, other] for seed, one in of if one == name])

    behind, new = ({name: ratio(name, "synchronous", new=of) for name in (own, with_impact)} for of in (False, True))
    end = {name: ratio(name, "synchronous", "final_return") for name in (own, with_impact, one_learner)}
    ahead = ratio(one_learner, "synchronous")
    assert all(one.high < 1 for one in (*behind.values(), *new.values(), end[own]))
    alone = ratio(own, "synchronous", "final_return", new=True)
    assert min(end[with_impact].high, alone.high) > 1
    assert ahead.low < 1 < ahead.high < 1.255
    assert end[one_learner].low < 1
    of_actors = {name: [f"{ratio(name, one_learner, new=of):.2f}" for of in (False, True)] for name in behind}
    assert all(ratio(name, one_learner, new=of).high < 1 for name in behind for of in (False, True))
    assert not missing(
        STELLARIS,
        f"Yes, in the mean over the 60 s: {behind[own]:.2f}, and {new[own]:.2f} on the new seeds alone; with IMPACT's "
        f"loss {behind[with_impact]:.2f}, and {new[with_impact]:.2f}. At the end it is with PPO's loss, {end[own]:.2f},"
        f" but the new seeds alone do not show it, {alone:.2f};"
        f" with IMPACT's, {end[with_impact]:.2f}, it is not shown.",
        f"It is not shown: {ahead:.2f} in the mean, {end[one_learner]:.2f} at the end. If they are, it is by a quarter",
        "Yes: {}, and {} on the new seeds; with IMPACT's loss {}, and {}.".format(
            *of_actors[own], *of_actors[with_impact]
        ),
    )
    both = [times(f"{behind[name]:.2f}") for name in (own, with_impact)]
    assert not missing(
        "README.md", f"(24 seeds) it has {both[0]} the return of synchronous PPO, or {both[1]} with IMPACT's loss;"
    )


def test_at_equal_time_where_nothing_was_tuned():
    """The registered answers on HalfCheetah, and the returns at equal cost by use."""
    environment, folder = "HalfCheetah-v4", SMALL / "stellaris-equal-time" / "HalfCheetah-v4"
    runs = by_variant(folder, environment)
    assert {len(of) for of in runs.values()} == {10}
    points = {name: recorded.runs(rows(folder / "curves.csv"), environment, name) for name in runs}
    of = table("stellaris-equal-time/HalfCheetah-v4", "system", environment)
    end = {name: shown(row["ratio"]) for name, row in of.items()}
    own, with_impact, one_learner = "stellaris", "stellaris, IMPACT", "asynchronous actors, PPO"

    def beside(name, other):
        return f"{estimate(_of_the_same_seed(runs, name, other)):.2f}"

    for name, other in ((own, "synchronous"), (own, one_learner), (with_impact, "synchronous")):
        assert max(_of_the_same_seed(runs, name, other)) < 1
    steps = float(mid(runs["IMPACT"], "steps", ".0f")) / float(mid(runs["synchronous"], "steps", ".0f"))
    spent = mid(runs[with_impact], "cost_pay_per_use", ".3f")
    assert not missing(
        STELLARIS,
        f"with {end[own]} times the return of synchronous PPO and {beside(own, one_learner)} times that of one PPO",
        f"it has {end[with_impact]} and {beside(with_impact, one_learner)} times.",
        f"{end[one_learner]} times with one PPO learner, and {end['IMPACT']} times with IMPACT, "
        f"which takes {steps:.1f} times as many steps.",
        f"has spent its {spent} USD, its return of {mid(runs[with_impact], 'final_return', '.0f')} is "
        f"{_ahead_at_equal_cost(points, 'IMPACT'):.0f} above that of `CircularReplay` with IMPACT and "
        f"{_ahead_at_equal_cost(points, 'synchronous'):.0f} above",
    )


def test_at_equal_time_on_walker2d():
    """Stellaris is behind on every seed, who reaches the target, and the returns at equal cost by use."""
    environment, folder = "Walker2d-v4", SMALL / "stellaris-equal-time" / "Walker2d-v4"
    runs = by_variant(folder, environment)
    assert {len(of) for of in runs.values()} == {10}
    of = table("stellaris-equal-time/Walker2d-v4", "system", environment)
    end = {name: shown(row["ratio"]) for name, row in of.items()}
    own, with_impact, one_learner = "stellaris", "stellaris, IMPACT", "asynchronous actors, PPO"
    for name in (own, with_impact):
        assert max(_of_the_same_seed(runs, name, "synchronous") + _of_the_same_seed(runs, name, one_learner)) < 1
    reached = {name: row["reached"].partition(" of ")[0] for name, row in of.items()}
    names = (one_learner, "IMPACT", "synchronous", own, with_impact)
    assert [reached[name] for name in names] == ["10", "10", "7", "0", "0"]
    points = {name: recorded.runs(rows(folder / "curves.csv"), environment, name) for name in runs}

    def beside(name):
        return f"{estimate(_of_the_same_seed(runs, name, one_learner)):.2f}"

    assert not missing(
        STELLARIS,
        f"Stellaris is behind on every seed, with {end[own]} times the return of synchronous PPO and {beside(own)} "
        "times that of one PPO learner;",
        f"with IMPACT's loss it has {end[with_impact]} and {beside(with_impact)} times.",
        f"are ahead, {end[one_learner]} times with one PPO learner and {end['IMPACT']} times with IMPACT. With both",
        f"`CircularReplay` with IMPACT by {_ahead_at_equal_cost(points, 'IMPACT'):.0f} and of synchronous PPO by "
        f"{_ahead_at_equal_cost(points, 'synchronous'):.0f}.",
    )


def test_at_equal_time_on_humanoid():
    """Stellaris is behind on each seed; who is ahead; the little that all systems have learned."""
    environment, study = "Humanoid-v4", "stellaris-equal-time/Humanoid-v4"
    runs, of = by_variant(SMALL / study, environment), table(study, "system", environment)
    assert {len(seeds) for seeds in runs.values()} == {10}
    end = {name: shown(row["ratio"]) for name, row in of.items()}
    own, with_impact, one_learner = "stellaris", "stellaris, IMPACT", "asynchronous actors, PPO"
    assert max(_of_the_same_seed(runs, own, "synchronous")) < 1
    curves = recorded.runs(rows(SMALL / study / "curves.csv"), environment, "synchronous").values()
    assert max(run["steps"][0] for run in curves) == 8192
    firsts = [run["episode_return"][0] for run in curves]
    ranked = sorted(runs, key=lambda name: -float(mid(runs[name], "final_return", ".1f")))
    assert ranked == ["IMPACT", one_learner, "synchronous", "asynchronous actors", with_impact, own]
    assert not missing(
        STELLARIS,
        f"the return of the first 8,192 steps at most is {estimate(firsts).middle:.0f}, and the demo's target is 1,000",
        f"Stellaris is behind synchronous PPO on every seed, with {end[own]} times its return, and "
        f"{end[with_impact]} times with IMPACT's loss;",
        f"{end[one_learner]} times with one PPO learner and {end['IMPACT']} times with IMPACT.",
    )
    points = {name: recorded.runs(rows(SMALL / study / "curves.csv"), environment, name) for name in runs}
    ahead, level = (_ahead_at_equal_cost(points, other) for other in ("synchronous", "IMPACT"))
    assert ahead.low > 0 > level.low
    assert not missing(
        STELLARIS,
        f"with IMPACT's loss is ahead of synchronous PPO, by {ahead:.0f}, and level with `CircularReplay` with IMPACT: "
        f"{level:.0f} above it.",
    )


def test_the_four_tasks_at_equal_time():
    """The README's ranges: of Stellaris where nothing was tuned, and of IMPACT's replay on all tasks."""
    elsewhere = {f"stellaris-equal-time/{name}": name for name in ("HalfCheetah-v4", "Walker2d-v4", "Humanoid-v4")}

    def ratios(name, other):
        """On the tasks on which nothing was tuned."""
        found = [by_variant(SMALL / study, environment) for study, environment in elsewhere.items()]
        return [estimate(_of_the_same_seed(runs, name, other)).middle for runs in found]

    behind = ratios("stellaris", "synchronous")
    on_hopper, *others = (
        shown(table(study, "system", environment)["IMPACT"]["ratio"])
        for study, environment in {"stellaris-equal-time": HOPPER, **elsewhere}.items()
    )
    ahead = [float(middle(one)) for one in others]
    ends = [f"{min(of):.2f} to {max(of):.2f}" for of in (behind, ahead)]
    assert not missing(
        "README.md",
        f"where nothing was tuned, it has {ends[0]} times the return of synchronous PPO after 60 s. IMPACT, which "
        f"replays batches, is ahead there, with {ends[1]} times; on Hopper it is not shown to be.",
    )
    lows = [float(re.findall(r"[\d.]+", ratio)[1]) for ratio in (on_hopper, *others)]
    assert [low > 1 for low in lows] == [False, True, True, True]
    one, two, three = others
    assert not missing(
        "docs/architectures.md",
        f"`CircularReplay` has {one}, {two} and {three} times the return of synchronous PPO; on Hopper itself it has "
        f"{on_hopper} times, and",
    )


def _of_the_same_seed(runs, name, other):
    """The ratios of the final returns of two systems, seed by seed."""
    pairs = zip(runs[name], runs[other], strict=True)
    return [float(a["final_return"]) / float(b["final_return"]) for a, b in pairs]


def _ahead_at_equal_cost(points, other):
    """The return of Stellaris with IMPACT's loss less another's, when the other has spent as much by use."""
    pairs = [(run, points[other][seed]) for seed, run in points["stellaris, IMPACT"].items()]
    return estimate([run["episode_return"][-1] - _return_after(run, than) for run, than in pairs])


def _return_after(run, other):
    """The return of another run when it has cost as much by use as this one in the end."""
    known = ~np.isnan(other["episode_return"])
    costs, returns = (other[name][known] for name in ("cost_pay_per_use", "episode_return"))
    return np.interp(run["cost_pay_per_use"][-1], costs, returns)


def test_the_demos_ladder():
    runs, why = by_variant(SMALL / "stellaris-why"), table("stellaris-why", "with")
    end = mid(runs["baseline"], "virtual_seconds", ".0f")
    costs = [float(middle(row["virtual time"])) for name, row in why.items() if name in runs and "0 s" not in name]
    assert not missing(
        STELLARIS,
        f"Equal time means {end} s, when the baseline ends",
        f'("Serverless" computes the gradients of the row before, so its {shown(why["serverless"]["/ row before"])} is '
        "chance.)",
        f"gradients that are {mid(runs['weights'], 'staleness_mean', '.1f')} versions old on average",
        f"Under the demo's bill all variants cost {min(costs):.2f} to {max(costs):.2f} times the baseline;",
        f"time counts only the systems' own work, {mid(runs['baseline, 0 s'], 'virtual_seconds', '.0f')} s for the",
    )
    assert {middle(why[name]["by use"], ".1f") for name in ("serverless", "asynchrony", "cap", "weights")} == {"0.2"}
    short = mid(by_variant(SMALL / "stellaris-motivation")["stellaris"], "virtual_seconds", ".0f")
    at_the_end = middle(why["no waiting"]["return, equal time"])
    assert not missing(
        DEPLOYMENTS, f"Stellaris', after {short} s; at the end of the baseline, after {end} s, the ratio is"
    )
    assert not missing(DEPLOYMENTS, f"after {end} s, the ratio is {at_the_end}.)")


def test_times_of_tuned_systems():

    def up_to_600(other, column):
        """Stellaris relative to another system, and on how many seeds both reach the return."""
        own, others = (spent_until(600, tuned_runs(name), column) for name in ("stellaris", other))
        found, seeds = reached(own / others)
        return f"{found:.2f}", {3: "three", 4: "four"}[seeds]

    costs, paces = (
        [up_to_600(other, column) for other in ("MinionsRL-Max", "synchronous")]
        for column in ("cost_pay_per_use", "seconds")
    )
    parts = by_variant(SMALL / "stellaris-ablation")
    cost = {name: float(mid(parts[name], "cost_pay_per_use", ".6f")) for name in ("Stellaris", "one learner")}
    times = {name: float(mid(of, "virtual_seconds", ".6f")) for name, of in parts.items()}
    actor, learner, parameter = (
        {
            name: f"{float(took):.0f}"
            for name, took in table("stellaris-latency", "function")[which].items()
            if "." in took
        }
        for which in ("actor", "learner", "parameter")
    )
    assert not missing(
        STELLARIS,
        f"Stellaris pays {costs[0][0]} times as much by use as MinionsRL-Max on the {costs[0][1]} seeds on which both "
        f"reach it, and {costs[1][0]} times as much as synchronous PPO on {costs[1][1]}, in {paces[0][0]} and "
        f"{paces[1][0]} times the time.",
        f"one alone {times['one learner']:.0f} s and {cost['one learner'] / cost['Stellaris']:.1f} times the cost",
        f"as groups save {times['no aggregation'] - times['Stellaris']:.0f} s of updates.",
        f"An actor's invocation takes {actor['running']} ms including transfers, after {actor['waiting']} ms of "
        f"queueing and, on average, {actor['starting']} ms of cold start; a learner's takes {learner['running']} ms, "
        f"after {learner['waiting']} and {learner['starting']} ms; the parameter function's takes "
        f"{parameter['running']} ms, after {parameter['waiting']} ms of queueing.",
    )
    of = by_variant(SMALL / "stellaris-sensitivity")
    versions = [mid(of[name], "versions", ",.0f") for name in ("d = 0.8", "d = 1, rho = 2, v = 3")]
    assert not missing(STELLARIS, f"makes {versions[0]} versions instead of {versions[1]} in the same time")


def test_costs_of_scaling():
    of = table("stellaris-scaling", "variant")
    runs = by_variant(SMALL / "stellaris-scaling")
    usd = {name: float(middle(row["USD use / 1M steps"], ".6f")) for name, row in of.items()}
    own, reserved = (
        {name.rpartition(" ")[2]: cost for name, cost in usd.items() if name.startswith(f"{system}, actors")}
        for system in ("stellaris", "synchronous")
    )
    (same,) = {f"{cost:.2f}" for cost in own.values()}
    assert min(reserved, key=reserved.__getitem__) == "64"
    assert max(reserved, key=reserved.__getitem__) == "1"
    finals = [mid(runs[f"data-parallel, learners {n}"], "final_return", ".0f") for n in (16, 64)]
    speed = [float(middle(of[f"data-parallel, learners {n}"]["steps / virtual s"], ".6f")) for n in (16, 4)]
    dear = [usd[f"data-parallel, learners {n}"] / usd["data-parallel, learners 4"] for n in (16, 64)]
    stale = [f"{float(middle(of[f'stellaris, learners {n}']['staleness'], '.6f')):.2f}" for n in (4, 16, 64)]
    assert speed[0] < speed[1]
    assert [round(dear[0]), round(dear[1])] == [4, 19]
    assert not missing(
        DEPLOYMENTS,
        f"A million steps cost Stellaris {same} USD by use for any number of actors.",
        f"between {reserved['64']:.2f} USD, with 64 actors, and {reserved['1']:.1f}, with one,",
        f"and a million steps cost {reserved['1024']:.1f}.",
        "is *lower* with more learners, {}, {} and {}, because".format(*stale),
        f"learn as before with 16 ({finals[0]}) and with 64 ({finals[1]}), but 16 are slower than 4, and cost "
        "four times as much, and 64 nineteen times.",
    )


def test_returns_against_par_rl():
    of = by_variant(SMALL / "stellaris-hpc")
    steps = float(of["PAR-RL"][0]["steps"])
    assert not missing(DEPLOYMENTS, f"with small batches has {claims.tuned(HOPPER, steps):,.0f} after as many steps)")


def test_the_ends_of_the_tuning_grids():
    """Of the chosen settings, and the settings of one PPO learner in rounds that are synchronous PPO's."""
    hopper, cartpole = (by_setting(path, task) for path, task in (("", HOPPER), ("/cartpole", "CartPole-v1")))
    best = {
        system: max((np.mean(returns), rate) for (of, rate, *_), returns in hopper.items() if of == system)[1]
        for system in ("synchronous", "stellaris", "stellaris, IMPACT", "IMPACT", "asynchronous actors")
    }
    rates = {of: {rate for system, rate, *_ in hopper if system == of} for of in best}
    at_an_end = {of: "smallest" if best[of] == min(rates[of]) else "largest" for of in best}
    assert all(best[of] in (min(rates[of]), max(rates[of])) for of in best)
    assert [of for of, end in at_an_end.items() if end == "smallest"] == [*best][:3]
    assert {best[of] for of in [*best][:3]} == {0.0003}
    assert max(rate for of, rate, *_ in cartpole if of == "asynchronous actors") == 0.01  # IMPALA's, chosen there
    for runs in (hopper, cartpole):
        rounds = {
            key[1:3]: of for key, of in runs.items() if key[0] == "asynchronous actors, PPO" and key[3] == "in rounds"
        }
        assert len(rounds) == 4
        assert all(runs["synchronous", rate, f"10 x {items}", ""] == of for (rate, items), of in rounds.items())
    assert not missing(
        "docs/systems.md",
        "at the smallest, 0.0003, synchronous PPO and Stellaris with either loss on Hopper-v4;",
        "In rounds, asynchronous actors with one PPO learner do what synchronous PPO does, and have its returns at the "
        "same rates and minibatches. So only four of this rival's eight settings in the grids are its own.",
    )


def by_setting(folder, task):
    """The returns of the tuning's runs by system, learning rate, minibatch and pace, in the order of the seeds."""
    found = {}
    for row in rows(SMALL / f"tuning{folder}" / "runs.csv"):
        if row["environment"] == task:
            rate, items, *pace = row["setting"].removeprefix(f"{row['system']}: ").split(", ")
            key = row["system"], float(rate), items.removesuffix(" items"), *(pace or [""])
            found.setdefault(key, []).append(float(row["final_return"]))
    return found


def test_calibration():
    (qbert,) = (row for row in TABLES["calibration"]().rows if row[0] == "Qbert-v5")
    assert round(1 / float(qbert[-1])) == 30
    assert not missing(DEPLOYMENTS, "one core without a GPU takes thirty times as long.")


def test_qberts_times():
    groups = by_variant(RESULTS / "qbert", "Qbert-v5")
    own, other = (
        f"{np.median([float(run['virtual_seconds']) for run in groups[name]]):.0f}"
        for name in ("stellaris", "synchronous")
    )
    assert not missing(STELLARIS, f"and in {own} virtual seconds against {other}.")


# ---- the map, and learning from trajectories -------------------------------------------------------------------------


class Ahead(NamedTuple):
    """A measured ratio in the map's table of answers, its interval, and its number of learners."""

    ratio: float
    low: float
    high: float
    learners: int

    def __str__(self):
        return f"{self.ratio:.1f} ({self.low:.1f} to {self.high:.1f})"


def advantages(what, growth, table="map-answers"):
    """The measured ratios in a table of answers of the map, by variation, actors, κ and task; and the upper bounds."""
    found, bounds = {}, {}
    headings = TABLES[table]().headings
    for equal, variation, actors, *cells in TABLES[table]().rows:
        if equal == f"{what}, g = {growth}":
            for heading, cell in zip(headings[3:], cells, strict=True):
                task, kappa = heading.split(", κ = ")
                place = float(variation), actors, float(kappa), task
                if measured := re.match(r"([\d.]+) \(([\d.]+) to ([\d.]+)\) with (\d+)", cell):
                    found[place] = Ahead(*map(float, measured.groups()[:3]), int(measured[4]))
                if bound := re.search(r"≤ ([\d.]+)", cell):
                    bounds[place] = float(bound[1])
                assert measured or bound
    return found, bounds


def on_the_map(what, growth, **conditions):
    of, _ = advantages(what, growth)
    names = ("variation", "actors", "kappa", "task")
    return [cell for key, cell in of.items() if conditions.items() <= dict(zip(names, key, strict=True)).items()]


def test_where_asynchronous_learners_win():
    """At equal time, with g = 0 and g = 1: the ratios whose intervals are above 1, and those that are upper bounds."""
    on, bounds = advantages("time", 0)
    ahead = {place for place, of in on.items() if of.low > 1}
    cartpole = {(v, "sampling on", kappa, "CartPole"): on[v, "sampling on", kappa, "CartPole"] for v, kappa in _STRONG}
    acrobot = 0.1, "sampling on", 16.0, "Acrobot"
    rounds = (0.1, "in rounds", 16.0, "CartPole"), (1.0, "in rounds", 16.0, "Acrobot")
    assert ahead == {*cartpole, acrobot, *rounds}
    four, sixteen = ([str(of) for place, of in cartpole.items() if place[2] == kappa] for kappa in (4.0, 16.0))
    assert on[acrobot].learners == 4
    others = [(v, "sampling on", kappa, "Acrobot") for v, kappa in _STRONG if (v, kappa) != (0.1, 16.0)]
    assert all(on[place].high < 1 and on[place].learners == 1 and bounds[place] > 1 for place in others)
    split, limits = advantages("time", 1)
    places = [(v, "sampling on", kappa, "CartPole") for v, kappa in ((0.1, 4.0), (1.0, 4.0), (1.0, 16.0))]
    wins = [split[place] for place in places]
    assert {place for place, of in split.items() if of.low > 1} == {*places}
    limit = max(bound for place, bound in limits.items() if place[3] == "Acrobot")
    machines = {
        task: max(of for kappa in KAPPAS for of in on_the_map("machines", 0, kappa=kappa, task=task))
        for task in ("CartPole", "Acrobot")
    }
    most = {task: f"{of.ratio:.2f} ({of.low:.2f} to {of.high:.2f}) times" for task, of in machines.items()}
    assert all(of.low < 1 for of in machines.values())
    short = split[0.1, "sampling on", 16.0, "CartPole"]
    assert short.low < 1
    often = "{:.0f} to {:.0f} times as fast as the best other system on CartPole".format(
        *(end(cartpole.values()).ratio for end in (min, max))
    )
    assert not missing("README.md", often)
    assert not missing("docs/results.md", often)
    by_use = [of.ratio for of in on_the_map("use", 0, kappa=0.25)]
    small, large = (round(end(by_use)) for end in (min, max))
    both = [f"{pair[0]} and {pair[1]} times at κ = {kappa}" for pair, kappa in ((four, 4), (sixteen, 16))]
    assert not missing(
        MAP,
        f"{both[0]}, at a variation of 0.1 and 1, and {both[1]}.",
        f"variation of 0.1, {on[acrobot]} times with four learners;",
        f"{on[rounds[0]]} times on CartPole at a variation of 0.1, and {on[rounds[1]]} times on Acrobot",
        f"at κ = 4, {wins[0]} and {wins[1]} times at a variation of 0.1 and 1, and at κ = 16 and a variation of 1, "
        f"{wins[2]} times.",
        f"at κ = 16 and a variation of 0.1, {short.ratio:.2f} ({short.low:.2f} to {short.high:.2f}), nor on Acrobot, "
        f"where the table's bounds are {limit:.2f} and below.",
        f"it has at most {most['CartPole']} on CartPole, with the best of seven numbers of learners, and at most "
        f"{most['Acrobot']} on Acrobot.",
        f"for small κ, {small} to {large} times, because they",
    )
    assert not missing(
        "docs/architectures.md",
        f"on CartPole {four[0]} and {four[1]} times as fast as the best other system at κ = 4, and {sixteen[0]} and "
        f"{sixteen[1]} times at κ = 16; on Acrobot {on[acrobot]} times at κ = 16 if durations vary little, and not",
        f"at most {most['CartPole']} on CartPole and {most['Acrobot']} on Acrobot, as each learner",
        f"are {small} to {large} times cheaper for small κ",
        f"on CartPole {wins[1]} times as fast at κ = 4 and {wins[2]} times at κ = 16; on Acrobot not shown",
    )


#: The variations and κ at which Stellaris with actors that sample on is ahead on CartPole.
_STRONG = [(0.1, 4.0), (1.0, 4.0), (0.1, 16.0), (1.0, 16.0)]


def test_half_of_the_seeds_below_the_target_is_an_upper_bound():
    """No cell of the table rests on a deployment of which a half of the seeds stayed below the target."""
    now = {
        task: [row for row in rows(RESULTS / "stellaris-map" / f"eta_{task}.csv") if row["missed"] == "True"]
        for task in ("CartPole", "Acrobot-v1")
    }
    for task, missed in now.items():
        learned = rows(RESULTS / "stellaris-map" / f"learning_{task}.csv.gz")
        places = [(row["system"], row["kappa"], row["variation"], row["learners"]) for row in learned]
        of = {
            place: outcomes.curves_of([row for row, here in zip(learned, places, strict=True) if here == place])
            for place in dict.fromkeys(places)
        }
        (synchronous,) = (curves for place, curves in of.items() if place[0] == "synchronous")
        target = outcomes.target_of(synchronous)
        below = {
            place for place, curves in of.items() if not np.isfinite(outcomes.needed_by_half(curves, target)).all()
        }
        assert {(row["system"], row["kappa"], row["variation"], row["learners"]) for row in missed} == below
    assert not missing(
        "docs/registrations/stellaris-map.md",
        f"{len(now['CartPole'])} of 36 values of η on CartPole and {len(now['Acrobot-v1'])} on Acrobot are upper",
    )
    found, bounds = (of[0.1, "sampling on", 4.0, "Acrobot"] for of in advantages("time", 0))
    assert found.learners == 1
    assert found.high < 1 < bounds


def test_eight_seeds_did_not_suffice():
    """What changed when CartPole's runs were repeated with other random numbers."""
    of = {}
    for row in rows(RESULTS / "stellaris-map" / "eight_seeds.csv"):
        of.setdefault(row["run"], []).append(row)
    before, after = of.values()
    grew = [float(new["eta"]) / float(old["eta"]) for old, new in zip(before, after, strict=True)][1:]
    said = f"{sum(one > 1 for one in grew)} of {len(grew)} values of η"
    needs = [
        "{:.1f} batches {:.0f} to {:.0f}".format(*(float(row[f"batches{end}"]) for end in ("", "_low", "_high")))
        for row in (after[0], before[0])
    ]
    assert needs == ["26.9 batches 17 to 52", "18.8 batches 16 to 31"]
    assert not missing(MAP, said, f"by {statistics.median(grew):.1f} in the median")
    assert not missing("docs/registrations/stellaris-map.md", said, "needs 26.9 batches", "18.8 (16 to 31)")


def test_episodes_are_counted_in_the_batch_in_which_they_ended():
    """Some end in the first batch on CartPole; on Acrobot, with 500 steps at most, the first 16 end by the eighth."""
    for task, batch in (("CartPole", 0), ("Acrobot-v1", 7)):
        returns = _synchronous_on_the_map(task)
        assert np.isfinite(returns[..., batch]).mean() > 0.9
    assert np.isfinite(returns[..., [6, 8]]).mean() < 0.9


def _synchronous_on_the_map(task):
    """The curves of the synchronous system, `[rate, seed, batch]`."""
    learned = rows(RESULTS / "stellaris-map" / f"learning_{task}.csv.gz")
    return outcomes.curves_of([row for row in learned if row["system"] == "synchronous"]).returns


@pytest.mark.parametrize(
    ("kappas", "task", "variations", "learners"),
    [
        ((0.25, 1.0), "CartPole", (0.1, 1.0), [1, 2]),
        ((4.0,), "CartPole", (0.1, 1.0), [4, 4]),
        ((16.0,), "CartPole", (0.1, 1.0), [8, 16]),
        ((0.25, 1.0), "Acrobot", (0.1, 1.0), [1, 2]),
        ((4.0,), "Acrobot", (0.1, 1.0), [1, 1]),
    ],
)
def test_how_many_learners(kappas, task, variations, learners):
    found = [
        of.learners
        for kappa in kappas
        for variation in variations
        for of in on_the_map("time", 0, actors="sampling on", kappa=kappa, task=task, variation=variation)
    ]
    assert [min(found), max(found)] == learners
    assert not missing(
        MAP,
        "on CartPole one or two up to κ = 1, four at κ = 4 and 8 to 16 at κ = 16. On Acrobot one or two up to κ = 1; "
        "more are not shown to be better at κ = 4.",
    )


def test_rounds_wait_for_the_slowest():
    speed = {
        row["variation"]: float(row["steps_per_second"])
        for row in rows(RESULTS / "stellaris-map" / "speed.csv")
        if (row["system"], row["kappa"]) == ("synchronous", "0.0625")
    }
    assert speed["0.0"] / speed["1.0"] == pytest.approx(3, abs=0.05)
    said = "up to three times as long as without variation"
    assert not missing(MAP, said)
    assert not missing("docs/architectures.md", said)


def test_one_learner_is_enough_below_one():
    of = {True: [], False: []}
    for task in ("CartPole", "Acrobot-v1"):
        for row in rows(RESULTS / "stellaris-map" / f"map_{task}.csv"):
            if row["what"] == "time" and float(row["kappa"]) <= 1 < float(row["learners"]):
                ahead = Ahead(*(float(row[name]) for name in ("best", "best_low", "best_high", "learners")))
                of[ahead.learners >= 16].append(ahead)
    most = max(of[False])
    assert max(ahead.low for ahead in of[False]) < 1
    assert max(ahead.ratio for ahead in of[True]) < 0.8
    assert not missing(
        MAP,
        f"is at most {most.ratio:.2f} ({most.low:.2f} to {most.high:.2f}) times as fast as the best of the others",
        "with 16 or more it is behind",
    )


def test_asynchronous_actors_against_the_synchronous_system():
    """Up to κ = 1, with one learner, by task and variation: the smallest and the largest ratio of times."""
    said = {}
    for task in ("CartPole", "Acrobot-v1"):
        for row in rows(RESULTS / "stellaris-map" / f"map_{task}.csv"):
            if (row["what"], row["growth"]) == ("time", "0.0") and row["kappa"] in ("0.25", "1.0"):
                ratio = float(row["synchronous"]) / float(row["asynchronous actors, one learner"])
                said.setdefault((task, row["variation"]), []).append(ratio)
    often, rarely = (
        [f"{min(said[task, v]):.1f} to {max(said[task, v]):.1f}" for task in ("CartPole", "Acrobot-v1")]
        for v in ("1.0", "0.1")
    )
    assert not missing(
        "docs/architectures.md",
        f"{often[0]} times as fast as `Synchronous` on CartPole and {often[1]} times on Acrobot",
        f"on CartPole {rarely[0]} times as fast, on Acrobot {rarely[1]} times",
    )


def test_ahead_on_cartpole_from_two_on():
    """With the best number of learners at every variation that was measured."""
    best = [
        max(
            Ahead(*(float(row[name]) for name in ("best", "best_low", "best_high", "learners")))
            for row in rows(RESULTS / "stellaris-map" / "map_CartPole.csv")
            if (row["what"], row["growth"], row["system"], row["kappa"]) == ("time", "0.0", SAMPLING_ON, "2.0")
            and row["variation"] == variation
        )
        for variation in ("0.1", "0.5", "1.0")
    ]
    assert min(ahead.low for ahead in best) > 1
    assert {ahead.learners for ahead in best} == {2, 4}
    assert not missing("docs/architectures.md", f"on CartPole {min(best)} to {max(best)} times as fast at κ = 2")
    missed = [row for row in rows(RESULTS / "stellaris-map" / "eta_Acrobot-v1.csv") if row["missed"] == "True"]
    of = {(row["system"], row["variation"]) for row in missed if row["learners"] == "4"}
    assert {(SAMPLING_ON, "0.1"), (SAMPLING_ON, "1.0")} <= of


def test_the_bill_of_learners_that_share_a_gpu():
    """At equal cost, as the map assumes and as an H100 measured sharing."""
    of = {
        (row["task"], row["what"], float(row["slower"]), float(row["kappa"]), float(row["variation"])): Ahead(
            *(float(row[name]) for name in ("best", "best_low", "best_high")), 4
        )
        for row in rows(RESULTS / "stellaris-map" / "sharing.csv")
    }
    table = {what: advantages(what, 0, "map-answers-shared")[0] for what in ("machines", "use")}
    for what, several in table.items():  # dry runs of today give the table's speeds
        for place in ((v, "sampling on", kappa, "CartPole") for v, kappa in _STRONG):
            v, _, kappa, task = place
            again = of[task, what, 2.0, kappa, v]
            assert several[place].learners == 4
            assert several[place][:3] == pytest.approx(again[:3], abs=0.006)
    assert {place for place, found in table["machines"].items() if found.low > 1} == {
        (1.0, "sampling on", kappa, "CartPole") for kappa in (4.0, 16.0)
    }
    acrobot = max(found for place, found in table["machines"].items() if place[-1] == "Acrobot")
    assert acrobot.ratio < 1

    def shown(what, slower, variation, digits=2):
        return [
            f"{one.ratio:.{digits}f} ({one.low:.{digits}f} to {one.high:.{digits}f})"
            for one in (of["CartPole", what, slower, kappa, variation] for kappa in (4.0, 16.0))
        ]

    assumed, little, measured = shown("machines", 2.0, 1.0), shown("machines", 2.0, 0.1), shown("machines", 2.65, 1.0)
    by_use, still = shown("use", 2.0, 1.0, 1), shown("use", 2.65, 1.0, 1)
    assert all(of["CartPole", "machines", 2.65, kappa, v].low < 1 for v, kappa in _STRONG)
    assert all(of["CartPole", "use", 2.65, kappa, v].low > 1 for v, kappa in _STRONG)
    assert not missing(
        MAP,
        f"{assumed[0]} times at κ = 4 and {assumed[1]} at κ = 16.",
        f"it has {little[0]} and {little[1]} times, which is not shown to be ahead.",
        f"at most {acrobot.ratio:.2f} ({acrobot.low:.2f} to {acrobot.high:.2f}) times. By use",
        f"by {by_use[0]} and {by_use[1]} times at a variation of 1.",
        f"with {measured[0]} and {measured[1]} times at a variation of 1; by use it stays ahead, by {still[0]} and "
        f"{still[1]} times",
    )
    assert not missing("docs/architectures.md", f"they gain [{assumed[0]} times](results/stellaris-map.md")


def test_where_learners_that_share_a_gpu_win():
    """At equal time; the ratios whose intervals are above 1, and the testbed's, between two deployments of the map."""
    on, _ = advantages("time", 0, "map-answers-shared")
    ahead = {place: of for place, of in on.items() if of.low > 1}
    assert set(ahead) == {(v, "sampling on", kappa, "CartPole") for v, kappa in _STRONG}
    assert {of.learners for of in ahead.values()} == {8, 16}
    split, _ = advantages("time", 1, "map-answers-shared")
    assert [place for place, of in split.items() if of.low > 1] == [(1.0, "sampling on", 4.0, "CartPole")]
    (marked,) = (mark for way in WAYS for mark in way.marks if mark.letter == "T")
    assert 2 < marked.kappa < 4
    near = {}
    for task in ("CartPole", "Acrobot-v1"):
        for row in rows(RESULTS / "stellaris-map" / f"map_{task}_shared.csv"):
            here = (row["what"], row["growth"], row["variation"], row["learners"]) == ("time", "0.0", "0.1", "4.0")
            if here and row["kappa"] in ("2.0", "4.0"):
                near.setdefault((task, row["system"]), []).append(row)
    ends = {
        place: " to ".join(dict.fromkeys(f"{float(row['best']):.1f}" for row in two)) for place, two in near.items()
    }
    assert all(len(two) == 2 for two in near.values())
    assert all(float(row["best_low"]) < 1 < float(row["best_high"]) for row in near["CartPole", SAMPLING_ON])
    four, sixteen = (
        " and ".join(str(ahead[v, "sampling on", kappa, "CartPole"]) for v in (0.1, 1.0)) for kappa in (4.0, 16.0)
    )
    assert not missing(
        MAP,
        f"ahead on CartPole from κ = 4 on: {four} times at κ = 4, at a variation of 0.1 and 1, and {sixteen} times at "
        "κ = 16, which takes 8 to 16 learners, on two to four GPUs.",
        "it is ahead at κ = 4 and a variation of 1 alone. In rounds, and on Acrobot, it is nowhere shown to be ahead.",
        f"the ratio is {ends['CartPole', SAMPLING_ON]} on CartPole and {ends['Acrobot-v1', SAMPLING_ON]} on Acrobot, "
        f"and in rounds {ends['CartPole', IN_ROUNDS]} and {ends['Acrobot-v1', IN_ROUNDS]}.",
    )


def test_the_marks_of_what_is_published():
    """In rounds and with κ up to 3 where a GPU's learners are known; PAR-RL's κ follows from an assumed fragment."""
    kappas = {mark.letter: mark.kappa for way in WAYS for mark in way.marks}
    assert max(kappas[letter] for letter in "DMT") == pytest.approx(3.125)
    assert kappas["P"] == 25.0
    assert not missing(MAP, "PAR-RL's testbed, where κ would be 25, is the exception")


def test_ahead_of_one_learner_from_four_on():
    """With actors that sample on, at every κ from 4 on and with every number of learners whose η is measured."""
    ratios = []
    for task in ("CartPole", "Acrobot-v1"):
        missed = {
            variation: {
                (float(row["kappa"]), int(row["learners"]))
                for row in rows(RESULTS / "stellaris-map" / f"eta_{task}.csv")
                if (row["system"], float(row["variation"]), row["missed"]) == (SAMPLING_ON, variation, "True")
            }
            for variation in (0.1, 1.0)
        }
        for row in rows(RESULTS / "stellaris-map" / f"map_{task}.csv"):
            variation, kappa, learners = (float(row[name]) for name in ("variation", "kappa", "learners"))
            here = (row["what"], row["system"], variation in missed) == ("time", SAMPLING_ON, True)
            if here and kappa in (4.0, 16.0) and learners > 1 and not bounded(kappa, int(learners), missed[variation]):
                ratios.append(float(row["asynchronous actors, one learner"]))
    assert len(ratios) > 20
    assert min(ratios) > 1
    assert not missing(
        MAP,
        "with actors that sample on, Stellaris with several learners is also ahead of asynchronous actors with one",
    )


def test_many_learners_need_more_steps():
    of = [row for row in rows(RESULTS / "stellaris-map" / "eta_CartPole.csv") if float(row["learners"]) >= 16]
    steps = [1 / float(row["eta"]) for row in of]
    below = sum(float(row["eta_high"]) < 1 for row in of)
    assert not missing(
        MAP,
        f"{min(steps):.1f} to {max(steps):.1f} times as many steps on CartPole ({below} of {len(of)} intervals exclude "
        "1; the table has those at κ = 8)",
    )
    acrobot = [row for row in rows(RESULTS / "stellaris-map" / "eta_Acrobot-v1.csv") if float(row["learners"]) >= 16]
    assert all(float(row["eta_high"]) < 1 for row in acrobot)
    assert not missing(
        "docs/architectures.md",
        f"need {min(steps):.1f} to {max(steps):.1f} times as many steps",
        f"at least {1 / max(float(row['eta']) for row in acrobot):.1f} times as many on Acrobot",
    )


def test_one_learner_needs_as_many_steps_on_cartpole():
    for task in ("CartPole", "Acrobot-v1"):
        of = [row for row in rows(RESULTS / "stellaris-map" / f"eta_{task}.csv") if float(row["learners"]) == 1]
        of = {row["system"]: [one for one in of if one["system"] == row["system"]] for row in of}
        several = [row for name, each in of.items() if name != "synchronous" for row in each]
        if task == "CartPole":
            assert all(float(row["eta_low"]) < 1 < float(row["eta_high"]) for row in several)
        else:
            twice = [1 / float(row["eta"]) for row in several if row["system"] != IN_ROUNDS]
            assert all(2 <= round(one, 1) <= 2.6 for one in twice)
            assert all(float(row["eta_high"]) < 1 for row in several if row["system"] != IN_ROUNDS)
    assert not missing(
        MAP,
        "need as many steps as the synchronous system on CartPole (no interval excludes 1), and on Acrobot about twice "
        "as many if actors sample on.",
    )


def test_speeds_against_the_expectations():
    of = {row[0]: dict(zip(TABLES["map-speed"]().headings, row, strict=True)) for row in TABLES["map-speed"]().rows}
    rounds, shared, own = (
        float(of[name]["κ = 4"])
        for name in (
            "Stellaris, in rounds, four learners on a GPU",
            "Stellaris, sampling on, four learners on a GPU",
            "the same, a GPU each",
        )
    )
    assert not missing(
        "docs/registrations/stellaris-map.md",
        f"{rounds:.1f} for the testbed in rounds at κ = 4",
        f"and {shared:.1f} and {own:.1f} for",
    )


def test_trajectories():
    of = {}
    for row in rows(RESULTS / "gear" / "played.csv"):
        of.setdefault((row["model"], row["actions"], row["seed"]), []).append(float(row["mean_return"]))
    best = [of["transformer", "sampled", seed][-1] for seed in "012"]
    ratios = np.divide(best, [of["cloning", "sampled", seed][0] for seed in "012"])
    falls = [sum(np.diff(of["transformer", "sampled", seed]) < 0) for seed in "012"]
    assert falls == [1, 1, 1]
    without = np.divide(*([of[name, "mean", seed][-1] for seed in "012"] for name in ("transformer", "cloning")))
    assert not missing(
        "docs/replay.md",
        f"beats behaviour cloning on each of three seeds, {min(ratios):.1f} to {max(ratios):.1f} times.",
        f"it reaches {min(best):,.0f} to {max(best):,.0f}, about half or less. Without noise",
        f"the transformer is {min(without):.1f} to {max(without):.1f} times ahead.",
    )


def test_the_worked_example_of_a_log():
    of = {row["what"]: row for row in rows(RESULTS / "what-if" / "table.csv")}
    log, simulated, waiting = (of[name] for name in ("log", "as it was logged, simulated", "synchronous"))
    less = 1 - float(waiting["versions/s"]) / float(simulated["versions/s"])
    assert not missing(
        "docs/traces.md",
        f"makes {simulated['versions/s']} versions per second where the log has {log['versions/s']}, and its data have "
        f"a mean age of {simulated['mean age']} instead of {log['mean age']};",
        f"Waiting for each update costs {100 * less:.0f} % of the versions.",
    )


def test_how_far_off_policy_training_can_be():
    best = {row["method"]: row for row in rows(RESULTS / "lab-language" / "half.csv") if row["rate"] == "best"}
    half = {method: row["half"] for method, row in best.items()}
    assert half["AReaL"] == half["TIS, tokens"] == "> 256"
    none, clip = (f"{float(half[method]):.0f}" for method in ("no correction", "GRPO"))
    cispo, tis = (best[method] for method in ("CISPO", "TIS, tokens"))
    assert not missing(
        "docs/questions.md",
        f"a lag of {none} updates without a correction, {clip} with GRPO's clip, {float(cispo['half']):.0f} with "
        f"CISPO's truncated weights of tokens, and more than 256 ({tis['interval'].replace('>', 'more than')}) with "
        "TIS's.",
    )


@pytest.mark.parametrize(
    ("method", "task", "said"),
    [
        ("IMPACT", "Acrobot-v1", "IMPACT kept half of its return up to a lag of {half:.0f} on Acrobot"),
        ("IMPACT", "Acrobot-v1", "keeps half of its outcome up to {half:.0f} batches on Acrobot"),
        ("PPO", "CartPole", "it kept 90 % of its return up to a lag of {free} and {again} batches on CartPole,"),
        ("PPO", "Breakout-MinAtar", "on CartPole, {free} and {again} on Breakout,"),
        ("PPO", "Acrobot-v1", "on Breakout, and {free} and {again} on Acrobot:"),
    ],
)
def test_lags_that_methods_tolerate(method, task, said):
    of = {
        row["method"]: row
        for row in rows(RESULTS / "lab-corrections" / "half.csv")
        if (row["task"], row["rate"]) == (task, "best")
    }
    sentence = said.format(half=float(of[method]["half"]), free=of[method]["free"], again=of["PPO, rerun"]["free"])
    assert not missing("docs/results/lab-lag.md", sentence) or not missing("docs/corrections.md", sentence)


def test_the_map_on_the_event_loop():
    """Which of the registered predictions came true, and by how much the others missed."""

    def told(text):
        return [float(one.removeprefix("\u2264 ")) for one in text.split(" and ")]

    def within(text, predicted):
        return min(predicted) / 2 <= float(text.split(" ")[0]) <= 2 * max(predicted)

    # The deployment; ratios foretold, repeated and found; the best other; \u03b7 foretold and found; the runs.
    found = TABLES["map-confirmed"]().rows
    ahead = [[float(end) > 1 for end in re.findall(r"\d+\.\d+", row[6])[1:]] for row in found]
    assert [of[0] == of[1] == (min(told(row[4])) > 1) for row, of in zip(found, ahead, strict=True)] == [
        *[True] * 3,
        False,
        True,
        True,
    ]
    assert [[one > 1 for one in told(row[4])] for row in found] == [[one > 1 for one in told(row[5])] for row in found]
    assert [within(row[6], told(row[4])) for row in found] == [True, True, True, False, True, True]
    assert [within(row[9], told(row[8])) for row in found] == [True, True, True, False, False, False]
    ratios, etas = ([row[place].split(" ")[0] for row in found] for place in (6, 9))
    assert {row[10] for row in found} == {"10 of 10"}
    foretold = [one for row in found[3:] for one in told(row[8])]
    (largest,) = {
        float(row["eta"])
        for row in rows(RESULTS / "stellaris-map" / "foretold.csv")
        if (row["task"], row["system"], row["kappa"]) == ("CartPole", "Stellaris, actors in rounds", "1")
        and (row["variation"], row["learners"]) == ("1", "4")
    }
    (eta,) = {row["eta"].split(" ")[0] for row in rows(SMALL / "stellaris-map-hopper" / "table.csv")[3:]}
    told_of_eta = (
        f"where CartPole and Acrobot foretold {min(foretold)} to {max(foretold)}, with intervals that include it."
    )
    assert not missing(
        "README.md", f"{float(ratios[2]):.1f} to {float(found[0][6].split(' ')[0]):.1f} times on Hopper-v4"
    )
    assert not missing(
        MAP,
        f"Stellaris is {float(ratios[2]):.1f} to {float(found[0][6].split(' ')[0]):.1f} times as",
        f"to be slower and is faster, {found[3][6].replace(' (', ' times (')}.",
        f"where actors sample on ({min(etas[:3])} to {max(etas[:3])}).",
        f"it misses the range's end, {2 * largest:.3f}, by {float(eta) - 2 * largest:.3f}:",
        f"(\u03b7 = {found[3][9].replace(' (', ', ')}, {told_of_eta}",
    )


# ---- speed -----------------------------------------------------------------------------------------------------------


def test_what_the_simulator_predicts():
    runs = rows(RESULTS / "cluster-vs-simulation" / "runs.csv")
    off = {
        column: {
            (one["system"], one["seed"]): float(two[column]) / float(one[column]) - 1
            for one, two in zip(runs[::2], runs[1::2], strict=True)
            if float(one[column])
        }
        for column in ("staleness", "updates", "steps", "cost")
    }
    stale = [100 * of for of in off.pop("staleness").values()]
    assert max(abs(of) for by_run in off.values() for of in by_run.values()) < 0.1
    medians = [
        statistics.median(float(run["staleness"]) for run in runs if (run["system"], run["on"]) == ("stellaris", on))
        for on in ("simulation", "Ray")
    ]
    high = f"{100 * (medians[0] / medians[1] - 1):.0f} % too high"
    assert not missing("docs/cluster.md", f"it is {high} ({min(stale):.0f} to {max(stale):.0f} % by seed)")
    assert not missing("docs/notebooks/ray.md", f"speed was predicted within 10 %, and staleness {high}.")


def test_times_on_a_cluster():
    runs = json.loads((RESULTS / "cluster" / "summary.json").read_text())["runs"]
    seconds = {run["system"]: f"{run['seconds_to_target']:.0f}" for run in runs}
    assert not missing(
        "docs/cluster.md",
        f"the time to a return of 300 is {seconds['asynchronous actors']} s (asynchronous actors), "
        f"{seconds['IMPACT']} (IMPACT), {seconds['synchronous']} (synchronous), {seconds['stellaris']} (Stellaris), "
        f"{seconds['data-parallel']} (data-parallel) and {seconds['central inference']} (central inference,",
    )
    calls, *_ = rows(RESULTS / "benchmarks" / "cluster.csv")
    own, plain = (1e3 / float(calls[side].replace(",", "")) for side in ("measured", "against"))
    assert float(calls["ratio"]) < 0.8
    assert not missing(
        "docs/cluster.md", f"one ends every {own:.2f} ms, and with plain calls of Ray's actors every {plain:.2f} ms, so"
    )


def test_speed():
    """What misses its target, as the page says; and what it says of memory and of the import."""
    of = {
        name: {row["what"].split(", against")[0]: row for row in rows(RESULTS / "benchmarks" / f"{name}.csv")}
        for name in ("training", "losses", "platform", "overhead", "corrections")
    }
    ratios = {name: {what: float(row["ratio"]) for what, row in these.items()} for name, these in of.items()}
    own, other = (
        float(of["training"]["from stellaris import ppo_loss"][side].split(" ")[0]) for side in ("measured", "against")
    )
    longest = ratios["losses"]["gae, [16384, 4]"]
    mean = ratios["losses"]["gae and its gradient, geometric mean of the sizes"]
    simulated = {what: ratio for what, ratio in ratios["platform"].items() if what.startswith("invocations/s")}
    (slower,) = (what for what, ratio in simulated.items() if ratio < 1)
    assert "0.9/s" in slower
    assert "kept 10 s" in slower
    assert not missing(
        "docs/benchmarks.md",
        f"costs {own - other:.2f} s more than importing its dependencies.",
        f"`gae` misses its target by {longest - 1.05:.2f} at the longest arrays, and with its gradient that of the "
        f"mean by {mean - 0.8:.2f}.",
        f"SimFaaS is {1 - simulated[slower]:.0%} faster.".replace("%", " %"),
    )
    memory = [
        ratio
        for name in ("losses", "corrections")
        for what, ratio in ratios[name].items()
        if "bytes per sample" in what
    ]
    assert 1.15 < max(memory) <= 1.2
    assert min(ratios["overhead"].values()) > 1.05
    caps = [ratio for what, ratio in ratios["losses"].items() if what.startswith("cap")]
    assert caps[0] < 0
    assert min(caps[1:]) > 1
    missed = [
        row["what"].partition(": trajectories/s against ")[::2]
        for row in rows(RESULTS / "benchmarks" / "replay.csv")
        if row["wanted"] and float(row["ratio"]) < float(row["wanted"].split()[1])
    ]
    assert missed == [
        ("steps", "Reverb"),
        ("steps", "a copy of as many bytes into existing memory"),
        ("frames", "Reverb"),
        ("weighted", "flashbax's prioritised buffer"),
    ]
    (push,) = (ratio for what, ratio in ratios["losses"].items() if what.startswith("push"))
    assert push > 1.5
    assert [what[:5] for what, ratio in ratios["corrections"].items() if ratio > 1.1 and "bytes" not in what] == [
        "P3O, ",
        "VESPO",
    ]


# ---- a GPU -----------------------------------------------------------------------------------------------------------


def test_gradients_on_a_gpu():
    """What four sharers cost, and how a gradient's time grows with its minibatch, beside the testbed's assumptions."""
    taken = {
        (row["network"], int(row["samples"]), int(row["sharers"])): float(row["seconds"])
        for row in rows(RESULTS / "gpu" / "gradients.csv")
    }
    slowed = {key[:2]: taken[key] / taken[*key[:2], 1] for key in taken if key[2] == 4}
    assert {f"{slowed[network, samples]:.1f}" for network, samples in slowed if samples <= 512} == {"2.1"}
    assert {f"{slowed['convolutions', samples]:.1f}" for samples in (2048, 4096)} == {"1.4"}
    assert all(taken[network, 120, 3] < taken[network, 120, 2] for network in ("2x256",))
    ratio = {network: taken[network, 4096, 1] / taken[network, 120, 1] for network in ("2x256", "convolutions")}
    growths = {network: np.log(of) / np.log(4096 / 120) for network, of in ratio.items()}
    assert not missing(
        "docs/benchmarks.md",
        "about right up to 512 samples (2.1).",
        f"at 1,024 and 2,048 samples ({slowed['2x256', 1024]:.1f} and {slowed['2x256', 2048]:.1f}), which favours",
        "too much for large minibatches of the convolutions (1.4).",
        f"takes {ratio['2x256']:.1f} times as long as one of 120, and wrong for the convolutions: "
        f"{ratio['convolutions']:.0f} times,",
        f"of {growths['2x256']:.2f} and of {growths['convolutions']:.2f}.",
    )


# ---- other libraries -------------------------------------------------------------------------------------------------


def test_speed_beside_other_libraries():
    """The missed target, and the serial limit that is below it; both files are from one machine."""
    provenance = [json.loads((RESULTS / "benchmarks" / f"{name}.json").read_text()) for name in ("training", "peers")]
    assert len({(one["processor"], one["code"]) for one in provenance}) == 1
    serial, *_ = rows(RESULTS / "benchmarks" / "training.csv")
    missed = [
        row
        for row in rows(RESULTS / "benchmarks" / "peers.csv")
        if row["wanted"].startswith(">=") and float(row["ratio"]) < float(row["wanted"].split()[1])
    ]
    (sbx,) = missed
    assert "against SBX" in sbx["what"]
    limit = float(serial["against"].replace(",", ""))
    times_sbx = limit / float(sbx["against"].replace(",", ""))
    assert times_sbx < float(sbx["wanted"].split()[1])
    assert not missing("docs/benchmarks.md", f"is {limit:,.0f} steps/s, {times_sbx:.2f} times SBX.")


def test_returns_after_as_many_steps():
    """Ours against the best peer: the ratio that is said, above the one that is wanted, with intervals that overlap."""
    own, *peers = TABLES["peers-returns"]().rows
    assert {row[1] for row in (own, *peers)} == {"10"}
    (best,) = (row for row in peers if row[4])
    assert float(best[3]) >= 0.95
    low, high = ([float(row[2].split("(")[1].rstrip(")").split(" to ")[end]) for row in (own, best)] for end in (0, 1))
    assert max(low) < min(high)
    assert not missing("docs/benchmarks.md", f"Ours reaches {best[3]} times the return of the best peer,")


def test_the_setting_for_equal_steps_is_slow():
    """At equal time, on the tuning seeds, beside the settings that the studies' baseline has."""
    last = {}
    for row in rows(SMALL / "tuning-steps" / "at-equal-time" / "curves.csv"):
        if float(row["seconds"]) <= 60:
            last[row["seed"]] = float(row["episode_return"]), float(row["steps"])
    returns = [one for one, _ in last.values()]
    (baseline,) = (row for row in TABLES["tuned-beyond"]().rows if row[:2] == ("synchronous PPO", "0.0003, 10 x 1024"))
    assert {*last} == {"100", "101", "102", "103"}
    assert statistics.mean(steps for _, steps in last.values()) == pytest.approx(32_000, rel=0.03)
    assert not missing(
        "docs/benchmarks.md",
        f"it has a return of {statistics.mean(returns):.0f} on the tuning seeds ({min(returns):.0f} to "
        f"{max(returns):.0f}), and the baseline has {baseline[2]}.",
    )


def test_the_studies_baseline_after_as_many_steps():
    """It was tuned for equal time, where a gradient's time does not depend on the minibatch; beside the peers."""
    steps = tuning_steps.STEPS
    curves = recorded.runs(rows(SMALL / "stellaris-equal-time" / "curves.csv"), HOPPER, "synchronous").values()
    ours = estimate([float(np.interp(steps, run["steps"], run["episode_return"])) for run in curves])
    assert len(curves) == 10
    returns = {row[0]: row[2].split(" ")[0] for row in TABLES["peers-returns"]().rows}
    peers = [returns[name] for name in ("Stable-Baselines3, the zoo's Hopper-v4", "Stable-Baselines3, defaults")]
    peers.append(returns["SBX, defaults"])
    zoo, defaults, sbx = (f"{ours.middle / float(text):.2f}" for text in peers)
    tuned = tuning.of(HOPPER)
    chosen = tuned.settings["synchronous"][tuned.chosen["synchronous"]].algorithm
    tried = {system.algorithm.minibatch_size for system in tuned.settings["synchronous"].values()}
    of_peers = {steps * epochs // items for epochs, items in ((10, 64), (5, 32))}  # the defaults, and the zoo's
    setting = tuning_steps.SETTINGS[tuning_steps.CHOSEN]
    own = steps * setting.ppo.epochs // setting.minibatch
    assert testbed.ASSUMED.growth == 0
    assert (sorted(tried), chosen.minibatch_size, of_peers) == ([512, 1024], 1024, {own})
    assert not missing(
        "docs/benchmarks.md",
        f"has a return of {ours:.0f} after {steps:,} steps of `stellaris-equal-time` (ten seeds, interpolated): "
        f"{zoo} times the zoo's {peers[0]}, {defaults} times the {peers[1]} of Stable-Baselines3's defaults, and {sbx} "
        f"times SBX's {peers[2]}. It was tuned for the return after {tuned.seconds:.0f} virtual seconds, in which a "
        f"gradient takes {1000 * testbed.GRADIENT:.0f} ms whatever its minibatch, so that its minibatches are large: "
        "of 512 and 1,024 steps, which were tried, 1,024 was best. It computes "
        f"{steps * chosen.epochs // chosen.minibatch_size:,} gradients in these steps; the peers and our setting that "
        f"was tuned for as many steps compute {own:,}.",
    )


# ---- repetition ------------------------------------------------------------------------------------------------------


def test_what_is_not_repeated():
    """Every study with committed runs is repeated or named; so is each whose runs are newer than the rest."""
    repeated = {name: one for name, of in reproduce.studies().items() if (one := repetition.chosen(name, of))}
    newer = "stellaris-why", "stellaris-motivation", "stellaris-demo-sweeps", "minionsrl-training"
    newest = "minionsrl-latency", "minionsrl-scaling"
    assert {one.other for name, one in repeated.items() if name not in newer + newest} == {"other code"}
    assert all(repeated[name].other != "other code" for name in newer + newest)
    (made,), (last_made,) = (
        {json.loads((SMALL / name / "provenance.json").read_text())["code"] for name in names}
        for names in (newer, newest)
    )
    assert {made, last_made} == repetition.SAME_RUNS
    *first, last = (f"`{name}`" for name in newer)
    assert not missing(
        "docs/results.md",
        f"those of {', '.join(first)} and {last} are of code whose digest begins with {made[:7]}, and "
        f"`{newest[0]}` and `{newest[1]}` have {last_made[:7]}.",
    )
    small = {path.name for path in SMALL.iterdir()} - {*repeated}
    others = {"cluster-vs-simulation", "minionsrl-tuning", "minionsrl-learning", "lab-newest", "gear-hopper"}
    assert small == {"stellaris-calibration"}
    text = (pages.ROOT / "docs" / "results.md").read_text()
    (said,) = re.findall(r"These are not repeated: (.*?)\n\n", text, flags=re.DOTALL)
    assert {*re.findall("`(.*?)`", said)} == small | others | {
        "stellaris-training",
        "stellaris-equal-time",
        "minionsrl-training",
        "tuning",
        "tuning-steps",
        "stellaris-demo-sweeps",
        "stellaris-ablation",
    }
    further = {path.parent.parent.name for path in SMALL.glob("*/*/runs.csv")}
    assert further == {
        "stellaris-equal-time",
        "minionsrl-training",
        "tuning",
        "tuning-steps",
        "stellaris-demo-sweeps",
        "stellaris-ablation",
    }


def test_the_registered_outcome_of_the_map(monkeypatch):
    """With the mean over five batches, as registered, η is nearly that of the page on CartPole."""
    monkeypatch.setattr(outcomes, "_RESAMPLES", 1)
    learning = rows(RESULTS / "stellaris-map" / "learning_CartPole.csv.gz")
    *_, now = outcomes.efficiency(learning)
    monkeypatch.setattr(outcomes, "_WINDOW", 5)
    *_, registered = outcomes.efficiency(learning)
    changes = [abs(own["eta"] - other["eta"]) for own, other in zip(now, registered, strict=True)]
    assert not missing(
        "docs/registrations/stellaris-map.md",
        f"η changes by {max(changes):.2f} at most and by {statistics.median(changes):.2f} in the median of the "
        f"{len(changes)} deployments;",
    )
