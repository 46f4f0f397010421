"""The answers of the study of corrections by hand: a table with a known answer, and one that flips it."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from experiments import command
from experiments.figures.lab import agreement, answers, collapse, dips, lag, orders, stability, verdicts
from experiments.figures.lab.outcomes import Cells, drawn, interval
from experiments.figures.lab.surface import AGAIN, LAB_LAG, Surface, cells_of, floor_of, surface_of
from experiments.toolkit import output
from experiments.toolkit.shell import UsageError
from tests.experiments.csv_rows import rows as read

SEEDS = 8
#: Outcomes of seeds around 1.
SPREAD = np.linspace(0.9, 1.1, SEEDS)


def surface(outcomes, new=(), lags=(0, 1), rates=(1e-3,)):
    """Methods with a mean outcome by lag and rate, `[lag][rate]`, spread over seeds by a tenth."""
    final = np.array([np.array(of)[..., None] * SPREAD for of in outcomes.values()])
    return Surface(Cells([*outcomes], lags, rates, final, final, floor=0.0), frozenset(new))


def rows_of(method, outcomes, rates=(1e-3,), **named):
    """Rows as a part writes them, read from a file: an outcome per rate, spread over seeds by a tenth."""
    named = {"method": method, "kind": "constant", "lag": 8, "updates": 512, **named}
    return [
        {name: str(value) for name, value in (named | numbers).items()}
        for rate, outcome in zip(rates, outcomes, strict=True)
        for seed, spread in enumerate(SPREAD)
        for numbers in [{"learning_rate": rate, "seed": seed, "final_return": outcome * spread, "mean_return": 0}]
    ]


def test_drawn_means_are_those_of_the_intervals():
    score = np.random.default_rng(0).normal(size=(2, 3, SEEDS))
    assert drawn(score).shape == (2, 3, 2000)
    np.testing.assert_allclose(np.quantile(drawn(score), [0.025, 0.975], axis=-1), interval(score))


# ---- outcomes, PPO and the recommendation ----------------------------------------------------------------------------


def test_outcomes_name_their_rates():
    """Even seeds favour the first rate and odd seeds the second, so each half is reported at the other's rate."""
    final = np.array([[[[9.0, 1.0, 9.0, 1.0], [2.0, 8.0, 2.0, 8.0]]]])
    of = Surface(Cells(["PPO"], (0,), (1e-3, 1e-2), final, final, floor=1.0), frozenset())
    (best,), (shared,) = verdicts.best("task", of), verdicts.shared("task", of)
    assert (best["rate_of_even_seeds"], best["rate_of_odd_seeds"], best["outcome"]) == (1e-2, 1e-3, 0.5)
    assert (shared["learning_rate"], shared["outcome"], shared["low"] < 4.0 < shared["high"]) == (1e-3, 4.0, True)


def test_a_method_is_compared_with_the_ppo_of_its_device():
    """A new method between the two PPOs beats the rerun one; one of lab-lag is below the other."""
    of = surface({"PPO": [[10], [10]], "old": [[7], [10]], AGAIN: [[5], [5]], "new": [[7], [5]]}, new={AGAIN, "new"})
    found = {(row["method"], row["lag"]): (row["reference"], row["verdict"]) for row in verdicts.against_ppo("t", of)}
    assert found == {
        ("old", 0): ("PPO", "below"),
        ("old", 1): ("PPO", "level"),
        (AGAIN, 0): ("PPO", "below"),
        (AGAIN, 1): ("PPO", "below"),
        ("new", 0): (AGAIN, "beats"),
        ("new", 1): (AGAIN, "level"),
    }


def test_the_recommendation_needs_two_lags_on_two_tasks_and_no_loss():
    def found(verdict_of, tasks="ab", done="ab"):
        against = [
            {"method": "it", "task": task, "lag": lag, "verdict": verdict_of(task, lag)}
            for task in done
            for lag in range(4)
        ]
        (row,) = verdicts.recommended([*against, {**against[0], "method": AGAIN, "verdict": "below"}], tasks)
        return row

    assert found(lambda _, lag: "beats" if lag < 2 else "level")["recommended"] == "yes"
    assert found(lambda _, lag: "beats" if lag < 1 else "level")["recommended"] == "no"
    assert found(lambda task, lag: "beats" if lag < 2 and task == "a" else "level")["recommended"] == "no"
    lost = found(lambda task, lag: "beats" if lag < 3 else "below" if task == "b" else "level")
    assert (lost["recommended"], lost["beats on b"], lost["below on a"], lost["below on b"]) == ("no", 3, 0, 1)
    assert found(lambda *_: "beats", tasks="abc")["recommended"] == "open"
    assert found(lambda *_: "below", tasks="abc")["recommended"] == "no"


def test_outcomes_that_are_missing_are_an_error():
    rows = rows_of("PPO", [1.0, 2.0], (1e-3, 1e-2))
    assert cells_of(rows, 0.0).final.shape == (1, 1, 2, SEEDS)
    with pytest.raises(ValueError, match="run the part again"):
        cells_of(rows[1:], 0.0)


def test_the_methods_of_lab_lag_are_joined():
    size = lag.PRESETS["small"]
    rows = [
        {"method": method, "lag": age, "learning_rate": rate, "seed": seed, "final_return": 1, "mean_return": 1}
        for method, age, rate, seed in itertools.product(
            ("PPO", "SAPO"), size.tasks["Breakout-MinAtar"].lags, size.rates, range(size.seeds)
        )
    ]
    of = surface_of("Breakout-MinAtar", rows, size)
    assert of.new == {AGAIN, "SAPO"}
    assert len(of.cells.methods) == 9
    # PPO without lag has the committed outcome of lab-lag.
    (ppo,) = (row for row in verdicts.best("t", of) if (row["method"], row["lag"]) == ("PPO", 0))
    (committed,) = (
        row
        for row in read(LAB_LAG / "curves.csv")
        if [row[name] for name in ("task", "method", "rate", "lag")] == ["Breakout-MinAtar", "PPO", "best", "0"]
    )
    assert [ppo[name] for name in ("outcome", "low", "high")] == [
        float(committed[name]) for name in ("score", "low", "high")
    ]


# ---- question 1 ------------------------------------------------------------------------------------------------------

RATES = (1e-4, 1e-3, 1e-2, 1e-1)


def border(stable):
    """Outcomes of 10 up to the largest stable rate, which is `stable(lag, length)` places up the grid; then 1."""
    lengths, lags = (100, 1000, 10000), (1, 10, 100)
    score = np.array([[[10.0 if i <= stable(s, t) else 1.0 for i in range(4)] for s in range(3)] for t in range(3)])
    return stability.Border(lengths, lags, RATES, score[..., None] * SPREAD)


@pytest.mark.parametrize(
    ("stable", "verdict"),
    [
        (lambda s, t: 3 - s, stability.OF_LAG),
        (lambda s, t: 3 - t, stability.OF_LENGTH),
        (lambda s, t: 2, stability.NEITHER),
        # At one length the rate does not depend on the lag: the mean slope is steep, and yet not all are.
        (lambda s, t: 3 - s if t else 3, stability.NEITHER),
    ],
)
def test_the_border_is_in_the_lag_or_in_the_length(stable, verdict):
    rows = stability.answered("task", "PPO", border(stable))
    assert {row["verdict"] for row in rows} == {verdict}
    assert [row["at"] for row in rows if row["against"] == "S"] == ["T = 100", "T = 1000", "T = 10000", "mean"]


def test_slopes_and_rates_by_hand():
    """A decade of the rate per decade of the lag is a slope of -1; the corner at the end of the grid is marked."""
    rows = stability.answered("task", "PPO", border(lambda s, t: 3 - s))
    assert [row["slope"] for row in rows] == pytest.approx([-1.0] * 4 + [0.0] * 4)
    cells = {(row["updates"], row["lag"]): row for row in stability.stable("task", "PPO", border(lambda s, t: 3 - s))}
    assert [cells[1000, lag]["largest_stable_rate"] for lag in (1, 10, 100)] == [1e-1, 1e-2, 1e-3]
    assert [cells[1000, lag]["edge"] for lag in (1, 10, 100)] == ["highest", "", ""]
    assert cells[1000, 10]["low"] == cells[1000, 10]["high"] == 1e-2


def test_a_level_line_has_no_slope():
    """Equal rates at four lags give a slope of 0 with an interval of 0, without a rounding error that excludes 0."""
    rates = (2e-3, 6.3e-3, 2e-2, 6.3e-2)
    score = np.broadcast_to(np.array([10.0, 10.0, 10.0, 1.0])[:, None], (3, 4, 4, 10))
    rows = stability.answered("task", "PPO", stability.Border((150, 300, 600), (1, 4, 16, 64), rates, score))
    assert {(row["slope"], row["low"], row["high"], row["says"]) for row in rows} == {(0.0, 0.0, 0.0, "flat")}


def test_a_cell_that_learns_nothing_has_no_stable_rate():
    of = border(lambda s, t: 3 - s)
    of.score[0, 1:] = -1.0
    rows = stability.answered("task", "PPO", of)
    assert [row["says"] for row in rows if row["at"] == "T = 100"] == ["no slope"]
    assert rows[0]["verdict"] == stability.NEITHER
    assert [*stability.stable("task", "PPO", of)][1]["largest_stable_rate"] == ""


# ---- question 2 ------------------------------------------------------------------------------------------------------


def runs(*of):
    """Rows of runs: updates of the return's and of the fraction's fall, low updates, and the best return."""
    names = ("return_fell", "effective_fell", "effective_low", "best_return")
    each = [dict(zip(names, map(str, one), strict=True)) for one in of]
    return [{"method": "PPO", "seed": str(i % 4), **one} for i, one in enumerate(each)]


def answer(rows, sign, which="that had learned"):
    found = collapse.answered("task", rows, floor=-500.0, learned=10.0)
    (row,) = (row for row in found if (row["runs"], row["method"], row["sign"]) == (which, "PPO", sign))
    return row


def test_a_sign_foretells_collapses_that_it_leads():
    """Of ten runs that collapse nine are led, by 10 updates; of ten that do not, one shows the sign."""
    led, missed = (100, 90, 20, -100.0), (100, 110, 0, -100.0)
    quiet, alarm = (0, 0, 0, -100.0), (0, 50, 20, -100.0)
    rows = runs(*[led] * 9, missed, *[quiet] * 9, alarm)
    for sign in (collapse.FALL, collapse.LEVEL):
        found = answer(rows, sign)
        assert (found["collapsed"], found["share"], found["others"], found["others_share"]) == (10, 0.9, 10, 0.1)
        assert found["share_low"] < 0.9 < found["share_high"]
        assert found["verdict"] == "foretells"
    assert answer(rows, collapse.FALL)["updates_median"] == 10.0
    # A fall after the return's leads nothing, and alarms in two runs of ten are too many.
    assert answer(runs(*[led] * 8, *[missed] * 2, *[quiet] * 10), collapse.FALL)["verdict"] == "does not foretell"
    assert answer(runs(*[led] * 10, *[quiet] * 8, *[alarm] * 2), collapse.LEVEL)["verdict"] == "does not foretell"
    assert answer(runs(quiet), collapse.FALL)["verdict"] == "none collapsed"


def test_runs_that_never_learned_do_not_collapse():
    rows = runs((100, 90, 20, -100.0), (0, 0, 0, -100.0), (50, 0, 0, -495.0))
    assert answer(rows, collapse.FALL)["collapsed"] == 1
    assert answer(rows, collapse.FALL)["verdict"] == "foretells"
    assert answer(rows, collapse.FALL, "all")["collapsed"] == 2
    assert answer(rows, collapse.FALL, "all")["verdict"] == "does not foretell"


# ---- question 3 ------------------------------------------------------------------------------------------------------


def test_orders_that_are_reversed_mislead():
    """At its best rate A is better than B, and at the rate that is best for PPO worse."""
    outcomes = {"PPO": [[9, 5]], "A": [[1, 8]], "B": [[4, 2]], AGAIN: [[9, 5]]}
    (row,) = orders.answered("task", surface(outcomes, new={AGAIN}, lags=(0,), rates=(1e-3, 1e-2)))
    assert (row["reversed"], row["pairs"], row["verdict"], row["methods"]) == (1, "A > B", "misleads", 3)
    assert (row["order_at_best"], row["order_at_shared"]) == ("PPO > A > B", "PPO > B > A")
    assert row["tau"] == pytest.approx(1 / 3, abs=1e-5)  # one of three pairs is reversed
    # Closer together, their intervals overlap at the shared rate.
    (level,) = orders.answered(
        "task", surface(outcomes | {"A": [[3.99, 8]]}, new={AGAIN}, lags=(0,), rates=(1e-3, 1e-2))
    )
    assert (level["reversed"], level["verdict"]) == (0, "does not mislead")


def test_tau_is_scipys():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 5, (2, 20, 9)).astype(float)
    np.testing.assert_allclose(orders.tau(x, y), [stats.kendalltau(*pair).statistic for pair in zip(x, y, strict=True)])
    assert math.isnan(orders.tau(np.ones(3), np.arange(3.0)))


# ---- questions 4 and 6 -----------------------------------------------------------------------------------------------


def test_patterns_agree_at_the_rate_of_the_constant_lag():
    """The constant lag is best at the second rate, where the patterns have 1.1 and 0.95 of its outcome."""
    rates = (1e-3, 1e-2)

    def found(sawtooth, maximum, constant=(5.0, 10.0)):
        rows = rows_of("PPO", constant, rates)
        rows += rows_of("PPO", sawtooth, rates, kind="sawtooth") + rows_of("PPO", maximum, rates, kind="maximum")
        (row,) = agreement.answered("task", rows, floor=0.0)
        return row

    differs = found((99.0, 11.0), (0.0, 9.5))
    assert (differs["sawtooth"], differs["maximum"], differs["verdict"]) == (1.1, 0.95, "differ")
    assert found((99.0, 10.0), (0.0, 10.0))["verdict"] == "agree"
    assert found((99.0, 10.0), (0.0, 10.0), constant=(0.0, 0.0))["verdict"] == "no outcome"


def test_a_ratio_that_is_wide_cannot_tell():
    constant = np.ones(SEEDS)
    wide = agreement.ratio(np.array([0.0, 2.0] * 4), constant)
    assert wide[""] == 1.0
    assert agreement.verdict([(wide["_low"], wide["_high"])]) == "cannot tell"
    assert agreement.verdict([(0.9, 1.1)]) == "agree"


def test_dips_by_hand():
    """A third of deep dips at any lag is expected at the middle one; as many as there are is more often."""
    dip, before, after, flat = [10, 5, 10], [5, 10, 10], [10, 10, 5], [10, 9, 10]
    random = dips.shares(np.array([dip, before, after, flat] * 4, float).T)
    assert (random["share"], random["expected"], random["verdict"]) == (0.25, 0.25, "equal")
    often = dips.shares(np.array([dip] * 16, float).T)
    assert (often["share"], often["expected"], often["verdict"]) == (1.0, pytest.approx(1 / 3, abs=1e-4), "more often")


def test_dips_are_asked_of_both_ppos_where_there_are_the_lags():
    outcomes = {"PPO": [[10]] * 4, AGAIN: [[10], [10], [5], [10]]}
    one, other = dips.answered("task", surface(outcomes, new={AGAIN}, lags=(0, 2, 4, 8)))
    assert (one["share"], other["method"], other["share"]) == (0.0, AGAIN, 1.0)
    assert [*dips.answered("task", surface(outcomes, new={AGAIN}, lags=(0, 2, 8, 32)))] == []


# ---- the report ------------------------------------------------------------------------------------------------------


def part(methods, lags, *, kind="constant", updates=32, times=1):
    """Rows of a part: outcomes of every method at every lag, which rise by one from cell to cell."""
    numbers = {"best_return": 90, "return_fell": 0, "effective_fell": 0, "effective_low": 0}
    return [
        row | numbers
        for i, (method, age) in enumerate(itertools.product(methods, lags))
        for row in rows_of(
            method, [times * (40.0 + i), times * (60.0 + i)], (1e-3, 3e-3), lag=age, kind=kind, updates=updates
        )
    ]


@pytest.mark.slow
def test_the_report_answers_from_the_tables_alone(tmp_path):
    """Parts that are missing are left out, and a table that an earlier report wrote without them goes."""
    output.write_rows(tmp_path / "lags_CartPole.csv.gz", part(["PPO", "SAPO"], [0, 2]))
    call = ["lab-corrections", "--preset", "smoke", "--parts", "report", "--out", str(tmp_path)]
    assert command.main(call) == 0
    written = {path.name for path in tmp_path.iterdir()}
    names = {f"{name}.csv" for name in ("best", "shared", "half", "against_ppo", "recommended", "q2", "q3")}
    pictures = {f"surface_CartPole{suffix}" for suffix in (".png", ".pdf")}
    assert written == {"lags_CartPole.csv.gz", *names, *pictures}
    assert {row["method"] for row in read(tmp_path / "best.csv")} == {"PPO", "SAPO"}
    # The best return, 90, is above the floor by more than a tenth of PPO's 451, so that all 64 runs had learned.
    assert read(tmp_path / "q2.csv")[0]["others"] == "64"

    several = [row for updates in (32, 40) for row in part(["PPO"], [1, 2], updates=updates)]
    output.write_rows(tmp_path / "border_CartPole.csv.gz", several)
    patterns = [row for kind in ("sawtooth", "maximum") for row in part(["PPO"], [2], kind=kind)]
    output.write_rows(tmp_path / "patterns_CartPole.csv.gz", patterns)
    assert command.main(call) == 0
    assert {"q1.csv", "stable.csv", "q4.csv", "border.png"} <= {path.name for path in tmp_path.iterdir()}
    assert [row["mean_lag"] for row in read(tmp_path / "q4.csv")] == ["2"]

    (tmp_path / "patterns_CartPole.csv.gz").unlink()
    answers.report(tmp_path, lag.PRESETS["smoke"])
    assert not (tmp_path / "q4.csv").exists()


def test_the_report_says_what_is_missing(tmp_path):
    with pytest.raises(UsageError, match="holds no table of a part"):
        answers.report(tmp_path, lag.PRESETS["smoke"])
    output.write_rows(tmp_path / "lags_CartPole.csv.gz", part(["PPO"], [0, 2])[1:])
    with pytest.raises(UsageError, match="run the part again"):
        answers.report(tmp_path, lag.PRESETS["smoke"])
    assert floor_of("CartPole") == pytest.approx(22.2, abs=0.01)
