"""Peers, each in a Python environment of its own, which is made when it is first needed."""

import hashlib
import os
import re
import shutil
import subprocess
import venv
from collections.abc import Callable, Sequence
from pathlib import Path


def python_of(requirements: Sequence[str], say: Callable[[str], None]) -> Path:
    """The Python of a peer's environment, where its requirements are installed.

    Args:
      requirements: as pip takes them, the peer first, pinned; others make another environment.
      say: told that something is being installed, as that takes minutes.

    Raises:
      RuntimeError: if pip fails; ends with what it wrote.
    """
    name = re.split(r"\W*[=<>\[]", requirements[0])[0]
    digest = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:8]
    folder = _cache() / f"{name}-{digest}"
    python = folder / "bin" / "python"
    stamp = folder / "installed"  # written last, so that what was cut off is begun anew
    if not stamp.exists():
        say(f"installing {name} into {folder} ...")
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"pip cannot install {', '.join(requirements)}: {done.stderr.strip()[-2000:]}")
        stamp.touch()
    return python


def _cache() -> Path:
    """Where caches of programs are, by the XDG's rules."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stellaris" / "peers"
