"""The sentences of docs/theory.md have the numbers of the committed results of `python -m theory_checks --json`."""

import json

from experiments.report import pages
from tests.experiments.committed import missing

FOUND = json.loads((pages.ROOT / "theory_checks" / "results.json").read_text())
CLAIMS = {(one["theorem"], one["name"]): one for one in FOUND["claims"]}
PAGE = "docs/theory.md"


def broken(theorem, name):
    """How many drawn instances break a claim, and their number."""
    of = CLAIMS[theorem, name]
    return of["violations"], of["instances"]


def ends(numbers):
    """The numbers of least and greatest magnitude, to two decimals."""
    low, high = (f"{of(numbers):.2f}" for of in (max, min))
    return f"{low} to {high}"


def test_claims():
    assert all(one["as_expected"] for one in CLAIMS.values())
    controls = sum(one["control"] for one in CLAIMS.values())
    assert not missing(
        PAGE,
        f"tests {len(CLAIMS) - controls} bounds of the papers, and {controls} claims that are false and must break",
    )


def test_rho():
    beyond, runs = broken("update", "the cap bounds the next policy")
    worse, _ = broken("update", "the default improves: J(pi') >= J(mu)")
    assert not missing(
        PAGE,
        f"In {beyond:,} of {runs:,} simulated asynchronous runs",
        f"at rho = 1 some update ended below the sampling policy in {worse} runs.",
    )
    capped, free = (FOUND["findings"]["update"][f"rho {rho}"]["max pi'/mu, 90 %"] for rho in ("1", "inf"))
    second = "{:,} of {:,}".format(*broken("truncation", "the constant's bound for the global cap"))
    assert not missing(
        PAGE,
        f"nine of ten updates stay within {capped:.1f} times the sampling policy at rho = 1, and within {free:.1f} "
        "without any cap",
        f"The global cap does not ({second} instances exceed rho).",
    )


def test_the_improvement_bound():
    count, of = broken("improvement, discount <= 0.6", "printed, S < 0")
    largest = FOUND["findings"]["improvement"]
    *first, last = (f"{100 * (1 - ratio):.0f}" for ratio in largest["largest left/right of log rho"].values())
    sharp = max(100 * (1 - ratio) for ratio in largest["largest left/right of 1 - 1/rho"].values())
    assert not missing(
        PAGE,
        f"a negative surrogate, {100 * count / of:.0f} % break the bound.",
        f"the adversary gets within {sharp:.0f} % of it at every discount from 0.1 to 0.99; of the form in log rho it "
        f"stays {', '.join(first)} and {last} % short at discounts of 0.1, 0.5, 0.9 and 0.99.",
    )


def test_staleness_and_updates():
    found = FOUND["findings"]["convergence"]
    _, one, three, seven = found["T/k from which the slides' constant holds on quadratics, constant delay"].values()
    _, two, fifty = found["largest constant staleness at which it holds with weights"].items()
    assert not missing(
        PAGE,
        f"the rate starts to hold at T/k = {one:.1f}, {three:.0f} and {seven:.0f} for tau = 1, 3 and 7.",
        f"for v = 1 (Zhang et al. 2016), {two[1]} for v = 2 and {fifty[1]} for v = 3.",
    )
    slopes = {
        (kind, of): [found[of][1] for name, found in FOUND["findings"]["rates"].items() if kind in name]
        for kind in ("policy gradient", "not convex")
        for of in "Tb"
    }
    assert not missing(
        PAGE,
        f"of {ends(slopes['policy gradient', 'T'])} and {ends(slopes['policy gradient', 'b'])} for tabular policy "
        f"gradients, and of {ends(slopes['not convex', 'T'])} and {ends(slopes['not convex', 'b'])} on a non-convex "
        "function.",
    )


def test_traces_and_regret():
    count, of = broken("vtrace", "c > max(1, rho): a contraction")
    regret = CLAIMS["ssp, astray", "F from the start alone"]["kappa"]
    assert not missing(
        PAGE,
        f"{100 * count / of:.0f} % of random cases do not contract in the sup norm.",
        f"the regret of instances that are made to mislead exceeds the bound by up to {regret:.1f} times.",
    )
