"""`import stellaris` is light."""

import subprocess
import sys

HEAVY = ("chex", "flax", "envpool", "gymnasium", "mujoco", "pandas", "matplotlib", "rich")


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    """Pure functions, platform and systems need jax, optax, jaxtyping and numpy; environments and networks more."""
    code = f"import stellaris, sys; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
