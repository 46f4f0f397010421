"""Measures on a GPU what this library's other benchmarks measure on a CPU, or assume.

Tables of replay are compared with copies of as many bytes; many runs of the lab with few; and gradients, which the
testbed assumes to take the same time for every minibatch and to slow each other down on a shared GPU, with one alone.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.benchmarks.measuring import Comparison
from experiments.benchmarks.sides.gpu_gradients import NETWORKS
from experiments.benchmarks.sides.replaying import LOADS
from experiments.toolkit import shell

DESCRIPTION = "on a GPU: gradients by minibatch and sharers, replay against copies, runs of the lab (minutes)"

#: Runs of the lab at a time; the first is the reference.
_RUNS = (16, 256, 1024, 4096)
_ROOT = Path(__file__).resolve().parents[2]


def measure(say: Callable[[str], None]) -> Iterator[Comparison]:
    """Runs every side in a separate process, and calls `say` with the progress."""
    seen = _output("-c", "import jax; print(jax.devices()[0].platform, '-', jax.devices()[0].device_kind)")
    platform, _, kind = seen.partition(" - ")
    if platform == "cpu":
        raise shell.UsageError("jax sees no GPU on this machine: install jax's build for yours, or use another machine")
    say(f"{kind} ...")
    yield from _replay(say)
    yield from _lab(say)
    yield from _gradients(say)


def _replay(say: Callable[[str], None]) -> Iterator[Comparison]:
    for name in ("steps", "frames"):
        load = LOADS[name]
        for memory in ("device", "pinned_host"):
            say(f"replay: {name}, {memory} ...")
            side = {kind: statistics.median(turns) for kind, turns in _side("gpu_replay", name, memory).items()}
            against = "device" if memory == "device" else "host"
            what = "a copy within the device's memory" if memory == "device" else "a copy from pinned host memory"
            yield Comparison(
                f"{load.batch} windows of {name} ({load.nbytes / 1e6:.1f} MB) from a table in memory "
                f"'{memory}', GB/s against {what}",
                f"{load.nbytes / side['batch'] / 1e9:.1f}",
                f"{load.nbytes / side[against] / 1e9:.1f}",
                side[against] / side["batch"],
                "",
            )


def _lab(say: Callable[[str], None]) -> Iterator[Comparison]:
    speeds = {}
    for runs in _RUNS:
        printed = _output("-m", "experiments.benchmarks.sides.lab_ours", str(runs), str(runs))
        numbers = json.loads(printed.splitlines()[-2])
        speeds[runs] = numbers["steps"] / numbers["running"]
        say(f"lab, {runs} runs: {speeds[runs]:,.0f} steps/s, compiled in {numbers['compiling']:.0f} s")
        yield Comparison(
            f"steps/s of {runs} runs of CartPole at a time, against {_RUNS[0]}",
            f"{speeds[runs]:,.0f}",
            f"{speeds[_RUNS[0]]:,.0f}",
            speeds[runs] / speeds[_RUNS[0]],
            "",
        )


def _gradients(say: Callable[[str], None]) -> Iterator[Comparison]:
    for network in NETWORKS:
        say(f"gradients: {network} ...")
        by_minibatch = _side("gpu_gradients", network)
        alone = by_minibatch["512"][0]
        for samples, several in by_minibatch.items():
            for sharers, seconds in enumerate(several, start=1):
                yield Comparison(
                    f"ms per gradient of {samples} samples, {network}, {sharers} on the GPU, against 512 samples alone",
                    f"{1e3 * seconds:.2f}",
                    f"{1e3 * alone:.2f}",
                    seconds / alone,
                    "",
                )


def _side(module: str, *arguments: str) -> Any:
    return json.loads(_output("-m", f"experiments.benchmarks.sides.{module}", *arguments).splitlines()[-1])


def _output(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=_ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
