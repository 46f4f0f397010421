"""Compares replay with Reverb's server, flashbax's buffers, and a plain copy of the same number of bytes.

The sides run one after the other in separate processes, with the same tables: 10,000 trajectories of 1,000 steps of 15
numbers, and 2,000 trajectories of 64 frames. Reverb's items are the windows themselves. Reverb's dataset client runs
with 1, 2 and 4 workers, and the fastest is compared. Draws by weight are from a million trajectories of one step.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks.installed import python_of
from experiments.benchmarks.measuring import Comparison
from experiments.benchmarks.sides.replaying import LOADS, Load

DESCRIPTION = "replay: batches of windows against Reverb, flashbax and a copy, and draws from a million trajectories"

_REVERB = ("dm-reverb[tensorflow]==0.14.0",)
_FLASHBAX = ("flashbax==0.1.3", "jax==0.10.2")
#: Ways to run Reverb's client: the number of workers, and the number of samples that each has in flight.
_WAYS = (("1", "16"), ("2", "64"), ("4", "64"))
#: Every side allocates large arrays in large pages: a large page costs a 500th of the time of the small pages that it
#: replaces.
_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
#: The most seconds that a side may take; filling the table takes most of them.
_PATIENCE = 600.0
_ROOT = Path(__file__).resolve().parents[2]


def measure(say: Callable[[str], None]) -> Iterator[Comparison]:
    """Runs every side, and calls `say` with the progress."""
    reverb, flashbax = python_of(_REVERB, say), python_of(_FLASHBAX, say)
    for name in ("steps", "frames"):
        load = LOADS[name]
        say(f"{name}: {load.batch} windows of {load.window} steps, {load.nbytes / 1e6:.1f} MB ...")
        ours = _side(Path(sys.executable), "replay_ours", name)
        theirs = _side(flashbax, "replay_flashbax", name)
        served = min((_side(reverb, "replay_reverb", name, *way) for way in _WAYS), key=lambda side: side["seconds"])
        yield _row(load, "Reverb", ours["seconds"], served["seconds"], ">= 6")
        yield _row(load, "flashbax's trajectory buffer", ours["seconds"], theirs["seconds"], ">= 1.0")
        yield _row(load, "a copy of as many bytes into existing memory", ours["seconds"], ours["copy"], ">= 0.6")
        yield _row(
            load, "NumPy's copy of the same number of windows from random places", ours["seconds"], ours["gathered"], ""
        )
    say("draws by weight from a million trajectories ...")
    ours = _side(Path(sys.executable), "replay_ours", "weighted")
    theirs = _side(flashbax, "replay_flashbax", "weighted")
    yield _row(LOADS["weighted"], "flashbax's prioritised buffer", ours["seconds"], theirs["seconds"], ">= 5")
    yield Comparison(
        "1,000 other weights of a million, against a new tree",
        f"{1e3 * ours['update']:.2f} ms",
        f"{1e3 * ours['rebuild']:.2f} ms",
        ours["rebuild"] / ours["update"],
        "> 1",
    )


def _row(load: Load, peer: str, ours: float, theirs: float, wanted: str) -> Comparison:
    what = f"{load.name}: trajectories/s against {peer}"
    return Comparison(what, f"{load.batch / ours:,.0f}", f"{load.batch / theirs:,.0f}", theirs / ours, wanted)


def _side(python: Path, module: str, *arguments: str) -> dict[str, Any]:
    """Runs a side, and returns the medians of its measurements over the turns."""
    command = [str(python), "-m", f"experiments.benchmarks.sides.{module}", *arguments]
    environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=_PATIENCE)
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)}: {done.stderr.strip()[-2000:]}")
    found: dict[str, Sequence[float]] = json.loads(done.stdout.splitlines()[-1])
    return {name: statistics.median(turns) for name, turns in found.items()}
