"""Compares the Dask platform with the Ray platform: calls, new containers, and a version that containers read."""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from experiments.benchmarks.cluster import POLICY, TURNS, nothing, read
from experiments.benchmarks.measuring import Comparison
from experiments.toolkit import options
from stellaris.runtime import FunctionSpec
from stellaris.runtime.delays import Measured
from stellaris.runtime.engine.cluster import ClusterPlatform

DESCRIPTION = "the Dask platform against the Ray platform: calls, new containers, and a version that containers read"

#: Number of containers, and calls of one measurement.
CONTAINERS, CALLS = 8, 500
_FUNCTION = "function"
_FUNCTIONS = {_FUNCTION: FunctionSpec(Measured(), max_concurrency=CONTAINERS)}
#: Makes a platform on a cluster that runs already.
Make = Callable[[], ClusterPlatform]


class Measurement(NamedTuple):
    """A measurement on a platform."""

    what: str
    of: Callable[[ClusterPlatform], float]
    text: str  #: the format of its numbers.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--turns", type=options.whole(1), default=TURNS, help="measurements per side")


def measure(say: Callable[[str], None], *, turns: int = TURNS) -> Iterator[Comparison]:
    """Runs every measurement on both platforms, in turn, and calls `say` with the progress."""
    measured: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as clusters:
        makes = _started(clusters)
        for turn in range(turns):
            for name, make in makes.items():
                say(f"{name}, {turn + 1} of {turns} ...")
                with make() as platform:
                    for one in MEASUREMENTS:
                        measured.setdefault((one.what, name), []).append(one.of(platform))
    for one in MEASUREMENTS:
        ray, dask = (measured[one.what, name] for name in makes)
        ratio = statistics.median(dask) / statistics.median(ray)
        yield Comparison(one.what, _text(dask, one.text), _text(ray, one.text), ratio, "")


def _started(clusters: ExitStack) -> Mapping[str, Make]:
    """Starts a cluster of each kind on this machine, which ends with `clusters`."""
    import ray

    from stellaris.runtime import DaskPlatform, RayPlatform
    from stellaris.runtime.dask.platform import local_cluster
    from stellaris.runtime.ray.platform import connect

    connect(num_cpus=CONTAINERS)
    clusters.callback(ray.shutdown)
    address = clusters.enter_context(local_cluster()).scheduler_address
    return {"Ray": lambda: RayPlatform(_FUNCTIONS), "Dask": lambda: DaskPlatform(_FUNCTIONS, address=address)}


def _text(numbers: Sequence[float], form: str) -> str:
    """Returns the median, and the least and the most of several numbers."""
    median, least, most = (f"{number:{form}}" for number in (statistics.median(numbers), min(numbers), max(numbers)))
    return f"{median} ({least} to {most})" if len(numbers) > 1 else median


# ---- measurements ----------------------------------------------------------------------------------------------------


def _all_at_once(platform: ClusterPlatform, body: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Calls a body in every container at once, and returns the results."""
    for _ in range(CONTAINERS):
        platform.invoke(_FUNCTION, body, *arguments)
    results = []
    while done := platform.next_completion():
        results.append(done.result())
    return results


def _new_containers(platform: ClusterPlatform) -> float:
    """Returns the seconds until all containers have been made and called, where none is."""
    began = time.perf_counter()
    _all_at_once(platform, nothing)
    return time.perf_counter() - began


def _calls(platform: ClusterPlatform, at_once: int) -> float:
    """Returns calls per second."""
    began = time.perf_counter()
    for call in range(CALLS + at_once):
        if call < CALLS:
            platform.invoke(_FUNCTION, nothing)
        if call >= at_once:
            done = platform.next_completion()
            assert done is not None
            done.result()
    return CALLS / (time.perf_counter() - began)


def _broadcast(platform: ClusterPlatform) -> float:
    """Returns the milliseconds in which a version is published and all containers read it."""
    policy = np.zeros(POLICY // 4, np.float32)
    began = time.perf_counter()
    platform.store.publish("policy", policy)
    assert _all_at_once(platform, read, platform.store.latest("policy")) == [POLICY] * CONTAINERS
    return 1e3 * (time.perf_counter() - began)


#: In the order in which they are made: afterwards there are containers.
MEASUREMENTS = (
    Measurement(f"s to make and call {CONTAINERS} containers", _new_containers, ".1f"),
    Measurement("calls/s that do nothing, one at a time", lambda platform: _calls(platform, 1), ",.0f"),
    Measurement("calls/s that do nothing, 4 at once", lambda platform: _calls(platform, 4), ",.0f"),
    Measurement(f"ms to broadcast {POLICY / 1e6:.0f} MB to {CONTAINERS} containers", _broadcast, ",.0f"),
)
