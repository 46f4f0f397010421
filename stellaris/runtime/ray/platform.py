"""The platform on a Ray cluster: systems run as on the simulated platform, but staleness and durations are real."""

import contextlib
import math
import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import ray

from stellaris._core import checks
from stellaris.runtime.engine import arguments
from stellaris.runtime.engine.clock import WallClock
from stellaris.runtime.engine.cluster import ClusterPlatform, needs_nodes
from stellaris.runtime.engine.deployment import Deployment
from stellaris.runtime.engine.placement import Placement
from stellaris.runtime.functions import FunctionSpec
from stellaris.runtime.ray.bodies import GB, RayBodies
from stellaris.runtime.ray.session import Session
from stellaris.runtime.ray.store import RayStore
from stellaris.runtime.resources import Node

#: The number of platforms that use each Ray session, by the session's number. Only sessions that a platform has started
#: are here. The last platform of a session shuts Ray down.
_USERS: Counter[tuple[str, str]] = Counter()
_USERS_LOCK = threading.Lock()  # platforms may be made and closed on several threads, but share one Ray per process


class RayPlatform(ClusterPlatform):
    """Runs functions on a Ray cluster: each container is a Ray actor, which is a separate process.

    Limits, queues, keep-alive, pre-warming, time-outs and retries are as on the wall clock of `SimulatedPlatform`.
    Durations are real: a cold start makes a process, a body computes in it, and versions and arguments are sent to it.
    If a process or its node is lost, its call ends as `crashed` and can be retried.

    The platform also waits for delays that are distributions, as on the wall clock: with a compute time of 2 s a call
    ends after 2 s, or when its body has returned if that is later. `Measured()` adds no delay, for any factor and any
    `work`, and neither does a cold start of 0. The trace has two events that a simulated platform does not write:
    `computed` (value: seconds of the body) and `unpacked` (value: seconds until the arguments were unpacked).

    Bodies and arguments are sent to containers by cloudpickle. Arrays of 100 KB or more, and values that are published
    or put into the store, cross to each node once. A value that cannot be pickled is refused, and the error names it.
    Bodies share no memory: keep data that outlives a call in the container's `state`.

    If Ray is not initialised, the platform initialises it: at `address`, or on this machine, where Ray then listens on
    loopback alone. In that case Ray is shut down when the last platform that uses it is closed. To choose Ray's
    options, call `ray.init` before making a platform, and `ray.shutdown` after the platforms are closed. A platform
    whose Ray was shut down raises a RuntimeError.

    Args:
      functions: the specification of each function, by name. Ray reserves the functions' `Resources`: processors,
        memory, and a share of a GPU for each of a container's `gpu_slots`.
      address: the address of a cluster that this machine is part of, such as `"10.0.0.1:6379"`, or `"auto"`; None to
        run on this machine alone.
      seed: seed of the contexts' keys and of the delays that are drawn.
      keep_versions: number of newest versions of each name that the store keeps. Invocations may hold older ones.
      store_capacity: the most bytes that the store holds. The limit of Ray's object store applies as well.
      placement: the node that gets a container: the first node with room (`"pack"`) or the emptiest (`"spread"`).
      slots_per_gpu: the number of containers that can share a GPU.
      max_concurrency: the most invocations at once, of all functions together; None for no limit.
      hang_after: seconds after which a body that has not returned, or a container that has not been made, is given up
        on. The invocation then ends at its time-out, or as `hung` without a time-out, or as `crashed` if it has not
        started.

    Raises:
      ImportError: if Ray is not installed: `pip install 'stellaris-rl[ray]'`.
      RuntimeError: if making a provisioned container takes longer than `hang_after`.
      TypeError: if `functions` is not a mapping to values of `FunctionSpec`.
      ValueError: if an argument is out of its range, or no node could ever hold a function's containers.

    Example:
      This starts Ray, so it is not a doctest::

        from stellaris.runtime import FunctionSpec, RayPlatform
        from stellaris.runtime.delays import Measured

        with RayPlatform({"double": FunctionSpec(Measured())}) as platform:
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
        # Ray is started after all checks that need no cluster, because starting it takes seconds.
        session = self._join(address)
        with contextlib.ExitStack() as unmade:
            unmade.callback(self._leave)
            if needs_nodes(deployment):  # otherwise Ray places the containers
                deployment = replace(deployment, nodes=_nodes(slots_per_gpu))
            # The clock is stopped, so that the time of making provisioned containers is not part of the run.
            clock = WallClock(stopped=True)
            bodies = RayBodies(deployment.nodes, seed, clock, session)
            super().__init__(deployment, clock, bodies, seed=seed, hang_after=hang_after, store=RayStore)
            unmade.pop_all()

    def close(self, *, patience: float = math.inf) -> None:
        if not self._closed:
            # Containers end before Ray is shut down, because ending them needs Ray.
            super().close(patience=patience)
            self._leave()

    def _join(self, address: str | None) -> Session:
        """Joins the current Ray session, or starts one."""
        with _USERS_LOCK:
            started = connect(address)
            self._session = Session()
            # A session that the user's program started is not counted, so platforms never shut it down.
            if started or self._session.number in _USERS:
                _USERS[self._session.number] += 1
        return self._session

    def _leave(self) -> None:
        """Shuts Ray down if a platform has started it and this is the last platform that uses it."""
        number = self._session.number
        with _USERS_LOCK:
            if number in _USERS:
                _USERS[number] -= 1
                if not _USERS[number]:
                    del _USERS[number]
                    if not self._session.over:
                        ray.shutdown()


def connect(address: str | None = None, **options: Any) -> bool:
    """Initialises Ray if it is not initialised, on a cluster or on this machine, listening on loopback only.

    Args:
      address: address of the cluster; None for this machine.
      **options: options of `ray.init` on this machine.

    Returns:
      True if Ray was initialised here, False if it was initialised before.

    Raises:
      ValueError: if the address begins with `ray://`, which is Ray's client.
    """
    if address is not None and address.startswith("ray://"):
        raise ValueError(
            f"address={address!r}: Ray's client cannot access the object store; run the program on a machine of the "
            'cluster, with address="auto"'
        )
    if ray.is_initialized():
        return False
    if address is None:
        stay_on_loopback()
        # The dashboard is left out because it takes seconds to start; the actors' logs stay off the terminal. The
        # address is "local", because without it Ray would join a cluster on this machine, or at RAY_ADDRESS.
        quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
        with starting_processes():
            ray.init(address="local", **quiet | options)
    else:
        ray.init(address=address, log_to_driver=False)
    return True


def stay_on_loopback() -> None:
    """Makes all Ray processes that start on this machine from now on listen on loopback alone."""
    from ray._private import ray_constants

    # Listening on loopback is Ray's behaviour on Windows and macOS. The environment variable is for Ray's processes,
    # which import Ray anew. Ray has read the variable in this process at its import, so the constant is set as well.
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


@contextlib.contextmanager
def starting_processes() -> Iterator[None]:
    """Silences JAX's warning about forks: a process that Ray forks replaces itself at once by another program."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        yield


def _nodes(slots_per_gpu: int) -> tuple[Node, ...]:
    """Returns the cluster's machines, named by Ray's node numbers, by which actors are placed."""
    return tuple(
        Node(
            name=node["NodeID"],
            memory=node["Resources"].get("memory", 0.0) / GB,
            vcpus=node["Resources"].get("CPU", 0.0),
            gpus=int(node["Resources"].get("GPU", 0)),
            slots_per_gpu=slots_per_gpu,
        )
        for node in ray.nodes()
        if node["Alive"]
    )
