"""Every architecture in turn, on a problem that is learned in a moment."""

from dataclasses import replace

import pytest

from experiments import command, systems
from experiments.tasks import presets
from stellaris.acting import ActorCritic
from stellaris.systems import Workload


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """A small network, and two of the architectures."""

    def architectures(environment):
        preset = presets.architectures(environment)
        workload = Workload(environment, policy=ActorCritic(hidden=(8,)), actors=16, fragment=64)
        few = [contender for contender in preset.contenders if contender.name in ("synchronous", "stellaris")]
        return replace(preset, workload=workload, contenders=tuple(few))

    monkeypatch.setattr(systems, "architectures", architectures)


def run(*options):
    return command.main(["systems", "--env", "CartPole-v1", *options])


@pytest.mark.slow
def test_all_reach_the_target(capsys):
    """A return that guessing gives: the table says so, and the status is 0."""
    assert run("--target", "10") == 0
    printed = capsys.readouterr().out
    assert "CartPole-v1, seed 0, to a return of 10" in printed
    for name in ("synchronous", "stellaris"):
        row = next(line for line in printed.splitlines() if line.startswith("\u2502") and name in line)
        assert " yes " in row


@pytest.mark.slow
def test_one_that_does_not_is_named(capsys):
    """And the status is 1."""
    assert run("--target", "501", "--seconds", "2", "--seed", "3") == 1
    printed = capsys.readouterr()
    assert "synchronous, stellaris: a return of 501 was not reached in 2 virtual seconds" in printed.err
    assert "seed 3" in printed.out


def test_a_target_is_needed(capsys):
    assert command.main(["systems", "--env", "Acrobot-v1"]) == 2
    assert "--target: Acrobot-v1 has no default target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["systems", "--target", "nan"], "--target: nan is not a finite number"),
        (["cluster", "--target", "nan"], "--target: nan is not a finite number"),
        (["systems", "--env", "NoSuch-v0"], "--env NoSuch-v0: unknown environment"),
    ],
)
def test_options_are_refused_by_what_is_wrong_with_them(options, said, capsys):
    assert command.main(options) == 2
    assert said in capsys.readouterr().err
