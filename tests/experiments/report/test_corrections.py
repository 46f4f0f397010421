"""The pages' tables of the study of corrections, from tables that the study's own report has written."""

import pytest

from experiments.figures.lab import answers, lag, surface
from experiments.report.tables import corrections, results
from experiments.toolkit import output
from tests.experiments.figures.lab.test_answers import part


@pytest.fixture
def reported(tmp_path, monkeypatch):
    """The results' folder, with the report of a study of two methods, in which SAPO has four times PPO's outcome."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    results.stored.cache_clear()
    folder = tmp_path / "lab-corrections"
    folder.mkdir()
    tables = {
        "lags": [*part(["PPO"], [0, 2]), *part(["SAPO"], [0, 2], times=4)],
        "border": [row for updates in (32, 40) for row in part(["PPO"], [1, 2], updates=updates)],
        "newest": [*part(["PPO"], [0, 2]), *part(["SAPO"], [0, 2], times=0.5)],
        "mixed": part(["PPO"], [2], times=2, kind="mixed"),
        "patterns": [row for kind in ("sawtooth", "maximum") for row in part(["PPO"], [2], kind=kind)],
    }
    for name, rows in tables.items():
        output.write_rows(folder / f"{name}_CartPole.csv.gz", rows)
    answers.report(folder, lag.PRESETS["smoke"])
    yield
    results.stored.cache_clear()


@pytest.mark.usefixtures("reported")
def test_the_tables():
    """Every table has a text for each heading, and the numbers of the report."""
    tables = {name: of() for name, of in corrections.TABLES.items() if name != "corrections-dips"}
    assert all(len(row) == len(table.headings) for table in tables.values() for row in table.rows)
    assert tables["corrections-against-ppo"].rows == [("SAPO", "0, 2", "")]
    assert [(row[0], *row[2:]) for row in tables["corrections-newest"].rows] == [("PPO", "", ""), ("SAPO", "", "0, 2")]
    assert tables["corrections-recommended"].rows == [("SAPO", "2; 0", "no")]
    assert tables["corrections-half-lost"].rows == [("PPO", "> 2 (> 2 to > 2)"), ("SAPO", "> 2 (> 2 to > 2)")]
    (slopes,) = tables["corrections-slopes"].rows
    assert slopes[:2] == ("CartPole, PPO", "0 (0 to 0)")
    assert slopes[-1] == "neither"
    assert [row[-1] for row in tables["corrections-collapses"].rows] == ["none collapsed"] * 2
    assert [row[1] for row in tables["corrections-orders"].rows] == ["1 (1 to 1); 0 reversed"] * 2
    assert tables["corrections-patterns"].rows[0][:3] == ("CartPole", "PPO", "2")
    (mixed,) = tables["corrections-mixed"].rows
    assert (*mixed[:3], mixed[-1]) == ("CartPole", "PPO", "2", "differ")
    floor = surface.floor_of("CartPole", surface.LAB_NEWEST)
    assert float(mixed[4].split(" ")[0]) == pytest.approx((2 * 60 - floor) / (61 - floor), abs=0.005)
