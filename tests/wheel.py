"""`make test-wheel`: the wheel in empty environments, where the README's blocks run with the extras that they name.

The environments have the Python that runs this module.
"""

import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from tests import pages

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"

#: Every public name can be imported without any extra, and the checkout is not what is imported.
IMPORT = """
import importlib.metadata, importlib.resources, importlib.util, stellaris
for name in dir(stellaris):
    getattr(stellaris, name)
assert importlib.metadata.version("stellaris-rl") == stellaris.__version__
assert "site-packages" in stellaris.__file__, stellaris.__file__
assert importlib.resources.files("stellaris").joinpath("vectors.safetensors").is_file(), "no reference vectors"
assert not any(map(importlib.util.find_spec, ("experiments", "theory_checks"))), "not the library alone"
print("import stellaris:", stellaris.__version__)
"""


def main() -> None:
    """Builds the wheel, then installs it once for each set of extras that the README's blocks name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        for needed in sorted({"", *map(pages.extras, pages.blocks(README))}):
            began = time.monotonic()
            python = environment(folder / (needed or "core"), f"stellaris-rl[{needed}] @ {wheel.as_uri()}")
            print(f"installed [{needed}] in {time.monotonic() - began:.0f} s", flush=True)
            # Isolated from the checkout (-I), in which the working folder and PYTHONPATH would find the library.
            run(python, "-I", "-c", IMPORT, cwd=folder)
            run(python, "-I", pages.__file__, README, needed, cwd=folder)


def build(folder: Path) -> Path:
    """Builds the wheel, and returns its path."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def environment(folder: Path, requirement: str) -> Path:
    """Makes an environment with one requirement and nothing else, and returns its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", requirement)
    return python


def run(*command: object, cwd: Path | None = None) -> None:
    """Runs a command; its failure ends this program with the same status."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, check=False)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
