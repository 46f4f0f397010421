"""Committed runs, repeated: equal, changed, of other code, of a study that has changed, and failed."""

import json
from dataclasses import replace

import pytest
from rich.console import Console

from experiments import reproduce
from experiments.study import repetition
from experiments.toolkit import provenance
from tests.experiments.csv_rows import rows
from tests.experiments.study.test_study import arguments_of, declared


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """A study's results, as they are committed; the second seed took the least time."""
    out = tmp_path_factory.mktemp("results")
    own, _ = declared()
    assert own.main(arguments_of(own, "--out", str(out))) == 0
    walls = (out / "own" / "wall_seconds.csv").read_text().splitlines()
    walls[1:] = [f"{','.join(row.split(',')[:4])},{seconds}" for row, seconds in zip(walls[1:], (9, 1), strict=True)]
    (out / "own" / "wall_seconds.csv").write_text("\n".join(walls) + "\n")
    return out


def edited(committed, name, old, new):
    """Replaces text in one of the committed files, and returns a function that undoes it."""
    path = committed / "own" / name
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new))
    return lambda: path.write_text(before)


def checked(committed, out):
    console = Console(record=True, width=250)
    return repetition.check({"own": declared()[0]}, out, 1, console, committed), console.export_text()


@pytest.mark.slow
def test_a_run_that_is_equal(committed, tmp_path):
    """The shortest run; all of its results, to the last bit."""
    wrong, text = checked(committed, tmp_path)
    assert wrong == 0
    (line,) = (line for line in text.splitlines() if "own" in line)
    assert "seed 1" in line
    assert "equal" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "wrong", "said"),
    [
        (None, 1, "differs (it should be equal)"),
        ("code", 0, "differs (other code)"),
        ("jax", 0, "differs (other jax)"),
        ("instructions", 0, "differs (other instructions)"),
    ],
)
def test_a_run_that_differs(other, wrong, said, committed, tmp_path):
    """It is wrong if code, JAX and processor are the same; any column counts."""
    gradients = rows(committed / "own" / "runs.csv")[1]["virtual_seconds"]
    undo = [edited(committed, "runs.csv", gradients, "0.5")]
    if other:
        made = json.loads((committed / "own" / "provenance.json").read_text())
        undo.append(edited(committed, "provenance.json", made[other], "another"))
    try:
        found, text = checked(committed, tmp_path)
    finally:
        for each in undo:
            each()
    assert found == wrong
    assert said in text


@pytest.mark.slow
def test_code_that_repeats_older_runs(committed, monkeypatch):
    """Rows of such code count as those of the same code."""
    undo = edited(committed, "provenance.json", provenance.code_version(), "an older digest")
    try:
        assert repetition.chosen("own", declared()[0], committed).other == "other code"
        monkeypatch.setattr(repetition, "SAME_RUNS", {"an older digest"})
        assert repetition.chosen("own", declared()[0], committed).other == ""
    finally:
        undo()


@pytest.mark.slow
def test_nothing_to_repeat(committed, tmp_path):
    """Without committed results, or if the study measures the machine; other settings are named."""
    own, _ = declared()
    assert repetition.chosen("own", own, tmp_path) is None
    assert repetition.chosen("own", replace(own, alone=True), committed) is None
    with pytest.raises(LookupError, match="own: none of the 2 committed runs is part of the study any more"):
        repetition.chosen("own", declared(settings=("other",))[0], committed)


def test_every_committed_study_can_be_repeated():
    """Its results have what `reproduce --check` needs, and a run that the study would still make."""
    own = reproduce.studies()
    known = {name: of for name, of in own.items() if (repetition.COMMITTED / name).exists() and not of.alone}
    assert len(known) > 20
    for name, of in known.items():
        one = repetition.chosen(name, of)
        assert one is not None
        assert one.row["environment"] == one.cell.environment
