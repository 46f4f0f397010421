"""The answers of `lab-language` on stable rates, lags that vary and AReaL's dip are those of the committed tables."""

import json
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from experiments.figures.lab.outcomes import interval
from experiments.figures.lab.stability import NEITHER
from tests.experiments.committed import RESULTS, missing
from tests.experiments.csv_rows import rows

PAGE = "docs/results/lab-language.md"
OWN = RESULTS / "lab-language"
NONE = "no correction"


def outcomes(part, *names, updates="600"):
    """The shares of exact answers above the untrained policy's, in the order of the seeds, by some columns."""
    floor, found = float(rows(OWN / "lags.csv")[0]["untrained"]), {}
    for row in rows(OWN / f"{part}.csv"):
        if row["updates"] == updates:
            found.setdefault(tuple(row[name] for name in names), []).append(float(row["final_exact"]) - floor)
    return {key: np.array(values) for key, values in found.items()}


def test_the_runs():
    counts = {part: len(rows(OWN / f"{part}.csv")) for part in ("lags", "patterns", "border", "dip")}
    assert {json.loads((OWN / f"provenance_{part}.json").read_text())["commit"][:7] for part in [*counts][1:]} == {
        "c7ebff8"
    }
    names = ("method", "lag", "learning_rate")
    lags, border = outcomes("lags", *names), outcomes("border", *names)
    both = [cell for cell in border if cell in lags]
    (low, high), (other_low, other_high) = (interval(np.array([of[cell] for cell in both])) for of in (lags, border))
    overlap = int(((low <= other_high) & (other_low <= high)).sum())
    apart = np.mean([lags[cell].mean() - border[cell].mean() for cell in both])
    assert not missing(
        PAGE,
        f"{counts['lags']:,} runs of 600 updates. `patterns` has {counts['patterns']:,} runs with lags that vary, "
        f"`border` {counts['border']:,} of three lengths with learning rates up to 0.2, and `dip` {counts['dip']} with "
        f"{len({row['seed'] for row in rows(OWN / 'dip.csv')})} seeds.",
        "the other parts were run later on the same day, 2026-11-26, on an H100 at commit c7ebff8.",
        f"`border` repeats {10 * len(both)} runs of `lags`, in {len(both)} cells of ten seeds: "
        f"the mean outcomes of both differ by {apart:.3f}, and the intervals overlap in {overlap}.",
    )
    assert not missing("docs/registrations/lab-language.md", "on an NVIDIA H100 at commit c7ebff8")


def test_the_overview():
    """Which corrections have the most at 64 and at 256 updates, and which intervals are apart."""
    of = {
        lag: {
            row["method"]: [float(row[name]) for name in ("outcome", "low", "high")]
            for row in rows(OWN / "best.csv")
            if row["lag"] == lag
        }
        for lag in ("64", "256")
    }
    weights, short = ("AReaL", "TIS, tokens", "IcePop", "CISPO"), ("M2PO", "TOPR")
    others = {name for name in of["64"] if name not in weights}
    assert all(of["64"][one][0] > of["64"][other][0] for one in weights for other in others)
    assert all(of["64"][one][1] < of["64"][other][2] for one, other in (("AReaL", "M2PO"), ("CISPO", "TOPR")))
    assert min(of["64"][one][1] for one in weights) < min(of["64"][other][2] for other in short)
    assert max(of["64"][one][1] for one in weights) < min(of["64"][other][2] for other in short) + 0.001
    assert all(of["256"][one][1] > of["256"][other][2] for one in weights[:3] for other in {*others, "CISPO"})
    assert not missing(
        "docs/results.md",
        "at 8 to 32 M2PO and TOPR are; at 64 a truncated or masked weight for each token has the most, with intervals "
        "that overlap or nearly touch theirs; at 256 AReaL, TIS and IcePop are above all others",
    )


def test_the_border_of_stability():
    """The answer, and each sentence about stable rates and slopes."""
    slopes = rows(OWN / "q1.csv")
    assert {row["verdict"] for row in slopes} == {NEITHER}
    each = {(row["method"], row["against"], row["at"]): row["says"] for row in slopes if row["at"] != "mean"}
    assert {says for (_, against, _), says in each.items() if against == "S"} == {"flat", "between"}
    assert {at for (_, against, at), says in each.items() if (against, says) == ("T", "steep")} == {"S = 64"}
    assert {at: says for (_, against, at), says in each.items() if against == "T" and at != "S = 64"} == dict.fromkeys(
        ("S = 1", "S = 4", "S = 16"), "flat"
    )
    cells = {(row["method"], row["updates"], row["lag"]): row for row in rows(OWN / "stable.csv")}
    rate = {cell: row["largest_stable_rate"] for cell, row in cells.items()}
    (grpo,) = {rate["GRPO", updates, lag] for updates in ("300", "600") for lag in ("1", "4", "16", "64")}
    first, last = ({rate[NONE, updates, lag] for updates in ("300", "600")} for lag in ("1", "64"))
    corner = float(cells["GRPO", "150", "64"]["best_outcome"])
    assert not missing(
        PAGE,
        f"GRPO's largest stable rate is {grpo} at every lag from 1 to 64 in runs of 300 and 600 updates,",
        "where S·η would divide it by 64.",
        "No slope against S is steep, that is, has an interval below -0.5. Against T those at a lag of 64 are steep, "
        "and those at 1 to 16 include 0. The corner of T = 150 and S = 64 says little:",
        f"it falls from {first.pop()} to {last.pop()} in these runs, by one step of the grid.",
        f"GRPO's best outcome there is {corner:.2f}.",
    )
    assert not first | last


def test_collapses():
    own = [row for row in rows(OWN / "q2.csv") if row["runs"] == "that had learned"]
    assert {row["verdict"] for row in own} == {"does not foretell", "none collapsed"}
    (level,) = (row for row in own if row["method"] == "all" and row["sign"].startswith("below"))
    assert float(level["share"]) > 0.95
    assert 0.45 < float(level["others_share"]) < 0.5
    assert not missing(
        PAGE, "before nearly every collapse, and in nearly half of the runs that did not collapse as well."
    )


def place(row, kind):
    """Whether the interval of the ratio to the constant lag's outcome lies above 1, below it, or around it."""
    low, high = (float(row[f"{kind}_{end}"]) for end in ("low", "high"))
    return "above" if low > 1 else "below" if high < 1 else "level"


def test_lags_that_vary():
    """The answers, and the sentences about their directions and sizes."""
    own = {(row["method"], row["mean_lag"]): row for row in rows(OWN / "q4.csv")}
    assert len(own) == 10
    assert [case for case, row in own.items() if row["verdict"] == "agree"] == [("TIS, tokens", "32")]
    differ = [row for row in own.values() if row["verdict"] == "differ"]
    assert len(differ) == 9
    assert {place(row, "maximum") for row in differ} == {"above"}
    gains = [100 * (float(row["maximum"]) - 1) for row in differ]
    sawtooth = {case: place(row, "sawtooth") for case, row in own.items()}
    assert Counter(sawtooth.values()) == {"level": 7, "below": 2, "above": 1}
    assert [sawtooth[case] for case in ((NONE, "8"), ("GRPO", "32"), ("GRPO", "8"))] == ["below", "below", "above"]
    wide = {
        case
        for case, row in own.items()
        for kind in ("sawtooth", "maximum")
        if float(row[f"{kind}_low"]) < 0.8 or float(row[f"{kind}_high"]) > 1.25
    }
    assert wide == {(NONE, "8"), (NONE, "32"), ("GRPO", "32")}
    age = {
        (row["kind"], row["lag"]): f"{float(row['measured_lag']):.1f}"
        for part in ("lags", "patterns")
        for row in rows(OWN / f"{part}.csv")
    }
    assert not missing(
        PAGE,
        "agree in one case of ten, TIS of tokens at a mean of 32, and differ in nine.",
        f"is above the constant lag's, by {min(gains):.0f} to {max(gains):.0f} %, although the drawn lags were",
        f"(measured means {age['maximum', '8']} and {age['maximum', '32']}, against {age['constant', '8']} and "
        f"{age['constant', '32']}).",
        "it is below the constant lag's without a correction at 8, and for GRPO at 32, and above it for GRPO at 8; the "
        "other seven intervals include 1. Some differences are small: in seven cases both intervals lie within 0.8 to "
        "1.25. The three others are training without a correction at both means, and GRPO at 32.",
    )


def test_the_dip():
    (answer,) = rows(OWN / "q6.csv")
    assert (answer["method"], answer["learning_rate"], answer["seeds"]) == ("GRPO", "0.002", "64")
    assert [float(answer[name]) for name in ("share", "expected", "low", "high")] == [0.0] * 4
    assert answer["verdict"] == "equal"
    of = outcomes("dip", "learning_rate", "lag")
    means = [f"{of['0.002', lag].mean():.2f}" for lag in ("1", "2", "4", "8")]
    lowest = {
        rate: (of[rate, "4"] / np.minimum(of[rate, "2"], of[rate, "8"])).min()
        for rate in ("0.00063", "0.002", "0.0063")
    }
    most = stats.binomtest(0, 64).proportion_ci(method="exact").high
    assert not missing(
        PAGE,
        "*AReaL's dip at a lag of 4* appears in none of 64 seeds, and in none if the lags of a seed are exchanged.",
        f"GRPO's means at 0.002 are {means[0]}, {means[1]}, {means[2]} and {means[3]} at lags 1, 2, 4 and 8.",
        f"No outcome at 4 is less than {lowest.pop('0.002'):.2f} times the lower of its seed's neighbours "
        f"({min(lowest.values()):.2f} times at the other two rates), where a dip needs less than 0.7.",
        f"None of 64 does not exclude a share of up to {most:.3f}.",
    )
    assert most == pytest.approx(1 - 0.025 ** (1 / 64))
