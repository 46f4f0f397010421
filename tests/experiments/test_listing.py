"""`python -m experiments list`."""

import pytest

from experiments import catalogue, command


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, with what each does."""
    assert command.main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in catalogue.EXPERIMENTS:
        assert f"\u2502 {name} " in printed
    assert "small 120" in printed


def test_what_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Is listed all the same."""
    monkeypatch.setitem(catalogue.EXPERIMENTS, "odd", catalogue.Entry("benchmarks.nothing"))  # type: ignore[misc]
    assert command.main(["list"]) == 0
    assert "(needs experiments.benchmarks.nothing, which" in capsys.readouterr().out
