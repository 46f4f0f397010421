"""How an invocation can end, and what follows from it: one table for the trace, the bills, retries and containers."""

from collections.abc import Mapping
from typing import NamedTuple


class Ending(NamedTuple):
    """What an ending means."""

    wasted: bool  #: whether the work was done for nothing.
    retriable: bool  #: whether trying again may help; its arguments are then kept.
    ends_container: bool  #: whether its container ends with it.


#: By name; an invocation ends exactly once. A body that raised would raise again, and its container is as good as
#: before. A lost message says nothing against the container, in which the body has completed. What was throttled never
#: had a container.
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

#: Their names; the trace refers to them by place.
ENDINGS = tuple(ENDINGS_BY_NAME)
WASTED = tuple(name for name, ending in ENDINGS_BY_NAME.items() if ending.wasted)
RETRIABLE = tuple(name for name, ending in ENDINGS_BY_NAME.items() if ending.retriable)
