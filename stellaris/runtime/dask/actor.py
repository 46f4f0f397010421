"""The Dask actor of a container, which answers messages on its own thread in the process of a Dask worker."""

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stellaris.runtime.engine.messages import Receiver, Returned, Sent


class Actor:
    """The class of the actor; it takes the arguments of `Receiver`."""

    def __init__(self, function: str, number: int, slot: int, seed: int) -> None:
        self._receiver = Receiver(function, number, slot, seed)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"{function} {number}")

    # A worker runs the methods of all its actors on one thread. Coroutines it runs on its event loop: these wait for a
    # thread of the container, so that the body of one container does not delay another container.

    async def prepare(self, sent: Sent) -> float:
        """Passes a message to `Receiver.prepare`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._receiver.prepare, sent)

    async def run(self, sent: Sent) -> Returned:
        """Passes a message to `Receiver.run`."""
        returned = await asyncio.get_running_loop().run_in_executor(self._thread, self._receiver.run, sent)
        return returned._replace(content=apart(returned.content))


def apart(content: bytes) -> Any:
    """Returns bytes in a form that Dask sends without copying them; they arrive as a memory view."""
    return pickle.PickleBuffer(content)
