"""`python -m experiments.simtest`: its options, what it prints, and its exit status."""

from experiments import command as front
from experiments.simtest import command
from experiments.simtest.invariants import ViolationError


def test_the_command_prints_how_to_replay(monkeypatch, capsys):
    def broken(seed):
        if seed == 8:
            raise ViolationError("seed 8: it broke")
        return {}

    monkeypatch.setattr(command, "run", broken)
    assert front.main(["simtest", "--seeds", "3", "--first-seed", "7"]) == 1
    out = capsys.readouterr().out
    assert "seed 8: it broke" in out
    assert "python -m experiments simtest --first-seed 8 --seeds 1" in out
    assert front.main(["simtest", "--seeds", "1"]) == 0


def test_an_interruption_leaves_the_summary(monkeypatch, capsys):
    """Of the seeds that were done, with those that failed; an error may say what looks like markup."""

    def interrupted(seed):
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
