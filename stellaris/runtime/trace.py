"""The platform's event log: the single record that histories, bills, histograms and timelines are views of."""

import json
import math
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stellaris.types import NDArray

if TYPE_CHECKING:
    import pandas as pd

#: How an invocation can end; each does so exactly once.
ENDINGS = ("completed", "failed", "timed_out", "cancelled")


class Events(NamedTuple):
    """Rows of a trace of one kind, in order."""

    time: NDArray
    invocation: NDArray
    value: NDArray


class Trace:
    """An append-only, columnar log of `(time, event, function, invocation, container, value)`.

    The platform writes `submitted`, `acquired` (value 1 if cold), `started`, one of `ENDINGS`, `container_created`,
    `container_ended` and `published` (value: the version). Systems add events of their own, such as `episode` (value:
    its return) and `staleness` (of an applied gradient).

    Example:
      >>> trace = Trace()
      >>> trace.append(1.5, "episode", value=200.0)
      >>> trace.append(2.5, "episode", value=300.0)
      >>> trace.select("episode").value.tolist()
      [200.0, 300.0]
    """

    def __init__(self) -> None:
        self._time, self._value = array("d"), array("d")
        self._event, self._function = array("h"), array("h")
        self._invocation, self._container = array("q"), array("q")
        self._names: list[str] = []
        self._codes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._time)

    def append(
        self,
        time: float,
        event: str,
        *,
        function: str = "",
        invocation: int = -1,
        container: int = -1,
        value: float = 0.0,
    ) -> None:
        """Adds one row.

        Args:
          time: seconds of the platform's clock.
          event: what happened.
          function: the function's name, where there is one.
          invocation: the invocation's number, or -1.
          container: the container's number, or -1.
          value: what the event carries.
        """
        self._time.append(time)
        self._event.append(self._code(event))
        self._function.append(self._code(function))
        self._invocation.append(invocation)
        self._container.append(container)
        self._value.append(value)

    def select(self, event: str, *, function: str | None = None, start: int = 0) -> Events:
        """The rows of one event, optionally of one function, from row `start` on."""
        rows = start + np.flatnonzero(np.asarray(self._event)[start:] == self._codes.get(event, -1))
        if function is not None:
            rows = rows[np.asarray(self._function)[rows] == self._codes.get(function, -1)]
        return Events(*(np.asarray(column)[rows] for column in (self._time, self._invocation, self._value)))

    def functions(self) -> tuple[str, ...]:
        """Names of the functions that were invoked, in order of first appearance."""
        invoked = np.asarray(self._invocation) >= 0
        codes, first = np.unique(np.asarray(self._function)[invoked], return_index=True)
        return tuple(self._names[code] for code in codes[np.argsort(first)])

    def running(self, *, until: float) -> dict[str, float]:
        """Seconds from start to end, summed over each function's invocations; up to `until` for those still running."""
        seconds: dict[str, float] = {}
        for function in self.functions():
            started = self.select("started", function=function)
            ended = [self.select(ending, function=function) for ending in ENDINGS]
            cancelled = ended.pop()  # of these, what still waited never ran
            ran = np.isin(cancelled.invocation, started.invocation)
            times = [*(events.time for events in ended), cancelled.time[ran]]
            running = len(started.time) - sum(len(t) for t in times)
            ends = math.fsum(float(t.sum()) for t in times) + until * running
            seconds[function] = ends - float(started.time.sum())
        return seconds

    def to_dataframe(self) -> "pd.DataFrame":
        """The whole log, a row an event, in order (needs pandas)."""
        import pandas as pd

        def text(codes: "array[int]") -> "pd.Categorical[str]":
            return pd.Categorical.from_codes(np.array(codes), categories=pd.Index(self._names or [""]))

        return pd.DataFrame(
            {
                "time": np.array(self._time),
                "event": text(self._event),
                "function": text(self._function),
                "invocation": np.array(self._invocation),
                "container": np.array(self._container),
                "value": np.array(self._value),
            }
        )

    def to_chrome(self, path: str | os.PathLike[str]) -> None:
        """Writes the timeline in Chrome's trace format, which opens in Perfetto (ui.perfetto.dev).

        Functions are processes, containers are tracks, invocations are slices (`cold start` apart); published
        versions and the staleness of applied gradients are counters.

        Args:
          path: of the JSON file; written whole or not at all.
        """
        with atomic_write(path) as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            file.write(",\n".join(json.dumps(event, separators=(",", ":")) for event in self._chrome_events()))
            file.write("\n]}\n")

    def _chrome_events(self) -> Iterator[dict[str, Any]]:
        functions = {name: number for number, name in enumerate(self.functions(), start=1)}
        yield from (
            {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}
            for name, number in functions.items()
        )
        acquired: dict[int, tuple[float, bool, int]] = {}
        started: dict[int, float] = {}
        rows = zip(self._time, self._event, self._function, self._invocation, self._container, self._value, strict=True)
        for time, event_code, function_code, invocation, container, value in rows:
            event, function = self._names[event_code], self._names[function_code]
            if event == "acquired":
                acquired[invocation] = (time, bool(value), container)
            elif event == "started":
                started[invocation] = time
                begin, cold, container = acquired[invocation]
                if cold and time > begin:
                    yield _slice("cold start", functions[function], container, begin, time, invocation)
            elif event in ENDINGS and invocation in started:
                container = acquired[invocation][2]
                name = function if event == "completed" else f"{function} ({event})"
                yield _slice(name, functions[function], container, started[invocation], time, invocation)
            elif event in ("published", "staleness"):
                name = "version" if event == "published" else "staleness"
                yield {"ph": "C", "name": name, "pid": 0, "ts": time * 1e6, "args": {name: value}}

    def _code(self, name: str) -> int:
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self._names)
            self._names.append(name)
        return code


def _slice(name: str, pid: int, tid: int, begin: float, end: float, invocation: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": begin * 1e6,
        "dur": (end - begin) * 1e6,
        "args": {"invocation": invocation},
    }


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """Opens a text file that appears under its name only once it is whole.

    Args:
      path: of the file; missing folders are made.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, atomic_write(folder + "/a.txt") as file:
      ...     _ = file.write("whole")
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with draft.open("w", newline="") as file:
            yield file
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
