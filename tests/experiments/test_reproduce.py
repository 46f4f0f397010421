"""`python -m experiments reproduce`: every figure's study, whatever becomes of one of them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import catalogue, command, reproduce
from experiments.figures import repeats
from experiments.study import repetition


def noting(name, seen, status=0):
    """An experiment with the options of a real one, which only records its arguments."""
    real = catalogue.EXPERIMENTS[name]

    def main(arguments):
        seen.append((name, arguments))
        return status

    module = SimpleNamespace(add_arguments=real.load().add_arguments, main=main)
    return SimpleNamespace(kind=real.kind, load=lambda: module)


def test_every_figure_takes_the_options_that_it_is_given(monkeypatch):
    seen = []
    figures = {
        name: noting(name, seen) for name, real in catalogue.EXPERIMENTS.items() if real.kind in ("study", "figure")
    }
    monkeypatch.setattr(catalogue, "EXPERIMENTS", figures)
    for preset in ("smoke", "small", "paper"):
        seen.clear()
        assert reproduce.main(SimpleNamespace(preset=preset, jobs=1, out=Path("there"), check=False)) == 0
        assert {name for name, _ in seen} == {*figures}
    given = dict(seen)
    assert (given["gear-hopper"].preset, given["gear-hopper"].out) == ("small", Path("there/gear-hopper"))
    assert given["stellaris-why"].out == Path("there")


@pytest.mark.parametrize(
    ("ends", "status", "ran"), [((0, 0), 0, 2), ((1, 0), 1, 2), ((0, 1), 1, 2), ((130, 0), 130, 1)]
)
def test_one_that_fails(ends, status, ran, monkeypatch):
    seen, itself = [], {"reproduce": catalogue.EXPERIMENTS["reproduce"]}
    names = ("stellaris-why", "stellaris-cost")
    studies = {name: noting(name, seen, end) for name, end in zip(names, ends, strict=True)}
    monkeypatch.setattr(catalogue, "EXPERIMENTS", studies | itself)
    monkeypatch.setattr(command, "EXPERIMENTS", itself)
    assert command.main(["reproduce", "--preset", "smoke", "--jobs", "1"]) == status
    assert [(one.preset, one.jobs, one.resume) for _, one in seen] == [("smoke", 1, True)] * ran


@pytest.mark.parametrize(("cells", "others", "status"), [(0, 0, 0), (1, 0, 1), (0, 2, 1)])
def test_committed_runs_that_differ(cells, others, status, monkeypatch, tmp_path):
    """Those of the studies, and those of the lab."""
    monkeypatch.setattr(repetition, "check", lambda studies, *others: cells)
    monkeypatch.setattr(repeats, "check", lambda console: others)
    assert command.main(["reproduce", "--check", "--out", str(tmp_path)]) == status
