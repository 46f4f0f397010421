"""The benchmarks run, and compare what agrees; their figures are not judged here."""

from types import SimpleNamespace

import pytest

from experiments.benchmarks import command, losses, measuring


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A glance instead of a measurement."""
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    monkeypatch.setattr(measuring, "REPEATS", 1)
    monkeypatch.setattr(losses, "SIZES", ((6, 2), (12, 3)))


def test_losses_are_compared_with_their_peers():
    """Every row has a positive ratio but for times added, which may round to less; every size has its row."""
    rows = list(losses.measure(lambda line: None))
    assert all(row.ratio > 0 for row in rows if "added" not in row.what)
    assert sum("[12, 3]" in row.what for row in rows) == 3 + 1  # gae, its gradient, vtrace; the cap
    assert sum("geometric mean" in row.what for row in rows) == 3


def test_peers_that_differ_are_not_timed(monkeypatch):
    """A function that computes something else ends the benchmark."""
    monkeypatch.setattr(losses, "gae", lambda reward, discount, value, lambda_: reward)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        list(losses.measure(lambda line: None))


def test_both_sides_are_called_alike():
    """Each side as often as the other, in turn."""
    calls = []
    times = measuring.interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")})
    assert calls[-2:] == ["a", "b"]
    assert calls.count("a") == calls.count("b")
    assert min(times.values()) >= 0


@pytest.mark.parametrize(("error", "status"), [(None, 0), (KeyboardInterrupt, 130)])
def test_the_command_prints_what_was_measured(monkeypatch, capsys, error, status):
    """All of it, or what there is when it is interrupted."""

    def measure(say):
        say("at it ...")
        yield measuring.Comparison("one thing", "1 s", "2 s", 0.5, "<= 1")
        if error is not None:
            raise error
        yield measuring.Comparison("another", "1 s", "2 s", 0.5, "<= 1")

    monkeypatch.setattr(command, "BENCHMARKS", {"it": SimpleNamespace(DESCRIPTION="what it costs", measure=measure)})
    assert command.main(["it"]) == status
    out, err = capsys.readouterr()
    assert "one thing" in out
    assert ("another" in out) == (status == 0)
    assert err.count("\n") == (status == 130)


def test_a_benchmark_that_is_not_there(capsys):
    """One line."""
    assert command.main(["nothing"]) == 2
    assert "invalid choice: 'nothing'" in capsys.readouterr().err
