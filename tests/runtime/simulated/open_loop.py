"""Long open-loop runs, in a process of their own: `python -m tests.runtime.simulated.open_loop` prints what they gave.

Under the tests' type checks of every call they would take ten times as long.
"""

import json
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from simfaas.ServerlessSimulator import ServerlessSimulator
from simfaas.SimProcess import SimProcess

from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant, Delay, Exponential

#: Arrivals of a run beside a formula, and beside SimFaaS.
ARRIVALS, COMPARED = 40_000, 5_000


class Observed(NamedTuple):
    """What a platform under Poisson arrivals does in the long run."""

    running: float  #: invocations on average.
    rejected: float  #: probability of a rejection.
    waits: float  #: probability of waiting.
    waiting: float  #: mean seconds of waiting.


def nothing(context: Any) -> None:
    """A body that does nothing."""


def open_loop(rate: float, service: Delay, *, seed: int = 0, arrivals: int = ARRIVALS, **spec: Any) -> Observed:
    """Poisson arrivals, all submitted beforehand, until the last has ended."""
    instants = np.random.default_rng([seed, 1]).exponential(1 / rate, arrivals).cumsum()
    with SimulatedPlatform({"f": FunctionSpec(compute=service, **spec)}, seed=seed) as simulated:
        for instant in instants.tolist():
            simulated.invoke("f", nothing, at=instant)
        while simulated.next_completion():
            pass
    table = simulated.trace.invocations()
    waits = table.started - table.submitted
    return Observed(
        running=float(np.nansum(table.ended - table.started) / simulated.now),
        rejected=float(np.isnan(table.started).mean()),
        waits=float(np.mean(waits > 0)),
        waiting=float(np.nanmean(waits)),
    )


class Recorded(SimProcess):  # type: ignore[misc]
    """Numbers drawn beforehand, one after the other: SimFaaS then meets the very run that we meet."""

    def __init__(self, numbers: list[float]) -> None:
        super().__init__()
        self._numbers = iter(numbers)

    def generate_trace(self) -> float:
        """The next one; none is left after the last arrival."""
        return next(self._numbers, math.inf)


class Compared(NamedTuple):
    """What becomes of the same arrivals, with the same service times."""

    cold: list[int]  #: which of the arrivals met a cold start.
    running: float  #: invocations on average, up to the last arrival.
    containers: float  #: likewise.


def beside_simfaas(rate: float, service: float, expiry: float, *, seed: int) -> tuple[Compared, Compared]:
    """Ours, and SimFaaS'."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate, COMPARED)
    services = rng.exponential(service, COMPARED)
    instants = gaps.cumsum()
    end = float(instants[-1])

    spec = FunctionSpec(compute=Constant(1.0), keep_alive=expiry)
    with SimulatedPlatform({"f": spec}) as simulated:
        for instant, seconds in zip(instants.tolist(), services.tolist(), strict=True):
            simulated.invoke("f", nothing, at=instant, work=seconds)
        while simulated.next_completion():
            pass
    table = simulated.trace.invocations()
    created = simulated.trace.select("container_created").time
    gone = simulated.trace.containers("container_ended", "f").values()
    ends = np.array(list(gone))
    ours = Compared(
        cold=np.flatnonzero(table.cold).tolist(),
        running=float((np.minimum(table.ended, end) - table.started).sum() / end),
        containers=float((np.minimum(ends, end).sum() - created.sum()) / end),
    )

    service_times = Recorded(services.tolist())  # one for each arrival, warm or cold, in order
    simulator = ServerlessSimulator(
        arrival_process=Recorded(gaps.tolist()),
        warm_service_process=service_times,
        cold_service_process=service_times,
        expiration_threshold=expiry,
        max_time=end,
    )
    simulator.generate_trace(debug_print=False, progress=False)
    # Where in SimFaaS' history each arrival is, cold or warm: their order says which arrivals were cold.
    arrivals = [(i, True) for i in simulator.hist_req_cold_idxs] + [(i, False) for i in simulator.hist_req_warm_idxs]
    theirs = Compared(
        cold=[number for number, (_, cold) in enumerate(sorted(arrivals)) if cold],
        running=float(simulator.get_average_server_running_count()),
        containers=float(simulator.get_average_server_count()),
    )
    return ours, theirs


SIMFAAS = [(0.9, 1.991, 600.0), (0.9, 1.991, 10.0), (5.0, 2.0, 5.0)]
ERLANG = [(1, 0.5), (4, 3.0), (10, 8.0), (10, 15.0)]


def erlang(servers: int, load: float, limit: str, service: Callable[[float], Delay], overflow: str) -> Observed:
    """A function with a limit, and a mean service time of 2 s."""
    return open_loop(load / 2.0, service(2.0), overflow=overflow, arrivals=ARRIVALS, **{limit: servers})


#: What is run, by name.
RUNS: dict[str, Callable[[], Any]] = {
    **{
        f"simfaas {c}": lambda c=c: [beside_simfaas(*c, seed=seed) for seed in range(3)]  # type: ignore[misc]
        for c in SIMFAAS
    },
    **{
        f"erlang {servers} {load} {limit} {service.__name__}": lambda n=servers, a=load, limit=limit, service=service: (  # type: ignore[misc]
            erlang(n, a, limit, service, "reject")
        )
        for servers, load in ERLANG
        for limit, service in (
            ("max_concurrency", Exponential),
            ("reserved_concurrency", Exponential),
            ("max_concurrency", Constant),
        )
    },
    "queue": lambda: erlang(4, 3.0, "max_concurrency", Exponential, "queue"),
}

if __name__ == "__main__":
    json.dump({name: run() for name, run in RUNS.items()}, sys.stdout)
