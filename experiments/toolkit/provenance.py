"""Where a result comes from: the commit, the library's code, the versions of packages, and the machine."""

import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stellaris import __version__
from stellaris.runtime.files import atomic_write


def provenance(code: str) -> dict[str, str]:
    """Returns the provenance of results that are written now.

    Args:
      code: a digest of the library's code.

    Returns:
      The commit, with "+" if tracked files differ from it; the digest; the versions of jax and NumPy; the processor,
      with the instruction sets by which BLAS and NumPy choose their kernels; and JAX's devices.
    """
    return {
        "commit": _commit(),
        "code": code,
        **versions("jax", "numpy"),
        "processor": _processor(),
        "instructions": instructions(),
        "devices": ", ".join(device.device_kind for device in jax.devices()),
    }


def instructions() -> str:
    """Returns the processor's instruction sets by which compilers and BLAS choose: others round differently."""
    return ", ".join(np.show_config(mode="dicts")["SIMD Extensions"].get("found", []))


def write(path: Path, code: str, **settings: Any) -> None:
    """Writes settings and the provenance of the results in the same folder as JSON; `code` as for `provenance`."""
    with atomic_write(path) as file:
        json.dump({**settings, **provenance(code)}, file, indent=1)


def versions(*packages: str) -> dict[str, str]:
    """Returns the version of each package by its name; "not installed" for a package that is missing."""
    return {package: _version(package) for package in packages}


def _version(package: str) -> str:
    if package == "stellaris":  # the distribution has another name
        return __version__
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
