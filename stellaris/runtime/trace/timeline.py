"""A trace as a timeline in Chrome's trace format, which opens in Perfetto."""

import json
import math
from collections.abc import Iterator, Mapping

import numpy as np

from stellaris.runtime.endings import ENDINGS
from stellaris.runtime.trace.views import Events, Invocations

#: The events whose values are shown as counters, with the names of the counters.
COUNTERS = {"published": "version", "staleness": "staleness"}


def events(table: Invocations, counted: Mapping[str, Events]) -> Iterator[str]:
    """Yields the JSON of the timeline's events.

    Functions are processes, containers are tracks, and invocations are slices.

    Args:
      table: all invocations.
      counted: the rows of each event of `COUNTERS`.
    """
    # Names are encoded once per function, and rows are formatted by hand, because `json.dumps` per row is much slower.
    titles: list[Mapping[str, str]] = []
    # Functions are numbered from 1, because the counters are process 0.
    for pid, name in enumerate(table.names, start=1):
        yield json.dumps({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
        titles.append(
            {ending: json.dumps(name if ending == "completed" else f"{name} ({ending})") for ending in ENDINGS}
        )
    # Rows with NaN or infinity are left out: JSON has neither, and a single one would make the whole file unreadable.
    shown = np.flatnonzero(np.isfinite(table.started) & np.isfinite(table.ended) & (table.ending >= 0))
    # Arrays are converted to Python's numbers, which are formatted faster, and without the name of a NumPy type.
    rows = zip(
        table.number[shown].tolist(),
        table.function[shown].tolist(),
        table.container[shown].tolist(),
        table.acquired[shown].tolist(),
        table.cold[shown].tolist(),
        table.started[shown].tolist(),
        table.ended[shown].tolist(),
        table.ending[shown].tolist(),
        strict=True,
    )
    for number, function, container, acquired, cold, started, ended, ending in rows:
        where = f'"pid":{function + 1},"tid":{container},"args":{{"invocation":{number}}}}}'
        if cold and started > acquired:
            yield f'{{"ph":"X","name":"cold start",{_span(acquired, started)},{where}'
        yield f'{{"ph":"X","name":{titles[function][ENDINGS[ending]]},{_span(started, ended)},{where}'
    for event, name in COUNTERS.items():
        rows_of = counted[event]
        for time, value in zip(rows_of.time.tolist(), rows_of.value.tolist(), strict=True):
            if math.isfinite(time) and math.isfinite(value):
                yield f'{{"ph":"C","name":"{name}","pid":0,"ts":{time * 1e6!r},"args":{{"{name}":{value!r}}}}}'


def _span(begin: float, end: float) -> str:
    return f'"ts":{begin * 1e6!r},"dur":{(end - begin) * 1e6!r}'
