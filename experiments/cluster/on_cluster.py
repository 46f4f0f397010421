"""Deploys the other experiments' systems on a Ray cluster, and starts a cluster of two nodes on this machine."""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.study.runs import Outcome, Watcher
from experiments.tasks.presets import Contender, architectures
from experiments.toolkit.output import write_rows
from stellaris.runtime import FunctionSpec
from stellaris.runtime.delays import Measured
from stellaris.systems import DataParallel, Stellaris, System

#: Bytes of each node's object store on this machine: enough for a policy and a few batches.
_STORE = 200 * 2**20
#: Keep-alive of containers that start on demand, in seconds.
_KEEP_ALIVE = 60.0


@contextlib.contextmanager
def two_nodes(processors: int = 8) -> Iterator[str]:
    """Starts a cluster of two nodes on this machine with Ray's utilities, on the loopback interface only.

    Args:
      processors: the number of processors that each node announces; it may exceed the machine's processors, which
        containers share.

    Yields:
      The cluster's address; this process is connected to it.
    """
    import ray
    from ray.cluster_utils import Cluster

    from stellaris.runtime.ray.platform import connect, starting_processes, stay_on_loopback

    stay_on_loopback()
    node = {"num_cpus": processors, "object_store_memory": _STORE}
    with starting_processes():
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        with starting_processes():
            cluster.add_node(**node)
        connect(cluster.address)
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


class Recorder:
    """Writes each row of a run's history at once, because Ray may kill this process without notice.

    Args:
      watcher: the watcher that gets the same calls.
      out: the folder of the histories.
    """

    def __init__(self, watcher: Watcher, out: Path) -> None:
        self._watcher = watcher
        self._out = out
        self._earlier = True  # whether the folder may hold the record of earlier runs
        self._columns: list[str] = []  # columns of the current file

    def begin(self, run: Outcome) -> None:
        """Starts a new history."""
        self._columns = []
        self._watcher.begin(run)

    def row(self, run: Outcome) -> None:
        """Writes the row of a finished round."""
        if self._earlier:
            # Delete the record, which describes earlier runs and not the files that are written from here on.
            record_file(self._out).unlink(missing_ok=True)
            self._earlier = False
        path = history_file(self._out, run)
        new = [name for name in run.history[-1] if name not in self._columns]
        if new:  # rewrite the file with the new columns
            self._columns += new
            write_rows(path, run.history)
        else:
            with path.open("a", newline="") as file:
                csv.DictWriter(file, self._columns, lineterminator="\n").writerow(run.history[-1])
        self._watcher.row(run)

    def end(self, run: Outcome) -> None:
        """Tells the watcher that the run has ended."""
        self._watcher.end(run)


def history_file(out: Path, run: Outcome) -> Path:
    """Returns the path of a run's history in the results folder."""
    return out / f"history_{run.name}.csv"


def record_file(out: Path) -> Path:
    """Returns the path of the record of all runs in a results folder."""
    return out / "summary.json"


def contenders(environment: str, *, actors: int, learners: int) -> Sequence[Contender]:
    """Returns every architecture with `presets.architectures`' settings and its deployment on a cluster.

    Args:
      environment: the environment's name.
      actors: the number of actors of each system.
      learners: the number of learners of Stellaris and of the data-parallel system.
    """
    rows = []
    for row in architectures(environment).contenders:
        system: Any = row.system
        if isinstance(system, Stellaris):
            aggregator: Any = system.aggregator
            aggregator = replace(aggregator, group_size=learners, capacity=2 * learners)
            system = replace(system, learners=learners, aggregator=aggregator)
        elif isinstance(system, DataParallel):
            system = replace(system, learners=learners)
        rows.append(replace(row, system=system, functions=deployment(system, actors=actors)))
    return rows


def deployment(system: System, *, actors: int) -> dict[str, FunctionSpec]:
    """Returns a system's functions with measured times: serverless ones start on demand, the others are provisioned."""
    places = {"actor": actors, "learner": system.learners}
    return {
        name: FunctionSpec(
            Measured(),
            max_concurrency=places.get(name, 1),
            provisioned=0 if name in system.serverless else places.get(name, 1),
            keep_alive=_KEEP_ALIVE,
        )
        for name in system.functions
    }
