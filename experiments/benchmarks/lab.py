"""Compares the speed of `stellaris.lab`, which compiles many runs into one program, with two other ways to run PPO.

One is the event loop (`train`), which runs one seed after the other. The other is rejax, a public PPO in JAX.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from experiments.benchmarks.installed import python_of
from experiments.benchmarks.measuring import Comparison
from experiments.toolkit import options

DESCRIPTION = "256 runs of CartPole in the lab, against the event loop's and against rejax's PPO (minutes)"

#: The packages of rejax's side, in the versions that were measured.
REJAX = ("rejax==0.1.3", "gymnax==0.0.9")

#: Number of runs per block, the lab's default on two cores: the data of one block fit the processor's cache.
_BLOCK = 16

#: Numbers of lab runs that share one dry run (the event loop without learning), whose schedule they repeat; and the
#: numbers of learners in it.
_SCHEDULED = ((4, 4), (16, 4), (16, 16))

_ROOT = Path(__file__).parent.parent.parent


class _Side(NamedTuple):
    runs: int
    steps: int
    compiling: float
    running: float
    curve: list[float]

    @property
    def speed(self) -> float:
        """Environment steps per second, without the time of compiling."""
        return self.steps / self.running

    @property
    def last(self) -> float:
        """The mean return over the last tenth of training."""
        tail = self.curve[-max(1, len(self.curve) // 10) :]
        return sum(tail) / len(tail)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--runs", type=options.whole(1), default=256, help="number of runs of the lab, and of rejax")
    parser.add_argument("--loops", type=options.whole(1), default=3, help="number of runs of the event loop")


def measure(say: Callable[[str], None], *, runs: int, loops: int) -> Iterator[Comparison]:
    """Measures the sides one after the other, each in a separate process."""
    ours = _run(sys.executable, "-m", "experiments.benchmarks.sides.lab_ours", str(runs))
    say(f"lab: {ours.speed:,.0f} steps/s, compiled in {ours.compiling:.0f} s, return {ours.last:.0f}")
    loop = _run(sys.executable, "-m", "experiments.benchmarks.sides.lab_loop", str(loops))
    say(f"event loop: {loop.speed:,.0f} steps/s, return {loop.last:.0f}")
    as_many = loop.compiling + loop.running / loop.runs * runs
    yield Comparison(
        f"{runs} runs in the lab, compiling included, against the event loop's (from {loop.runs})",
        f"{ours.compiling + ours.running:.0f} s",
        f"{as_many:,.0f} s",
        (ours.compiling + ours.running) / as_many,
        "<= 0.1",
    )
    peers = []
    for block in sorted({math.gcd(_BLOCK, runs), runs}):  # both sizes of rejax's blocks; the faster is compared
        peers.append(
            _run(str(python_of(REJAX, say)), "-m", "experiments.benchmarks.sides.lab_rejax", str(runs), str(block))
        )
        say(
            f"rejax, {block} at a time: {peers[-1].speed:,.0f} steps/s, compiled in {peers[-1].compiling:.0f} s, "
            f"return {peers[-1].last:.0f}"
        )
    peer = max(peers, key=lambda peer: peer.speed)
    yield Comparison(
        f"steps/s of {runs} runs without lag, against rejax's",
        f"{ours.speed:,.0f}",
        f"{peer.speed:,.0f}",
        ours.speed / peer.speed,
        ">= 1.0",
    )
    yield Comparison(
        "return of the last tenth, against rejax's",
        f"{ours.last:.0f}",
        f"{peer.last:.0f}",
        ours.last / peer.last,
        "about 1",
    )

    for several, learners in _SCHEDULED:
        dry, wet = (
            _run(sys.executable, "-m", "experiments.benchmarks.sides.lab_dry", side, str(several), str(learners))
            for side in ("lab", "loop")
        )
        yield Comparison(
            f"a dry run of Stellaris with {learners} learners, and {several} runs under its schedule, "
            f"against {several} of the event loop",
            f"{dry.compiling + dry.running:.0f} s",
            f"{wet.running:.0f} s",
            (dry.compiling + dry.running) / wet.running,
            "<= 1.0",
        )


def _run(*command: str) -> _Side:
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
    numbers, curve = (json.loads(line) for line in done.stdout.strip().splitlines()[-2:])
    return _Side(**numbers, curve=curve)
