"""The papers' claims, and the findings of the studies on them."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from experiments.figures.minionsrl import training
from experiments.report import recorded
from experiments.report.recorded import Points, Run, mean_ratio, return_ratio
from experiments.tasks import minionsrl
from experiments.toolkit import output
from experiments.toolkit.statistics import Estimate, estimate, ratio

#: A claim is judged only if the baseline reaches this fraction of the tuned baseline's return at equal steps.
ENOUGH = 0.7
_RESULTS = Path(__file__).parents[1] / "results"
#: Runs of the tuned synchronous system over a million steps, which give the tuned baseline's return.
_LONG = _RESULTS / "hopper" / "curves.csv"
#: The rows of `benchmarks replay`.
_REPLAYED = _RESULTS / "benchmarks" / "replay.csv"


class Claim(NamedTuple):
    """A claim of a paper."""

    paper: str
    claim: str
    workload: str
    unit: str
    value: float
    source: str
    note: str  #: why our result differs, if that is known.


class Comparison(NamedTuple):
    """A test of a claim: two variants of a study, paired by seed."""

    claim: str
    study: str
    baseline: str  #: name of the baseline's variant.
    under: str  #: words for the settings and the bill, which the table shows.
    compare: Callable[[Run, Run], float]
    own: str = "stellaris"  #: name of the variant that the claim is about.
    same: str = ""  #: name of a variant that computes what the baseline computes; their returns are pooled.
    targets: Mapping[str, float] = MappingProxyType({})  #: the return to reach, by environment.
    budgets: Mapping[str, float] = MappingProxyType({})  #: the most USD of the own runs, by environment.


class Finding(NamedTuple):
    """The measurement of a claim on one environment."""

    ours: Estimate | None  #: None if no pair of runs can be compared.
    environment: str
    under: str  #: settings and bill.
    seeds: int
    judged: bool  #: whether the baseline has learned enough to judge the claim.
    returns: Estimate | None  #: ratio of the final returns: a cost may be saved at a lower return.
    command: str
    censored: int = 0  #: number of seeds for which either system missed the target return within its budget.

    @property
    def comparable(self) -> bool:
        """Whether both systems reached the target with every seed, if there is one."""
        return self.ours is not None and not self.censored


def claims() -> list[Claim]:
    """Reads the papers' claims from `claims.csv` in this package."""
    rows = output.read_rows(Path(__file__).with_name("claims.csv"))
    return [Claim(**{**row, "value": float(row["value"])}) for row in rows]  # type: ignore[arg-type]


def verdict(claim: Claim, finding: Finding) -> str:
    """Returns whether a claim was reproduced, or "" if that cannot be judged.

    A claim cannot be judged with too few seeds for an interval, with a baseline that has not learned, or with runs that
    missed the target: their cost is less than the cost of reaching it. Otherwise the claim is reproduced if our
    interval reaches the paper's value and excludes the value of no effect. If a cost was saved at a lower return, the
    verdict says so.
    """
    ours = finding.ours
    if ours is None or not finding.judged or not ours.claim or finding.censored:
        return ""
    if ours.high < claim.value:
        return "no"
    nothing = 1.0 if claim.unit == "ratio" else 0.0
    if ours.low <= nothing:
        return "unclear"
    less = claim.unit != "ratio" and finding.returns is not None and finding.returns.high < 1
    return "yes, at a lower return" if less else "yes"


def greatest(claim: Claim, found: Sequence[Finding]) -> dict[str, Finding]:
    """Returns the finding with the greatest middle over the environments, by settings and bill, of an "up to" claim.

    Such a claim is about the best of several environments, so only the greatest of ours can be judged. Environments
    without a verdict, for example because a run missed the target, are left out.
    """
    best: dict[str, Finding] = {}
    for finding in found:
        if "(up to)" in claim.claim and finding.comparable and finding.judged and finding.ours is not None:
            known = best.get(finding.under)
            if known is None or known.ours is None or finding.ours.middle > known.ours.middle:
                best[finding.under] = finding
    return best


def tuned(environment: str, steps: float) -> float:
    """Returns the tuned synchronous baseline's median return after `steps` steps; infinite if it is not known."""
    runs = recorded.runs(output.read_rows(_LONG), environment, "synchronous").values()
    reached = [np.interp(steps, run["steps"], run["episode_return"], right=np.inf) for run in runs]
    return float(np.median(reached)) if reached else np.inf


def findings(points: Mapping[str, Points]) -> dict[str, list[Finding]]:
    """Returns the findings of the studies' curves, by claim.

    Args:
      points: the curves of each finished study, by its name.

    Raises:
      ValueError: if a study's curves lack a column or a number; the message names the file.
    """
    found: dict[str, list[Finding]] = {}
    for comparison in COMPARISONS:
        try:
            of = _compared(comparison, points.get(comparison.study, ()))
        except (LookupError, ValueError, TypeError) as error:
            raise ValueError(f"{comparison.study}/curves.csv is damaged or cut off: {error}") from error
        if of:
            found.setdefault(comparison.claim, []).extend(of)
    return found


def _compared(comparison: Comparison, rows: Points) -> list[Finding]:
    """Returns one finding per environment."""
    found = []
    for environment in dict.fromkeys(row["environment"] for row in rows):
        own, baseline = (recorded.runs(rows, environment, name) for name in (comparison.own, comparison.baseline))
        both = sorted(own.keys() & baseline.keys())
        if not both:
            continue
        same = recorded.runs(rows, environment, comparison.same)
        baseline = {seed: recorded.pooled(baseline[seed], [same[seed]] if seed in same else ()) for seed in both}
        target = comparison.targets.get(environment)
        budget = comparison.budgets.get(environment, math.inf)
        # If a run missed the target, its spending does not show how much reaching the target costs.
        reached = [
            seed
            for seed in both
            if target is None or (_reached(own[seed], target, budget) and _reached(baseline[seed], target))
        ]
        ratios = [comparison.compare(own[seed], baseline[seed]) for seed in reached]
        finals = [_tested(baseline[seed]) for seed in both]
        returns = [ratio(own[seed]["episode_return"][-1], baseline[seed]["episode_return"][-1]) for seed in both]
        learned = tuned(environment, baseline[both[0]]["steps"][-1]) if target is None else target
        enough = ENOUGH * learned
        finding = Finding(
            estimate(ratios) if ratios else None,
            environment,
            comparison.under,
            len(both),
            judged=float(np.median(finals)) >= enough,
            returns=estimate(returns),
            command=f"python -m experiments {comparison.study} --env {environment}",
            censored=len(both) - len(reached),
        )
        found.append(finding)
    return found


def _reached(run: Run, target: float, budget: float = math.inf) -> bool:
    """Whether a run ended at the target, within the budget in USD by Eq. 2."""
    return bool(_tested(run) >= target and run["cost_pay_per_use"][-1] <= budget)


def _tested(run: Run) -> float:
    """Returns the last return by which the target is tested: that of evaluations if a run has any."""
    return float(run.get("evaluation_return", run["episode_return"])[-1])


def committed() -> dict[str, list[Finding]]:
    """Returns findings for the claims that no study measures, by claim, from tables committed in the repository."""
    found: dict[str, list[Finding]] = {}
    for row in output.read_rows(_REPLAYED):
        load, colon, against = row["what"].partition(":")
        if colon and against.endswith("against Reverb"):
            command = "python -m experiments benchmarks replay"
            finding = Finding(estimate([float(row["ratio"])]), load, "1 run", 1, True, None, command)
            found.setdefault(_REPLAY, []).append(finding)
    return found


def _saved(bill: str) -> Callable[[Run, Run], float]:
    """Returns the function that computes the saved fraction of the baseline's cost under a bill."""
    return lambda own, other: float(1 - own[bill][-1] / other[bill][-1])


def _faster(own: Run, other: Run) -> float:
    """Returns the saved fraction of the baseline's time."""
    return float(1 - own["seconds"][-1] / other["seconds"][-1])


_SAVED_BY_USE, _SAVED, _SAVED_AZURE = (_saved(f"cost_{bill}") for bill in ("pay_per_use", "demo", "azure"))
REWARD = "episodic reward against the baselines at equal wall-clock time"
COST = "training cost reduction against the baselines"


#: Synchronous PPO on reserved machines and on functions: their returns are pooled.
_SAME = {"synchronous": minionsrl.MAX, minionsrl.MAX: "synchronous"}


def _tuned(claim: str, baseline: str, what: str, compare: Callable[[Run, Run], float]) -> Comparison:
    """Returns a comparison of tuned Stellaris to one of the two deployments of tuned synchronous PPO.

    `what` names the bill, or the outcome.
    """
    against = "" if baseline == "synchronous" else f", against {baseline}"
    return Comparison(claim, "stellaris-training", baseline, f"tuned{against}{what}", compare, same=_SAME[baseline])


def _minions(claim: str, baseline: str, bill: str, compare: Callable[[Run, Run], float]) -> list[Comparison]:
    """Returns comparisons of MinionsRL's trained scheduler to a baseline up to the target, one for each testbed."""
    name = str(training.ALL) if baseline == minionsrl.MAX else baseline
    return [
        Comparison(
            claim,
            "minionsrl-training",
            f"{testbed}: {name}",
            f"{learner}, to the target, against {baseline}{bill}",
            compare,
            f"{testbed}: {scheduler}",
            targets=minionsrl.TARGETS,
            budgets={environment: usd for (environment, of), usd in minionsrl.BUDGETS.items() if of == testbed},
        )
        for testbed, (learner, scheduler) in _LEARNERS.items()
    ]


#: The testbeds whose schedulers are compared, with the names of their learners and schedulers.
_LEARNERS = {
    "tuned": ("tuned learner", training.LEARNED),
    "authors": ("authors' learner", training.LEARNED),
    "authors-0.0003": ("authors' learner with a rate of 0.0003", training.FINE_TUNED),
}
_MINIONS_TIME, _MINIONS_COST = "total training time reduction (up to)", "training cost reduction (up to)"
_MINIONS_MAX = "cost reduction against MinionsRL-Max (up to)"
_REPLAY = "trajectory throughput against Reverb (up to)"
_HPC_REWARD, _HPC_COST = "episodic reward against PAR-RL", "training cost reduction against PAR-RL"
#: The words for a ratio of mean returns over the run, and not of those at its end.
MEAN = ", mean over the run"
COMPARISONS = (
    _tuned(REWARD, "synchronous", "", return_ratio),
    _tuned(REWARD, "synchronous", MEAN, mean_ratio),
    Comparison(REWARD, "stellaris-motivation", "synchronous", "the demo's settings", return_ratio),
    Comparison(REWARD, "stellaris-motivation", "synchronous", f"the demo's settings{MEAN}", mean_ratio),
    _tuned(REWARD, minionsrl.MAX, "", return_ratio),
    _tuned(REWARD, minionsrl.MAX, MEAN, mean_ratio),
    _tuned(COST, "synchronous", ", by use", _SAVED_BY_USE),
    _tuned(COST, minionsrl.MAX, ", by use", _SAVED_BY_USE),
    _tuned(COST, "synchronous", ", demo's bill", _SAVED),
    Comparison(COST, "stellaris-motivation", "synchronous", "the demo's settings, by use", _SAVED_BY_USE),
    Comparison(COST, "stellaris-motivation", "synchronous", "the demo's settings, demo's bill", _SAVED),
    Comparison(_HPC_REWARD, "stellaris-hpc", "PAR-RL", "960 cores, 16 GPUs", return_ratio),
    Comparison(_HPC_REWARD, "stellaris-hpc", "PAR-RL", f"960 cores, 16 GPUs{MEAN}", mean_ratio),
    Comparison(_HPC_COST, "stellaris-hpc", "PAR-RL", "960 cores, 16 GPUs, by use", _SAVED_BY_USE),
    Comparison(_HPC_COST, "stellaris-hpc", "PAR-RL", "960 cores, 16 GPUs, demo's bill", _SAVED),
    *_minions(_MINIONS_TIME, minionsrl.AZURE, "", _faster),
    *_minions(_MINIONS_TIME, minionsrl.IMPACT, "", _faster),
    *_minions(_MINIONS_COST, minionsrl.AZURE, ", Eq. 2", _SAVED_BY_USE),
    *_minions(_MINIONS_COST, minionsrl.AZURE, ", as Azure bills", _SAVED_AZURE),
    *_minions(_MINIONS_COST, minionsrl.IMPACT, ", Eq. 2", _SAVED_BY_USE),
    *_minions(_MINIONS_COST, minionsrl.IMPACT, ", as Azure bills", _SAVED_AZURE),
    *_minions(_MINIONS_MAX, minionsrl.MAX, ", Eq. 2", _SAVED_BY_USE),
    *_minions(_MINIONS_MAX, minionsrl.MAX, ", as Azure bills", _SAVED_AZURE),
)
