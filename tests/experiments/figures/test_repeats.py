"""Repeated runs of the lab and of dry runs: what agrees with the committed tables, and what does not."""

import dataclasses
import functools
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from experiments.figures import repeats
from experiments.figures.map import command, speed
from experiments.figures.map.deployments import SAMPLING_ON
from experiments.figures.minionsrl import ceiling
from experiments.toolkit import output

TINY = command.PRESETS["smoke"]


def test_one_number_has_the_margin_of_its_rounding():
    one = repeats.Repeat("study", "run", [500.0], [500.04])
    assert one.margin == pytest.approx(0.05)
    assert one.agrees
    assert not one._replace(now=[500.06]).agrees


def test_the_margin_of_several_is_a_prediction_interval():
    """Of draws from one distribution 1 in 1,000 is outside; a shift of five standard deviations always is."""
    rng = np.random.default_rng(0)
    cases = [repeats.Repeat("study", "run", *np.split(rng.normal(size=12), [10])) for _ in range(4000)]
    assert 0.998 < np.mean([one.agrees for one in cases]) < 1
    shifted = [one._replace(now=np.asarray(one.now) + 5.0) for one in cases[:100]]
    assert np.mean([one.agrees for one in shifted]) < 0.2


@pytest.mark.slow
def test_steps_per_second_are_repeated(tmp_path, monkeypatch):
    """A dry run gives the committed number; another number, or a deployment that is not committed, is told."""
    preset = replace(TINY, grid=replace(TINY.grid, kappas=(1.0,), learners=(1,), growths=(0.0,)))
    once = functools.cache(speed.measure)
    monkeypatch.setattr(speed, "measure", once)
    rows = [
        {**dataclasses.asdict(point), "steps_per_second": float(f"{once((point, preset.grid.batches)).steps:.5g}")}
        for point in preset.grid.points()
    ]
    path = tmp_path / "stellaris-map" / "speed.csv"
    path.parent.mkdir()
    output.write_rows(path, rows)
    found = list(repeats.speeds(tmp_path, preset))
    assert len(found) == len({row["system"] for row in rows}) == 4
    assert all(one.agrees for one in found)
    output.write_rows(path, [{**row, "steps_per_second": 1.001 * row["steps_per_second"]} for row in rows])
    assert not any(one.agrees for one in repeats.speeds(tmp_path, preset))
    output.write_rows(path, [{**row, "kappa": 3.0} for row in rows])
    with pytest.raises(LookupError, match=r"no committed run has .*'kappa': 1.0"):
        list(repeats.speeds(tmp_path, preset))


@pytest.mark.slow
def test_schedules_of_the_committed_log():
    """They are those of the committed table."""
    found = list(repeats.schedules(repeats.COMMITTED))
    assert [one.run for one in found][1:3] == [
        "largest age, paced: at most 2 batches ahead",
        "largest age, synchronous",
    ]
    assert all(one.agrees for one in found)


@pytest.mark.slow
def test_runs_that_learn(tmp_path):
    """The rows of the run are read, and no others; few seeds are run."""
    row = {"system": SAMPLING_ON, "kappa": 1.0, "variation": 0.1, "learners": 2, "sharers": 1, "growth": 0.0}
    row |= {"update": 0.1, "learning_rate": 1e-3}
    path = tmp_path / "stellaris-map" / "learning_CartPole.csv.gz"
    path.parent.mkdir()
    output.write_rows(path, [*({**row, "returns": x} for x in (1, 2, 3)), {**row, "learning_rate": 1.0, "returns": 99}])
    found = repeats.learned_on_the_map(tmp_path, TINY)
    assert found.committed == [1.0, 2.0, 3.0]
    assert len(found.now) == 2
    assert np.isfinite(found.now).all()


@pytest.mark.slow
def test_a_run_in_compiled_rounds(tmp_path):
    """Of half of the actors, in the smallest preset; the committed runs are read by their schedule."""
    preset = ceiling.PRESETS["smoke"]
    half, other = ceiling.Schedule(2, 2, 0), ceiling.Schedule(4, 4, 0)
    written = {one: ceiling.Runs(*[np.array([i, i + 2.0])] * 4) for i, one in enumerate((half, other), start=1)}
    path = tmp_path / "minionsrl-ceiling" / "runs_tuned.csv.gz"
    path.parent.mkdir()
    output.write_rows(path, [*ceiling._rows(written)])
    found = repeats.in_rounds(tmp_path, preset)
    assert found.committed == [1.0, 3.0]
    assert len(found.now) == 2
    assert np.isfinite(found.now).all()


def test_what_differs_is_counted(monkeypatch):
    same = repeats.Repeat("study", "run", [1.0], [1.0])
    for name in ("learned_on_the_map", "in_rounds"):
        monkeypatch.setattr(repeats, name, lambda committed: same)
    cells = dict.fromkeys(repeats.CELLS, same)
    cells[repeats.CELLS[1]] = same._replace(study="other", now=[2.0])
    monkeypatch.setattr(repeats.cell, "repeat", lambda one, seeds, committed: cells[one])
    for name in ("speeds", "schedules"):
        monkeypatch.setattr(repeats, name, lambda committed: iter([same]))
    console = Console(record=True, width=200)
    assert repeats.check(console) == 1
    (line,) = (line for line in console.export_text().splitlines() if "other" in line)
    assert "differs" in line
