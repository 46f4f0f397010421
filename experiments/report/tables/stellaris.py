"""The tables of results on Stellaris."""

from collections.abc import Mapping

from experiments.report import claims
from experiments.report.tables.results import REPLAYED, estimated, first, middle, paired, rounded, rows, runs
from experiments.report.tables.table import Table
from experiments.toolkit.statistics import Estimate

HOPPER, WALKER = "Hopper-v4", "Walker2d-v4"
#: The end of the names of `stellaris-why`'s variants without overhead.
WITHOUT = ", 0 s"
#: Stellaris without one of its parts, by the names of the ablation's variants.
_PARTS = {
    "Stellaris": "Stellaris as tuned",
    "one learner": "one learner, with a GPU to itself",
    "no cap": "without the cap",
    "no aggregation": "gradients applied on arrival",
    "neither": "on arrival, without the cap",
}
#: The systems of `stellaris-training`, where their names in it say too little.
_SYSTEMS = {
    "synchronous": "synchronous PPO",
    "asynchronous actors": "asynchronous actors, IMPALA",
    "stellaris": "Stellaris, PPO",
    "MinionsRL-Max": "MinionsRL-Max: synchronous PPO on functions",
    "asynchronous actors, shared rate": "asynchronous actors, IMPALA, at the shared rate",
    "IMPACT, shared rate": "IMPACT, at the shared rate",
}


# ---- the claims ------------------------------------------------------------------------------------------------------


def claimed() -> Table:
    """Returns the claims on the tuned systems, with verdicts on Hopper-v4."""
    found = claims.findings({"stellaris-training": rows("small/stellaris-training/curves.csv")})
    of = {
        (claim.claim, finding.under, finding.environment): (claim, finding)
        for claim in claims.claims()
        for finding in found.get(claim.claim, ())
    }
    lines = []
    for label, key in {
        "reward against synchronous PPO at equal time": (claims.REWARD, "tuned"),
        "the same, in the mean over the run": (claims.REWARD, f"tuned{claims.MEAN}"),
        "cost saved by use, at equal steps": (claims.COST, "tuned, by use"),
        "the same against MinionsRL-Max": (claims.COST, "tuned, against MinionsRL-Max, by use"),
        "cost saved under the demo's own bill": (claims.COST, "tuned, demo's bill"),
    }.items():
        claim, hopper = of[(*key, HOPPER)]
        both = hopper.ours, of[(*key, WALKER)][1].ours
        assert both[0] is not None  # both runs of a pair have as many steps, so all pairs are compared
        assert both[1] is not None
        if claim.unit == "ratio":
            ours = (f"{claim.value:g}", f"{both[0]:.2f}", f"{both[1]:.2f}")
        else:
            less = f", for {hopper.returns:.2f} times the return"
            ours = (f"{claim.value:.0%}", _percent(both[0]) + less, _percent(both[1]))
        paper, on_hopper, on_walker = (text.replace("%", " %") for text in ours)
        lines.append((label, paper, on_hopper, claims.verdict(claim, hopper), on_walker))
    return Table(("claim of Stellaris, tuned", "paper", HOPPER, "reproduced?", WALKER), lines, left=("reproduced?",))


def _percent(of: Estimate) -> str:
    return f"{of.middle:.0%} ({100 * of.low:.1f} to {100 * of.high:.1f})"


# ---- the demo's settings ---------------------------------------------------------------------------------------------


def ladder(suffix: str = "") -> Table:
    """Returns the ratios of `stellaris-why` to its baseline; `suffix` ends the names of the variants to show."""
    returns = ("/ row before", "return, equal time", "mean until then", "by evaluation", "equal steps")
    lines = []
    for row in rows("small/stellaris-why/table.csv"):
        name = row["with"].removesuffix(WITHOUT)
        if row["with"] == f"{name}{suffix}" and name != "baseline":
            spent = (rounded(row[column], 3) for column in ("virtual time", "by use"))
            lines.append((name, *(rounded(row[column]) for column in returns), *spent))
    return Table(("with", *returns, "time, and demo's bill", "by use"), lines)


# ---- tuned systems ---------------------------------------------------------------------------------------------------


def training() -> Table:
    """Returns the returns and the costs of the tuned systems."""
    walker = runs("small/stellaris-training", WALKER)
    target = {row["system"]: row for row in rows("small/stellaris-cost/table.csv") if row["environment"] == HOPPER}
    lines = []
    for name, of in runs("small/stellaris-training", HOPPER).items():
        lines.append(
            (
                _SYSTEMS.get(name, name),
                f"{estimated(of, 'final_return'):,.0f}",
                f"{estimated(of, 'mean_return'):,.0f}",
                f"{middle(of, 'virtual_seconds'):.0f}",
                f"{middle(of, 'cost_demo'):.3f}",
                f"{middle(of, 'cost_pay_per_use'):.3f}",
                to_target(target[name]) if name in target else "",
                f"{estimated(walker[name], 'final_return'):,.0f}",
            )
        )
    to = f"by use up to {target['synchronous']['target']}"
    return Table(
        ("system", HOPPER, "mean over the run", "virtual s", "USD, demo's bill", "USD by use", to, WALKER), lines
    )


def to_target(row: Mapping[str, str]) -> str:
    """Returns the cost up to the target if all runs reached it, otherwise how many did.

    The cost of the runs that reached it would flatter a system, whose slowest runs are left out.

    Example:
      >>> to_target({"reached": "5 of 5", "USD by use to the target": "0.03908 (0.0315 to 0.04062)"})
      '0.039 (0.032 to 0.041)'
      >>> to_target({"reached": "4 of 5", "USD by use to the target": "0.03908 (0.0315 to 0.04062)"})
      'reached by 4 of 5'
    """
    reached, seeds = row["reached"].split(" of ")
    return rounded(row["USD by use to the target"], 3) if reached == seeds else f"reached by {row['reached']}"


def parts() -> Table:
    """Returns what the parts of Stellaris change."""
    lines = [
        (
            _PARTS.get(name, name),
            f"{estimated(of, 'final_return'):,.0f}",
            f"{estimated(of, 'mean_return'):,.0f}",
            f"{middle(of, 'virtual_seconds'):.0f}",
            f"{middle(of, 'staleness_mean'):.1f}",
            f"{middle(of, 'cost_pay_per_use'):.3f}",
        )
        for name, of in runs("small/stellaris-ablation", HOPPER).items()
    ]
    headings = ("Hopper-v4, 300,000 steps", "return", "mean over the run", "virtual s", "staleness", "USD by use")
    return Table(headings, lines)


def aggregators() -> Table:
    """Returns the aggregators' returns, also on the schedule of Stellaris' own run."""
    labels = {
        "Stellaris": "staleness-aware, a group's gradients one after the other",
        "its mean step": "the same, a group's mean as one step",
        "softsync(2)": "softsync of 2",
        "stale-synchronous(2)": "stale-synchronous, 2 clocks apart",
        "fully asynchronous": "fully asynchronous",
        "synchronous": "synchronous, four learners",
    }
    groups = runs("small/stellaris-aggregators", HOPPER)
    lines = []
    for name, of in groups.items():
        if name.endswith(REPLAYED):
            continue
        same = groups.get(f"{name}{REPLAYED}")
        lines.append(
            (
                labels.get(name, name),
                f"{estimated(of, 'final_return'):,.0f}",
                f"{estimated(of, 'mean_return'):,.0f}",
                f"{estimated(same, 'final_return'):,.0f}" if same else "",
                f"{middle(of, 'virtual_seconds'):.0f}",
                f"{middle(of, 'staleness_mean'):.1f}",
            )
        )
    return Table(("aggregator", "return", "mean over the run", "return, replayed", "virtual s", "staleness"), lines)


def parts_on_further_seeds() -> Table:
    """Returns the mean return over the run of the parts on ten seeds, and Stellaris' ratios to them.

    Ratios are those of all seeds, paired by seed, and beside them those of the further seeds alone.
    """
    before, further = (runs(f"small/stellaris-ablation{which}", HOPPER) for which in ("", "/more"))
    together = {name: [*before[name], *of] for name, of in further.items()}
    lines = [
        (
            _PARTS.get(name, name),
            f"{estimated(together[name], 'mean_return'):,.0f}",
            *(
                "1.00" if name == "Stellaris" else f"{paired(groups['Stellaris'], groups[name], column):.2f}"
                for column in ("mean_return", "final_return")
                for groups in (together, further)
            ),
        )
        for name in further
    ]
    seeds, new = (len(groups["Stellaris"]) for groups in (together, further))
    alone = f"of the {new} new seeds"
    ratios = ("ratio of Stellaris' to it", alone, "ratio of returns at the end", alone)
    return Table((f"Hopper-v4, {seeds} seeds", "mean over the run", *ratios), lines)


def million_steps() -> Table:
    """Returns return and time of the tuned systems after a million steps of Hopper-v4."""
    labels = {
        "synchronous": "`Synchronous`, PPO",
        "stellaris": "`Stellaris`, PPO",
        "IMPACT": "`CircularReplay`, IMPACT",
        "asynchronous actors": "`AsynchronousActors`, IMPALA",
    }
    lines = [
        (
            labels.get(name, name),
            f"{estimated(of, 'final_return'):,.0f}",
            f"{estimated(of, 'mean_return'):,.0f}",
            f"{estimated(of, 'virtual_seconds').middle:.0f}",
        )
        for name, of in runs("hopper", HOPPER).items()
    ]
    of = {(row["environment"], row["system"]): row["return"] for row in rows("small/stellaris-training/table.csv")}
    untrained = f"{first(of[HOPPER, 'untrained']):.0f}"
    return Table(("", "return", "mean over the run", "virtual seconds"), [*lines, ("untrained", untrained, "", "")])


# ---- bodies on this machine ------------------------------------------------------------------------------------------


def calibration() -> Table:
    """Returns the median times of two bodies on this machine, and the factors to the testbed's times."""
    cells: dict[str, list[str]] = {}
    for row in rows("small/stellaris-calibration/table.csv"):
        if not row["body"].startswith("parameter"):
            cells.setdefault(row["environment"], []).extend((f"{row['median, ms']} ms", row["factor"]))
    headings = ("", "fragment of 256 steps", "testbed's 256 ms", "a gradient", "testbed's 10 ms")
    return Table(headings, [(environment, *of) for environment, of in cells.items()])
