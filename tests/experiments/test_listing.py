"""`python -m experiments list`."""

import pytest

from experiments import catalogue, command


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """By name, with what each does."""
    assert command.main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in catalogue.EXPERIMENTS:
        assert f"\u2502 {name} " in printed
    assert "small 90" in printed
