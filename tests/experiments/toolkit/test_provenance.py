"""Where a result comes from, from this repository and outside of one."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stellaris
from experiments.toolkit import provenance


def test_of_this_checkout():
    """All of it is text."""
    of = provenance.provenance()
    assert of["code"] == provenance.code_version()
    assert all(isinstance(value, str) and value for value in of.values())
    assert json.loads(json.dumps(of)) == of


def test_what_counts_of_the_code():
    plain = "def f(x):\n    return x + 1\n"
    commented = '"""Module."""\n\ndef f(x):  # why\n    """Docstring."""\n    return (x +\n 1)\n'
    other = plain.replace("1", "2")
    one, same, different = (ast.dump(provenance._bare(ast.parse(code))) for code in (plain, commented, other))
    assert one == same != different


def test_the_code_counts_the_same_on_later_pythons(monkeypatch):
    """Since Python 3.12 functions and classes have a list of type parameters."""
    plain = "class A:\n    def f(self):\n        return 1\n"
    expected = ast.dump(provenance._bare(ast.parse(plain)), **provenance._SHOW_EMPTY)
    later = ast.parse(plain)
    for kind in (ast.FunctionDef, ast.ClassDef):
        if "type_params" not in kind._fields:
            monkeypatch.setattr(kind, "_fields", (*kind._fields, "type_params"))
    for node in (later.body[0], later.body[0].body[0]):
        node.type_params = []
    assert "type_params" in ast.dump(later, **provenance._SHOW_EMPTY)
    assert ast.dump(provenance._bare(later), **provenance._SHOW_EMPTY) == expected


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
