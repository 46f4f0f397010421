"""The picture of what MinionsRL's schedulers take and cost, relative to all actors."""

from pathlib import Path

import pytest

from experiments import command
from experiments.report import numbers
from experiments.report.tables import minionsrl
from experiments.toolkit.statistics import Estimate


def test_the_points_are_those_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a trained scheduler are of all its runs; a task whose runs miss the target has no panel."""
    row = {"environment": "Hopper-v4", "testbed": "authors-0.0003"}
    table = [
        {**row, "actors": "32", "s / all": "1", "USD / all": "1"},
        {**row, "actors": "8", "s / all": "1.042 (0.96 to 1.13)", "USD / all": "0.48 (0.44 to 0.52)"},
        {**row, "actors": "learned, for time", "s / all": "0.9 (0.8 to 1)", "USD / all": "0.6 (0.5 to 0.7)"},
        {**row, "actors": "learned, for time, played on", "s / all": "9", "USD / all": "9"},
        {**row, "testbed": "tuned", "actors": "32", "s / all": "1", "USD / all": "1"},
        {**row, "testbed": "tuned", "actors": "16", "s / all": "", "USD / all": ""},
    ]
    name = "Hopper-v4, the authors' learner, rate 0.0003"
    counted = (
        name,
        "learned, for time",
        "3 of 4",
        "0.9",
        "0.99 (0.94 to 1.05)",
        "0.6",
        "at least 0.68 (0.6 to 0.7)",
        "",
        "",
    )
    monkeypatch.setattr(minionsrl, "SHOWN", ("it",))
    monkeypatch.setattr(minionsrl, "rows_of", lambda place: table)
    monkeypatch.setattr(minionsrl, "counted", lambda: type("Table", (), {"rows": [counted]}))

    def point(*three: float) -> Estimate:
        return Estimate(*three, claim=True)

    assert numbers.points() == {
        name: {
            "32": (point(1, 1, 1), point(1, 1, 1)),
            "8": (point(1.042, 0.96, 1.13), point(0.48, 0.44, 0.52)),
            "learned, for time": (point(0.99, 0.94, 1.05), point(0.68, 0.6, 0.7)),
        }
    }


def test_returns_of_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that ran in two folders counts once; fixed numbers but all actors are not of the paper."""
    row = {"environment": "Hopper-v4", "testbed": "authors-0.0003", "evaluation_return": "5"}
    curve = [{**row, "seconds": str(time), "episode_return": str(2 * time), "seed": "40"} for time in (1, 2)]
    folders = {
        "it": [*({**one, "schedule": name} for name in ("32", "8") for one in curve)],
        "more": [*({**one, "schedule": name} for name in ("32", "Azure ML") for one in curve)],
    }
    folders["more"] += [{**one, "seed": "41", "schedule": "32"} for one in curve]
    monkeypatch.setattr(minionsrl, "places", lambda place: ("it", "more"))
    monkeypatch.setattr(numbers.results, "rows", lambda path: folders[path.removesuffix("/curves.csv")])
    (curves,) = numbers.returns("it").values()
    assert [one.contender.name for one in curves] == ["MinionsRL-Max", "Azure ML"]
    everyone, azure = (one.histories for one in curves)
    assert len(everyone) == 2
    assert everyone[0] == everyone[1] == azure[0]
    assert azure[0] == [
        {"seconds": float(time), "episode_return": 2.0 * time, "evaluation_return": 5.0} for time in (1, 2)
    ]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["minionsrl-numbers", "--out", str(tmp_path)]) == 0
    drawn = capsys.readouterr().out.split()
    assert drawn[0] == f"{tmp_path}/numbers.png"
    assert f"{tmp_path}/returns_authors-0.0003_Hopper-v4.png" in drawn
    assert min(Path(one).stat().st_size for one in drawn) > 10_000
    assert len(numbers.points()) == 6
