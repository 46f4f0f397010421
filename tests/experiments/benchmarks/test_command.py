"""`python -m experiments.benchmarks`: what it prints and writes, and its exit status."""

import json
from types import SimpleNamespace

import pytest

from experiments import command as front
from experiments.benchmarks import command, measuring
from experiments.toolkit import output

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("error", "status"), [(None, 0), (KeyboardInterrupt, 130)])
def test_the_command_prints_and_writes_what_was_measured(monkeypatch, capsys, tmp_path, error, status):
    def measure(say):
        say("at it ...")
        yield measuring.Comparison("one thing", "1 s", "2 s", 0.5, "<= 1", {"waiting": "0.3 s"})
        if error is not None:
            raise error
        yield measuring.Comparison("another", "1 s", "2 s", 0.5, "<= 1")

    monkeypatch.setattr(command, "BENCHMARKS", {"it": SimpleNamespace(DESCRIPTION="what it costs", measure=measure)})
    assert front.main(["benchmarks", "it", "--out", str(tmp_path)]) == status
    out, err = capsys.readouterr()
    assert "one thing" in out
    assert ("another" in out) == (status == 0)
    assert err.count("\n") == (status == 130)
    first, *others = output.read_rows(tmp_path / "benchmarks" / "it.csv")
    numbers = {"measured": "1 s", "against": "2 s", "ratio": "0.5", "wanted": "<= 1"}
    assert first == {"what": "one thing", **numbers, "waiting": "0.3 s"}
    assert others == [{"what": "another", **numbers, "waiting": ""}] * (status == 0)
    assert {"commit", "code", "jax", "processor"} <= {*json.loads((tmp_path / "benchmarks" / "it.json").read_text())}


def test_options_reach_the_benchmark(monkeypatch, tmp_path):
    """Those that it takes, the results folder among them."""
    given = []

    def measure(say, *, turns, out):
        given.append((turns, out))
        yield from ()

    def add_arguments(parser):
        parser.add_argument("--turns", type=int)

    module = SimpleNamespace(DESCRIPTION="it", measure=measure, add_arguments=add_arguments)
    monkeypatch.setattr(command, "BENCHMARKS", {"it": module})
    assert front.main(["benchmarks", "it", "--turns", "2", "--out", str(tmp_path)]) == 0
    assert given == [(2, tmp_path)]
    assert not list(tmp_path.rglob("*.json"))


def test_help_names_every_benchmark(capsys):
    with pytest.raises(SystemExit, match="0"):
        front.main(["benchmarks", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name, module in command.BENCHMARKS.items():
        assert f"{name} {module.DESCRIPTION}" in text
