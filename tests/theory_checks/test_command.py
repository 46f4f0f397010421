"""The command line, on checks that take no time."""

import errno
import json
import re
import shlex
from types import SimpleNamespace
from unittest import mock

import jax.numpy as jnp
import pytest

from theory_checks import command
from theory_checks.check import Claim, Family, Instance, Sides, Theorem

pytestmark = pytest.mark.usefixtures("checks")


def _theorem(name, right, *, control=False, steps=20):
    return Theorem(
        name,
        claims=(Claim("squares / all", "x^2 <= 1 [m]", control=control),),
        families={"of [0, 1)": Family(lambda key, index: Instance({"x": index.astype(float)}))},
        sides=lambda instance: {"squares / all": Sides(jnp.sin(instance.free["x"]) ** 2, right)},
        steps=steps,
    )


@pytest.fixture
def checks(monkeypatch):
    theorems = {
        "still": [_theorem("still", 1.0, steps=0)],
        "good": [_theorem("good", 1.0), _theorem("good control", 0.5, control=True)],
        "bad": [_theorem("bad", 0.9)],
        "blind": [_theorem("blind", 2.0, control=True)],
        "drawn": [_theorem("drawn", 1.0)],
    }
    known = {name: SimpleNamespace(THEOREMS=of) for name, of in theorems.items()}
    known["drawn"].findings = lambda seed: {"what": {"low": 0.25, "all": (1.0, 2.0)}}
    known["drawn"].picture = lambda path, seed: path.write_text(str(seed))
    monkeypatch.setattr(command, "CHECKS", known)


@pytest.mark.slow
def test_a_table_and_zero_if_all_is_as_expected_be(capsys):
    assert command.main(["good", "--instances", "50"]) == 0
    out, err = capsys.readouterr()
    for text in ("instances", "violations", "smallest slack", "tightness", "kappa*", "x^2 <= 1 [m]", "holds"):
        assert text in out
    assert "broke as expected" in out
    assert "every bound holds, every control breaks" in err


def test_a_violation_prints_the_command_that_replays_it(capsys):
    assert command.main(["bad", "--instances", "50", "--seed", "3"]) == 1
    out, err = capsys.readouterr()
    assert "VIOLATED" in out
    left, words = re.search(r"violated, ([\d.]+) > 0.9; again:\s+python -m theory_checks (.*)", err).groups()
    assert command.main(shlex.split(words)) == 0
    replayed = re.search(r"left ([\d.]+)", capsys.readouterr().out)[1]
    assert float(replayed) == pytest.approx(float(left), rel=1e-8)


def test_a_control_that_does_not_break_is_an_error(capsys):
    assert command.main(["blind", "--instances", "50"]) == 1
    out, err = capsys.readouterr()
    assert ("DID NOT BREAK" in out, "did not break" in err) == (True, True)


def test_json(capsys):
    assert command.main(["good", "bad", "drawn", "--instances", "50", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [claim["theorem"] for claim in found["claims"]] == ["good", "good control", "bad", "drawn"]
    assert found["claims"][0]["violations"] == 0
    assert 0.99 < found["claims"][0]["kappa"] <= 1
    assert found["findings"]["drawn"]["what"]["low"] == 0.25


def test_a_check_that_is_named_twice_is_done_once(capsys):
    assert command.main(["good", "good", "--instances", "50", "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)["claims"]
    assert [claim["theorem"] for claim in claims] == ["good", "good control"]


def test_pictures_and_findings(capsys, tmp_path):
    assert command.main(["drawn", "--instances", "50", "--plot", "--seed", "7", "--out", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "drawn.png").read_text() == "7"
    assert "drawn: what: low: 0.25, all: 1 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["good", "--instances", "0"], "--instances: 0 is not a whole number from 1"),
        (["good", "--seed", "-1"], "--seed: -1 is not a whole number from 0"),
        (["good", "--out", ""], "--out: ''"),
        (["good", "--plot", "--out", "/dev/null"], "--out /dev/null"),
        (["nothing"], "'nothing': unknown; choose from still, good"),
        (["--replay", ""], "--replay ''"),
        (["--replay", "good/of [0, 1)/²"], "--replay 'good/of [0, 1)/²'"),
        (["--replay", "good/of [0, 1)/12345678901234567890"], "--replay 'good/of [0, 1)/1234"),
        (["--replay", "good"], "--replay 'good'"),
        (["--replay", "good/nobody/1"], "family 'nobody'"),
        (["--replay", "good/of [0, 1)/1/never"], "claim 'never'"),
        (["--replay", "still/of [0, 1)/1/squares / all"], "without an adversary"),
    ],
)
def test_nonsense(capsys, arguments, said):
    assert command.main(arguments) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1
    assert out == ""


def test_an_interrupt_loses_nothing(capsys, monkeypatch):
    def interrupted(theorem, **how):
        if theorem.name == "bad":
            raise KeyboardInterrupt
        return verify(theorem, **how)

    verify = command.verify
    monkeypatch.setattr(command, "verify", interrupted)
    assert command.main(["good", "bad", "--instances", "50"]) == 130
    out, err = capsys.readouterr()
    assert "holds" in out
    assert "interrupted" in err


def test_a_picture_that_cannot_be_saved_ends_nothing(capsys, monkeypatch, tmp_path):
    no_room = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(command.CHECKS["drawn"], "picture", mock.Mock(side_effect=no_room))
    assert command.main(["drawn", "good", "--instances", "50", "--plot", "--out", str(tmp_path / "out")]) == 1
    out, err = capsys.readouterr()
    assert "no picture of drawn: No space left on device" in err
    assert "good control" in out
    assert not (tmp_path / "out").exists()  # made to be tried, and left empty
