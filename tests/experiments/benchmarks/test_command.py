"""`python -m experiments.benchmarks`: what it prints, and its exit status."""

from types import SimpleNamespace

import pytest

from experiments import command as front
from experiments.benchmarks import command, measuring

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("error", "status"), [(None, 0), (KeyboardInterrupt, 130)])
def test_the_command_prints_what_was_measured(monkeypatch, capsys, error, status):
    def measure(say):
        say("at it ...")
        yield measuring.Comparison("one thing", "1 s", "2 s", 0.5, "<= 1")
        if error is not None:
            raise error
        yield measuring.Comparison("another", "1 s", "2 s", 0.5, "<= 1")

    monkeypatch.setattr(command, "BENCHMARKS", {"it": SimpleNamespace(DESCRIPTION="what it costs", measure=measure)})
    assert front.main(["benchmarks", "it"]) == status
    out, err = capsys.readouterr()
    assert "one thing" in out
    assert ("another" in out) == (status == 0)
    assert err.count("\n") == (status == 130)


def test_help_names_every_benchmark(capsys):
    with pytest.raises(SystemExit, match="0"):
        front.main(["benchmarks", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, module in command.BENCHMARKS.items():
        assert f"{name} {module.DESCRIPTION}" in text
