"""The pages' tables: by hand from small files, and what is left out of the committed ones."""

import json

import pytest

from experiments.report.tables import (
    cluster,
    counts,
    equal_time,
    learning,
    minionsrl,
    origin,
    powers,
    results,
    speed,
    stellaris,
    sweeps,
)
from experiments.report.tables.table import Table
from experiments.toolkit import output


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes rows into the file with a path under the results' folder, which holds nothing else."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.stored.cache_clear()

    def write(path, *rows):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        output.write_rows(tmp_path / path, rows)

    yield write
    results.stored.cache_clear()


def test_markdown():
    """Numbers to the right; a cell without text is one space."""
    table = Table(("", "n", "subject", "m"), [("a", "1", "[b](#b)", "2"), ("c", "", "d", "")], left=("subject",))
    assert table.markdown().splitlines() == [
        "| | n | subject | m |",
        "| --- | ---: | --- | ---: |",
        "| a | 1 | [b](#b) | 2 |",
        "| c | | d | |",
    ]


def test_a_shared_run_is_counted_once(files):
    """Equal results of one system are a run that settings share, unless one of them repeated the other's schedule."""
    one = {"environment": "Hopper-v4", "system": "stellaris", "setting": "d = 1", "seed": 0, "final_return": 1.5}
    changes = ({"setting": "v = 3"}, {"seed": 1}, {"final_return": 2}, {"system": "IMPACT"}, {"setting": "b, replayed"})
    files("one/runs.csv", one, *({**one, **change} for change in changes))
    files("two/runs.csv", {**one, "setting": ""})
    assert counts.count(["one"]) == 5
    assert counts.count(["one", "two"]) == 5


def test_further_seeds_at_equal_time(files):
    """One seed before, with a ratio of 0.5, and two after it, with 1.5 and 2: medians and ranges of pairs of seeds."""

    def row(system, seed, mean, final):
        of = {"environment": "Hopper-v4", "system": system, "setting": "", "seed": seed}
        return {**of, "final_return": final, "mean_return": mean}

    control = "asynchronous actors, PPO"
    files(
        "small/stellaris-equal-time/runs.csv",
        *(row("synchronous", 0, 100, 8), row("stellaris", 0, 50, 8), row(control, 0, 25, 8), row("IMPACT", 0, 1, 1)),
    )
    files(
        "small/stellaris-equal-time/Hopper-v4-more/runs.csv",
        *(row("synchronous", 11, 20, 8), row("synchronous", 10, 100, 8)),
        *(row("stellaris", 10, 150, 4), row("stellaris", 11, 40, 2)),
        *(row(control, 10, 150, 8), row(control, 11, 20, 8)),
    )
    synchronous, one_learner, stellaris_ppo = equal_time.continued().rows
    assert equal_time.continued().headings[0] == "3 seeds"
    assert synchronous[:4] == ("synchronous PPO", "100 (20 to 100)", "1.00", "1.00")
    assert one_learner[1:4] == ("25 (20 to 150)", "1.00 (0.25 to 1.50)", "1.25 (1.00 to 1.50)")
    assert stellaris_ppo[2:6] == (
        *("1.50 (0.50 to 2.00)", "1.75 (1.50 to 2.00)", "2.00 (1.00 to 2.00)", "1.50 (1.00 to 2.00)"),
    )
    assert stellaris_ppo[6:] == ("0.50 (0.25 to 1.00)", "0.38 (0.25 to 0.50)")


def test_the_training_of_tuned_systems(files):
    """Five runs of two systems; one of them reached the target on four seeds, and the other on none."""
    files(
        "small/stellaris-training/runs.csv",
        *(
            {
                "environment": environment,
                "system": system,
                "setting": "",
                "seed": seed,
                "final_return": scale * (1000 + 100 * seed),
                "mean_return": scale * (500 + 100 * seed),
                "virtual_seconds": 60 + seed,
                "cost_demo": 0.1,
                "cost_pay_per_use": scale * 0.02,
            }
            for environment, scale in (("Hopper-v4", 1), ("Walker2d-v4", 2))
            for system in ("synchronous", "other")
            for seed in range(5)
        ),
    )
    same = {"environment": "Hopper-v4", "target": "600"}
    files(
        "small/stellaris-cost/table.csv",
        {**same, "system": "synchronous", "reached": "4 of 5", "USD by use to the target": "0.01234 (0.01 to 0.02)"},
        {**same, "system": "other", "reached": "0 of 5", "USD by use to the target": "-"},
    )
    table = stellaris.training()
    assert table.headings[6] == "by use up to 600"
    assert table.rows[0] == (
        "synchronous PPO",
        "1,200 (1,033 to 1,367)",
        "700 (533 to 867)",
        "62",
        "0.100",
        "0.020",
        "reached by 4 of 5",
        "2,400 (2,067 to 2,733)",
    )
    assert table.rows[1][0] == "other"
    assert table.rows[1][6] == "reached by 0 of 5"


def test_trajectories(files):
    """One column per seed; the returns asked for are fractions of the best return of each seed's data."""
    files(
        "gear/played.csv",
        *(
            {"seed": seed, "model": model, "actions": actions, "asked": asked, "mean_return": mean, "margin_95": 1.6}
            for seed in (0, 1)
            for model, actions, asked, mean in (
                ("transformer", "sampled", 500 * (1 + seed), 10 + seed),
                ("transformer", "sampled", 1000 * (1 + seed), 20 + seed),
                ("transformer", "mean", 1000 * (1 + seed), 30 + seed),
                ("cloning", "sampled", "", 40 + seed),
                ("cloning", "mean", "", 50 + seed),
            )
        ),
    )
    table = learning.trajectories()
    assert table.headings[1:] == ("seed 0", "seed 1")
    cloning, half, whole, *without = table.rows
    assert cloning == ("behaviour cloning", "40 ± 2", "41 ± 2")
    assert half == ("transformer, asked for 50 % of the best return in the data", "10 ± 2", "11 ± 2")
    assert whole == ("100 %: 1,000 and 2,000", "20 ± 2", "21 ± 2")
    assert [row[1] for row in without] == ["50 ± 2", "30 ± 2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "folders", [("stellaris-sweeps",), ("stellaris-demo-sweeps", "stellaris-demo-sweeps/more")], ids=lambda of: of[0]
)
def test_an_assumption_without_a_row_is_the_default(folders):
    """A sweep passes the testbed's own value of every assumption, and the page shows it once."""
    places = [f"small/{folder}" for folder in folders]
    studied = [row for place in places for row in results.rows(f"{place}/table.csv")]
    different = {tuple(value for name, value in row.items() if name != "testbed") for row in studied}
    assert len(sweeps.sweep(*places, default="default").rows) == len(different) < len(studied)


def test_a_sweep(files):
    """Each assumption has its own baseline, at equal time; the last one's runs are in the second folder alone."""
    names = ("seconds", "steps", "episode_return", "cost_demo", "cost_pay_per_use")
    ends = {
        ("stellaris", "variation 0.1"): (10, 100, 600, 1, 1),
        ("stellaris", "variation 1"): (10, 100, 600, 1, 1),
        ("stellaris", "gradient 4"): (10, 100, 900, 1, 1),
        ("synchronous", "variation 0.1"): (10, 100, 200, 2, 4),
        ("synchronous", "variation 1"): (20, 100, 400, 2, 4),
        ("synchronous", "gradient 4"): (10, 100, 200, 4, 2),
    }
    for folder, shown in (("it", ("variation 0.1", "variation 1")), ("more", ("variation 0.1", "gradient 4"))):
        files(
            f"{folder}/curves.csv",
            *(
                {"environment": "Hopper-v4", "system": system, "setting": f"{system}, {assumed}", "seed": seed}
                | dict(zip(names, point, strict=True))
                for (system, assumed), end in ends.items()
                for seed in range(5)
                for point in ((0, 0, 0, 0, 0), end)
                if assumed in shown
            ),
        )
    assert sweeps.sweep("it", "more", default="default").rows == [
        ("default", "3.00", "3.00", "0.500", "0.250"),
        ("variation 1", "3.00", "3.00", "0.500", "0.250"),
        ("a gradient takes four times as long", "4.50", "4.50", "0.250", "0.500"),
    ]


def test_failed_runs_count_as_they_were_played_on(files, monkeypatch):
    """Of four runs two reach the target within 0.03165 USD; the third reaches it in the round that exceeds them.

    The fourth counts where its budget ended it, unless it was played on.
    """
    monkeypatch.setattr(minionsrl, "SHOWN", ("it",))
    same = {"environment": "CartPole-v1", "testbed": "authors", "steps": 4096, "versions": 1, "cost_azure": 1}
    learned = ((80, 0.02, 80), (90, 0.028, 90), (120, 0.032, 120), (150, 0.036, ""))
    names = ("virtual_seconds", "cost_pay_per_use", "seconds_to_target")
    every = [
        {**same, "schedule": name, "seed": seed} | dict(zip(names, ended, strict=True))
        for name, of in (
            *(("32", [(100, 0.04, 100)] * 4), ("16", [(110, 0.03, 110)] * 4)),
            ("learned, for time", learned),
        )
        for seed, ended in enumerate(of)
    ]
    files("it/runs.csv", *every)
    (row,) = minionsrl.counted().rows
    assert row[1:3] == ("learned, for time", "2 of 4")
    assert row[3:5] == ("0.85 (0.80 to 0.90)", "at least 1.05 (0.80 to 1.50)")
    assert row[5:7] == ("0.60 (0.50 to 0.70)", "at least 0.75 (0.50 to 0.90)")
    assert row[7:] == ("", "at most 1.00 (0.40 to 2.00)")  # of 0.01 USD; 16 actors are not faster
    monkeypatch.setattr(minionsrl, "_PLAYED_ON", {"it": ("on",)})
    on = {**same, "schedule": "learned, for time, played on", "seed": 3}
    files("on/runs.csv", on | dict(zip(names, (200, 0.048, 200), strict=True)))
    assert minionsrl.counted().rows == [
        (*row[:4], "1.05 (0.80 to 2.00)", row[5], "0.75 (0.50 to 1.20)", "", "1.00 (-0.80 to 2.00)"),
    ]


def test_a_benchmark(files):
    """Empty columns and rows of another kind are left out; a ratio has two digits, if there is one."""
    numbers = {"measured": "1 s", "against": "3 s", "ratio": "0.3333", "wanted": ""}
    nothing = dict.fromkeys(("against", "ratio", "wanted"), "")
    files(
        "benchmarks/it.csv",
        {"what": "one", **numbers, "waiting": "0.2 s"},
        {"what": "two", **numbers},
        {"what": "memory of it", **numbers},
        {"what": "three", "measured": "2 s", **nothing},
    )
    assert speed.measured("it", without="memory") == Table(
        ["what", "measured", "against", "ratio", "waiting"],
        [["one", "1 s", "3 s", "0.33", "0.2 s"], ["two", "1 s", "3 s", "0.33", ""], ["three", "2 s", "", "", ""]],
    )
    assert len(speed.measured("it").rows) == 4


def test_a_prediction(files):
    """Of three seeds at 100 on Ray, the simulation has 90, 100 and 120; costs are equal."""
    files(
        "cluster-vs-simulation/runs.csv",
        *(
            {"system": system, "seed": seed, "on": on, "staleness": 1, "updates": 10, "steps": steps, "cost": 2}
            for system in ("asynchronous actors", "stellaris")
            for on, several in (("Ray", (100, 100, 100)), ("simulation", (90, 100, 120)))
            for seed, steps in enumerate(several)
        ),
    )
    steps, cost, *_ = cluster.predicted().rows
    assert steps[1:] == ("100", "100", "0.0 %", "-10.0 to +20.0 %")
    assert cost[1:] == ("2.00", "2.00", "0.0 %", "0.0 %")


def test_the_seeds_that_a_pair_needs(files, monkeypatch):
    """Systems that vary by 0.1 and 0.2; one run of the first missed the target.

    By hand: (1.96 + 0.84)^2 (log 1.01 + log 1.04) is 0.386. Three seeds show exp(sqrt(0.386 / 3)); a ratio of 1.2 needs
    0.386 / log(1.2)^2 = 11.6 seeds and one of 1.1 needs 42.5.
    """
    times = {"first": (90, 100, 110, ""), "second": (80, 100, 120), "third": (1, 100)}
    files(
        "it/runs.csv",
        *(
            {"environment": "Hopper-v4", "system": system, "setting": "", "seed": seed, "seconds": seconds}
            for system, several in times.items()
            for seed, seconds in enumerate(several)
        ),
    )
    both, outcome = ("first", "second", "first, second"), ("seconds", "time")
    monkeypatch.setattr(powers, "_PAIRS", [("`it`", "it", "Hopper-v4", both, outcome)] * 2)
    numbers = ("0.10", "0.20", "3", "1.43", "12", "43")
    found = powers.needed()
    assert found.rows == [(name, "Hopper-v4", "first, second", "time", *numbers) for name in ("`it`", "the same")]
    assert len(found.headings) == len(found.rows[0])


# ---- provenance ------------------------------------------------------------------------------------------------------

MADE = {"commit": "abcdef0123+", "code": "0123456789", "jax": "0.10.2", "processor": "2 x it", "devices": "cpu, cpu"}
LINE = "*commit abcdef0+; code 0123456; jax 0.10.2; 2 x it*"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Writes JSON under the results' folder."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)

    def write(path, of):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(json.dumps(of))

    return write


def test_without_provenance(made):
    made("it/summary.json", MADE)
    assert origin.line(["it/runs.csv", "other/runs.csv"]) == origin.line([]) == ""


@pytest.mark.parametrize("name", ["it/provenance.json", "it/runs.json"])
def test_the_provenance_beside_a_file(made, name):
    """Of a study, or of one benchmark; an accelerator is named instead of the processor."""
    made(name, MADE)
    assert origin.line(["it/runs.csv"] * 2) == LINE
    made(name, {**MADE, "instructions": "X86_V3, X86_V4, AVX512_ICL"})
    assert origin.line(["it/runs.csv"]) == LINE.replace("2 x it", "2 x it (AVX512_ICL)")
    made(name, {**MADE, "devices": "cuda H"})
    assert origin.line(["it/runs.csv"]) == LINE.replace("2 x it", "cuda H")


def test_the_provenance_of_parts(made):
    """A file whose name ends with a part's has that part's, another has both; in several files or in one."""
    parts = {"one": {**MADE, "commit": "1111111111"}, "two": {**MADE, "commit": "2222222222"}}
    for part, of in parts.items():
        made(f"files/provenance_{part}.json", of)
    made("single/provenance.json", parts)
    made("old/settings.json", {name: {**of, "devices": "[CpuDevice(id=0)]"} for name, of in parts.items()})
    for folder in ("files", "single", "old"):
        assert origin.line([f"{folder}/runs_two.csv.gz"]) == LINE.replace("abcdef0+", "2222222")
        assert origin.line([f"{folder}/best.csv"]) == LINE.replace("abcdef0+", "1111111, 2222222")


def test_the_provenance_of_a_part_with_tables_of_its_own(made):
    """Tables whose names begin with it have its provenance, and the others do not."""
    for part, commit in (("lags_one", "1" * 40), ("newest_one", "2" * 40)):
        made(f"it/provenance_{part}.json", MADE | {"commit": commit})
    assert origin.line(["it/newest_half.csv"]) == LINE.replace("abcdef0+", "2222222")
    assert origin.line(["it/half.csv"]) == LINE.replace("abcdef0+", "1111111")


def test_the_provenance_of_many(made):
    """Three values are named, of one file or of several; a missing digest of the code is left out."""
    made("one/provenance.json", {**MADE, "commit": "11111111; 22222222"})
    made("two/provenance.json", {**MADE, "commit": "33333333; 44444444", "jax": "0.11.2"})
    made("old/settings.json", {"part": {name: value for name, value in MADE.items() if name != "code"}})
    several = "*commit 1111111, 2222222, 3333333 and others; code 0123456; jax 0.10.2, 0.11.2; 2 x it*"
    assert origin.line(["one/a.csv", "two/a.csv"]) == several
    assert origin.line(["old/a.csv"]) == "*commit abcdef0+; jax 0.10.2; 2 x it*"
