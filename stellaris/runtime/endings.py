"""The endings of invocations and their consequences: one table for the trace, bills, retries and containers."""

from collections.abc import Mapping
from typing import NamedTuple


class Ending(NamedTuple):
    """The consequences of one way in which an invocation can end."""

    wasted: bool  #: whether the invocation's running time was wasted.
    retriable: bool  #: whether a retry may help; the invocation's arguments are then kept.
    ends_container: bool  #: whether the container ends together with the invocation.


#: The endings by name. An invocation ends exactly once. `failed`: the body raised an error, and a retry would raise it
#: again; the container still works. `lost`: the body completed and the container still works, but the message of the
#: completion is lost. `throttled`: the invocation never had a container. `hung`: the body did not return, and a retry
#: would not return either.
ENDINGS_BY_NAME: Mapping[str, Ending] = {
    "completed": Ending(wasted=False, retriable=False, ends_container=False),
    "failed": Ending(wasted=True, retriable=False, ends_container=False),
    "timed_out": Ending(wasted=True, retriable=True, ends_container=True),
    "crashed": Ending(wasted=True, retriable=True, ends_container=True),
    "throttled": Ending(wasted=False, retriable=True, ends_container=False),
    "lost": Ending(wasted=True, retriable=True, ends_container=False),
    "hung": Ending(wasted=True, retriable=False, ends_container=True),
    "cancelled": Ending(wasted=False, retriable=False, ends_container=True),
}

#: The names of the endings; the trace refers to an ending by its index in this tuple.
ENDINGS = tuple(ENDINGS_BY_NAME)
WASTED = tuple(name for name, ending in ENDINGS_BY_NAME.items() if ending.wasted)
RETRIABLE = tuple(name for name, ending in ENDINGS_BY_NAME.items() if ending.retriable)
