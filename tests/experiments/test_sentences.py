"""The documentation's most prominent sentences have the numbers of the committed results.

Each test computes the numbers, and looks for its sentences on the page, wherever the page breaks its lines.
"""

import json
import re

import numpy as np
from scipy import stats

from experiments import tuning
from experiments.report import claims, recorded
from experiments.report.tables import TABLES
from experiments.toolkit import output
from experiments.toolkit.statistics import Estimate, estimate
from tests.experiments.committed import (
    DEPLOYMENTS,
    HOPPER,
    RESULTS,
    SMALL,
    STELLARIS,
    at,
    by_variant,
    finals,
    findings,
    means,
    middle,
    missing,
    percent,
    reached,
    result,
    shown,
    spent_until,
    table,
    times,
    tuned_runs,
)
from tests.experiments.csv_rows import rows

SYSTEMS = ("synchronous", "stellaris")
PARTS = ("one learner", "no cap", "no aggregation")
MEAN_AND_END = ("mean_return", "final_return")


def test_the_readme():
    why = table("stellaris-why", "with")
    demo, gradients = why["no waiting"], why["4 x gradients"]
    of_costs = claims.findings({"stellaris-training": rows(SMALL / "stellaris-training" / "curves.csv")})[claims.COST]
    (saved,) = (one for one in of_costs if (one.under, one.environment) == ("tuned, by use", HOPPER))
    grouped = of_ten_seeds("no aggregation", "final_return")
    assert not missing(
        "README.md",
        f"reaches {times(shown(demo['return, equal time']))} its baseline's return at equal time on Hopper-v4, and "
        f"{times(shown(demo['mean until then']))} in the mean over the run",
        f"baseline reaches {times(shown(gradients['return, equal time']))} the return that it has with the demo's "
        f"number, and {times(shown(gradients['mean until then']))} in the mean",
        f"has cost {100 * saved.ours.middle:.0f} % less by use than synchronous PPO, for "
        f"{times(f'{saved.returns:.2f}')} its return.",
        f"it has {times(f'{grouped:.2f}')} the return that it has if gradients are applied on arrival, over ten seeds "
        "and in half of the time.",
        f"{len(rows(RESULTS / 'lab-lag' / 'runs.csv')):,} runs in two and a half hours",
    )


def test_the_cost_up_to_a_return():
    """Of the seeds on which Stellaris reaches it; the baseline's return is pooled."""
    both = zip(tuned_runs("synchronous"), tuned_runs("MinionsRL-Max"), strict=True)
    pooled = spent_until(600, [recorded.pooled(run, [other]) for run, other in both])
    own = spent_until(600, tuned_runs("stellaris"))
    assert np.isfinite(pooled).all()
    saved, seeds = reached(1 - own / pooled)
    assert (seeds, len(own)) == (4, 5)
    middle, ends = percent(saved)
    said = f"on four of five seeds, it saves {middle} of synchronous PPO's cost by use (median; {ends})."
    assert not missing("docs/results.md", said)


def test_baselines_that_compute_the_same():
    alone = {
        (system, environment): estimate(
            [
                recorded.return_ratio(*pair)
                for pair in zip(tuned_runs("stellaris", environment), tuned_runs(system, environment), strict=True)
            ]
        )
        for system in ("synchronous", "MinionsRL-Max")
        for environment in (HOPPER, "Walker2d-v4")
    }
    of = [f"{one:.2f}" for one in alone.values()]
    ends = finals(SMALL / "stellaris-training")
    steps = [estimate(ends["stellaris"] / ends[system]) for system in ("synchronous", "MinionsRL-Max")]
    assert [one.high < 1 for one in steps] == [False, True]
    runs = by_variant(SMALL / "stellaris-training")
    means = {name: np.array([float(run["mean_return"]) for run in of]) for name, of in runs.items()}
    over = [estimate(means["stellaris"] / means[system]) for system in ("synchronous", "MinionsRL-Max")]
    assert all(one.high < 1 for one in over)
    assert not missing(
        "docs/results.md",
        f"Stellaris has {of[0]} times the return of synchronous PPO's own runs on Hopper-v4 and {of[1]} times on "
        f"Walker2d-v4, and {of[2]} and {of[3]} times that of MinionsRL-Max's.",
        f"After as many steps on Hopper-v4 it has {steps[0]:.2f} times synchronous PPO's own and {steps[1]:.2f} times "
        "MinionsRL-Max's, so that the five runs of synchronous PPO alone do not show the lower return at the end. "
        f"In the mean over the run both show it: {over[0]:.2f}, and {over[1]:.2f}.",
    )


def test_one_part_at_a_time():
    """Around the setting with the greatest mean over the run; each part on the same four seeds."""
    of = by_variant(SMALL / "tuning/parts", HOPPER)
    before = by_variant(SMALL / "tuning/beyond", HOPPER)
    base = "stellaris: 0.0003, 1024 items, sampling on"
    columns = ("final_return", "mean_return")

    def values(runs, column="mean_return"):
        return [float(row[column]) for row in runs]

    assert all(values(of[base], column) == values(before[base], column) for column in columns)
    part = {name.removeprefix("stellaris: "): runs for name, runs in of.items() if name != base}
    ratio = {
        name: [np.mean(values(runs, column)) / np.mean(values(of[base], column)) for column in columns]
        for name, runs in part.items()
    }
    assert max(end for end, _ in ratio.values()) < 1.2
    less = [name for name, runs in part.items() if max(values(runs)) < min(values(of[base]))]
    assert less == ["d = 0.9", "rho = 1"]
    same = [a == b for a, b in zip(values(part["groups of 2"]), values(of[base]), strict=True)]
    assert sum(same) == 3
    said = {name: [f"{x:.2f}" for x in both] for name, both in ratio.items()}
    decays, low, none, unweighted = (said[name] for name in ("d = 0.9", "rho = 1", "no cap", "no weights"))
    assert not missing(
        "docs/systems.md",
        f"and a cap of 1 have {decays[0]} and {low[0]} times as much, in the mean over the 60 s {decays[1]} and "
        f"{low[1]},",
        f"Without the cap and without the weights it is {none[0]} and {unweighted[0]}, in the mean {none[1]} and "
        f"{unweighted[1]}:",
        "three of four returns are the same.",
    )


def test_settings_beyond_the_grid():
    """Registered was a ratio of 1.2 to the chosen setting on the tuning seeds."""
    better = {}
    for system, setting, *_, ratio, _ in TABLES["tuned-beyond"]().rows:
        if float(ratio) >= 1.2:
            better.setdefault(system, []).append(setting)
    larger = "0.0003, 1024 items, sampling on"
    assert better == {
        "Stellaris, PPO": [larger, "0.00015, 512 items, sampling on", "0.0003, 2048 items, sampling on"],
        "synchronous PPO": ["0.0003, 10 x 2048"],
        "asynchronous actors, one PPO learner": ["0.0006, 2048 items, sampling on"],
        "`CircularReplay`, IMPACT": ["0.0012, 1024 items, sampling on", "0.0024, 512 items, sampling on"],
    }
    of = {
        name: runs
        for which in ("beyond", "rivals", "larger")
        for name, runs in by_variant(SMALL / "tuning" / which, HOPPER).items()
    }

    def values(name, column="mean_return"):
        return [float(row[column]) for row in of[name]]

    for column in ("mean_return", "final_return"):
        less, more = (np.mean(values(f"stellaris: 0.0003, {n} items, sampling on", column)) for n in (2048, 1024))
        assert less < more
    apart = [
        system
        for system, setting in (
            ("stellaris", larger),
            ("synchronous", "0.0003, 10 x 2048"),
            ("asynchronous actors, PPO", "0.0006, 2048 items, sampling on"),
            ("IMPACT", "0.0012, 1024 items, sampling on"),
        )
        if min(values(f"{system}: {setting}")) > max(values(f"{system}: {tuning.of(HOPPER).chosen[system]}"))
    ]
    assert apart == ["stellaris", "asynchronous actors, PPO", "IMPACT"]
    grids = by_variant(SMALL / "tuning", HOPPER)
    again = []
    for system, setting in tuning.of(HOPPER).chosen.items():
        before = np.mean([float(row["final_return"]) for row in grids[f"{system}: {setting}"]])
        again.append(np.mean(values(f"{system}: {setting}", "final_return")) / before)
    assert sum(ratio < 0.76 for ratio in again) == 4
    assert not missing(
        "docs/systems.md", f"chosen settings have {min(again):.2f} to {max(again):.2f} times the returns that they had"
    )


def test_settings_of_one_learner_that_sample_on():
    """With them it has synchronous PPO's rates, minibatches and epochs; registered was a ratio of 1.2."""
    system = "asynchronous actors, PPO"

    def learns(systems):
        return {(one.algorithm.learning_rate, one.algorithm.epochs, one.algorithm.minibatch_size) for one in systems}

    own = [*tuning.SETTINGS[system].values(), *tuning.SAMPLING_ON[system].values()]
    assert {one.control.pace for one in tuning.SAMPLING_ON[system].values()} == {1}
    assert learns(tuning.SETTINGS["synchronous"].values()) == learns(one for one in own if one.control.pace == 1)
    better = {}
    for environment, outcome in ((HOPPER, "final_return"), ("CartPole-v1", "mean_return")):
        of = by_variant(SMALL / "tuning/sampling-on", environment)
        assert all([int(row["seed"]) for row in runs] == [*range(100, 104)] for runs in of.values())
        mean = {name: np.mean([float(row[outcome]) for row in runs]) for name, runs in of.items()}
        chosen = mean.pop(f"{system}: {tuning.of(environment).chosen[system]}")
        better[environment] = {name.removeprefix(f"{system}: "): one for name, one in mean.items() if one > chosen}
        assert all(one >= 1.2 * chosen for name, one in better[environment].items() if "0.0003" not in name)
    assert not better["CartPole-v1"]
    assert {*better[HOPPER]} == {
        *("0.0003, 1024 items, sampling on", "0.0012, 1024 items, sampling on"),
        "0.0006, 5 x 512 items, sampling on",
    }
    before = by_variant(SMALL / "tuning/rivals", HOPPER)
    larger = np.mean([float(row["final_return"]) for row in before[f"{system}: 0.0006, 2048 items, sampling on"]])
    assert [name for name, one in better[HOPPER].items() if one > larger] == ["0.0012, 1024 items, sampling on"]
    again = {name: runs for name, runs in by_variant(SMALL / "tuning/sampling-on", HOPPER).items() if name in before}
    assert [len(runs) for runs in again.values()] == [4, 4]
    assert all(
        float(one[column]) == float(other[column])
        for name, runs in again.items()
        for one, other in zip(runs, before[name], strict=True)
        for column in MEAN_AND_END
    )


def test_at_equal_time_beyond_the_grid():
    """Both settings on the fourteen new seeds, against the rivals' runs; recomputed from the runs."""
    folder = SMALL / "stellaris-equal-time"
    rivals, own = by_variant(folder / "Hopper-v4-more"), by_variant(folder / "Hopper-v4-beyond")
    larger, slower = (f"stellaris: {setting}, sampling on" for setting in ("0.0003, 1024 items", "0.00015, 512 items"))
    assert {*own} == {larger, slower}
    assert all([int(row["seed"]) for row in of] == [*range(10, 24)] for of in own.values())

    def ratio(setting, rival, column="mean_return"):
        other = {row["seed"]: float(row[column]) for row in rivals[rival]}
        return estimate([float(row[column]) / other[row["seed"]] for row in own[setting]])

    mean, end = (
        {setting: ratio(setting, "synchronous", column) for setting in own}
        for column in ("mean_return", "final_return")
    )
    actors = {setting: ratio(setting, "asynchronous actors, PPO") for setting in own}
    at_the_end = [ratio(setting, "asynchronous actors, PPO", "final_return") for setting in own]
    assert mean[larger].high > 1 > end[larger].high
    assert end[slower].high > 1 > mean[slower].high
    assert all(one.high < 1 for one in (*actors.values(), *at_the_end))
    assert not missing(
        STELLARIS,
        f"in the mean over the 60 s, {mean[larger]:.2f}, but it is at the end, {end[larger]:.2f}.",
        f"it is behind in the mean, {mean[slower]:.2f}, and not shown to be at the end, {end[slower]:.2f}.",
        f"{actors[larger]:.2f} and {actors[slower]:.2f} in the mean.",
        f"in the mean the larger minibatch has {ratio(larger, 'stellaris'):.2f} times the return of the chosen",
    )


def test_at_equal_time_with_larger_minibatches():
    """Each against the others on the fourteen seeds; recomputed from the runs."""
    folder = SMALL / "stellaris-equal-time"
    of = {
        name: runs
        for which in ("more", "beyond", "rivals", "last", "2048", "0012")
        for name, runs in by_variant(folder / f"Hopper-v4-{which}").items()
    }
    synchronous, one_learner = (
        "synchronous: 0.0003, 10 x 2048",
        "asynchronous actors, PPO: 0.0006, 2048 items, sampling on",
    )
    own, slower = "stellaris: 0.0003, 1024 items, sampling on", "stellaris: 0.00015, 512 items, sampling on"
    assert all([int(row["seed"]) for row in of[name]] == [*range(10, 24)] for name in (synchronous, one_learner))

    def ratios(name, other):
        found = []
        for column in MEAN_AND_END:
            others = {row["seed"]: float(row[column]) for row in of[other]}
            found.append(estimate([float(row[column]) / others[row["seed"]] for row in of[name]]))
        return found

    largest = "stellaris: 0.0003, 2048 items, sampling on"
    for name in (own, slower, largest):
        assert all(one.high < 1 for other in (synchronous, one_learner) for one in ratios(name, other))
    against, actors, level = ratios(own, synchronous), ratios(own, one_learner), ratios(one_learner, synchronous)
    assert all(one.low < 1 < one.high for one in level)
    better = ratios(synchronous, "synchronous")[0]
    assert better.low > 1
    assert not missing(
        STELLARIS,
        f"Yes: {against[0]:.2f} in the mean over the 60 s, {against[1]:.2f} at the end.",
        f"**And behind one PPO learner?** Yes: {actors[0]:.2f}, and {actors[1]:.2f}.",
        f"It is not shown: {level[0]:.2f}, and {level[1]:.2f}.",
        f"in the mean synchronous PPO has {better:.2f} times the return of its chosen setting.",
    )
    impact = "IMPACT: 0.0012, 1024 items, sampling on"
    assert [int(row["seed"]) for row in of[impact]] == [*range(10, 24)]
    others = [ratios(impact, other) for other in (synchronous, one_learner, own)]
    assert all(one.low < 1 < one.high for pair in others for one in pair)
    ends = [float(row["final_return"]) for row in of[impact]]
    tuned = by_variant(SMALL / "tuning" / "rivals")
    most = {name: np.mean([float(row["final_return"]) for row in runs]) for name, runs in tuned.items()}
    assert max(most, key=most.get) == impact
    (first, first_end), (second, second_end), (third, third_end) = ([f"{one:.2f}" for one in pair] for pair in others)
    assert not missing(
        STELLARIS,
        f"It is not shown: {first} of synchronous PPO and {second} of one PPO learner in the mean, {first_end} and "
        f"{second_end} at the end; of Stellaris {third} and {third_end}. Its runs end between {min(ends):,.0f} and "
        f"{max(ends):,.0f}.",
        f"it had {most[impact] / most['IMPACT: 0.0012, 512 items, sampling on']:.1f} times the return of its chosen",
    )
    faster = "IMPACT: 0.0024, 512 items, sampling on"
    assert [int(row["seed"]) for row in of[faster]] == [*range(10, 24)]
    level, ahead = ratios(faster, impact), ratios(faster, own)
    assert all(one.low < 1 < one.high for one in level)
    assert min(one.low for one in ahead) > 1
    assert not missing(
        STELLARIS,
        f"It is not shown: {level[0]:.2f} in the mean, and {level[1]:.2f} at the end. Of Stellaris with the larger "
        f"minibatch it has {ahead[0]:.2f} times the return in the mean and {ahead[1]:.2f} at the end, so it is ahead.",
    )
    assert [int(row["seed"]) for row in of[largest]] == [*range(10, 24)]
    less, level = ratios(largest, own)
    assert less.high < 1
    assert level.low < 1 < level.high
    assert not missing(
        STELLARIS,
        f"No. It is behind in the mean, {less:.2f}, and not shown to differ at the end, {level:.2f}.",
    )
    last = "asynchronous actors, PPO: 0.0012, 1024 items, sampling on"
    assert [int(row["seed"]) for row in of[last]] == [*range(10, 24)]
    to_larger, to_synchronous, to_own = (ratios(last, other) for other in (one_learner, synchronous, own))
    assert all(one.low < 1 < one.high for one in (*to_larger, *to_synchronous, to_own[0]))
    assert to_own[1].low > 1
    tuned = by_variant(SMALL / "tuning/sampling-on", HOPPER)
    in_tuning = [
        np.mean([float(row["final_return"]) for row in tuned[name]])
        for name in (last, f"asynchronous actors, PPO: {tuning.of(HOPPER).chosen['asynchronous actors, PPO']}")
    ]
    assert not missing(
        STELLARIS,
        f"It is not shown to be ahead of its own minibatches of 2,048, {to_larger[0]:.2f} in the mean and "
        f"{to_larger[1]:.2f} at the end, nor of synchronous PPO with them, {to_synchronous[0]:.2f} and "
        f"{to_synchronous[1]:.2f}. Of Stellaris with 1,024 it is at the end, {to_own[1]:.2f}, but not in the mean, "
        f"{to_own[0]:.2f}.",
        f"it had {in_tuning[0] / in_tuning[1]:.2f} times the return of its chosen setting, and on these seeds "
        f"{ratios(last, 'asynchronous actors, PPO')[1]:.2f} times.",
    )
    assert not missing("docs/architectures.md", f"and {first} times in the mean if both have")
    further = by_variant(folder / "Hopper-v4-larger-more")
    assert [int(row["seed"]) for row in further[own]] == [*range(24, 36)]
    several, new = [], []
    for column in MEAN_AND_END:
        of_both = [
            [[float(row[column]) for row in runs[name]] for runs in (of, further)] for name in (own, synchronous)
        ]
        several.append(estimate(np.concatenate(of_both[0]) / np.concatenate(of_both[1])))
        new.append(estimate(np.divide(of_both[0][1], of_both[1][1])))
    assert all(one.high < 1 for one in (*several, *new))
    assert not missing(
        STELLARIS,
        f"Yes: {several[0]:.2f} in the mean and {several[1]:.2f} at the end; on the twelve new seeds alone "
        f"{new[0]:.2f} and {new[1]:.2f}.",
    )
    (shows,) = (row[7] for row in TABLES["powers"]().rows if row[3] == "mean return" and row[6] == "26")
    assert shows == "1.10"
    assert not missing(
        "README.md",
        f"with larger minibatches for both, which the grids lacked, {times(f'{several[0]:.2f}')[:-1]}; 26 seeds).",
    )


def test_at_equal_time_with_larger_minibatches_elsewhere():
    """The registered answers, recomputed from the runs."""
    halfcheetah, walker = map(_larger_elsewhere, ("HalfCheetah-v4", "Walker2d-v4"))
    mean, end, control = halfcheetah
    other_mean, other_end, other_control = walker
    assert not missing(
        STELLARIS,
        f"Yes: {mean[0]:.2f} and {mean[1]:.2f} times in the mean over the 60 s, {end[0]:.2f} and {end[1]:.2f} times at "
        "the end.",
        f"Yes: {other_mean[0]:.2f} and {other_mean[1]:.2f} times in the mean, {other_end[0]:.2f} and "
        f"{other_end[1]:.2f} times at the end.",
        f"are behind it at the end with the larger minibatches, {control:.2f} and {other_control:.2f} times:",
    )


def _larger_elsewhere(environment):
    """Stellaris' ratios to both rivals in the mean and at the end, and one PPO learner's to synchronous PPO."""
    of = by_variant(SMALL / "stellaris-equal-time" / f"{environment}-beyond", environment)
    own, synchronous, one_learner = (
        next(name for name in of if name.startswith(f"{system}: "))
        for system in ("stellaris", "synchronous", "asynchronous actors, PPO")
    )
    assert all([int(row["seed"]) for row in runs] == [*range(10)] for runs in of.values())

    def ratio(name, other, column):
        return estimate([float(a[column]) / float(b[column]) for a, b in zip(of[name], of[other], strict=True)])

    behind = [ratio(own, other, column) for column in MEAN_AND_END for other in (synchronous, one_learner)]
    control = ratio(one_learner, synchronous, "final_return")
    assert max(one.high for one in (*behind, control)) < 1
    return behind[:2], behind[2:], control


def test_claims():
    of = {key[:2]: ours for key, ours in findings("stellaris-motivation").items()}
    reward = of[claims.REWARD, "the demo's settings"]
    by_use, bill = (of[claims.COST, f"the demo's settings, {name}"] for name in ("by use", "demo's bill"))
    ends = [f"({100 * of.low:.1f} to {100 * of.high:.1f})" for of in (by_use, bill)]
    at_the_end = table("stellaris-why", "with")["no waiting"]["return, equal time"]
    short, small = (claims.tuned(HOPPER, steps) for steps in (81_920, 300_000))
    assert not missing(
        "docs/results.md",
        f"Stellaris has {reward:.2f} times the reward at the end of the shorter run, and {middle(at_the_end)} times at "
        f"the end of the longer; by use it saves {100 * by_use.middle:.1f} % {ends[0]} of the cost, as every variant "
        f"on functions does, and under the demo's bill {100 * bill.middle:.1f} % {ends[1]}.",
        f"(Hopper-v4: {short:.0f} after 81,920 steps, {small:,.0f} after 300,000;",
    )


def test_where_a_factor_comes_from():
    why = table("stellaris-why", "with")
    demo, gradients, weights = (why[name] for name in ("no waiting", "4 x gradients", "weights"))
    own, baseline = (
        [at(SMALL / "stellaris-why", variant, seconds) for seconds in (20, 40, 60, 80)]
        for variant in ("no waiting", "baseline")
    )
    *before, last = (f"{estimate(ratios).middle:.1f}" for ratios in np.divide(own, baseline))
    runs = by_variant(SMALL / "stellaris-why")
    alone = {name: shown(why[f"{name}, 0 s"]["return, equal time"]) for name in runs if f"{name}, 0 s" in why}
    assert not missing(
        STELLARIS,
        f"the demo has {shown(demo['return, equal time'])} times the return of its baseline at the end of the run, "
        f"{middle(demo['by evaluation'])} by evaluation.",
        f"it has {shown(demo['mean until then'])} times the baseline's return in the mean over the run and, "
        f"interpolated at 20, 40, 60 and 80 s, {', '.join(before)} and {last} times.",
        f"reaches {shown(gradients['return, equal time'])} at the end, and {shown(gradients['mean until then'])} in "
        "the mean over the run.",
        f"With the paper's weights the return is {shown(weights['/ row before'])} times as high",
        f"it has a return of {middle(result(runs['baseline'], 'final_return'), '.0f')}, the demo's Stellaris "
        f"{middle(result(runs['no waiting'], 'final_return'), '.0f')}, and the synchronous system with its tuned "
        f"settings {claims.tuned(HOPPER, 81_920):.0f}.",
        f"the number of gradients is worth {alone['4 x gradients']} at equal time. Cold starts bring the ratio down to "
        f"{middle(alone['serverless'])}, and applying gradients on arrival to {middle(alone['asynchrony'])}; groups "
        f"bring it back to {alone['groups']}.",
        f"run ahead of the learners: {alone['no waiting']}.",
    )


def test_where_a_factor_comes_from_was_run_twice():
    """The first runs' table is kept, for the sentences about them."""
    both = [
        {row["with"]: row for row in rows(SMALL / "stellaris-why" / place / "table.csv")} for place in ("first", ".")
    ]
    demo, gradients = (both[0][name] for name in ("no waiting", "4 x gradients"))
    assert not missing(
        STELLARIS,
        f"In the first runs the demo had {shown(demo['return, equal time'])} times its baseline's return at the end "
        f"and {shown(demo['mean until then'])} times in the mean, and the synchronous baseline with as many gradients "
        f"{shown(gradients['return, equal time'])} and {shown(gradients['mean until then'])}.",
        f"With the weights the return was {shown(both[0]['weights']['/ row before'])} times that of the row before,",
    )
    apart = [
        [name for name in ("asynchrony", "cap", "groups", "weights") if not _contains_1(of[name]["/ row before"])]
        for of in both
    ]
    assert apart == [["weights"], []]


def _contains_1(text):
    _, low, high = map(float, re.findall(r"[\d.]+", text))
    return low <= 1 <= high


def test_tuned_systems():
    training, spent = by_variant(SMALL / "stellaris-training"), table("stellaris-cost", "system")
    ends = {name: middle(result(of, "final_return"), ",.0f") for name, of in training.items()}
    cost = {name: float(middle(row["USD use"], ".6f")) for name, row in spent.items()}
    seconds = {name: float(middle(result(of, "virtual_seconds", ".6f"), ".6f")) for name, of in training.items()}
    assert 0.75 < seconds["stellaris"] / seconds["synchronous"] < 0.85  # four fifths
    walker = {name: estimate(of).middle for name, of in finals(SMALL / "stellaris-training", "Walker2d-v4").items()}
    assert 0.45 < walker["stellaris"] / walker["synchronous"] < 0.55  # half
    for environment in (HOPPER, "Walker2d-v4"):
        of = finals(SMALL / "stellaris-training", environment)
        assert estimate(of["asynchronous actors, shared rate"] / of["asynchronous actors"]).high < 1
    after_60_s = by_variant(SMALL / "stellaris-equal-time")
    steps = {name: np.mean([float(run["steps"]) for run in after_60_s[name]]) for name in ("stellaris", "IMPACT")}
    assert [round(steps[name] / 300_000, 1) for name in steps] == [1.5, 3.1]
    reach = {name: row["reached"] for name, row in spent.items()}
    found = claims.findings({"stellaris-training": rows(SMALL / "stellaris-training" / "curves.csv")})
    (returns,) = {
        f"{one.returns:.2f}" for of in found.values() for one in of if one.environment == HOPPER and one.returns
    }
    assert (reach["stellaris"], reach["synchronous"], reach["MinionsRL-Max"]) == ("4 of 5", "4 of 5", "5 of 5")
    assert not missing(
        STELLARIS,
        f"After as many steps Stellaris has {returns} times the return of synchronous PPO and MinionsRL-Max together.",
        f"by use, {100 * cost['stellaris'] / cost['synchronous']:.0f} % of its cost.",
        f"costs {100 * (1 - cost['MinionsRL-Max'] / cost['stellaris']):.0f} % less than Stellaris. The demo's target "
        "return of 600 is reached by MinionsRL-Max on all five seeds, and by Stellaris and synchronous PPO on four "
        "each.",
        f"So {ends['synchronous']} and {ends['MinionsRL-Max']} are draws of one distribution",
    )


def test_the_parts_of_stellaris():
    parts, cap = by_variant(SMALL / "stellaris-ablation"), table("stellaris-challenges", "variant")
    seconds = {name: middle(result(of, "virtual_seconds"), ".0f") for name, of in parts.items()}
    stale = {name: f"{float(middle(result(of, 'staleness_mean', '.6f'), '.6f')):.2g}" for name, of in parts.items()}
    returns = finals(SMALL / "stellaris-ablation")
    grouped = estimate(returns["Stellaris"] / returns["no aggregation"])
    over_the_run = means(SMALL / "stellaris-ablation")
    in_the_mean = estimate(over_the_run["Stellaris"] / over_the_run["no aggregation"])
    both = [[shown(cap[name][column], ".3f") for name in ("cap", "no cap")] for column in ("KL", "KL of successive")]
    for other in ("one learner", "no cap"):
        ratio = estimate(returns["Stellaris"] / returns[other])
        assert ratio.low < 1 < ratio.high
    assert round(float(seconds["no aggregation"]) / float(seconds["Stellaris"])) == 2
    assert not missing(
        STELLARIS,
        f"at a staleness of {stale['no aggregation']} instead of {stale['Stellaris']}: Stellaris has {grouped:.2f} "
        f"times the return at the end and {in_the_mean:.2f} times in the mean over the run, in half of the time,",
        f"Four learners that share a GPU take {seconds['Stellaris']} s, one alone {seconds['one learner']} s",
        f"from the behaviour policy is {both[0][0]} with it and {both[0][1]} without",
        f"after successive batches is {both[1][0]} with the cap, and {both[1][1]} without.",
    )


def of_ten_seeds(part, column="mean_return"):
    """The ratio of Stellaris to Stellaris without a part, over the first five seeds and the five that ran later."""
    folder = SMALL / "stellaris-ablation"
    both = [finals(one, column=column) for one in (folder, folder / "more")]
    return estimate(np.concatenate([of["Stellaris"] / of[part] for of in both]))


def test_five_more_seeds():
    folder = SMALL / "stellaris-ablation"
    seeds = [[int(row["seed"]) for row in by_variant(one)["Stellaris"]] for one in (folder, folder / "more")]
    assert seeds == [[*range(5)], [*range(5, 10)]]
    new = finals(folder / "more", column="mean_return")
    alone = [estimate(new["Stellaris"] / of) for of in (new["no aggregation"], new["neither"])]
    assert all(one.low < 1 < one.high for one in alone)
    level = [of_ten_seeds(part) for part in ("one learner", "no cap")]
    assert all(one.low < 1 < one.high for one in level)
    own = means(folder)["Stellaris"]
    several = own, np.concatenate([own, new["Stellaris"]])
    variation = [f"{np.std(returns, ddof=1) / np.mean(returns):.2f}" for returns in several]
    of = [row for row in TABLES["powers"]().rows if row[2] in {f"Stellaris, {one}" for one in PARTS}]
    shows = [float(row[7]) for row in of]
    assert not missing(
        STELLARIS,
        f"Over ten seeds groups help: {of_ten_seeds('no aggregation'):.2f} in the mean and "
        f"{of_ten_seeds('no aggregation', 'final_return'):.2f} at the end,",
        f"Ten seeds show no difference to one learner or to no cap either: {level[0]:.2f} and {level[1]:.2f} in the "
        "mean.",
        f"by {variation[1]} over all ten in place of {variation[0]}, so ten seeds [show ratios of {min(shows):.2f} to "
        f"{max(shows):.2f}]",
    )


def test_aggregators():
    folder = SMALL / "stellaris-aggregators"
    groups = by_variant(folder)
    ends = {name: float(middle(result(of, "final_return", ".6f"), ".6f")) for name, of in groups.items()}
    arriving = [of for name, of in ends.items() if name.startswith(("stale-synchronous", "fully asynchronous"))]
    steps = [float(groups["its mean step"][0][column]) for column in ("versions", "gradients")]
    assert 0.4 < steps[0] / steps[1] < 0.6
    curves = {name: at(folder, name, 41.0) for name in groups}
    after = {name: f"{estimate(of).middle:.0f}" for name, of in curves.items()}
    others = [of for name, of in curves.items() if name != "Stellaris"]
    assert min(estimate(curves["Stellaris"] / of).low for of in others) > 1
    over_the_run = {name: of for name, of in means(folder).items() if "replayed" not in name}
    in_the_mean = {name: estimate(over_the_run["Stellaris"] / of) for name, of in over_the_run.items()}
    ranked = sorted(over_the_run, key=lambda name: -estimate(over_the_run[name]).middle)
    *first, one, two = sorted(over_the_run, key=lambda name: -ends[name])
    assert ranked == [*first, two, one]
    assert not missing(
        STELLARIS,
        f"the synchronous aggregator, without staleness, has {ends['synchronous']:.0f}, and Stellaris' own, at a "
        f"staleness of 2.5, has {ends['Stellaris']:.0f}.",
        f"on arrival, at a staleness of 8, have {min(arriving):.0f} to {max(arriving):.0f}.",
        f"is as stale as Stellaris' own and has {ends['its mean step']:.0f},",
        f"{after['Stellaris']} against {after['its mean step']} for its mean step, {after['softsync(2)']} for "
        f"softsync, {after['synchronous']}, {after['stale-synchronous(2)']} and {after['fully asynchronous']} for the "
        "synchronous, stale-synchronous and fully asynchronous aggregators.",
        f"Stellaris' own is {in_the_mean['fully asynchronous']:.2f} times that of the fully asynchronous aggregator "
        f"and {in_the_mean['synchronous']:.2f} times that of the synchronous one.",
    )


def test_sensitivity():
    groups = by_variant(SMALL / "stellaris-sensitivity")
    of = {name: middle(result(runs, "final_return"), ".0f") for name, runs in groups.items()}
    returns = finals(SMALL / "stellaris-sensitivity")
    own = returns.pop("d = 1, rho = 2, v = 3")
    ratios = {name: estimate(other / own) for name, other in returns.items()}
    assert {name for name, ratio in ratios.items() if ratio.high < 1} == {"rho = 1", "v = inf"}
    assert not [name for name, ratio in ratios.items() if ratio.low > 1]
    over_the_run = means(SMALL / "stellaris-sensitivity")
    in_the_mean = {name: estimate(over_the_run[name] / over_the_run["d = 1, rho = 2, v = 3"]) for name in ratios}
    assert [name for name, ratio in in_the_mean.items() if not ratio.low < 1 < ratio.high] == ["rho = 1", "v = inf"]
    assert not missing(
        STELLARIS,
        f"d of 0.8, 0.9 and 0.99 gives {of['d = 0.8']}, {of['d = 0.9']} and {of['d = 0.99']}; rho of 1, 1.2 and 4 "
        f"gives {of['rho = 1']}, {of['rho = 1.2']} and {of['rho = 4']}; v of 1, 2 and infinity gives {of['v = 1']}, "
        f"{of['v = 2']} and {of['v = inf']}, against {of['d = 1, rho = 2, v = 3']}.",
        f"between {min(map(np.min, returns.values())):.0f} and {max(map(np.max, returns.values())):,.0f},",
        f"that of rho = 1, {ratios['rho = 1']:.2f}, and that of v = infinity, where all weights are 1, "
        f"{ratios['v = inf']:.2f}.",
        f"In the mean over the run these two are {in_the_mean['rho = 1']:.2f} and {in_the_mean['v = inf']:.2f}, and no "
        "other interval excludes 1.",
    )


def test_when_the_ratios_hold_with_tuned_settings():
    of = {assumed: ratios for assumed, *ratios in TABLES["sweeps"]().rows}
    default, *_ = of.values()
    first = {name: ratios[0] for name, ratios in of.items()}
    ends = {name: [float(x) for x in re.findall(r"[\d.]+", returns)[1:]] for name, returns in first.items()}
    updates, step = "they take four times as long", "an environment's step takes a quarter as long"
    gradient, turns = (
        "a gradient takes a quarter as long",
        "four learners on a GPU take turns: each four times as slow",
    )
    assert {name for name, (_, high) in ends.items() if high < 1} == {gradient, updates, step}
    slow = "a gradient's time grows in proportion to its samples"
    assert [name for name, (low, _) in ends.items() if low > 1] == [slow]
    means = {name: [float(x) for x in re.findall(r"[\d.]+", ratios[1])[1:]] for name, ratios in of.items()}
    assert not [name for name, (low, _) in means.items() if low > 1]
    assert {name for name, (_, high) in means.items() if high < 1} == {gradient, updates, step, turns}
    use = {name: float(middle(ratios[3], ".3f")) for name, ratios in of.items()}
    varied = [use[name] for name in ("no variation of durations", *(f"variation {cv}" for cv in ("0.25", "0.5", "1")))]
    assert varied == sorted(varied, reverse=True)
    assert {name for name, ratios in of.items() if float(middle(ratios[2], ".3f")) > 1} == {turns, updates, step}
    places, idle = (f"{use[name]:.2f}" for name in list(of)[-2:])
    pooled = TABLES["claims"]().rows[0][2]
    assert not missing(
        DEPLOYMENTS,
        f"the default's ratio is {pooled.split(' ')[0]}.",
        f"if they take four times as long, {first[updates]}, if a step of the environment takes a quarter as long, "
        f"{first[step]}, or a gradient, {first[gradient]}.",
        f"if a gradient's time is proportional to its samples, {first[slow]}:",
        f"it is ahead in no row, {of[slow][1]} in that one, and behind in four: those three, and if four learners take "
        "turns.",
        f"By use Stellaris always costs less, {min(use.values()):.2f} to {max(use.values()):.2f} times as much,",
        f"or if idle GPUs are billed, {float(middle(default[3], '.3f')):.2f} becomes {places} or {idle}.",
    )


def test_tuned_settings_against_more_runs():
    """Stellaris under each assumption against the ten pooled runs, after as many steps as the baseline has made."""
    points = rows(SMALL / "stellaris-sweeps" / "curves.csv")
    ten = [*zip(tuned_runs("synchronous"), tuned_runs("MinionsRL-Max"), strict=True)]
    found = {}
    for assumed in dict.fromkeys(row["setting"].partition(", ")[2] for row in points):
        own, base = (
            [*recorded.runs(points, HOPPER, f"{name}, {assumed}").values()] for name in ("stellaris", "synchronous")
        )
        returns = [
            np.mean([np.interp(run["steps"], one["steps"], one["episode_return"]) for one in both], axis=0)
            for run, both in zip(base, ten, strict=True)
        ]
        others = [{**run, "episode_return": of} for run, of in zip(base, returns, strict=True)]
        found[assumed] = estimate([recorded.return_ratio(*pair) for pair in zip(own, others, strict=True)])
    behind = {"gradient 0.25", "update 4", "step 0.25", "variation 0", "gradient 4", "sharing 4"}
    assert {assumed for assumed, ratio in found.items() if ratio.high < 1} == behind
    assert [assumed for assumed, ratio in found.items() if ratio.low > 1] == ["growth 1"]
    assert f"{found['variation 0.1'].middle:.2f}" == TABLES["claims"]().rows[0][2].split(" ")[0]
    assert not missing(
        DEPLOYMENTS,
        f"it is ahead in this row as well, {found['growth 1']:.2f}, and behind in six: in those three, without "
        "variation, if a gradient takes four times as long, and if four learners take turns.",
    )


def by_use_of(row):
    """The cost by use in a row of a table of sweeps."""
    return f"{float(middle(row[4])):.2f}"


def test_when_the_ratios_hold():
    default, *demo = TABLES["demo-sweeps"]().rows
    ratios = [float(middle(returns)) for assumed, returns, *_ in demo if "overhead" not in assumed]
    (low, high), *ends = ([float(end) for end in re.findall(r"[\d.]+", row[1])[1:]] for row in (default, *demo))
    apart = [row[0] for row, (least, most) in zip(demo, ends, strict=True) if least > high or most < low]
    assert apart == ["a gradient's time grows in proportion to its samples", "no overhead of a round"]
    assert demo[ratios.index(max(ratios))][0] == apart[0]
    assert demo[ratios.index(min(ratios))][0] == "an update and an invocation take no time"
    places, idle = (next(row for row in demo if word in row[0]) for word in ("16 places", "idle GPUs"))
    added = [row for row in demo if row[0].startswith(("an update", "they take", "an environment's", "a step"))]
    bills = [[float(middle(row[i], ".3f")) / float(middle(default[i], ".3f")) for row in added] for i in (3, 4)]
    assert len(added) == 5
    assert all(0.96 < ratio < 1.04 for of in bills for ratio in of)
    again = rows(SMALL / "stellaris-demo-sweeps" / "more" / "runs.csv")
    run = [
        row for row in rows(SMALL / "stellaris-demo-sweeps" / "runs.csv") if row["setting"].endswith("variation 0.1")
    ]
    assert [row for row in again if row["setting"].endswith("variation 0.1")] == run
    kept = rows(SMALL / "stellaris-demo-sweeps" / "first" / "table.csv")
    first = [float(middle(row["return at equal time"])) for row in kept if "overhead" not in row["testbed"]]
    alone = by_variant(SMALL / "stellaris-demo-sweeps")["stellaris, overhead 0"]
    hpc = {row[0]: row[1:] for row in TABLES["hpc-sweeps"]().rows}
    slow = hpc.pop("a gradient takes four times as long")
    lower = [float(middle(returns)) for returns, *_ in hpc.values()]
    costs = [[100 * float(middle(row[column], ".6f")) for row in (*hpc.values(), slow)] for column in (2, 3)]
    bill, by_use = (f"{min(of):.0f} to {max(of):.0f}" for of in costs)
    seconds = [
        float(middle(result(runs, "virtual_seconds", ".6f"), ".6f"))
        for name, runs in by_variant(SMALL / "stellaris-hpc-sweeps").items()
        if name.startswith("PAR-RL")
    ]
    assert not missing(
        DEPLOYMENTS,
        f"Under every assumption but that of no overhead, Stellaris has {min(ratios):.2f} to {max(ratios):.2f} times "
        "the return:",
        f"with 16 places on the rented machine {by_use_of(default)} becomes {by_use_of(places)}, and if idle GPUs are "
        f"billed, {by_use_of(idle)}.",
        f"repeat earlier ones, in which Stellaris had {min(first):.2f} to {max(first):.2f} times the return.",
        f"steps are sampled in {middle(result(alone, 'virtual_seconds', '.1f'), '.1f')} s by policies that lag behind, "
        f"and by then {middle(result(alone, 'gradients'), '.0f')} of the 760 gradients have been applied.",
        f"under none of these assumptions: it has {min(lower):.2f} to {max(lower):.2f} times the return, and where a "
        f"gradient takes four times as long {slow[0]} times, which five seeds cannot tell from 1.",
        f"These runs take PAR-RL {min(seconds):.1f} to {max(seconds):.1f} s,",
        f"By use Stellaris costs {by_use} % of what PAR-RL costs; under the demo's bill {bill} %.",
    )


def test_scaling():
    of = {name: result(runs, "final_return") for name, runs in by_variant(SMALL / "stellaris-scaling").items()}
    rows = table("stellaris-scaling", "variant")
    speed = {name: f"{float(row['steps / virtual s'].split()[0].replace(',', '')):,.0f}" for name, row in rows.items()}
    stellaris, synchronous = (
        [middle(of[f"{name}, actors {n}"], ".0f") for n in (16, 256, 1024)] for name in ("stellaris", "synchronous")
    )
    over_the_run = means(SMALL / "stellaris-scaling")
    *few, most = (
        estimate(over_the_run[f"stellaris, actors {n}"] / over_the_run[f"synchronous, actors {n}"])
        for n in (1, 4, 16, 64, 256, 1024)
    )
    least, greatest = (f"{of(ratio.middle for ratio in few):.2f}" for of in (min, max))
    assert not missing(
        DEPLOYMENTS,
        f"Stellaris makes {speed['stellaris, actors 1024']} steps per second, only seven times as many as with one "
        f"({speed['stellaris, actors 1']})",
        f"Synchronous PPO, which computes half as many, makes {speed['synchronous, actors 1024']}.",
        f"from {stellaris[0]} with 16 actors to {stellaris[1]} with 256 and {stellaris[2]} with 1,024, and synchronous "
        f"PPO's from {synchronous[0]} to {synchronous[1]} and {synchronous[2]}. In the mean over the run Stellaris has "
        f"{least} to {greatest} times the return of synchronous PPO with 1 to 256 actors, and {most:.2f} times with "
        "1,024.",
        f"makes {speed['stellaris, learners 16']} and {speed['stellaris, learners 64']} steps per second, but hardly "
        f"learns: {of['stellaris, learners 16']} and {of['stellaris, learners 64']} instead of "
        f"{middle(of['stellaris, learners 4'], '.0f')}; with a single learner it has "
        f"{middle(of['stellaris, learners 1'], '.0f')}.",
    )


def test_par_rl():
    of = table("stellaris-hpc", "system")
    ratio = of["ratio, return at equal time"]
    bill, use = (
        Estimate(*(100 * float(end) for end in re.findall(r"[\d.]+", ratio[column])), claim=True)
        for column in ("USD demo", "USD use")
    )
    curves = output.read_rows(SMALL / "stellaris-hpc" / "curves.csv")
    own, other = (recorded.runs(curves, HOPPER, name) for name in ("stellaris", "PAR-RL"))
    started = {seed: run["seconds"][1] for seed, run in own.items()}  # the row of the first learned version
    warm = [
        run["episode_return"][-1]
        / np.interp(run["seconds"][-1] - started[seed], other[seed]["seconds"], other[seed]["episode_return"])
        for seed, run in own.items()
    ]
    until_then = estimate([recorded.mean_ratio(run, other[seed]) for seed, run in own.items()])
    assert not missing(
        DEPLOYMENTS,
        f"Stellaris has a return of {shown(of['stellaris']['return'], '.0f')} and PAR-RL of "
        f"{shown(of['PAR-RL']['return'], '.0f')}.",
        f"At equal time Stellaris has {shown(ratio['return'])} times the return of PAR-RL, and {until_then:.2f} times "
        "in the mean until then, at "
        f"{bill.middle:.0f} % ({bill.low:.1f} to {bill.high:.1f}) of its cost under the demo's bill and "
        f"{use.middle:.0f} % ({use.low:.1f} to {use.high:.1f}) by use;",
        f"for Stellaris' first {np.median([*started.values()]):.1f} its functions start cold. Counted from there, it "
        f"has {estimate(warm):.2f} times the return",
    )


def test_qbert():
    groups = by_variant(RESULTS / "qbert", "Qbert-v5")
    first, second = (
        [f"{float(run['final_return']):.2f}" for run in groups[name]] for name in ("synchronous", "stellaris")
    )
    costs = [f"{np.median([float(run['cost_pay_per_use']) for run in groups[name]]):.3f}" for name in groups]
    low, between, high = sorted(second)
    begun = [
        f"{float(row['episode_return']):.2f}"
        for row in rows(RESULTS / "qbert" / "curves.csv")
        if (row["system"], float(row["steps"])) == ("synchronous", 8192)
    ]
    worst = min(groups["stellaris"], key=lambda run: float(run["final_return"]))["seed"]
    returns = [
        float(row["episode_return"] or "nan")
        for row in rows(RESULTS / "qbert" / "curves.csv")
        if (row["system"], row["seed"]) == ("stellaris", worst)
    ]
    assert not missing(
        STELLARIS,
        f"reaches {first[2]}, {first[1]} and {first[0]} for seeds 2, 1 and 0 after 200,000 steps",
        f"that of the episodes of the first 8,192 steps is {begun[2]}, {begun[1]} and {begun[0]}.",
        f"reaches {low}, {between} and {high}, for {costs[1]} USD by use against the synchronous system's {costs[0]},",
        f"the run that ends at {low} had {np.nanmax(returns):.2f} at its best.",
    )


def test_lag():
    ran = [row["task"] for row in rows(RESULTS / "lab-lag" / "runs.csv")]
    cartpole, acrobot, breakout = (ran.count(task) for task in ("CartPole", "Acrobot-v1", "Breakout-MinAtar"))
    assert cartpole == acrobot
    assert not missing(
        "docs/results/lab-lag.md",
        f"{len(ran):,} runs, {cartpole:,} each on CartPole and Acrobot, {breakout:,} on MinAtar's Breakout;",
    )


def test_a_million_steps():
    folder = RESULTS / "hopper"
    runs, returns = by_variant(folder), finals(folder)
    ahead, own = (at(folder, system, 133.0) for system in SYSTEMS)
    assert (ahead > own).all()
    assert (returns["synchronous"] > returns["stellaris"]).all()
    late = estimate(ahead)
    synchronous, stellaris = (f"{estimate(at(folder, system, 65.0)):,.0f}" for system in SYSTEMS)
    cost = {name: middle(result(of, "cost_pay_per_use", ".6f"), ".3f") for name, of in runs.items()}
    gradients = {name: middle(result(of, "gradients"), ",.0f") for name, of in runs.items()}
    low, between, high = (f"{of:,.0f}" for of in sorted(returns["IMPACT"]))
    actors = [float(row["episode_return"]) for row in rows(folder / "curves.csv") if row["system"].endswith("actors")]
    assert 600 < max(actors) < 650
    assert not missing(
        "docs/systems.md",
        f"when Stellaris' runs end, it has {late.middle:,.0f}, range {late.low:,.0f} to {late.high:,.0f}.",
        f"Stellaris costs {cost['stellaris']} USD by use, and the synchronous system {cost['synchronous']}.",
        f"IMPACT's three runs end at {low}, {between} and {high}.",
        f"compute {gradients['IMPACT']} gradients, while the synchronous system computes {gradients['synchronous']}.",
        f"After 65 s the synchronous system has {synchronous} and Stellaris {stellaris}, interpolated",
    )


def test_quickstart():
    """The README's demo, run with `--seeds 3 --seconds 100`."""
    runs = json.loads((RESULTS / "quickstart" / "summary.json").read_text())["runs"]
    assert {run["virtual_seconds"] for run in runs} == {100.0}

    def median(system, column):
        return float(np.median([run[column] for run in runs if run["system"] == system]))

    def returns(system):
        each = [run["final_return"] for run in runs if run["system"] == system]
        return f"{np.median(each):,.0f} ({min(each):,.0f} to {max(each):,.0f})"

    costs = " and ".join(f"{median(system, 'cost_pay_per_use'):.3f}" for system in ("stellaris", "synchronous"))
    assert not missing(
        "README.md",
        f"Stellaris has a median return of {returns('stellaris')} and synchronous training {returns('synchronous')}; "
        f"[billed by use](docs/results.md#how-to-read-and-repeat-them), they cost {costs} USD",
    )


def test_corrections_on_the_language_task():
    """The advice of "Which correction?", from the outcomes at the best rates."""
    own = RESULTS / "lab-language"
    beats, below = (
        {
            method: [
                int(row["lag"])
                for row in rows(own / "against.csv")
                if (row["method"], row["verdict"]) == (method, verdict)
            ]
            for method in ("no correction", "M2PO", "TOPR", "IcePop", "TIS, tokens", "AReaL", "CISPO", "VESPO")
        }
        for verdict in ("beats", "below")
    )
    assert not [row for row in rows(own / "against.csv") if row["verdict"] == "beats" and int(row["lag"]) <= 4]
    assert [method for method in beats if not below[method]] == ["M2PO", "TOPR", "IcePop", "VESPO"]
    assert all({8, 16, 32} <= {*beats[method]} for method in ("M2PO", "TOPR"))
    assert all({16, 32, 64, 256} == {*beats[method]} for method in ("AReaL", "TIS, tokens", "IcePop", "CISPO"))
    assert min(below["no correction"]) == 1
    outcome = {(row["method"], int(row["lag"])): float(row["outcome"]) for row in rows(own / "best.csv")}
    gains = [outcome[method, lag] - outcome["GRPO", lag] for method in ("M2PO", "TOPR") for lag in (8, 16, 32)]
    weights, others = ("TIS, tokens", "AReaL", "IcePop"), ("M2PO", "TOPR")
    at = {lag: [f"{outcome[method, lag]:.2f}" for method in weights] for lag in (64, 256)}
    between = {lag: f"{min(of)} to {max(of)}" for lag, of in at.items()}
    (mean,) = {f"{outcome[method, 64]:.2f}" for method in others}
    of = {lag: [f"{outcome[method, lag]:.2f}" for method in ("M2PO", "GRPO")] for lag in (4, 8, 16)}
    assert not missing(
        "docs/corrections.md",
        f"above that clip by {min(gains):.2f} to {max(gains):.2f} in the share of exact answers",
        f"it has {of[4][0]} against the clip's {of[4][1]} at a lag of 4, {of[8][0]} against {of[8][1]} at 8, and "
        f"{of[16][0]} against {of[16][1]} at 16.",
        f"at 64 they have {between[64]}, M2PO and TOPR {mean},",
        f"at 256 {between[256]} against {outcome['M2PO', 256]:.2f} and {outcome['TOPR', 256]:.2f};",
    )


def test_neighbouring_seeds():
    """Their returns are not correlated: of n seeds in any order, the expected autocorrelation is -1/n."""
    settings = {}
    # Runs since the seeds of environments are hashed share no initial states.
    hashed = {*(SMALL / "minionsrl-training").rglob("runs.csv")}
    hashed |= {
        SMALL / study / "runs.csv"
        for study in (
            *("stellaris-why", "stellaris-motivation", "stellaris-demo-sweeps"),
            *("stellaris-demo-sweeps/more", "stellaris-equal-time/Hopper-v4-more"),
            *(f"stellaris-equal-time/Hopper-v4-{which}" for which in ("beyond", "rivals", "last", "2048", "0012")),
            "stellaris-equal-time/Hopper-v4-larger-more",
            *(f"stellaris-equal-time/{name}-beyond" for name in ("HalfCheetah-v4", "Walker2d-v4")),
            *(f"tuning/{which}" for which in ("beyond", "rivals", "larger", "parts", "sampling-on")),
            "stellaris-ablation/more",
            "tuning-steps/at-equal-time",
        )
    }
    for path in sorted({*RESULTS.rglob("runs.csv")} - hashed):
        for row in rows(path):
            if row.get("system") and row.get("final_return"):
                name = (path, row["environment"], row["system"], row["setting"])
                settings.setdefault(name, {})[int(row["seed"])] = float(row["final_return"])
    chosen = {}  # without settings that another study has as well
    for (path, environment, *_), of in settings.items():
        seeds, returns = sorted(of), np.array([of[seed] for seed in sorted(of)])
        if len(seeds) >= 5 and seeds == [*range(seeds[0], seeds[0] + len(seeds))] and np.std(returns) > 0:
            chosen.setdefault(tuple(returns), (path, environment, len(seeds)))

    def correlation(order):
        found = [np.array(returns)[order[group]] for returns, group in chosen.items()]
        apart = [of - of.mean() for of in found]
        return np.mean([(of[1:] * of[:-1]).sum() / (of * of).sum() + 1 / len(of) for of in apart])

    sizes, rng = {group: group[2] for group in chosen.values()}, np.random.default_rng(0)
    assert {min(sizes.values()), max(sizes.values())} == {5, 10}
    # Settings of a study have the same seeds, which are shuffled together.
    shuffled = [correlation({group: rng.permutation(n) for group, n in sizes.items()}) for _ in range(300)]
    observed = correlation({group: np.arange(n) for group, n in sizes.items()})
    assert not missing(
        "docs/results.md",
        f"In {sum(map(len, chosen)):,} of the older runs, of {len(chosen)} systems and settings",
        f"a correlation of {observed:.2f} beyond that of shuffled seeds, with a standard error of "
        f"{np.std(shuffled):.2f}:",
    )


def test_two_more_games():
    """Which of them the baseline learns by the registered criterion, and what Stellaris has where it does."""
    first = {
        (row["environment"], row["system"], row["seed"]): float(row["episode_return"])
        for row in rows(RESULTS / "atari" / "curves.csv")
        if float(row["steps"]) == 8192
    }
    last = {(row["environment"], row["system"], row["seed"]): row for row in rows(RESULTS / "atari" / "runs.csv")}

    def ends(environment, system, seeds):
        return [float(last[environment, system, seed]["final_return"]) for seed in seeds]

    def middle_of(system, column, spec):
        return format(np.median([float(last["SpaceInvaders-v5", system, seed][column]) for seed in "012"]), spec)

    learned, own = (ends("SpaceInvaders-v5", system, "012") for system in SYSTEMS)
    begins = [first["SpaceInvaders-v5", "synchronous", seed] for seed in "012"]
    gravitar, before = (
        ends("Gravitar-v5", "synchronous", "01"),
        [first["Gravitar-v5", "synchronous", seed] for seed in "01"],
    )
    assert min(np.divide(learned, begins)) >= 1.25 > max(np.divide(gravitar, before))
    ratios = np.divide(own, learned)
    (untrained,) = (
        float(row["return"].split(" ")[0])
        for row in rows(RESULTS / "atari" / "table.csv")
        if (row["environment"], row["system"]) == ("SpaceInvaders-v5", "untrained")
    )
    costs, times_ = (
        [middle_of(system, column, spec) for system in ("stellaris", "synchronous")]
        for column, spec in (("cost_pay_per_use", ".3f"), ("virtual_seconds", ".0f"))
    )
    assert not missing(
        STELLARIS,
        f"episodes is {learned[0]:.2f}, {learned[1]:.2f} and {learned[2]:.2f} for seeds 0, 1 and 2,",
        f"first 8,192 steps {begins[0]:.2f}, {begins[1]:.2f} and {begins[2]:.2f}.",
        f"they are {gravitar[0]:.2f} and {gravitar[1]:.2f}, after {before[0]:.2f} and {before[1]:.2f} (two seeds),",
        f"has {own[0]:.2f}, {own[1]:.2f} and {own[2]:.2f} on the same seeds of SpaceInvaders, {min(ratios):.2f} to "
        f"{max(ratios):.2f} times as much, for {costs[0]} USD by use against {costs[1]}, and in {times_[0]} virtual "
        f"seconds against {times_[1]}: an untrained policy has {untrained:.2f},",
    )


def test_ratios_favour_the_first_system():
    """Of equal systems with log-normal returns: the interquartile mean of ratios seed by seed."""
    random, means = np.random.default_rng(0), {}
    for seeds in (5, 10):
        for variation in (0.3, 0.45):
            one, other = random.lognormal(0.0, np.sqrt(np.log1p(variation**2)), (2, 40_000, seeds))
            means[seeds, variation] = f"{stats.trim_mean(one / other, 0.25, axis=1).mean():.2f}"
    assert not missing(
        "docs/results.md",
        f"returns vary by 30 % have a ratio of {means[5, 0.3]} on average with five seeds, and of {means[10, 0.3]} "
        f"with ten; if they vary by 45 %, {means[5, 0.45]} and {means[10, 0.45]}",
    )


def test_how_many_seeds():
    """At equal time on Hopper-v4: a test of the difference of mean logarithms, with a power of 0.8."""
    groups, needed = by_variant(SMALL / "stellaris-equal-time"), {}
    for column in ("final_return", "mean_return"):
        variances = []
        for system in SYSTEMS:
            values = np.array([float(row[column]) for row in groups[system]])
            variances.append(np.log1p(values.var(ddof=1) / values.mean() ** 2))
        least = stats.norm.ppf([0.975, 0.8]).sum() ** 2 * sum(variances)
        needed[column] = [int(np.ceil(least / np.log(ratio) ** 2)) for ratio in (1.2, 1.1)]
        if column == "final_return":
            shown_by_ten = np.exp(np.sqrt(least / 10))
    (final, mean), seeds = needed.values(), {len(groups[system]) for system in SYSTEMS}
    assert seeds == {10}
    assert not missing(
        "docs/results.md",
        f"Ten seeds of `stellaris-equal-time` on Hopper-v4 show a ratio of {shown_by_ten:.2f} in the final return; a "
        f"ratio of 1.2 would need {final[0]} seeds and one of 1.1 would need {final[1]}, and in the mean return over "
        f"the run {mean[0]} and {mean[1]}.",
    )


def test_the_demo_was_run_once():
    """Two studies share the demo's runs: the table of how many seeds has one row for both."""
    why, motivation = finals(SMALL / "stellaris-why"), finals(SMALL / "stellaris-motivation")
    assert why["no waiting"].tolist() == motivation["stellaris"].tolist()
    assert why["baseline"].tolist() == motivation["synchronous"].tolist()
