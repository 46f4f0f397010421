"""Environments of peers: made once, and again if what they hold is another; pip is not run."""

import subprocess
import venv
from types import SimpleNamespace

import pytest

from experiments.benchmarks import installed

pytestmark = pytest.mark.slow


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """What pip was asked for; it fails if its status is set."""
    calls = SimpleNamespace(asked=[], status=0)

    def run(command, **options):
        calls.asked.append(command[5:])
        return SimpleNamespace(returncode=calls.status, stderr="no such wheel\n")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(venv, "create", lambda folder, with_pip: folder.mkdir(parents=True))
    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_what_is_installed_is_found_again(pip, tmp_path):
    """By its requirements; others have an environment of their own, named after the first of them."""
    said = []
    first = installed.python_of(("ray[rllib]==2.0", "torch==1.0"), said.append)
    assert first == installed.python_of(("ray[rllib]==2.0", "torch==1.0"), said.append)
    other = installed.python_of(("ray[rllib]==2.1", "torch==1.0"), said.append)
    assert other != first
    assert first.parts[-3].startswith("ray-")
    assert first.is_relative_to(tmp_path / "stellaris" / "peers")
    assert [line[-2:] for line in pip.asked] == [[f"ray[rllib]==2.{i}", "torch==1.0"] for i in (0, 1)]
    assert len(said) == 2


def test_an_installation_that_failed_is_begun_anew(pip):
    """And says what pip said."""
    pip.status = 1
    with pytest.raises(RuntimeError, match=r"cannot install sbx==1\.0: no such wheel"):
        installed.python_of(("sbx==1.0",), lambda line: None)
    pip.status = 0
    installed.python_of(("sbx==1.0",), lambda line: None)
    assert len(pip.asked) == 2
