"""`import stellaris` is light."""

import subprocess
import sys

HEAVY = ("chex", "flax", "envpool", "gymnasium", "mujoco", "pandas", "matplotlib", "rich", "h5py", "safetensors")


def test_heavy_packages_are_imported_where_they_are_used() -> None:
    """Pure functions, platform and systems need jax, optax, jaxtyping and numpy; environments, networks, files more."""
    code = f"import stellaris.replay, sys; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_ray_is_imported_when_its_platform_is_asked_for() -> None:
    """Not by anything else; without Ray the error names the extra, and all else works."""
    code = """
import sys, stellaris, stellaris.runtime, stellaris.systems
print("ray" in sys.modules)
sys.modules["ray"] = None
try:
    stellaris.runtime.RayPlatform
except ImportError as error:
    print(error)
print(stellaris.runtime.SimulatedPlatform.__name__)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\nRayPlatform needs Ray: pip install 'stellaris[ray]'\nSimulatedPlatform\n"
