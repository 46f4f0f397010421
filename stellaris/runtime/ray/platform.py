"""The contract on a Ray cluster: the same functions, systems, trace and bills, with real staleness."""

import contextlib
import math
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from queue import Empty
from typing import Any

import ray

from stellaris._core import checks
from stellaris.runtime.engine import arguments
from stellaris.runtime.engine.clock import WallClock
from stellaris.runtime.engine.deployment import Deployment
from stellaris.runtime.engine.placement import Placement
from stellaris.runtime.engine.platform import EnginePlatform
from stellaris.runtime.functions import Function, FunctionSpec, Invocation
from stellaris.runtime.ray.bodies import GB, RayBodies
from stellaris.runtime.ray.session import Session
from stellaris.runtime.ray.store import RayStore
from stellaris.runtime.resources import Node, Resources

#: Platforms that use a Ray that one of them has started, by the session's number.
_USERS: Counter[tuple[str, str]] = Counter()
_USERS_LOCK = threading.Lock()


class RayPlatform(EnginePlatform):
    """Runs functions on a Ray cluster: each container is a process of its own, an actor of Ray's.

    Calls live as on the wall clock of `SimulatedPlatform`: the same limits, queues, keep-alive, pre-warming, time-outs
    and retries. What differs is what takes time. A cold start makes a process, a body computes in it, versions and
    arguments cross to it; and a process, or a node, that is lost ends its call as `crashed`, to be retried.

    Delays of a deployment that are distributions are waited for beside that, as on the wall clock: a compute time of
    2 s ends a call after 2 s, or when its body has returned if that is later. `Measured()` adds nothing, whatever its
    factor and the call's work, and neither does a cold start of 0. The trace has, beside what a simulated platform
    writes, `computed` (value: seconds of the body) and `unpacked` (value: seconds until its arguments were there).

    Bodies and arguments go to containers by cloudpickle, as Ray does it; arrays of 100 KB or more, and what is
    published or put into the store, cross once a node. What cannot go to another process is refused by name. A body
    must not count on memory that it shares with others: what it is to keep is its container's `state`.

    If Ray is not initialised, it is on this machine alone, and nothing listens beyond loopback; or on the cluster at
    `address`. It is then shut down with the last platform that uses it. To choose Ray's own options call `ray.init`
    before, and `ray.shutdown` when the platforms are closed: a platform without its Ray raises a RuntimeError.

    Args:
      functions: the deployment, by name. Their `Resources` are reserved with Ray: processors, memory, and for each of a
        container's `gpu_slots` a share of a GPU.
      address: `"auto"`, or such as `"10.0.0.1:6379"`, of a cluster that this machine is part of; None for it alone.
      seed: of the contexts' keys and of the delays that are drawn.
      keep_versions: how many of the newest versions of a name the store keeps, beside those that invocations hold.
      store_capacity: the most bytes that the store holds; Ray's own limit counts besides.
      placement: which of the nodes with room gets a container, the first (`"pack"`) or the emptiest (`"spread"`).
      slots_per_gpu: places on each GPU.
      max_concurrency: the most invocations at once, of all functions together; None for no limit.
      hang_after: seconds after which a body that has not returned, or a container that has not been made, is given up
        on. Its invocation then ends at its time-out, as `hung` if it has none, or as `crashed` if it has not started.

    Raises:
      ImportError: if Ray is not installed: `pip install 'stellaris[ray]'`.
      RuntimeError: if a provisioned container could not be made.
      TypeError: if a function's deployment is no `FunctionSpec`.
      ValueError: if an argument is out of its range, or no node could ever hold a function's containers.

    Example:
      ```python
      from stellaris.runtime import FunctionSpec, RayPlatform
      from stellaris.runtime.delays import Measured

      with RayPlatform({"double": FunctionSpec(Measured())}) as platform:
          platform.invoke("double", lambda context, x: 2 * x, 21)
          print(platform.next_completion().result())  # 42
      ```
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
            functions=dict(functions),
            placement=placement,
            max_concurrency=max_concurrency,
            keep_versions=keep_versions,
            store_capacity=store_capacity,
        )
        session = self._join(address)
        with contextlib.ExitStack() as unmade:
            unmade.callback(self._leave)
            # Where no container needs anything, Ray places them; else this platform does, which knows what is idle.
            if any(_needy(spec) for spec in functions.values()):
                deployment = replace(deployment, nodes=_nodes(slots_per_gpu))
            clock = WallClock(stopped=True)
            bodies = RayBodies(deployment.nodes, seed, clock, session)
            unmade.callback(bodies.close, 0.0)
            super().__init__(deployment, clock, bodies, seed=seed, hang_after=hang_after, store=RayStore)
            bodies.trace = self.trace
            self._await_provisioned(hang_after)
            unmade.pop_all()
        self._remote = bodies
        clock.start()

    def invoke(
        self,
        name: str,
        function: Function | Callable[..., Any],
        *args: Any,
        at: float | None = None,
        work: float = 1.0,
        tag: Any = None,
    ) -> Invocation:
        if not isinstance(function, Function):
            function = self._programs.of(function)
        if name in self.functions and not self._closed:
            self._remote.check(function, name)
        return super().invoke(name, function, *args, at=at, work=work, tag=tag)

    def close(self, *, patience: float = math.inf) -> None:
        if not self._closed:
            super().close(patience=patience)
            self._leave()

    def _join(self, address: str | None) -> Session:
        """The Ray that is there, or is started now."""
        with _USERS_LOCK:
            started = connect(address)
            self._session = Session()
            if started or self._session.number in _USERS:
                _USERS[self._session.number] += 1
        return self._session

    def _leave(self) -> None:
        """Shuts Ray down if a platform has started it, and this is the last that uses it."""
        number = self._session.number
        with _USERS_LOCK:
            if number in _USERS:
                _USERS[number] -= 1
                if not _USERS[number]:
                    del _USERS[number]
                    if not self._session.over:
                        ray.shutdown()

    def _await_provisioned(self, patience: float) -> None:
        """Waits for the provisioned containers, which are there before the clock starts."""
        for _ in range(sum(spec.provisioned for spec in self.functions.values())):
            try:
                container: Any = self._life.returned.get(timeout=patience)
            except Empty:
                raise RuntimeError(
                    f"no provisioned container was made within hang_after={patience} s: look at Ray's logs"
                ) from None
            self._life.fleet.made(container, 0.0)


def connect(address: str | None = None, **options: Any) -> bool:
    """Initialises Ray, unless it is: on this machine without listening beyond loopback, or on a cluster.

    Args:
      address: of the cluster, or None.
      **options: of `ray.init`, where it is on this machine.

    Returns:
      Whether it was not initialised before.

    Raises:
      ValueError: if the address is one of Ray's client.
    """
    if address is not None and address.startswith("ray://"):
        raise ValueError(
            f"address={address!r}: Ray's client has no part in the object store; run the program on a machine of the "
            'cluster, with address="auto"'
        )
    if ray.is_initialized():
        return False
    if address is None:
        stay_on_loopback()
        # "local", because without an address Ray would join a cluster that it finds here, or that RAY_ADDRESS names.
        quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
        with starting_processes():
            ray.init(address="local", **quiet | options)
    else:
        ray.init(address=address, log_to_driver=False)
    return True


def stay_on_loopback() -> None:
    """Has the processes of Ray's that are started on this machine from now on listen on loopback alone."""
    from ray._private import ray_constants

    # As it does on Windows and macOS. The variable is read when Ray is imported, which may have been long ago; its
    # processes are told by it.
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False


@contextlib.contextmanager
def starting_processes() -> Iterator[None]:
    """Without JAX's warning of forks: what Ray forks of this process becomes another program at once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
        yield


def _needy(spec: FunctionSpec) -> bool:
    return spec.resources != Resources()


def _nodes(slots_per_gpu: int) -> tuple[Node, ...]:
    """The cluster's machines; the name of each is its number with Ray."""
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
