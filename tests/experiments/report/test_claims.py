"""Claims beside what was measured: figures by hand, and no verdict where nothing can be said."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from experiments.report import claims
from experiments.tasks import minionsrl
from experiments.toolkit.statistics import estimate
from tests.experiments.csv_rows import rows

REWARD = "episodic reward against the baselines at equal wall-clock time"
COST = "training cost reduction against the baselines"


def run(system, seed, end, final, cost, environment="Hopper-v4", setting=""):
    """Two points of a curve that rises evenly from 0 over a million steps; the demo's bill is twice the other."""
    same = {"environment": environment, "system": system, "setting": setting, "seed": str(seed)}
    names = ("seconds", "steps", "episode_return", "cost_pay_per_use", "cost_azure", "cost_demo")
    points = ((0.0, 0.0, 0.0, 0.0, 0.0, 0.0), (end, 1e6, final, cost, cost, 2 * cost))
    return [{**same, **dict(zip(names, map(str, point), strict=True))} for point in points]


def test_ratios_at_equal_time():
    """After 50 s Stellaris, at its end, has 1,500, and the baseline, half-way, 1,000; it has cost a quarter of 4.

    Until then Stellaris had 750 on average, and the baseline 500.
    """
    points = run("stellaris", 0, 50.0, 1500.0, 1.0) + run("synchronous", 0, 100.0, 2000.0, 4.0)
    points += run("synchronous", 0, 100.0, 1.0, 1.0, setting="shared rate")  # another variant, and no baseline
    found = claims.findings({"stellaris-training": points})
    reward, over_the_run = found[REWARD]
    assert reward.ours.middle == over_the_run.ours.middle == pytest.approx(1.5)
    assert over_the_run.under == "tuned, mean over the run"
    assert (reward.environment, reward.under, reward.seeds, reward.judged) == ("Hopper-v4", "tuned", 1, True)
    by_use, demo = found[COST]
    assert (by_use.ours.middle, demo.ours.middle) == (pytest.approx(0.75), pytest.approx(0.75))
    assert (by_use.under, demo.under) == ("tuned, by use", "tuned, demo's bill")


def test_baselines_that_compute_the_same_are_pooled():
    """With 2,000 and 1,000 after as many steps both have 1,500, each at its own cost and time."""
    points = run("stellaris", 0, 50.0, 1500.0, 1.0) + run("synchronous", 0, 50.0, 2000.0, 4.0)
    found = claims.findings({"stellaris-training": points + run(minionsrl.MAX, 0, 100.0, 1000.0, 2.0)})
    on_machines, on_functions = found[REWARD][::2]
    assert (on_machines.ours.middle, on_functions.ours.middle) == (pytest.approx(1.0), pytest.approx(2.0))
    by_use, on_functions, _ = found[COST]
    assert (by_use.ours.middle, on_functions.ours.middle) == (pytest.approx(0.75), pytest.approx(0.5))
    assert by_use.returns == on_functions.returns == pytest.approx(estimate([1.0]))


def test_each_environment_by_itself():
    both = itertools.product(("Hopper-v4", "Walker2d-v4"), ("stellaris", "synchronous"))
    points = [point for environment, system in both for point in run(system, 0, 10.0, 2000.0, 1.0, environment)]
    found = claims.findings({"stellaris-training": points})
    each = [("Hopper-v4", True), ("Walker2d-v4", False)]
    assert [(one.environment, one.judged) for one in found[REWARD]] == [*each, *each]


def test_the_mean_over_a_run():
    """Of two curves that end at 10, the one that is there after half of the time had 7.5 on average, the other 5."""
    early, late = ([*run(name, 0, 10.0, 10.0, 1.0)] for name in ("stellaris", "synchronous"))
    early.insert(1, {**early[1], "seconds": "5.0"})
    (at_the_end, over_the_run) = claims.findings({"stellaris-training": early + late})[REWARD]
    assert at_the_end.ours.middle == pytest.approx(1.0)
    assert over_the_run.ours.middle == pytest.approx(1.5, rel=1e-3)


def test_par_rl():
    points = run("stellaris", 0, 10.0, 300.0, 1.0) + run("PAR-RL", 0, 10.0, 100.0, 2.0)
    found = claims.findings({"stellaris-hpc": points})
    assert [one.ours.middle for one in found["episodic reward against PAR-RL"]] == [pytest.approx(3.0)] * 2
    assert found["training cost reduction against PAR-RL"][0].ours.middle == pytest.approx(0.5)


def test_seeds_are_paired():
    points = [point for seed in (0, 1) for point in run("stellaris", seed, 10.0, 100.0 * (seed + 1), 1.0)]
    found = claims.findings({"stellaris-training": points + run("synchronous", 1, 10.0, 50.0, 1.0)})
    assert found[REWARD][0].ours.middle == pytest.approx(4.0)
    assert found[REWARD][0].seeds == 1


@pytest.mark.parametrize(
    ("environment", "baseline", "judged"),
    [("Hopper-v4", 1900.0, True), ("Hopper-v4", 1800.0, False), ("Own-v0", 9e9, False)],
)
def test_a_baseline_that_has_not_learned(environment, baseline, judged):
    """70 % of 2,618 is 1,833, after a million steps; where nobody has tuned it, it is not known."""
    assert claims.tuned("Hopper-v4", 1e6) == pytest.approx(2618.1, abs=2.0)
    assert 300 < claims.tuned("Hopper-v4", 3e5) < claims.tuned("Hopper-v4", 9e5)
    assert claims.tuned("Hopper-v4", 2e6) == np.inf
    points = run("stellaris", 0, 1.0, 1.0, 1.0, environment) + run("synchronous", 0, 1.0, baseline, 1.0, environment)
    assert claims.findings({"stellaris-training": points})[REWARD][0].judged == judged


@pytest.mark.parametrize(
    ("ratios", "judged", "verdict"),
    [
        ([2.0, 2.1, 2.2, 2.3, 2.4], True, "yes"),
        ([1.0, 1.1, 1.2, 1.3, 1.4], True, "no"),
        ([0.1, 0.5, 1.5, 3.0, 9.0], True, "unclear"),
        ([2.0, 2.1, 2.2, 2.3, 2.4], False, ""),
        ([2.2, 2.2], True, ""),
    ],
)
def test_verdicts(ratios, judged, verdict):
    """By the interval; blank with few seeds, or where the baseline has not learned."""
    (claim,) = (claim for claim in claims.claims() if claim.claim == REWARD)
    assert claim.value == 2.2
    finding = claims.Finding(estimate(ratios), "Hopper-v4", "tuned", len(ratios), judged, estimate([1.0]), "")
    assert claims.verdict(claim, finding) == verdict


@pytest.mark.parametrize(
    ("returns", "verdict"), [([0.5, 0.6, 0.7, 0.6, 0.8], "yes, at a lower return"), ([1.0], "yes")]
)
def test_a_cost_that_bought_less(returns, verdict):
    (claim,) = (claim for claim in claims.claims() if claim.claim == COST)
    saved = estimate([0.4, 0.5, 0.6, 0.5, 0.5])
    finding = claims.Finding(saved, "Hopper-v4", "tuned", 5, True, estimate(returns), "")
    assert claims.verdict(claim, finding) == verdict


#: The scheduler and a baseline on Hopper's testbed.
OWN, AZURE = "authors-0.0003: learned, for time, fine-tuned", "authors-0.0003: Azure ML"


def evaluated(*of, evaluation):
    """A run whose target is tested by evaluations."""
    return [{**point, "evaluation_return": str(evaluation)} for point in run("", *of[1:], setting=of[0])]


@pytest.mark.parametrize(
    ("final", "usd", "censored", "verdict"),
    [(600.0, 0.03, 0, "yes"), (599.0, 0.03, 1, ""), (600.0, 0.04, 1, "")],
)
def test_a_target_that_was_not_reached(final, usd, censored, verdict):
    """What a run has spent by then, or above its budget, does not show what the target takes: no verdict."""
    budget = minionsrl.BUDGETS["Hopper-v4", "authors-0.0003"]
    assert 0.03 < budget < 0.04
    points = [
        point
        for seed in range(5)
        for system, end, cost in ((OWN, 10.0, 0.01), (AZURE, 100.0, 0.2))  # the baseline has no budget
        for point in evaluated(system, seed, end, 400.0, cost, evaluation=600.0)
        if (system, seed) != (OWN, 4)
    ]
    points += evaluated(OWN, 4, 10.0, 700.0, usd, evaluation=final)
    found = claims.findings({"minionsrl-training": points})
    by_name = {claim.claim: claim for claim in claims.claims()}
    for name in ("total training time reduction (up to)", "training cost reduction (up to)"):
        finding, *azure = found[name]
        assert finding.under.startswith("authors' learner with a rate of 0.0003, to the target, against Azure ML")
        assert (finding.seeds, finding.censored, finding.judged) == (5, censored, True)
        assert finding.comparable == (not censored)
        assert claims.verdict(by_name[name], finding) == verdict
        assert [one.under.endswith("as Azure bills") for one in azure] == [True] * ("cost" in name)


def test_a_target_of_training_episodes():
    """Without evaluations the mean of the last episodes tests it; of two pairs only the one that reached it counts."""
    own, azure = "tuned: learned, for time", "tuned: Azure ML"
    one, other = (
        [*run("", seed, 10.0, 600.0, 0.01, setting=own), *run("", seed, 40.0, final, 0.02, setting=azure)]
        for seed, final in ((0, 600.0), (1, 90.0))
    )
    (both,) = claims.findings({"minionsrl-training": one + other})["total training time reduction (up to)"]
    assert both.ours is not None
    assert (both.ours.middle, both.seeds, both.censored) == (pytest.approx(0.75), 2, 1)
    (none,) = claims.findings({"minionsrl-training": other})["total training time reduction (up to)"]
    assert (none.ours, none.comparable) == (None, False)
    (claim,) = (claim for claim in claims.claims() if claim.claim == "total training time reduction (up to)")
    assert claims.verdict(claim, none) == ""


def test_up_to_is_the_greatest_of_the_environments():
    """Of those that can be judged, by bill; other claims have no greatest."""
    (claim,) = (claim for claim in claims.claims() if claim.claim == "training cost reduction (up to)")

    def finding(environment, middle, under="Eq. 2", judged=True, censored=0):
        return claims.Finding(estimate([middle] * 5), environment, under, 5, judged, None, "", censored)

    found = [finding("A", 0.2), finding("B", 0.6), finding("C", 0.9, judged=False), finding("D", 0.9, censored=1)]
    found += [finding("A", 0.1, "Azure")]
    best = claims.greatest(claim, found)
    assert {under: one.environment for under, one in best.items()} == {"Eq. 2": "B", "Azure": "A"}
    assert claims.greatest(claim._replace(claim="training cost reduction"), found) == {}


def test_committed_measurements():
    """By hand, from the tables; the documentation says the same of the replay, and the notes of the sweeps."""
    root = Path(__file__).parents[3]
    results, docs = root / "experiments" / "results", (root / "docs" / "benchmarks.md").read_text()
    (measured,) = claims.committed().values()
    against = {row["what"]: row for row in rows(results / "benchmarks" / "replay.csv")}
    assert [one.environment for one in measured] == ["steps", "frames"]
    for one in measured:
        row = against[f"{one.environment}: trajectories/s against Reverb"]
        ours, theirs = (float(row[side].replace(",", "")) for side in ("measured", "against"))
        assert one.ours.middle == pytest.approx(ours / theirs, rel=1e-3)
        assert f"| {row['what']} | {row['measured']} | {row['against']} |" in docs
    sweep = rows(results / "small" / "stellaris-demo-sweeps" / "table.csv")
    overhead = {row["testbed"]: float(row["return at equal time"].split()[0]) for row in sweep}
    (claim,) = (claim for claim in claims.claims() if claim.claim == REWARD)
    assert f"the ratio is {overhead['overhead 1']:.2f}, with 10 s {overhead['overhead 10']:.2f} (" in claim.note


def test_nothing_was_run():
    assert claims.findings({}) == {}
    assert claims.findings({"stellaris-training": run("stellaris", 0, 1.0, 1.0, 1.0)}) == {}
    assert {one.claim for one in claims.COMPARISONS} <= {claim.claim for claim in claims.claims()}
    assert {claim.paper for claim in claims.claims()} == {"Stellaris", "MinionsRL", "GEAR"}
    assert all(np.isfinite(claim.value) for claim in claims.claims())


def test_what_is_said_of_table_2_is_in_it():
    """USD per hour and reductions, from the paper's Table 2."""
    path = Path(minionsrl.__file__).parents[1] / "figures" / "minionsrl" / "minionsrl_table2.csv"
    table = {
        (row["environment"], row["baseline"]): (float(row["time_s"]), float(row["cost_usd"])) for row in rows(path)
    }
    hourly = {of: round(3600 * cost / time) for of, (time, cost) in table.items()}
    of_azure = {environment: usd for (environment, baseline), usd in hourly.items() if baseline == "Azure ML"}
    note = {claim.claim: claim.note for claim in claims.claims()}
    low, high = min(of_azure, key=of_azure.__getitem__), max(of_azure, key=of_azure.__getitem__)
    said = f"Azure ML costs {of_azure[low]} USD per hour on {low} and {of_azure[high]} on {high}"
    assert said in note["training cost reduction (up to)"]
    said = f"Max costs {hourly['Hopper', 'MinionsRL-Max']} on Hopper and {hourly['Qbert', 'MinionsRL-Max']} on Qbert"
    assert said in note["training cost reduction (up to)"]
    saved = {of: 1 - table[of, "MinionsRL"][1] / table[of, "MinionsRL-Max"][1] for of in ("Hopper", "Qbert")}
    said = f"{100 * saved['Hopper']:.0f} % on Hopper and {100 * saved['Qbert']:.0f} % on Qbert"
    assert said in note["cost reduction against MinionsRL-Max (up to)"]
