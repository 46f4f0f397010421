"""Compares our systems with Stable-Baselines3, SBX and Ray RLlib: steps per second, and seconds to a return.

The sides train one after the other in separate processes, in several turns, on the same machine, with the same workload
and hyperparameters (`sides.protocol.Task`). Peers step Gymnasium's Hopper-v4 and our systems step EnvPool's, so the
comparison includes the environments. In the first turn each peer runs in every way that may suit the machine, such as
with one thread or two; in later turns it runs in the fastest way.
"""

import argparse
import contextlib
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from experiments.benchmarks.installed import python_of
from experiments.benchmarks.measuring import Comparison
from experiments.benchmarks.sides.protocol import Round, Task, rounds_in
from experiments.toolkit import options

DESCRIPTION = "training against Stable-Baselines3, SBX and Ray RLlib, which the benchmark installs"

TURNS = 3
#: The timed part of a turn begins after `warm_up` rounds, in which programs compile, and lasts `seconds`.
PPO = Task(warm_up=2, seconds=10.0)
IMPALA = replace(PPO, algorithm="impala", epochs=1, seconds=20.0)
#: The target return, and the seconds after which a run gives up on it.
TARGET, PATIENCE = 500.0, 240.0
#: The most seconds that a process may spend outside training: on imports, Ray's start and the warm-up.
STARTUP = 90.0
#: The repository's root, the working directory of the sides.
_ROOT = Path(__file__).resolve().parents[2]

_BOTH = ("torch==2.13.0", "gymnasium[mujoco]==1.2.2", "mujoco==4.0.0")
_SB3 = ("stable-baselines3==2.9.2", *_BOTH)
_SBX = ("sbx-rl==0.28.0", "jax==0.10.2", *_SB3)
_RLLIB = ("ray[rllib]==2.60.0", *_BOTH)


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


_OURS = (Way("2 threads", ("2",), 2),)
#: Stable-Baselines3 and SBX step the environments in turn, in one process. `Way.threads` limits the threads of its
#: linear algebra, but not the threads that JAX starts for SBX.
_SB3_WAYS = (
    Way("1 thread", ("stable_baselines3",), 1),
    Way("2 threads", ("stable_baselines3",), 2),
)
_SBX_WAYS = (Way("2 threads", ("sbx",), 2),)
_RLLIB_WAYS = (Way("1 runner", ("1", "0"), 1), Way("2 runners", ("2", "0"), 1))
_RLLIB_IMPALA_WAYS = (
    *_RLLIB_WAYS,
    Way("1 runner, 1 learner", ("1", "1"), 1),
)

OUR_PPO = Side("synchronous system", PPO, "ours", _OURS)
OUR_IMPALA = Side("asynchronous actors", IMPALA, "ours", _OURS)
PPO_PEERS = (
    Side("Stable-Baselines3", PPO, "baselines", _SB3_WAYS, _SB3),
    Side("SBX", PPO, "baselines", _SBX_WAYS, _SBX),
    Side("RLlib", PPO, "rllib", _RLLIB_WAYS, _RLLIB),
)
IMPALA_PEER = Side("RLlib's IMPALA", IMPALA, "rllib", _RLLIB_IMPALA_WAYS, _RLLIB)

#: Number of worker processes of each side on a cluster, with one environment each; each side also has a learner.
WORKERS = 2
_FEW = replace(PPO, actors=WORKERS, minibatch=WORKERS * PPO.fragment, epochs=1, seconds=20.0)
_ON_RAY = (Way(f"{WORKERS} actors, 1 learner", ("2", "ray"), 1),)
_RLLIB_WORKERS = tuple(
    Way(f"{WORKERS} runners, {where}", (str(WORKERS), str(learners)), 1)
    for learners, where in ((0, "learner in the driver"), (1, "1 learner"))
)
ON_RAY = tuple(
    (
        Side(f"asynchronous {name} on Ray", replace(_FEW, algorithm=algorithm), "ours", _ON_RAY),
        Side(f"RLlib's {peer}", replace(_FEW, algorithm=algorithm), "rllib", _RLLIB_WORKERS, _RLLIB),
    )
    for name, algorithm, peer in (("PPO", "appo", "APPO"), ("IMPALA", "impala", "IMPALA"))
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "--seeds",
        type=options.whole(0),
        default=0,
        help=f"runs of each side that are timed to a return of {TARGET:g}, some minutes per seed",
    )
    parser.add_argument(
        "--turns", type=options.whole(1), default=TURNS, help="measurements of steps per second; medians are shown"
    )


def measure(say: Callable[[str], None], *, seeds: int = 0, turns: int = TURNS) -> Iterator[Comparison]:
    """Runs every side in turn, and calls `say` with the progress."""
    sides = (OUR_PPO, *PPO_PEERS, OUR_IMPALA, IMPALA_PEER)
    for side in sides:
        side.python(say)
    speeds, ways = speeds_of(sides, turns, say)
    yield from speed_rows(speeds, ways)
    times: dict[str, list[float]] = {side.name: [] for side in (OUR_PPO, *PPO_PEERS)}
    for seed in range(seeds):
        for side in (OUR_PPO, *PPO_PEERS):
            say(f"{side.name} to a return of {TARGET:g}, seed {seed} ...")
            task = replace(side.task, seed=seed, warm_up=0, seconds=PATIENCE, target=TARGET)
            times[side.name].append(seconds_to(TARGET, _run(replace(side, task=task), ways[side.name])))
    if seeds:
        yield from return_rows(times)


def speeds_of(
    sides: Sequence[Side], turns: int, say: Callable[[str], None]
) -> tuple[dict[str, list[float]], dict[str, Way]]:
    """Returns every side's steps per second in each turn, and its fastest way."""
    speeds: dict[str, list[float]] = {}
    ways: dict[str, Way] = {}
    for turn in range(turns):
        for side in sides:
            each = {}
            for way in side.ways if turn == 0 else (ways[side.name],):
                each[way] = speed(_run(side, way), side.task.warm_up)
                say(f"turn {turn + 1}: {side.name}, {way.name}: {each[way]:,.0f} steps/s")
            ways[side.name] = max(each, key=lambda way: each[way])
            speeds.setdefault(side.name, []).append(max(each.values()))
    return speeds, ways


def _run(side: Side, way: Way) -> list[Round]:
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


# ---- results ----------------------------------------------------------------------------------------------------


def speed(rounds: Sequence[Round], warm_up: int) -> float:
    """Returns steps per second after the warm-up's rounds; 0 if too few rounds followed."""
    timed = rounds[warm_up - 1 :]
    if len(timed) < 2:
        return 0.0
    return (timed[-1].steps - timed[0].steps) / (timed[-1].seconds - timed[0].seconds)


def seconds_to(target: float, rounds: Sequence[Round]) -> float:
    """Returns the seconds until the target return was reached, or infinity if it was not reached."""
    reached = (one.seconds for one in rounds if one.episode_return is not None and one.episode_return >= target)
    return next(reached, math.inf)


def speed_rows(speeds: Mapping[str, Sequence[float]], ways: Mapping[str, Way]) -> Iterator[Comparison]:
    """Yields one row per peer: our median steps per second over the turns against the peer's."""
    medians = {name: statistics.median(each) for name, each in speeds.items()}
    fastest = max((peer.name for peer in PPO_PEERS), key=lambda name: medians[name])
    pairs = [(OUR_PPO, peer, ">= 2.70" if peer.name == fastest else "") for peer in PPO_PEERS]
    for ours, peer, wanted in (*pairs, (OUR_IMPALA, IMPALA_PEER, ">= 2.00")):
        own, other = medians[ours.name], medians[peer.name]
        yield Comparison(
            f"{ours.name}, steps/s, against {peer.name} ({ways[peer.name].name})",
            f"{own:,.0f}",
            f"{other:,.0f}",
            own / other if other else math.inf,
            wanted,
        )


def return_rows(times: Mapping[str, Sequence[float]]) -> Iterator[Comparison]:
    """Yields one row per peer: our seconds to the return against the peer's, medians and ranges over seeds."""
    own = times[OUR_PPO.name]
    for peer in PPO_PEERS:
        other = times[peer.name]
        yield Comparison(
            f"{OUR_PPO.name}, seconds to a return of {TARGET:g}, against {peer.name}, {len(own)} seeds",
            _spread(own),
            _spread(other),
            statistics.median(own) / statistics.median(other),
            "< 1.00",
        )


def _spread(seconds: Sequence[float]) -> str:
    """Formats median and range, and counts the runs that missed the target."""
    late = sum(map(math.isinf, seconds))
    missed = f", {late} not in {PATIENCE:g}" if late else ""
    return f"{statistics.median(seconds):.0f} ({min(seconds):.0f} to {max(seconds):.0f}{missed})"
