"""Runs bodies on a Dask cluster: each container is an actor in the process of a worker."""

import asyncio
import uuid
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from distributed import Client

from stellaris.runtime.dask.actor import Actor, apart
from stellaris.runtime.engine.calls import Container
from stellaris.runtime.engine.clock import Clock
from stellaris.runtime.engine.messages import MessageBodies, Returned, Sent
from stellaris.runtime.functions import FunctionSpec
from stellaris.runtime.resources import Node

#: Seconds after which a call checks again that its worker lives. Dask tries to reach a dead worker for 30 s.
_PATIENCE = 1.0


class _Process(NamedTuple):
    """An actor, which ends when nothing refers to it and its future any more."""

    actor: Any
    future: Any
    place: int  #: index of the worker's node; -1 if Dask has placed the actor.


class DaskBodies(MessageBodies):
    """Runs the body of each call in the actor of its container.

    Args:
      nodes: the cluster's workers, on which the engine places containers; empty if Dask places them.
      seed: seed of the contexts' keys.
      clock: the platform's clock.
      client: the connection to the cluster.
    """

    def __init__(self, nodes: Sequence[Node], seed: int, clock: Clock, client: Client) -> None:
        super().__init__(clock, seed)
        self._nodes = tuple(nodes)
        self._client = client
        self._lost: set[int] = set()  # indices of the nodes on which an actor was lost

    def launch(self, container: Container, spec: FunctionSpec, first: Sent) -> Future[tuple[Any, float]]:
        return self._soon(self._launch(container, first))

    async def _launch(self, container: Container, first: Sent) -> tuple[_Process, float]:
        """Has Dask make an actor, on the container's worker if it was placed on one."""
        place = container.place.node
        workers = None if place < 0 else [self._nodes[place].name]
        arguments = container.function, container.number, container.slot, self.seed
        # The key is the actor's name in Dask's dashboard.
        key = f"{container.function}-{container.number}-{uuid.uuid4().hex}"
        with self._client.as_current():  # an actor belongs to the current client
            future = self._client.submit(Actor, *arguments, key=key, workers=workers, actor=True)
            actor = await future
        process = _Process(actor, future, place)
        return process, await self._answer(process, "prepare", first)

    def send(self, process: _Process, sent: Sent) -> Future[Returned]:
        new = {number: apart(content) for number, content in sent.new.items()}
        sent = sent._replace(new=new, arguments=apart(sent.arguments))
        return self._soon(self._answer(process, "run", sent))

    async def _answer(self, process: _Process, method: str, sent: Sent) -> Any:
        """Calls a method of an actor, and returns its answer; every error means that the worker was lost."""
        try:
            answer = asyncio.ensure_future(getattr(process.actor, method)(sent))
            while not (await asyncio.wait([answer], timeout=_PATIENCE))[0]:
                if process.future.status != "finished":
                    answer.cancel()
                    raise RuntimeError("its worker was lost")
            return answer.result()
        except Exception:
            self._lost.add(process.place)
            raise

    def stop(self, made: Future[tuple[Any, float]]) -> None:
        made.cancel()  # does nothing if the actor was made; it then ends because the engine drops its last reference

    def lost_nodes(self) -> Sequence[int]:
        """Returns the indices of the workers that were lost, which the scheduler may notice later than a call."""
        alive = self._client.nthreads() if self._nodes else ()
        return [place for place, node in enumerate(self._nodes) if place in self._lost or node.name not in alive]

    def _soon(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Runs a coroutine on the client's event loop, which is on another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._client.loop.asyncio_loop)
