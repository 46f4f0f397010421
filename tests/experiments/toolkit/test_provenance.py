"""Where a result comes from, from this repository and outside of one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stellaris
from experiments.toolkit import provenance


def test_of_this_checkout():
    """All of it is text, and the code is what was passed."""
    of = provenance.provenance("abc")
    assert of["code"] == "abc"
    assert all(isinstance(value, str) and value for value in of.values())
    assert json.loads(json.dumps(of)) == of


def test_the_version_of_a_missing_package():
    """It is said to be missing, and fails nothing; the library's own version is known even if it is not installed."""
    of = provenance.versions("stellaris", "pytest", "no-such-package")
    assert of == {"stellaris": stellaris.__version__, "pytest": pytest.__version__, "no-such-package": "not installed"}


@pytest.mark.slow
def test_the_commit(tmp_path):
    """Of a repository with one commit: its hash, with a plus when a tracked file was changed; else unknown."""
    shutil.copy(provenance.__file__, tmp_path / "copied.py")

    def commit():
        code = "import copied; print(copied._commit())"
        return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True).stdout.strip()

    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert commit() == "unknown"
    git("init", "-q")
    git("add", "copied.py")
    git("commit", "-qm", "one")
    made = git("rev-parse", "HEAD")
    assert commit() == made
    with Path(tmp_path / "copied.py").open("a") as file:
        file.write("\n")
    assert commit() == made + "+"
