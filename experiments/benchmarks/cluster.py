"""Compares the Ray platform with plain calls of Ray's actors and with RLlib, and measures scaling over workers."""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from experiments.benchmarks import peers
from experiments.benchmarks.measuring import Comparison
from experiments.toolkit import options
from stellaris import IMPALA
from stellaris.runtime import FunctionSpec
from stellaris.runtime.delays import Measured
from stellaris.systems import AsynchronousActors, Budget, Workload, train

DESCRIPTION = "the Ray platform: calls, broadcasts, training against RLlib, and scaling over workers"

#: Number of containers that are called at once, and calls per turn. A turn is one measurement of each side.
AT_ONCE, CALLS = 4, 2000
#: Bytes of the policy that is broadcast, number of receiving containers, and broadcasts per turn.
POLICY, READERS, BROADCASTS = 10_000_000, 16, 5
#: Seconds per step of a slow environment, and the numbers of workers, each with one slow environment.
STEP, WORKERS = 0.01, (1, 2, 4, 8)
TURNS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument(
        "--turns", type=options.whole(1), default=TURNS, help="measurements per side; medians are shown"
    )
    parser.add_argument("--without-rllib", action="store_true", help="skip the comparison with RLlib")


def measure(say: Callable[[str], None], *, turns: int = TURNS, without_rllib: bool = False) -> Iterator[Comparison]:
    """Runs every comparison, and calls `say` with the progress."""
    import ray

    from stellaris.runtime.ray.platform import connect

    connect(num_cpus=READERS)
    try:
        say("calls that do nothing ...")
        yield _calls(turns)
        say("broadcasts ...")
        yield _broadcasts(turns)
        yield from _scaling(say)
    finally:
        ray.shutdown()
    if not without_rllib:
        yield from _against_rllib(say, turns)


def _median(turns: int, *sides: Callable[[], float]) -> list[float]:
    """Measures the sides alternately, each `turns` times, and returns the median of each side."""
    measured = [[side() for side in sides] for _ in range(turns)]
    return [statistics.median(column) for column in zip(*measured, strict=True)]


# ---- calls ----------------------------------------------------------------------------------------------------------


class _Plain:
    """A plain Ray actor."""

    def nothing(self) -> None:
        """Does nothing."""

    def read(self, reference: list[Any]) -> int:
        """Reads an array from the object store."""
        import ray

        return int(ray.get(reference[0]).nbytes)


def _calls(turns: int) -> Comparison:
    """Compares `RayPlatform` with plain Ray actors by the calls per second that do nothing, `AT_ONCE` at a time."""
    import ray

    from stellaris.runtime import RayPlatform

    actors = [ray.remote(_Plain).options(num_cpus=0).remote() for _ in range(AT_ONCE)]
    ray.get([actor.nothing.remote() for actor in actors])
    spec = FunctionSpec(Measured(), max_concurrency=AT_ONCE, provisioned=AT_ONCE)
    with RayPlatform({"nothing": spec}) as platform:

        def ours() -> float:
            began = time.perf_counter()
            for _ in range(AT_ONCE):
                platform.invoke("nothing", nothing)
            for _ in range(CALLS - AT_ONCE):
                platform.next_completion()
                platform.invoke("nothing", nothing)
            while platform.next_completion():
                pass
            return CALLS / (time.perf_counter() - began)

        def plain() -> float:
            began = time.perf_counter()
            running = {actor.nothing.remote(): actor for actor in actors}
            for call in range(CALLS):
                (done,), _ = ray.wait(list(running), num_returns=1)
                ray.get(done)
                actor = running.pop(done)
                if call < CALLS - AT_ONCE:
                    running[actor.nothing.remote()] = actor
            return CALLS / (time.perf_counter() - began)

        ours()
        own, other = _median(turns, ours, plain)
    return Comparison(
        f"calls/s that do nothing, {AT_ONCE} at once, against plain calls of actors",
        f"{own:,.0f}",
        f"{other:,.0f}",
        own / other,
        ">= 0.80",
    )


def nothing(context: Any) -> None:
    """Does nothing."""


def _broadcasts(turns: int) -> Comparison:
    """Compares the time to publish a new version of a policy and have all containers read it."""
    import ray

    from stellaris.runtime import RayPlatform

    actors = [ray.remote(_Plain).options(num_cpus=0).remote() for _ in range(READERS)]
    ray.get([actor.nothing.remote() for actor in actors])
    policy = np.zeros(POLICY // 4, np.float32)
    spec = FunctionSpec(Measured(), max_concurrency=READERS, provisioned=READERS)
    with RayPlatform({"read": spec}) as platform:

        def ours() -> float:
            began = time.perf_counter()
            for _ in range(BROADCASTS):
                platform.store.publish("policy", policy)
                for _ in range(READERS):
                    platform.invoke("read", read, platform.store.latest("policy"))
                while done := platform.next_completion():
                    assert done.result() == POLICY
            return (time.perf_counter() - began) / BROADCASTS

        def plain() -> float:
            began = time.perf_counter()
            for _ in range(BROADCASTS):
                reference = ray.put(policy)
                assert ray.get([actor.read.remote([reference]) for actor in actors]) == [POLICY] * READERS
            return (time.perf_counter() - began) / BROADCASTS

        ours()
        own, other = _median(turns, ours, plain)
    return Comparison(
        f"broadcast of {POLICY / 1e6:.0f} MB to {READERS} containers, against ray.put and get",
        f"{1e3 * own:.1f} ms",
        f"{1e3 * other:.1f} ms",
        own / other,
        "",
    )


def read(context: Any, version: Any) -> int:
    """Reads a version of the store, and returns its bytes."""
    return int(version.value.nbytes)


# ---- training -------------------------------------------------------------------------------------------------------


class Slow(gymnasium.Env):  # type: ignore[misc]
    """An environment whose steps wait without using a processor, like a remote environment."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode of a hundred steps."""
        self._left = 100
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Waits for `STEP` seconds, and returns a reward of 1."""
        time.sleep(STEP)
        self._left -= 1
        return np.zeros(4, np.float32), 1.0, False, self._left == 0, {}


def _scaling(say: Callable[[str], None]) -> Iterator[Comparison]:
    """Compares the steps per second of N workers with N times the steps per second of one worker."""
    speeds: dict[int, float] = {}
    for workers in WORKERS:
        say(f"an environment that waits, {workers} workers ...")
        speeds[workers] = _slow_steps(workers)
        if workers > 1:
            yield Comparison(
                f"steps/s of an environment that waits, {workers} workers, against {workers} times one",
                f"{speeds[workers]:,.0f}",
                f"{workers * speeds[1]:,.0f}",
                speeds[workers] / (workers * speeds[1]),
                "",
            )


def _slow_steps(workers: int) -> float:
    """Returns steps per second in the second half of a run, after compilation."""
    from stellaris.runtime import RayPlatform

    fragment = 64
    functions = {
        "actor": FunctionSpec(Measured(), max_concurrency=workers, provisioned=workers),
        "learner": FunctionSpec(Measured(), max_concurrency=1, provisioned=1),
    }
    result = train(
        AsynchronousActors(IMPALA(minibatch_size=workers)),
        Workload(Slow, actors=workers, fragment=fragment),
        platform=RayPlatform(functions),
        budget=Budget(steps=20 * workers * fragment),
    )
    first, last = result.history[len(result.history) // 2], result.history[-1]
    return (last["steps"] - first["steps"]) / (last["seconds"] - first["seconds"])


def _against_rllib(say: Callable[[str], None], turns: int) -> Iterator[Comparison]:
    """Compares our asynchronous PPO and IMPALA with RLlib's APPO and IMPALA, on Hopper-v4 with the same workers."""
    for ours, peer in peers.ON_RAY:
        for side in (ours, peer):
            side.python(say)
        speeds, ways = peers.speeds_of((ours, peer), turns, say)
        own, other = (statistics.median(speeds[side.name]) for side in (ours, peer))
        yield Comparison(
            f"{ours.name}, steps/s, {peers.WORKERS} workers, against {peer.name} ({ways[peer.name].name})",
            f"{own:,.0f}",
            f"{other:,.0f}",
            own / other if other else float("inf"),
            ">= 1.50",
        )
