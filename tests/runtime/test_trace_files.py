"""The event log as a file, as a table of invocations, and as a timeline."""

import gzip
import json
import math

import numpy as np
import pandas as pd
import pytest

from stellaris.runtime import Faults, FunctionSpec, SimulatedPlatform, Trace
from stellaris.runtime.delays import Constant, Exponential
from stellaris.runtime.endings import ENDINGS

SUFFIXES = [".csv", ".csv.gz", ".parquet"]


@pytest.fixture(params=SUFFIXES)
def path(request, tmp_path):
    """Of a file of every kind."""
    if request.param == ".parquet":
        pytest.importorskip("pyarrow")
    return tmp_path / f"trace{request.param}"


def columns(trace: Trace) -> list:
    """All of a trace; numbers as their bits."""
    frame = trace.to_dataframe()
    return [
        frame["event"].astype(str).tolist(),
        frame["function"].astype(str).tolist(),
        *[(frame[name].dtype, frame[name].to_numpy().tobytes()) for name in ("time", "value")],
        *[(frame[name].dtype, frame[name].tolist()) for name in ("invocation", "container")],
    ]


def nothing(context):
    """A body that does nothing."""


def run() -> Trace:
    """Cold and warm starts, a retry, a crash, a rejection, and what the end cancels."""
    specs = {
        "b": FunctionSpec(Constant(1.0), Constant(0.5), max_concurrency=1, timeout=2.0),
        "a": FunctionSpec(Constant(1.0), max_concurrency=1, overflow="reject"),
    }
    with SimulatedPlatform(specs, faults={"a": Faults(at={0: ("crash_during",)})}, seed=3) as platform:
        platform.invoke("b", nothing, work=9.0)  # 0: cold, runs 0.5 - 2.5, killed
        platform.invoke("a", nothing, at=1.0)  # 1: crashes between 1 and 2
        platform.invoke("a", nothing, at=1.0)  # 2: rejected
        killed = [platform.next_completion() for _ in range(3)][-1]
        platform.retry(killed)  # 3: cold, runs 3 - 5, killed
        platform.invoke("b", nothing, at=3.5)  # 4: cold again, from 5 on; runs 5.5 - 6.5
        platform.invoke("b", nothing, at=4.0)  # 5: warm, runs 6.5 - 7.5, cancelled at 7
        platform.invoke("b", nothing, at=4.25)  # 6: waits for ever
        platform.invoke("b", nothing, at=50.0)  # 7: never submitted
        while platform.next_completion(until=7.0) is not None:
            pass
    return platform.trace


# ---- files ----------------------------------------------------------------------------------------------------------


def test_a_trace_is_read_again_bit_for_bit(path):
    """Numbers of all kinds, no number, rows of no function, of no invocation and of no container."""
    trace = Trace()
    numbers = [
        0.1,
        1 / 3,
        math.pi * 1e-300,
        5e-324,
        -0.0,
        1.7976931348623157e308,
        math.inf,
        -math.inf,
        math.nan,
        2.0**53 + 2,
    ]
    for i, value in enumerate(numbers):
        trace.append(i / 7, "episode", value=value)
        trace.append(i / 7 + 1e-9, "started", function="f", invocation=i, container=-1, value=-i / 3)
        trace.append(i / 7 + 1e-9, "container_created", function="g", container=2**31 - 1 - i)
    trace.save(path)
    again = Trace.load(path)
    assert columns(again) == columns(trace)
    assert len(again) == 3 * len(numbers)
    assert again.functions() == ("f",)


@pytest.mark.parametrize(
    "name",
    ["", "NA", "nan", "None", "null", "a,b", 'say "hi"', "two\nlines", " spaces ", "é", "1", "01", "1e3", "True"],
)
@pytest.mark.parametrize("beside", [None, "f"])
def test_every_name_is_read_again(path, name, beside):
    """Also one that looks like a missing value or a number, and where no other row has a name."""
    trace = Trace()
    trace.append(0.0, "started", function=name, invocation=0)
    if beside is not None:
        trace.append(1.0, name or "event", function=beside, invocation=1)
    trace.save(path)
    assert columns(Trace.load(path)) == columns(trace)


def test_an_empty_trace_is_read_again(path):
    """It has no rows, and goes on from there."""
    Trace().save(path)
    trace = Trace.load(path)
    assert len(trace) == 0
    trace.append(1.0, "started", function="f", invocation=0)
    assert trace.select("started").time.tolist() == [1.0]


@pytest.mark.parametrize("seed", range(5))
def test_a_runs_trace_is_read_again(path, seed):
    """All views of it are the same."""
    specs = {name: FunctionSpec(Exponential(1.0), Exponential(0.5), keep_alive=1.0, timeout=2.0) for name in "ab"}
    faults = {"a": Faults(crash_during=0.2, lose=0.2, duplicate=0.2)}
    with SimulatedPlatform(specs, seed=seed, faults=faults) as platform:
        for i in range(40):
            platform.invoke("ab"[i % 2], nothing, at=i / 8)
            platform.store.publish("p", np.zeros(i))
        for _ in range(30):
            platform.next_completion()
    trace = platform.trace
    trace.save(path)
    again = Trace.load(str(path))
    assert columns(again) == columns(trace)
    assert again.functions() == trace.functions()
    for ours, theirs in zip(trace.invocations(), again.invocations(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    trace.append(9.0, "published", function="new", value=1.0)
    again.append(9.0, "published", function="new", value=1.0)
    assert columns(again) == columns(trace)


def test_a_csv_file_has_a_row_an_event(tmp_path):
    """Under the names of the columns; the compressed one is the same."""
    trace = Trace()
    trace.append(0.5, "started", function="f", invocation=3, container=2)
    trace.append(1.5, "episode", value=-2.25)
    for name in ("t.csv", "t.csv.gz"):
        trace.save(tmp_path / name)
    expected = 'time,event,function,invocation,container,value\n0.5,started,f,3,2,0.0\n1.5,episode,"",-1,-1,-2.25\n'
    text = (tmp_path / "t.csv").read_bytes().decode().replace("\r\n", "\n")
    assert text.replace("episode,,", 'episode,"",') == expected
    assert gzip.decompress((tmp_path / "t.csv.gz").read_bytes()) == (tmp_path / "t.csv").read_bytes()


@pytest.mark.parametrize("name", ["trace.json", "trace", "csv", "trace.csv.zip", "trace.parquet.gz"])
def test_other_suffixes_are_refused(tmp_path, name):
    """When saving, before anything is written, and when loading."""
    for call in (Trace().save, Trace.load):
        with pytest.raises(ValueError, match=f"{name}': a trace is a .parquet, .csv or .csv.gz file"):
            call(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_trace(tmp_path):
    """Is named, with what it lacks."""
    path = tmp_path / "other.csv"
    path.write_text("time,event,function,value\n1,a,b,2\n")
    with pytest.raises(ValueError, match=r"other.csv is no trace: it has no column invocation, container$"):
        Trace.load(path)
    path.write_text("")
    with pytest.raises(ValueError):  # noqa: PT011 - pandas' own
        Trace.load(path)
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "absent.csv")


@pytest.mark.parametrize("old", [False, True])
def test_a_crashed_write_leaves_nothing(tmp_path, monkeypatch, old):
    """Neither half a file nor a draft; what was there stays."""
    path = tmp_path / "folder" / "trace.csv"
    trace = run()
    if old:
        trace.save(path)
        before = path.read_bytes()

    def broken(self, target, **arguments):
        target.write_text("half")
        assert target.parent == path.parent  # on the same disk, where replacing is one step
        raise KeyboardInterrupt

    monkeypatch.setattr(pd.DataFrame, "to_csv", broken)
    with pytest.raises(KeyboardInterrupt):
        Trace().save(path)
    assert [p.name for p in path.parent.iterdir()] == (["trace.csv"] if old else [])
    assert not old or path.read_bytes() == before


def test_saving_replaces_and_makes_folders(tmp_path):
    """The new trace is there instead of the old one."""
    path = tmp_path / "new" / "folder" / "trace.csv"
    run().save(path)
    Trace().save(path)
    assert len(Trace.load(path)) == 0
    assert [p.name for p in path.parent.iterdir()] == ["trace.csv"]


# ---- invocations ----------------------------------------------------------------------------------------------------


def test_invocations():
    """Each once, with when what happened to it; what was never submitted is not there."""
    table = run().invocations()
    assert table.names == ("b", "a")
    assert table.number.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert [table.names[i] for i in table.function] == ["b", "a", "a", "b", "b", "b", "b"]
    assert table.key.tolist() == [0, 1, 2, 0, 4, 5, 6]
    assert table.submitted.tolist() == [0.0, 1.0, 1.0, 2.5, 3.5, 4.0, 4.25]
    np.testing.assert_array_equal(table.acquired, [0.0, 1.0, math.nan, 2.5, 5.0, 6.5, math.nan])
    assert table.cold.tolist() == [True, True, False, True, True, False, False]
    np.testing.assert_array_equal(table.started, [0.5, 1.0, math.nan, 3.0, 5.5, 6.5, math.nan])
    crashed = table.ended[1]
    assert 1.0 < crashed < 2.0
    assert table.ended.tolist() == [2.5, crashed, 1.0, 5.0, 6.5, 7.0, 7.0]
    endings = ["timed_out", "crashed", "throttled", "timed_out", "completed", "cancelled", "cancelled"]
    assert [ENDINGS[code] for code in table.ending] == endings
    assert table.container.tolist() == [0, 1, -1, 2, 3, 3, -1]


def test_invocations_that_have_not_ended():
    """Pending, acquired and running ones; what is there of them."""
    trace = Trace()
    trace.append(0.0, "submitted", function="f", invocation=0, value=0)
    trace.append(0.5, "submitted", function="f", invocation=2, value=0)
    trace.append(1.0, "acquired", function="f", invocation=2, container=7, value=1)
    trace.append(1.0, "submitted", function="g", invocation=5, value=5)
    trace.append(1.0, "acquired", function="g", invocation=5, container=8, value=0)
    trace.append(1.0, "started", function="g", invocation=5, container=8)
    trace.append(1.0, "fetched", function="g", invocation=5, value=100)
    table = trace.invocations()
    assert table.number.tolist() == [0, 2, 5]
    assert table.function.tolist() == [0, 0, 1]
    assert table.key.tolist() == [0, 0, 5]
    assert table.container.tolist() == [-1, 7, 8]
    assert table.cold.tolist() == [False, True, False]
    assert table.ending.tolist() == [-1, -1, -1]
    np.testing.assert_array_equal(table.acquired, [math.nan, 1.0, 1.0])
    np.testing.assert_array_equal(table.started, [math.nan, math.nan, 1.0])
    assert np.isnan(table.ended).all()


def test_no_invocations():
    """Columns of no length, of the same types."""
    for trace in (Trace(), run()):
        table = trace.invocations()
        types = [column.dtype for column in table[:-1]]
        assert types == [np.int64, np.int16, np.int64, *[float] * 2, bool, *[float] * 2, np.int8, np.int64]
    assert [len(column) for column in Trace().invocations()] == [0] * 11


# ---- timelines ------------------------------------------------------------------------------------------------------


def test_cold_starts_in_a_timeline(tmp_path):
    """A slice of its own before the call's, on the container's track; none where there was none to wait for."""
    path = tmp_path / "trace.json"
    trace = run()
    trace.append(7.5, "published", function="p", value=3.0)
    trace.to_chrome(path)
    events = json.loads(path.read_text())["traceEvents"]
    assert [(e["pid"], e["args"]["name"]) for e in events if e["ph"] == "M"] == [(1, "b"), (2, "a")]
    slices = [(e["name"], e["pid"], e["tid"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e["ph"] == "X"]
    crashed = trace.invocations().ended[1] - 1.0
    assert slices == [
        ("cold start", 1, 0, 0.0, 0.5),
        ("b (timed_out)", 1, 0, 0.5, 2.0),
        ("a (crashed)", 2, 1, 1.0, pytest.approx(crashed)),  # its cold start takes no time
        ("cold start", 1, 2, 2.5, 0.5),
        ("b (timed_out)", 1, 2, 3.0, 2.0),
        ("cold start", 1, 3, 5.0, 0.5),
        ("b", 1, 3, 5.5, 1.0),
        ("b (cancelled)", 1, 3, 6.5, 0.5),
    ]
    assert [e["args"]["invocation"] for e in events if e["ph"] == "X"] == [0, 0, 1, 3, 3, 4, 4, 5]
    assert [(e["ts"], e["args"]) for e in events if e["ph"] == "C"] == [(7.5e6, {"version": 3.0})]


def test_a_file_that_was_cut_off(tmp_path):
    """Whatever the place: what is left of the last row is no number, and the file is named."""
    path = tmp_path / "run.csv"
    run().save(path)
    text = path.read_text()
    cut = text.rindex(",", 0, text.rindex(",", 0, text.rindex(","))) + 1  # within the last row
    path.write_text(text[:cut])
    with pytest.raises(ValueError, match=r"run.csv is damaged or cut off: column (invocation|container)"):
        Trace.load(path)
