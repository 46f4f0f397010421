"""The event log and its views."""

import json

import numpy as np
import pytest

from stellaris.runtime import FunctionSpec, SimulatedPlatform, Trace, timeline
from stellaris.runtime.delays import Constant
from stellaris.runtime.endings import ENDINGS
from stellaris.runtime.files import atomic_write


def by_hand() -> Trace:
    """Six rows of two functions, and one of none."""
    trace = Trace()
    trace.append(0.0, "submitted", function="b", invocation=0)
    trace.append(0.5, "started", function="b", invocation=0, container=3)
    trace.append(1.0, "started", function="a", invocation=1, container=4)
    trace.append(1.5, "episode", value=-2.5)
    trace.append(2.5, "completed", function="b", invocation=0, container=3)
    trace.append(3.0, "started", function="b", invocation=2, container=3)
    return trace


def small_run() -> SimulatedPlatform:
    """A run with cold and warm starts, a failure, a time-out, publications, and calls that its end cancels."""
    platform = SimulatedPlatform(
        {
            "a": FunctionSpec(Constant(1.0), cold_start=Constant(0.5), timeout=2.0, max_concurrency=1),
            "b": FunctionSpec(Constant(4.0)),
        }
    )
    with platform:
        platform.invoke("a", lambda context: None)  # cold, runs 0.5 - 1.5
        platform.invoke("a", lambda context: 1 / 0)  # warm, runs 1.5 - 2.5
        platform.invoke("a", lambda context: None, work=3.0)  # warm, runs 2.5 - 4.5, killed
        platform.invoke("a", lambda context: None)  # cold again, runs 5 - 6
        platform.invoke("b", lambda context: None, at=2.0)  # runs 2 - 6
        platform.invoke("b", lambda context: None, at=5.0)  # runs 5 - 7, cancelled
        platform.invoke("a", lambda context: None, at=9.0)  # never starts
        platform.store.publish("policy", 0)
        while platform.next_completion(until=7.0):
            platform.store.publish("policy", 0)
    return platform


def test_select():
    """Rows of an event, in order; of one function; from a row on; none of what never happened."""
    trace = by_hand()
    assert len(trace) == 6
    got = trace.select("started")
    assert (got.time.tolist(), got.invocation.tolist()) == ([0.5, 1.0, 3.0], [0, 1, 2])
    assert trace.select("started", function="b").time.tolist() == [0.5, 3.0]
    assert trace.select("started", start=2).invocation.tolist() == [1, 2]
    assert trace.select("started", function="b", start=2).invocation.tolist() == [2]
    assert trace.select("episode").value.tolist() == [-2.5]
    for nothing in (trace.select("failed"), trace.select("started", function="c"), trace.select("started", start=6)):
        assert [len(column) for column in nothing] == [0, 0, 0]


def test_what_was_selected_does_not_change():
    """A view is a copy: the log goes on behind it."""
    trace = by_hand()
    before = trace.select("started")
    frame = trace.to_dataframe()
    for _ in range(100):
        trace.append(4.0, "started", function="c")
    assert (len(before.time), len(frame), len(trace.select("started").time)) == (3, 6, 103)


def test_functions_are_those_that_were_invoked():
    """In order of first appearance; what was published is no function."""
    assert by_hand().functions() == ("b", "a")
    assert Trace().functions() == ()
    assert small_run().trace.functions() == ("a", "b")


def test_to_dataframe():
    """A row an event, every column as it was written."""
    frame = by_hand().to_dataframe()
    assert list(frame.columns) == ["time", "event", "function", "invocation", "container", "value"]
    assert list(frame.itertuples(index=False, name=None)) == [
        (0.0, "submitted", "b", 0, -1, 0.0),
        (0.5, "started", "b", 0, 3, 0.0),
        (1.0, "started", "a", 1, 4, 0.0),
        (1.5, "episode", "", -1, -1, -2.5),
        (2.5, "completed", "b", 0, 3, 0.0),
        (3.0, "started", "b", 2, 3, 0.0),
    ]
    assert len(Trace().to_dataframe()) == 0


def test_the_log_of_a_small_run():
    """Every row of two calls in one container, by hand."""
    with SimulatedPlatform({"f": FunctionSpec(Constant(1.0), cold_start=Constant(0.5), keep_alive=4.0)}) as platform:
        platform.store.publish("p", None)
        platform.invoke("f", lambda context: None)
        platform.invoke("f", lambda context: None, at=2.0)
        platform.invoke("f", lambda context: None, at=9.0)
        while platform.next_completion(until=9.25):
            pass
    assert list(platform.trace.to_dataframe().itertuples(index=False, name=None)) == [
        (0.0, "stored", "p", -1, -1, 0.0),
        (0.0, "published", "p", -1, -1, 0.0),
        (0.0, "submitted", "f", 0, -1, 0.0),
        (0.0, "container_created", "f", -1, 0, 0.0),
        (0.0, "acquired", "f", 0, 0, 1.0),
        (0.5, "started", "f", 0, 0, 0.0),
        (1.5, "completed", "f", 0, 0, 0.0),
        (2.0, "submitted", "f", 1, -1, 1.0),
        (2.0, "acquired", "f", 1, 0, 0.0),
        (2.0, "started", "f", 1, 0, 0.0),
        (3.0, "completed", "f", 1, 0, 0.0),
        (7.0, "container_ended", "f", -1, 0, 0.0),
        (9.0, "submitted", "f", 2, -1, 2.0),
        (9.0, "container_created", "f", -1, 1, 0.0),
        (9.0, "acquired", "f", 2, 1, 1.0),
        (9.25, "cancelled", "f", 2, 1, 0.0),
        (9.25, "container_ended", "f", -1, 1, 0.0),
    ]


def test_to_chrome(tmp_path):
    """Valid JSON; a slice for every call that ran and every cold start, in microseconds, on its container's track."""
    trace = small_run().trace
    trace.append(7.0, "staleness", value=3.0)
    trace.to_chrome(tmp_path / "deep" / "trace.json")
    events = json.loads((tmp_path / "deep" / "trace.json").read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    slices = [
        (processes[e["pid"]], e["name"], e["tid"], e["args"]["invocation"], e["ts"], e["dur"])
        for e in events
        if e["ph"] == "X"
    ]
    assert sorted(slices, key=lambda entry: (entry[3], entry[4])) == [
        ("a", "cold start", 0, 0, 0.0, 0.5e6),
        ("a", "a", 0, 0, 0.5e6, 1e6),
        ("a", "a (failed)", 0, 1, 1.5e6, 1e6),
        ("a", "a (timed_out)", 0, 2, 2.5e6, 2e6),
        ("a", "cold start", 2, 3, 4.5e6, 0.5e6),
        ("a", "a", 2, 3, 5e6, 1e6),
        ("b", "b", 1, 4, 2e6, 4e6),
        ("b", "b (cancelled)", 3, 5, 5e6, 2e6),
    ]
    counters = [(e["name"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    instants = [0.0, 1.5, 2.5, 4.5, 6.0, 6.0]
    assert counters[:-1] == [("version", 1e6 * t, {"version": v}) for v, t in enumerate(instants)]
    assert counters[-1] == ("staleness", 7e6, {"staleness": 3.0})


def test_endings():
    """The small run's; the call that was to be submitted after its end is in no log."""
    trace = small_run().trace
    counts = {ending: len(trace.select(ending).time) for ending in ENDINGS}
    assert counts == dict.fromkeys(ENDINGS, 0) | {"completed": 3, "failed": 1, "timed_out": 1, "cancelled": 1}


@pytest.mark.parametrize("old", [None, "old\n"])
def test_an_interrupted_write_leaves_nothing(tmp_path, old):
    """Neither half a file nor a draft; what was there before stays as it was."""
    path = tmp_path / "file.txt"
    if old is not None:
        path.write_text(old)

    def interrupted():
        with atomic_write(path) as file:
            file.write("half")
            file.flush()
            assert (path.read_text() if path.exists() else None) == old  # not seen while it is written, either
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == ({} if old is None else {"file.txt": old})


def test_a_whole_write(tmp_path):
    """Appears under its name, in folders that are made, and replaces what was there."""
    path = tmp_path / "new" / "folder" / "file.txt"
    for text in ("one\n", "two\r\nand more\n"):
        with atomic_write(str(path)) as file:
            file.write(text)
        assert path.read_bytes() == text.encode()
        assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_an_interrupted_export_keeps_the_old_one(tmp_path, monkeypatch):
    """A timeline is written whole or not at all."""
    path = tmp_path / "trace.json"
    small_run().trace.to_chrome(path)
    before = path.read_bytes()

    def broken(*arguments):
        yield "half"
        raise KeyboardInterrupt

    monkeypatch.setattr(timeline, "events", broken)
    with pytest.raises(KeyboardInterrupt):
        Trace().to_chrome(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_many_rows_keep_their_order():
    """As many as a real run has."""
    trace, times = Trace(), np.random.default_rng(0).random(5000)
    for i, time in enumerate(times):
        trace.append(time, "even" if i % 2 == 0 else "odd", invocation=i)
    np.testing.assert_array_equal(trace.select("odd").time, times[1::2])
    np.testing.assert_array_equal(trace.select("even", start=1001).invocation, np.arange(1002, 5000, 2))
