"""The simulated serverless platform: bodies run in this process, in virtual or in wall time."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stellaris._core.describe import describe
from stellaris.runtime.engine import arguments
from stellaris.runtime.engine.clock import VirtualClock, WallClock
from stellaris.runtime.engine.deployment import Deployment
from stellaris.runtime.engine.faults import Faults, StoreFaults
from stellaris.runtime.engine.placement import Placement
from stellaris.runtime.engine.platform import EnginePlatform
from stellaris.runtime.engine.recorded import Recording
from stellaris.runtime.functions import FunctionSpec
from stellaris.runtime.resources import Node
from stellaris.runtime.simulated.bodies import Bodies
from stellaris.runtime.state.codec import CheckpointError
from stellaris.runtime.state.registry import register_part


@register_part(
    rebuilt=(
        "_deployment",
        "_seed",
        "_replay",
        "_programs",
        "_closed",
        "_bodies",
        "_clock",
        "_life",
        "_meters",
        "_time",
    )
)
class SimulatedPlatform(EnginePlatform):
    """Runs functions as a serverless platform would, in virtual or in wall time.

    In virtual time all durations are drawn from the functions' delays, bodies run on a pool of threads, and completions
    are handed out in the order `(time, phase, invocation number)`, where the phase orders the events of one instant
    (see `engine.agenda`). The same seed gives the same run, bit for bit, on any number of threads and under any load.
    On the wall clock the platform really waits for the delays.

    Args:
      functions: the specification of each function, by name.
      clock: `"virtual"` or `"wall"`.
      seed: seed of every draw; each function and purpose has a separate random stream.
      threads: the most bodies that run at once in virtual time; by default the number of processors. A body whose
        earlier runs took less time than a hand-over between threads runs on the calling thread, unless its function has
        a time-out. On the wall clock every body has a new thread, because waiting for a free one would take time that
        no delay accounts for. There, bodies that start at the same instant share a call and a thread if their programs
        have the same `batched` and their functions have no time-out.
      keep_versions: number of newest versions of each name that the store keeps. Invocations may hold older ones.
      store_capacity: the most bytes that the store holds.
      nodes: machines on which containers are placed; empty for unlimited capacity.
      placement: the node that gets a container: the first node with room (`"pack"`) or the emptiest (`"spread"`).
      max_concurrency: the most invocations at once, of all functions together; None for no limit.
      faults: the faults of functions, by name.
      store_faults: the faults of the store.
      replay: a recorded run, whose delays and endings the invocations repeat.
      hang_after: seconds of real time after which a body that has not returned is given up on. Its invocation then ends
        at its time-out, or as `hung` if the function has no time-out.
      on_event: called with the platform after every event; it may read everything but must change nothing.

    Raises:
      LookupError: if there are faults for a function that is not deployed.
      TypeError: if a value of `functions` is not a `FunctionSpec`, a value of `faults` is not a `Faults`, `nodes` has
        anything but a `Node`, `store_faults` is not a `StoreFaults`, or `replay` is not a `Recording`.
      ValueError: if an argument is out of its range.

    Example:
      Two calls in a row: the first waits 0.3 s for its container, the second finds it warm.

      >>> from stellaris.runtime.delays import Constant
      >>> spec = FunctionSpec(compute=Constant(1.0), cold_start=Constant(0.3))
      >>> with SimulatedPlatform({"double": spec}) as platform:
      ...     for x in (1, 2):
      ...         _ = platform.invoke("double", lambda context, x: 2 * x, x)
      ...         done = platform.next_completion()
      ...         print(done.result(), done.cold, round(platform.now, 3))
      2 True 1.3
      4 False 2.3
    """

    def __init__(
        self,
        functions: Mapping[str, FunctionSpec],
        *,
        clock: str = "virtual",
        seed: int = 0,
        threads: int | None = None,
        keep_versions: int = 2,
        store_capacity: float = math.inf,
        nodes: Sequence[Node] = (),
        placement: Placement = "pack",
        max_concurrency: int | None = None,
        faults: Mapping[str, Faults] | None = None,
        store_faults: StoreFaults | None = None,
        replay: Recording | None = None,
        hang_after: float = 600.0,
        on_event: "Callable[[SimulatedPlatform], None] | None" = None,
    ) -> None:
        deployment = Deployment(
            functions=functions,
            nodes=nodes,
            placement=placement,
            max_concurrency=max_concurrency,
            keep_versions=keep_versions,
            store_capacity=store_capacity,
            faults=faults or {},
            store_faults=store_faults,
        )
        arguments.check_options(
            clock=clock,
            seed=seed,
            threads=threads,
            hang_after=hang_after,
            replay=replay,
            faulty=bool(faults or store_faults),
        )
        self._seed = seed  # for `configuration`, as is the recording
        self._replay = replay
        virtual = clock == "virtual"
        # On the wall clock a body must never wait for a thread, so the number of threads is not limited.
        count = (threads or os.cpu_count() or 1) if virtual else None
        bodies = Bodies(count, seed, virtual=virtual, hang_after=hang_after)  # before the clock, which it would delay
        super().__init__(
            deployment,
            VirtualClock() if virtual else WallClock(),
            bodies,
            seed=seed,
            replay=replay,
            hang_after=hang_after,
            on_event=on_event,
        )

    def slots(self, name: str, *, concurrent: int) -> int:
        slots = super().slots(name, concurrent=concurrent)
        # On the wall clock a thread cannot be stopped: a killed body keeps its slot until it returns, while the next
        # body already runs in another slot.
        kept = not self._clock.virtual and self.functions[name].timeout is not None
        return 2 * slots if kept else slots

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def reinitialise(self, name: str) -> None:
        """Resets the state of every container of a function: `init` runs again before the next body.

        Args:
          name: name of the function.
        """
        self._life.settle()  # bodies end first, because a running body still uses the old state
        for container in self._life.pools[name].live.values():
            container.state = None
            container.initialised = False

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Everything that determines a run, as plain data. A run can be resumed only on a platform with equal data."""
        # `threads` and `hang_after` are left out, because they change no result.
        configuration: dict[str, Any] = describe(self._deployment)
        return configuration | {
            "clock": "virtual" if self._clock.virtual else "wall",
            "seed": self._seed,
            "replay": None if self._replay is None else self._replay.digest,
        }

    def settle(self) -> None:
        """Runs the bodies that have started to their end, so that their outcomes can be saved.

        Raises:
          CheckpointError: on the wall clock.
        """
        if not self._clock.virtual:
            raise CheckpointError("clock='wall': only a run in virtual time can be saved; use clock='virtual'")
        self._life.settle()
