"""Compares our systems with Stable-Baselines3, SBX and Ray RLlib: steps per second, seconds to a return, and returns.

The sides train one after the other in separate processes, in several turns, on the same machine, with the same workload
and hyperparameters (`sides.protocol.Task`). Peers step Gymnasium's Hopper-v4 and our systems step EnvPool's, so the
comparison includes the environments. In the first turn each peer runs in every way that may suit the machine, such as
with one thread or two; in later turns it runs in the fastest way.

The returns after as many steps are a part of their own, in which every peer has its own preset (`returns`).
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.benchmarks import returns as after_steps
from experiments.benchmarks.measuring import Comparison
from experiments.benchmarks.running import SB3, SBX, TORCH, Side, Way, run
from experiments.benchmarks.sides.protocol import Round, Task
from experiments.toolkit import options
from experiments.tuning_steps import STEPS

DESCRIPTION = "training against Stable-Baselines3, SBX and Ray RLlib, which the benchmark installs"

TURNS = 3
#: The timed part of a turn begins after `warm_up` rounds, in which programs compile, and lasts `seconds`.
PPO = Task(warm_up=2, seconds=10.0)
IMPALA = replace(PPO, algorithm="impala", epochs=1, seconds=20.0)
#: The target return, and the seconds after which a run gives up on it.
TARGET, PATIENCE = 500.0, 240.0

_RLLIB = ("ray[rllib]==2.60.0", *TORCH)


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
    Side("Stable-Baselines3", PPO, "baselines", _SB3_WAYS, SB3),
    Side("SBX", PPO, "baselines", _SBX_WAYS, SBX),
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
    parser.add_argument(
        "--returns",
        metavar="SEEDS",
        type=options.whole(1),
        help=f"only compare returns after {STEPS:,} steps, each library's own preset, so many seeds",
    )


def measure(
    say: Callable[[str], None],
    *,
    seeds: int = 0,
    turns: int = TURNS,
    returns: int | None = None,
    out: Path = Path("results"),
) -> Iterator[Comparison]:
    """Runs every side in turn, and calls `say` with the progress."""
    if returns is not None:
        yield from after_steps.measure(say, returns, out)
        return
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
            times[side.name].append(seconds_to(TARGET, run(replace(side, task=task), ways[side.name])))
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
                each[way] = speed(run(side, way), side.task.warm_up)
                say(f"turn {turn + 1}: {side.name}, {way.name}: {each[way]:,.0f} steps/s")
            ways[side.name] = max(each, key=lambda way: each[way])
            speeds.setdefault(side.name, []).append(max(each.values()))
    return speeds, ways


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
