"""Where a result comes from: the commit, the library's code, the versions of packages, and the machine."""

import ast
import functools
import hashlib
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

import stellaris
from stellaris.runtime.files import atomic_write


def provenance() -> dict[str, str]:
    """Returns the provenance of results that are written now.

    Returns:
      The commit, with "+" if tracked files differ from it; the digest of the library's code; the versions of jax and
      NumPy; the processor, with the instruction sets by which BLAS and NumPy choose their kernels; and JAX's devices.
    """
    return {
        "commit": _commit(),
        "code": code_version(),
        **versions("jax", "numpy"),
        "processor": _processor(),
        "instructions": instructions(),
        "devices": ", ".join(device.device_kind for device in jax.devices()),
    }


@functools.cache
def code_version() -> str:
    """Returns a digest of the library's code without comments, docstrings and formatting, the same on every Python."""
    root = Path(stellaris.__file__).parent
    parts = {
        path.relative_to(root).as_posix(): ast.dump(_bare(ast.parse(path.read_text())), **_SHOW_EMPTY)
        for path in sorted(root.rglob("*.py"))
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


#: Python 3.13 no longer shows empty lists by default.
_SHOW_EMPTY: Mapping[str, Any] = {"show_empty": True} if sys.version_info >= (3, 13) else {}


def _bare(tree: ast.Module) -> ast.Module:
    """Removes the docstrings from a syntax tree, and the empty lists of type parameters that Python 3.12 added."""
    for node in ast.walk(tree):
        if getattr(node, "type_params", None) == []:
            del node.type_params  # type: ignore[attr-defined]
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:]
    return tree


def instructions() -> str:
    """Returns the processor's instruction sets by which compilers and BLAS choose: others round differently."""
    return ", ".join(np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))


def write(path: Path, **settings: Any) -> None:
    """Writes settings and the provenance of the results in the same folder as JSON."""
    with atomic_write(path) as file:
        json.dump({**settings, **provenance()}, file, indent=1)


def versions(*packages: str) -> dict[str, str]:
    """Returns the version of each package by its name; "not installed" for a package that is missing."""
    return {package: _version(package) for package in packages}


def _version(package: str) -> str:
    if package == "stellaris":  # the distribution has another name
        return stellaris.__version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Returns the hash of the commit; "unknown" outside of a repository."""

    def git(*arguments: str) -> str:
        folder = Path(__file__).parent
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=folder)
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    return commit + "+" * bool(git("status", "--porcelain", "--untracked-files=no")) if commit else "unknown"


def _processor() -> str:
    """Returns the processor's name, from Linux' list if there is one."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()
