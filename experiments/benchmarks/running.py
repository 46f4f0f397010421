"""Runs a side of a comparison, the training of one library, in a separate process."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from experiments.benchmarks.installed import python_of
from experiments.benchmarks.sides.protocol import Round, Task, rounds_in

#: The most seconds that a process may spend outside training: on imports, Ray's start and the warm-up.
STARTUP = 90.0
#: The repository's root, the working directory of the sides.
_ROOT = Path(__file__).resolve().parents[2]

#: Packages of the peers.
TORCH = ("torch==2.13.0", "gymnasium[mujoco]==1.2.2", "mujoco==4.0.0")
SB3 = ("stable-baselines3==2.9.2", *TORCH)
SBX = ("sbx-rl==0.28.0", "jax==0.10.2", *SB3)


class Way(NamedTuple):
    """A configuration to run a side in, such as a number of threads."""

    name: str
    arguments: tuple[str, ...]
    threads: int  #: threads of linear algebra per process.


@dataclass(frozen=True)
class Side:
    """The training of one library, which is compared with the others."""

    name: str
    task: Task
    module: str  #: the name of a module in `sides`.
    ways: tuple[Way, ...]
    requirements: tuple[str, ...] = ()  #: packages to install; empty for our sides.

    def python(self, say: Callable[[str], None]) -> Path:
        """Returns the Python interpreter that runs the side, and installs the side's packages if needed."""
        return python_of(self.requirements, say) if self.requirements else Path(sys.executable)


def run(side: Side, way: Way) -> list[Round]:
    """Runs a side in a separate process, and returns its rounds."""
    python = side.python(lambda line: None)
    command = [str(python), "-m", f"experiments.benchmarks.sides.{side.module}", side.task.encoded(), *way.arguments]
    variables = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": str(way.threads)}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=_ROOT, env=variables, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            status = process.wait(side.task.seconds + STARTUP)
        except subprocess.TimeoutExpired:
            status = 0  # a timeout is not an error: the rounds printed so far are the result
        finally:
            _end(process)
        output.seek(0)
        errors.seek(0)
        if status:
            raise RuntimeError(f"{side.name}, {way.name}: exit status {status}: {errors.read().strip()[-2000:]}")
        return rounds_in(output.read())


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process and its children."""
    for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, None)):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
