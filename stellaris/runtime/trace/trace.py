"""The event log of a platform, from which histories, bills, histograms and timelines are derived."""

import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from stellaris._core.extras import needs
from stellaris.runtime.files import atomic_path, atomic_write
from stellaris.runtime.state.registry import register_part
from stellaris.runtime.trace import timeline
from stellaris.runtime.trace.views import Events, Invocations, invocations_of
from stellaris.types import NDArray

if TYPE_CHECKING:
    import pandas as pd


#: The type codes of the columns' arrays, by the name of the column.
_TYPES = {"time": "d", "event": "i", "function": "i", "invocation": "i", "container": "i", "value": "d"}


@register_part()
class Trace:
    """An append-only, columnar log of `(time, event, function, invocation, container, value)`.

    For an invocation the platform writes, in this order, `submitted` (value: number of the first attempt), `acquired`
    (value: 1 if cold), `started`, `fetched` if the arguments refer to the store (value: bytes), and one of `ENDINGS`;
    afterwards `noticed` if the message of the completion was lost, and `redelivered` if the message came twice. For an
    invocation that is cancelled before its instant it writes `withdrawn` alone. For a container the platform writes
    `container_created`, `container_ready` if no invocation waits for the container, `container_lost` and
    `container_ended` (value of these four: the slot), and `initialisation` (value: seconds). For the store the platform
    writes `published` (value: the version) and `stored` (value: bytes). Systems add further events, such as `episode`
    (value: its return) and `staleness` (value: the staleness of an applied gradient).

    Example:
      >>> trace = Trace()
      >>> trace.append(1.5, "episode", value=200.0)
      >>> trace.append(2.5, "episode", value=300.0)
      >>> trace.select("episode").value.tolist()
      [200.0, 300.0]
    """

    def __init__(self) -> None:
        self._columns: tuple[array[Any], ...] = tuple(array(code) for code in _TYPES.values())
        self._names: list[str] = []  # names of events and functions, by code
        self._codes: dict[str, int] = {}
        self._table: tuple[int, Invocations] | None = None  # number of rows, and the table made from them
        #: Rows that are not in the columns yet, as `rows` yields them. The platform appends to this list directly,
        #: because it records every event, and calling a method takes longer than appending.
        self.newest: list[tuple[float, str, str, int, int, float]] = []

    def __len__(self) -> int:
        return len(self._columns[0]) + len(self.newest)

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
          event: name of the event.
          function: name of the function, or empty.
          invocation: number of the invocation, or -1.
          container: number of the container, or -1.
          value: a number that belongs to the event.
        """
        self.newest.append((time, event, function, invocation, container, value))

    def settle(self) -> None:
        """Moves the newest rows into the columns, where a row takes one sixth of the memory."""
        if not self.newest:
            return
        columns: list[Sequence[Any]] = [*zip(*self.newest, strict=True)]
        for i in (1, 2):
            try:
                columns[i] = [*map(self._codes.__getitem__, columns[i])]
            except KeyError:  # there is a new name
                columns[i] = [*map(self._code, columns[i])]
        # All columns are packed before any is extended, so that a value of a wrong type leaves every column unchanged.
        packed = [
            struct.pack(f"{len(self.newest)}{kept.typecode}", *new)
            for kept, new in zip(self._columns, columns, strict=True)
        ]
        for kept, content in zip(self._columns, packed, strict=True):
            kept.frombytes(content)
        self.newest.clear()  # the list stays the same object, because the platform refers to it

    def _array(self, column: int) -> NDArray:
        self.settle()
        return np.asarray(self._columns[column])

    # ---- snapshots ----------------------------------------------------------------------------------------------

    def save_state(self) -> dict[str, Any]:
        """Returns the rows as columns, for a snapshot."""
        self.settle()
        return {"names": list(self._names), "columns": [np.array(column) for column in self._columns]}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Replaces the rows by the rows of a snapshot.

        Raises:
          ValueError: if the snapshot does not have the columns of a trace.
        """
        names: list[str] = list(state["names"])
        columns = state["columns"]
        kinds = [(np.dtype(kept.typecode), columns[0].shape) for kept in self._columns]
        if [(column.dtype, column.shape) for column in columns] != kinds or columns[0].ndim != 1:
            raise ValueError("the snapshot is not of a trace: the types or lengths of its columns differ")
        if any(len(codes) and not 0 <= codes.min() <= codes.max() < len(names) for codes in columns[1:3]):
            raise ValueError("the snapshot is not of a trace: the name of an event or a function is missing")
        self._columns = tuple(
            array(kept.typecode, new.tobytes()) for kept, new in zip(self._columns, columns, strict=True)
        )
        self._names = names
        self._codes = {name: code for code, name in enumerate(names)}
        self._table = None
        self.newest.clear()  # the list stays the same object, because the platform refers to it

    # ---- views --------------------------------------------------------------------------------------------------

    def rows(self, start: int = 0) -> Iterator[tuple[float, str, str, int, int, float]]:
        """Yields every row from `start` on: `(time, event, function, invocation, container, value)`."""
        self.settle()
        names = self._names
        columns = [column[start:] for column in self._columns]
        for time, event, function, invocation, container, value in zip(*columns, strict=True):
            yield time, names[event], names[function], invocation, container, value

    def select(self, event: str, *, function: str | None = None, start: int = 0) -> Events:
        """Returns the rows of one event, optionally of one function, from row `start` on."""
        rows = start + np.flatnonzero(self._array(1)[start:] == self._codes.get(event, -1))
        if function is not None:
            rows = rows[self._array(2)[rows] == self._codes.get(function, -1)]
        return Events(time=self._array(0)[rows], invocation=self._array(3)[rows], value=self._array(5)[rows])

    def containers(self, event: str, function: str) -> dict[int, float]:
        """Returns the last time of an event for each of a function's containers, by the container's number."""
        rows = self._array(1) == self._codes.get(event, -1)
        rows &= self._array(2) == self._codes.get(function, -1)
        return dict(zip(self._array(4)[rows].tolist(), self._array(0)[rows].tolist(), strict=True))

    def functions(self) -> tuple[str, ...]:
        """Returns the names of the invoked functions, in order of first appearance."""
        invoked = self._array(3) >= 0
        codes, first = np.unique(self._array(2)[invoked], return_index=True)
        return tuple(self._names[code] for code in codes[np.argsort(first)])

    def invocations(self) -> Invocations:
        """Returns the table of all invocations: their times, containers and endings.

        Every call returns the same table until a row is added. Its arrays cannot be written to.
        """
        if self._table is None or self._table[0] != len(self):
            columns = {name: self._array(i) for i, name in enumerate(_TYPES)}
            self._table = len(self), invocations_of(columns, self._codes, self.functions())
            for column in self._table[1][:-1]:
                column.flags.writeable = False
        return self._table[1]

    # ---- other forms --------------------------------------------------------------------------------------------

    def to_dataframe(self) -> "pd.DataFrame":
        """Returns the whole log, one row per event, in order (needs pandas)."""
        with needs("a trace's table"):
            import pandas as pd

        def text(codes: NDArray) -> "pd.Categorical[str]":
            return pd.Categorical.from_codes(np.array(codes), categories=pd.Index(self._names or [""]))

        # Columns are copied, because an `array` cannot grow while NumPy has a view of it.
        return pd.DataFrame(
            {
                "time": np.array(self._array(0)),
                "event": text(self._array(1)),
                "function": text(self._array(2)),
                "invocation": np.array(self._array(3)),
                "container": np.array(self._array(4)),
                "value": np.array(self._array(5)),
            }
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the whole log to a file that `Trace.load` reads.

        Args:
          path: path of a `.parquet` (needs pyarrow), `.csv` or `.csv.gz` file, which is written atomically.

        Raises:
          ModuleNotFoundError: without pandas, or without pyarrow for a `.parquet` file.
          ValueError: if the name has another ending.
        """
        kind = _kind(path)
        # A missing pyarrow raises here and not after the table is made, because making the table may take long.
        if kind == "parquet":
            with needs(os.fspath(path)):
                import pyarrow  # noqa: F401
        frame = self.to_dataframe()
        with atomic_path(path) as draft:
            if kind == "parquet":
                frame.to_parquet(draft, index=False)
            else:
                frame.to_csv(draft, index=False, compression="gzip" if kind == "csv.gz" else None)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Reads a log that `save` wrote.

        Args:
          path: path of the file.

        Returns:
          The trace, bit for bit as it was saved.

        Raises:
          ModuleNotFoundError: without pandas, or without pyarrow for a `.parquet` file.
          ValueError: if the name ends in neither `.parquet`, `.csv` nor `.csv.gz`, the file cannot be read, columns are
            missing, or a row is damaged or truncated; the error names the file.
        """
        kind = _kind(path)
        with needs(os.fspath(path)):
            import pandas as pd

            if kind == "parquet":
                import pyarrow  # noqa: F401
        with open(path, "rb") as file:  # not in the `try`: a missing file raises an OSError, and is not damaged
            try:
                if kind == "parquet":
                    frame = pd.read_parquet(file)
                else:
                    # Columns are read as text: a function's name may look like a number, and pandas may round numbers.
                    compression: Literal["gzip"] | None = "gzip" if kind == "csv.gz" else None
                    frame = pd.read_csv(file, dtype=str, keep_default_na=False, compression=compression)
            except MemoryError:
                raise
            except Exception as error:  # errors of pandas, pyarrow, gzip and zlib share no base class
                raise ValueError(
                    f"{os.fspath(path)} is not a trace, or damaged: {type(error).__name__}: {error}"
                ) from error
            # A number that is cut off is still a number, so only the missing line end shows that a CSV file is cut off.
            # The readers of the other formats notice a missing end.
            if kind == "csv" and _unended(file):
                raise ValueError(f"{os.fspath(path)} is damaged or cut off: its last row has no line end")
        missing = [name for name in _TYPES if name not in frame]
        if missing:
            raise ValueError(f"{os.fspath(path)} is not a trace: columns are missing: {', '.join(missing)}")
        trace = cls()
        for name, kept in (("event", trace._columns[1]), ("function", trace._columns[2])):
            if frame[name].isna().any():
                raise ValueError(f"{os.fspath(path)} is damaged or cut off: column {name}: a name is missing")
            labels = frame[name].astype(str)
            codes = {label: trace._code(label) for label in labels.unique()}
            kept.frombytes(labels.map(codes).to_numpy(np.dtype(kept.typecode)).tobytes())
        for name, place in (("time", 0), ("invocation", 3), ("container", 4), ("value", 5)):
            column = trace._columns[place]
            values = (frame[name].replace("", "nan") if kind != "parquet" else frame[name]).to_numpy()
            try:
                with np.errstate(invalid="ignore"):  # the comparison below finds a value that does not fit
                    numbers = values.astype(np.dtype(column.typecode))
                if kind == "parquet" and not np.array_equal(numbers, values, equal_nan=column.typecode == "d"):
                    raise ValueError(f"a value of {values.dtype} does not fit into {numbers.dtype}")
                column.frombytes(numbers.tobytes())
            except (ValueError, TypeError, OverflowError) as error:
                raise ValueError(f"{os.fspath(path)} is damaged or cut off: column {name}: {error}") from None
        return trace

    def to_chrome(self, path: str | os.PathLike[str]) -> None:
        """Writes the timeline in Chrome's trace format, which opens in Perfetto (ui.perfetto.dev).

        Functions are processes, containers are tracks, invocations are slices (a cold start is a separate slice).
        Published versions and the staleness of applied gradients are counters.

        Args:
          path: path of the JSON file, which is written atomically.
        """
        with atomic_write(path) as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
            separator = ""
            for event in timeline.events(self.invocations(), {name: self.select(name) for name in timeline.COUNTERS}):
                file.write(separator)
                file.write(event)
                separator = ",\n"
            file.write("\n]}\n")

    def _code(self, name: str) -> int:
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self._names)
            self._names.append(name)
        return code


def _unended(file: BinaryIO) -> bool:
    """Returns whether the last line of a text file is incomplete."""
    file.seek(-1, os.SEEK_END)
    return file.read() != b"\n"


def _kind(path: str | os.PathLike[str]) -> str:
    for kind in ("parquet", "csv.gz", "csv"):
        if os.fspath(path).endswith(f".{kind}"):
            return kind
    raise ValueError(f"path={os.fspath(path)!r}: a trace is a .parquet, .csv or .csv.gz file; use one of these endings")
