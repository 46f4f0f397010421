"""The answers of the studies of lags are those of the committed tables: which method, at which lag, above which."""

import json

import numpy as np
import pytest

from tests.experiments.committed import RESULTS, missing
from tests.experiments.csv_rows import rows

PAGE = "docs/results/lab-lag.md"
LANGUAGE_PAGE = "docs/results/lab-language.md"
CARTPOLE, ACROBOT, BREAKOUT = "CartPole", "Acrobot-v1", "Breakout-MinAtar"
NONE = "no correction"


def outcomes(rate, study="lab-lag"):
    """The outcome with its interval, by task, method and lag."""
    return {
        (row["task"], row["method"], int(row["lag"])): tuple(float(row[name]) for name in ("score", "low", "high"))
        for row in rows(RESULTS / study / "curves.csv")
        if row["rate"] == rate
    }


def above(task, one, other, rate="best", study="lab-lag"):
    """The lags at which the interval of one method lies above that of the other."""
    of = outcomes(rate, study)
    lags = sorted({lag for where, _, lag in of if where == task})
    return [lag for lag in lags if of[task, one, lag][1] > of[task, other, lag][2]]


@pytest.mark.parametrize(
    ("task", "one", "other", "lags", "said"),
    [
        (ACROBOT, "IMPACT", "PPO", [4, 8, 16, 32, 64, 128, 256], "from a lag of 4 on Acrobot and 32 on Breakout its"),
        (BREAKOUT, "IMPACT", "PPO", [32, 128], "on Acrobot and 32 on Breakout its outcome is also above PPO's."),
        (CARTPOLE, "PPO", "IMPACT", [1, 2, 4, 8, 16, 32, 64], "On CartPole it is below PPO's from 1 to 64."),
        (BREAKOUT, "decoupled PPO", "PPO", [32, 128], "is above PPO at 32 and 128 on Breakout,"),
        (ACROBOT, "decoupled PPO", "PPO", [16, 32, 128, 256], "at 16, 32, 128 and 256 on Acrobot,"),
        (CARTPOLE, "decoupled PPO", "PPO", [128, 256], "and at 128 and 256 on CartPole."),
        (
            ACROBOT,
            "IMPACT",
            NONE,
            [1, 2, 4, 8, 16, 32, 64, 128],
            "without a correction at lags 1 to 128 of Acrobot and 2 to 128",
        ),
        (BREAKOUT, "IMPACT", NONE, [2, 8, 32, 128], "1 to 128 of Acrobot and 2 to 128 of Breakout,"),
        (CARTPOLE, "PPO", NONE, [0, 1, 4, 8, 16, 32], "PPO's at 0, 1 and 4 to 32 of CartPole."),
        (CARTPOLE, "cap, demo", "cap, theorem", [16, 32, 64, 128, 256], "the theorem's at lags 16 to 256 of CartPole"),
        (BREAKOUT, "cap, demo", "cap, theorem", [2, 8, 32], "and at 2, 8 and 32 of Breakout;"),
        (ACROBOT, "cap, demo", "cap, theorem", [], "on Acrobot their intervals overlap everywhere."),
        (ACROBOT, "cap, theorem", "cap, demo", [], "on Acrobot their intervals overlap everywhere."),
    ],
)
def test_one_method_above_another(task, one, other, lags, said):
    assert above(task, one, other) == lags
    assert not missing(PAGE, said)


def test_half_of_ppos_return():
    """In the overview: the runs of this study, and PPO's second set of runs."""
    first, second = (
        [
            f"{float(row['half']):.0f}"
            for row in rows(RESULTS / study / "half.csv")
            if (row["method"], row["rate"]) == (method, "best")
        ]
        for study, method in (("lab-lag", "PPO"), ("lab-corrections", "PPO, rerun"))
    )
    assert not missing(
        "docs/results.md",
        f"at an age of {first[0]} batches on CartPole, {first[1]} on Acrobot and {first[2]} on Breakout, and in a "
        f"second set of runs at {second[0]}, {second[1]} and {second[2]}.",
    )


def test_no_cap_is_above_ppo():
    for task in (CARTPOLE, ACROBOT, BREAKOUT):
        for cap in ("cap, demo", "cap, theorem"):
            assert not above(task, cap, "PPO")
            assert len(above(task, "PPO", cap)) >= 2
    said = "Neither form lies above PPO at any lag of any task; both lie below it at several."
    assert not missing(PAGE, said)


def test_where_v_trace_starts():
    of = outcomes("best")
    without = [f"{of[CARTPOLE, method, 0][0]:.0f}" for method in ("V-trace", "PPO")]
    assert not missing(PAGE, f"but starts lower, from {without[0]} where PPO has {without[1]}.")


def test_without_a_correction_old_data_are_best_on_cartpole():
    methods = dict.fromkeys(method for _, method, _ in outcomes("best") if method != NONE)
    assert [
        lag for lag in above(CARTPOLE, NONE, "PPO") if all(lag in above(CARTPOLE, NONE, one) for one in methods)
    ] == [
        128,
        256,
    ]
    assert not missing(PAGE, "from a lag of 128 on: training without a correction lies above every other method.")


def test_orders_that_the_rate_reverses():
    """At the best rate one is above the other, and at the shared rate the other above the one."""
    methods = dict.fromkeys(method for _, method, _ in outcomes("best"))
    found = {
        (task, one, other): lags
        for task in (CARTPOLE, ACROBOT, BREAKOUT)
        for one in methods
        for other in methods
        if (lags := sorted({*above(task, one, other)} & {*above(task, other, one, "shared")}))
    }
    assert found == {
        (CARTPOLE, NONE, "V-trace"): [128],
        (CARTPOLE, NONE, "cap, theorem"): [64],
        (CARTPOLE, "cap, demo", "cap, theorem"): [128],
        (BREAKOUT, NONE, "cap, theorem"): [8],
    }
    best, shared = (
        [f"{of[CARTPOLE, method, 128][1]:.0f} to {of[CARTPOLE, method, 128][2]:.0f}" for method in (NONE, "V-trace")]
        for of in (outcomes("best"), outcomes("shared"))
    )
    assert not missing(
        PAGE,
        f"at the best rates, {best[0]} against {best[1]}, and below it at the shared rate, {shared[0]} against "
        f"{shared[1]};",
    )


# ---- the language task -----------------------------------------------------------------------------------------------

LANGUAGE = RESULTS / "lab-language"


def test_which_method_on_the_language_task():
    verdicts = {}
    for row in rows(LANGUAGE / "against.csv"):
        verdicts.setdefault(row["verdict"], {}).setdefault(row["method"], []).append(int(row["lag"]))
    beats = verdicts["beats"]
    assert {method for method, lags in beats.items() if min(lags) <= 8} == {"M2PO", "TOPR"}
    weights = ("AReaL", "TIS, tokens", "IcePop", "CISPO")
    assert all({16, 32, 64, 256} <= {*beats[method]} for method in weights)
    methods = {row["method"] for row in rows(LANGUAGE / "best.csv")}
    assert methods - {*verdicts["below"]} - {"GRPO"} == {"IcePop", "M2PO", "VESPO", "TOPR"}
    of = {row["method"]: float(row["outcome"]) for row in rows(LANGUAGE / "best.csv") if row["lag"] == "64"}
    ends = [f"{end(of[method] for method in (*weights, 'TIS, answers')):.2f}" for end in (min, max)]
    assert f"{of['M2PO']:.2f}" == f"{of['TOPR']:.2f}"
    half = {row["method"]: row["half"] for row in rows(LANGUAGE / "half.csv") if row["rate"] == "best"}
    assert not missing(
        LANGUAGE_PAGE,
        f"at 64 these have {ends[0]} to {ends[1]}, M2PO and TOPR {of['M2PO']:.2f}, GRPO {of['GRPO']:.2f}.",
        f"Without a correction, half is lost at {float(half[NONE]):.0f} updates.",
    )


def test_the_order_at_the_shared_rate():
    of = {int(row["lag"]): row for row in rows(LANGUAGE / "q3.csv")}
    tau = {lag: f"{float(row['tau']):.2f}" for lag, row in of.items()}
    assert [lag for lag, row in of.items() if row["verdict"] == "misleads"] == [64]
    assert {pair.split(" > ")[0] for pair in of[64]["pairs"].split("; ")} == {"AReaL", "TIS, answers", "CISPO"}
    rates = {(row["method"], row["lag"]): row for row in rows(LANGUAGE / "best.csv")}
    for method in ("AReaL", "TIS, answers", "CISPO"):
        both = {rates[method, "64"][f"rate_of_{half}_seeds"] for half in ("even", "odd")}
        assert both == {"0.00063"}
    largest = [
        method
        for (method, lag), row in rates.items()
        if lag == "256" and {row["rate_of_even_seeds"], row["rate_of_odd_seeds"]} == {"0.02"}
    ]
    assert len(largest) == 6
    assert [tau[lag] for lag in (0, 1, 4)] == ["1.00"] * 3
    assert not missing(
        LANGUAGE_PAGE,
        f"and differs from 16 on (Kendall's τ {tau[16]}, {tau[32]}, {tau[64]}, and {tau[256]} at 256).",
        "At a lag of 256 the best rate of six methods is the largest of the grid.",
    )


def test_cosines():
    of = {(row["method"], int(row["lag"])): row for row in rows(LANGUAGE / "q5.csv")}
    without = [float(row["cosine"]) for (_, lag), row in of.items() if lag == 0]
    assert {row["appears"] for row in of.values()} == {"no"}
    assert {method for (method, _), row in of.items() if row["rises"] == "yes"} == {NONE, "M2PO"}
    one, long = (f"{abs(float(of['GRPO', lag]['cosine'])):.2f}" for lag in (1, 32))
    assert not missing(
        LANGUAGE_PAGE,
        f"without lag it is {min(without):.2f} to {max(without):.2f} for all.",
        f"GRPO's is {one} at a lag of 1 and {long} at 32.",
    )
    runs = [row for row in rows(LANGUAGE / "lags.csv") if row["method"] == "GRPO"]

    def cosine(*cell):
        return f"{np.mean([float(row['cosine']) for row in runs if (row['learning_rate'], row['lag']) == cell]):.2f}"

    fast, slow = ([cosine(rate, lag) for lag in ("0", "16")] for rate in ("0.02", "0.0002"))
    assert not missing(
        LANGUAGE_PAGE,
        f"GRPO has {fast[0]} without lag and {fast[1]} at 16, which is close to GAC's pattern, and at 0.0002 it has "
        f"{slow[0]} without lag.",
    )


def test_the_newest_policy_on_breakout():
    newest, sampled = outcomes("best", "lab-newest"), outcomes("best")
    half, before, impact = (
        next(
            row
            for row in rows(RESULTS / study / "half.csv")
            if (row["task"], row["method"], row["rate"]) == (BREAKOUT, method, "best")
        )
        for study, method in (("lab-newest", "PPO"), ("lab-lag", "PPO"), ("lab-newest", "IMPACT"))
    )
    score, low, high = (f"{x:.2f}" for x in newest[BREAKOUT, "PPO", 128])
    assert impact["half"] == "> 128"
    for study in ("lab-newest", "lab-lag"):
        assert above(BREAKOUT, "IMPACT", "PPO", study=study) == [32, 128]
    by_either = {
        method: [*set(above(BREAKOUT, method, "PPO")) & set(above(BREAKOUT, method, "PPO", study="lab-newest"))]
        for method in ("decoupled PPO", "V-trace")
    }
    assert by_either == {"decoupled PPO": [128], "V-trace": [32]}
    for method in {method for task, method, _ in newest if task == BREAKOUT} - {"PPO"}:
        assert {*above(BREAKOUT, "PPO", method, study="lab-newest")} <= {*above(BREAKOUT, "PPO", method)}
    assert not missing(
        PAGE,
        f"PPO's newest policies lose it at {half['half']} batches ({half['interval']}), and not at {before['half']}.",
        f"they have {score} ({low} to {high}), where the policies that sampled have "
        f"{sampled[BREAKOUT, 'PPO', 128][0]:.2f}. IMPACT keeps half at every lag, and is above PPO at 32 and 128, by "
        "either outcome; so is decoupled PPO at 128, and V-trace at 32. No method is below PPO by this outcome alone.",
    )


def test_the_newest_policy():
    newest, sampled = outcomes("best", "lab-newest"), outcomes("best")
    half, before = (
        {
            row["task"]: row
            for row in rows(RESULTS / study / "half.csv")
            if (row["method"], row["rate"]) == ("PPO", "best")
        }
        for study in ("lab-newest", "lab-lag")
    )
    impact = next(
        row
        for row in rows(RESULTS / "lab-newest" / "half.csv")
        if (row["task"], row["method"], row["rate"]) == (ACROBOT, "IMPACT", "best")
    )

    def of(*place, digits=0):
        score, low, high = (f"{x:.{digits}f}" for x in newest[place])
        return f"{score} ({low} to {high})"

    def halves(rows, task):
        return f"{rows[task]['half']} ({rows[task]['interval']})"

    lags = (CARTPOLE, "PPO", 128), (CARTPOLE, "PPO", 256)
    assert not missing(
        PAGE,
        f"PPO's newest policies have {of(*lags[0])}, where the policies that sampled have {sampled[lags[0]][0]:.0f}; "
        f"with data 256 batches old {of(*lags[1], digits=1)}, where the policies that sampled have "
        f"{sampled[lags[1]][0]:.1f}.",
        f"PPO loses half at {half[CARTPOLE]['half']} batches ({half[CARTPOLE]['interval']}), and not at "
        f"{before[CARTPOLE]['half']}.",
        f"{halves(half, ACROBOT)}, where it was {before[ACROBOT]['half']}. With data 128",
        f"IMPACT keeps half up to {impact['half']} ({impact['interval']}), and is above PPO at a lag of 1 and from 4 "
        "on.",
        f"yet PPO has {of(CARTPOLE, 'PPO', 0)} on CartPole here, and {sampled[CARTPOLE, 'PPO', 0][0]:.0f} "
        f"({sampled[CARTPOLE, 'PPO', 0][1]:.0f} to {sampled[CARTPOLE, 'PPO', 0][2]:.0f}) by 32 seeds.",
    )
    for found in (newest, sampled):  # it has learned nothing on Acrobot
        assert found[ACROBOT, "PPO", 128][0] < 0.05 * found[ACROBOT, "PPO", 0][0]
    assert above(ACROBOT, "IMPACT", "PPO", study="lab-newest") == [1, 4, 8, 16, 32, 64, 128, 256]
    for method in (NONE, "V-trace", "IMPACT"):
        for study in ("lab-lag", "lab-newest"):
            assert {128, 256} <= {*above(CARTPOLE, method, "PPO", study=study)}
    assert above(ACROBOT, "V-trace", "PPO") == [32, 128, 256]
    assert not above(ACROBOT, "V-trace", "PPO", study="lab-newest")
    runs = rows(RESULTS / "lab-newest" / "runs.csv")
    assert sorted({int(row["seed"]) for row in runs}) == [*range(8)]
    assert [*dict.fromkeys(row["task"] for row in runs)] == [CARTPOLE, ACROBOT, BREAKOUT]
    settings = json.loads((RESULTS / "lab-newest" / "settings.json").read_text())
    minutes = [settings[task]["seconds"] / 60 for task in (CARTPOLE, ACROBOT, BREAKOUT)]
    on_breakout = sum(row["task"] == BREAKOUT for row in runs)
    assert not missing(
        PAGE,
        f"{len(runs) - on_breakout:,} runs on CartPole and Acrobot, {sum(minutes[:2]):.0f} minutes of a core, and "
        f"{on_breakout:,} on Breakout; the last 904 of these took {minutes[2]:.0f}.",
    )
    cartpole, acrobot, breakout = (float(half[task]["half"]) for task in (CARTPOLE, ACROBOT, BREAKOUT))
    assert not missing(
        "docs/results.md",
        f"by the newest policy it is {cartpole:.0f} on CartPole, {acrobot:.0f} on Acrobot and {breakout:.0f} on",
    )
    assert not missing("README.md", f"at {4 * cartpole:.0f} and {4 * acrobot:.0f}.")  # four gradients a batch
