"""The platform on a Dask cluster: systems run as on the simulated platform, but staleness and durations are real."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace

import distributed
from distributed import Client, LocalCluster

from stellaris._core import checks
from stellaris.runtime.dask.bodies import DaskBodies
from stellaris.runtime.engine import arguments
from stellaris.runtime.engine.clock import WallClock
from stellaris.runtime.engine.cluster import ClusterPlatform, needs_nodes
from stellaris.runtime.engine.deployment import Deployment
from stellaris.runtime.engine.messages import MessageStore
from stellaris.runtime.engine.placement import Placement
from stellaris.runtime.functions import FunctionSpec
from stellaris.runtime.resources import Node


class DaskPlatform(ClusterPlatform):
    """Runs functions on a Dask cluster: each container is a Dask actor, in the process of a worker.

    Limits, queues, keep-alive, pre-warming, time-outs and retries are as on the wall clock of `SimulatedPlatform`.
    Delays, the trace and pickling are as on `RayPlatform`, which is the recommended platform for clusters. It differs
    in this:

    * A worker's process holds several containers. A cold start imports nothing anew and takes milliseconds; but the
      bodies of containers in one process share Python's lock, and if the process is lost, so are all its containers.
      Their calls end as `crashed` and can be retried.
    * A body is a thread, and cannot be killed: after its time-out it keeps its slot until it returns.
    * Versions and stored objects are sent from this process to each container once, not to each machine once.
    * Dask reserves nothing: `Resources` are counted by this platform alone, per worker, by its threads (processors),
      its memory limit, and its resource `GPU` if it has one. A worker that was lost gets no container with resources,
      even if Dask restarts it.

    The program connects to every worker, which must be able to import stellaris. Dask starts processes that import the
    main module: a script that starts a cluster on this machine needs `if __name__ == "__main__":`.

    Args:
      functions: the specification of each function, by name.
      address: the address of the cluster's scheduler, such as `"tcp://10.0.0.1:8786"`; None to start a cluster on this
        machine, with a worker for each processor, which listens on loopback alone and ends with the platform.
      seed: seed of the contexts' keys and of the delays that are drawn.
      keep_versions: number of newest versions of each name that the store keeps. Invocations may hold older ones.
      store_capacity: the most bytes that the store holds.
      placement: the worker that gets a container with resources: the first with room (`"pack"`) or the emptiest
        (`"spread"`). Without resources Dask places containers, on each worker in turn.
      slots_per_gpu: the number of containers that can share a GPU.
      max_concurrency: the most invocations at once, of all functions together; None for no limit.
      hang_after: seconds after which a body that has not returned, or a container that has not been made, is given up
        on. The invocation then ends at its time-out, or as `hung` without a time-out, or as `crashed` if it has not
        started.

    Raises:
      ImportError: if Dask is not installed: `pip install 'stellaris-rl[dask]'`.
      OSError: if no scheduler answers at `address`.
      RuntimeError: if making a provisioned container takes longer than `hang_after`.
      TypeError: if `functions` is not a mapping to values of `FunctionSpec`.
      ValueError: if an argument is out of its range, or no worker could ever hold a function's containers.

    Example:
      This starts Dask, so it is not a doctest::

        from stellaris.runtime import DaskPlatform, FunctionSpec
        from stellaris.runtime.delays import Measured

        if __name__ == "__main__":
            with DaskPlatform({"double": FunctionSpec(Measured())}) as platform:
                platform.invoke("double", lambda context, x: 2 * x, 21)
                print(platform.next_completion().result())  # 42
    """

    def __init__(
        self,
        functions: Mapping[str, FunctionSpec],
        *,
        address: str | None = None,
        seed: int = 0,
        keep_versions: int = 2,
        store_capacity: float = math.inf,
        placement: Placement = "pack",
        slots_per_gpu: int = 1,
        max_concurrency: int | None = None,
        hang_after: float = 600.0,
    ) -> None:
        checks.whole(at_least=1, slots_per_gpu=slots_per_gpu)
        arguments.check_options(clock="wall", seed=seed, threads=None, hang_after=hang_after, replay=None, faulty=False)
        deployment = Deployment(
            functions=functions,
            placement=placement,
            max_concurrency=max_concurrency,
            keep_versions=keep_versions,
            store_capacity=store_capacity,
        )
        with contextlib.ExitStack() as connected:
            if address is None:
                cluster = connected.enter_context(local_cluster())
                address = cluster.scheduler_address
            # The client is not the default, so that the program's own Dask collections stay on their own cluster.
            client = connected.enter_context(Client(address, set_as_default=False, direct_to_workers=True))
            if needs_nodes(deployment):
                deployment = replace(deployment, nodes=_nodes(client, slots_per_gpu))
            clock = WallClock(stopped=True)  # so that the time of making provisioned containers is not part of the run
            bodies = DaskBodies(deployment.nodes, seed, clock, client)
            super().__init__(deployment, clock, bodies, seed=seed, hang_after=hang_after, store=MessageStore)
            self._connected = connected.pop_all()

    def slots(self, name: str, *, concurrent: int) -> int:
        slots = super().slots(name, concurrent=concurrent)
        # A killed body keeps its slot until it returns, while the next body already runs in another slot.
        return slots if self.functions[name].timeout is None else 2 * slots

    def close(self, *, patience: float = math.inf) -> None:
        if not self._closed:
            super().close(patience=patience)
            self._connected.close()


def local_cluster(workers: int | None = None) -> LocalCluster:
    """Starts a Dask cluster on this machine, which listens on loopback alone.

    Args:
      workers: number of worker processes; None for one per processor.
    """
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    )


def _nodes(client: Client, slots_per_gpu: int) -> tuple[Node, ...]:
    """Returns the cluster's workers, named by their addresses."""
    return tuple(
        Node(name=address, memory=memory, vcpus=threads, gpus=gpus, slots_per_gpu=slots_per_gpu)
        for address, (threads, memory, gpus) in client.run(_room).items()
    )


def _room(dask_worker: distributed.Worker) -> tuple[float, float, int]:
    """Returns the threads, the GB and the GPUs of the worker that calls this function."""
    memory = dask_worker.memory_manager.memory_limit
    gpus = int(dask_worker.state.total_resources.get("GPU", 0))
    return float(dask_worker.state.nthreads), math.inf if memory is None else memory / 1e9, gpus
