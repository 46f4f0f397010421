"""Installs peers (the libraries to compare with) on first use, each in a separate Python environment."""

import hashlib
import os
import re
import shutil
import subprocess
import venv
from collections.abc import Callable, Sequence
from pathlib import Path


def python_of(requirements: Sequence[str], say: Callable[[str], None]) -> Path:
    """Returns the Python of a peer's environment, and installs the peer there if needed.

    Args:
      requirements: the pinned packages in pip's syntax, the peer first; each list of requirements has its own
        environment.
      say: the function that gets a line of text before an installation, which takes minutes.

    Raises:
      RuntimeError: if pip fails; the message ends with pip's output.
    """
    name = re.split(r"\W*[=<>\[]", requirements[0])[0]
    digest = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:8]
    folder = _cache() / f"{name}-{digest}"
    python = folder / "bin" / "python"
    stamp = folder / "installed"  # written last: an interrupted installation is started again
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
    """Returns the folder of the peers' environments, in the cache folder that the XDG specification names."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stellaris" / "peers"
