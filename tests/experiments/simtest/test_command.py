"""`python -m experiments.simtest`: its options, what it prints, and its exit status."""

from typing import Any

import pytest

from experiments import command as front
from experiments.simtest import command
from experiments.simtest.invariants import ViolationError


def test_the_command_prints_how_to_replay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A failing seed, with the command; the exit status says that there was one."""

    def broken(seed: int) -> Any:
        if seed == 8:
            raise ViolationError("seed 8: it broke")
        return {}

    monkeypatch.setattr(command, "run", broken)
    assert front.main(["simtest", "--seeds", "3", "--first-seed", "7"]) == 1
    out = capsys.readouterr().out
    assert "seed 8: it broke" in out
    assert "python -m experiments simtest --first-seed 8 --seeds 1" in out
    assert front.main(["simtest", "--seeds", "1"]) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seeds", "0"], "--seeds: 0"),
        (["--seeds", "nan"], "--seeds: nan"),
        (["--first-seed", "-1"], "--first-seed: -1"),
        (["--first-seed", "2147483648"], "--first-seed: 2147483648"),
        (["--first-seed", "2147483647", "--seeds", "2"], "--first-seed: 2147483647 and the 2 seeds"),
    ],
)
def test_seeds_that_are_none(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are refused in a line, not counted as failed."""
    assert front.main(["simtest", *options]) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"error: {said}")
    assert err.count("\n") == 1
    assert out == ""


def test_an_interruption_leaves_the_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the seeds that were done, with those that failed; an error may say what looks like markup."""

    def interrupted(seed: int) -> Any:
        if seed == 8:
            raise ViolationError("[/it] broke")
        if seed == 9:
            raise KeyboardInterrupt
        return {"started": 1}

    monkeypatch.setattr(command, "run", interrupted)
    assert front.main(["simtest", "--seeds", "5", "--first-seed", "6"]) == 130
    out, err = capsys.readouterr()
    assert "seeds 6 to 8: 1 failed" in out
    assert "[/it] broke" in out
    assert "started │     2" in out
    assert err.count("\n") == 1


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option with its default."""
    with pytest.raises(SystemExit, match="0"):
        front.main(["simtest", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "number of seeds (default: 200)" in text
    assert "the first seed (default: 0)" in text


def test_one_seed_that_fails_shows_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its traceback, which would be too much of many."""

    def broken(seed: int) -> Any:
        raise ViolationError(f"seed {seed}: it broke")

    monkeypatch.setattr(command, "run", broken)
    for seeds, shown in (("1", True), ("2", False)):
        assert front.main(["simtest", "--seeds", seeds]) == 1
        assert ("Traceback" in capsys.readouterr().out) == shown
