"""The trace: rows, selections, and files that are read again bit for bit."""

import gzip
import math

import pandas as pd
import pytest

from stellaris.runtime import FunctionSpec, SimulatedPlatform, Trace
from stellaris.runtime.delays import Constant
from tests.runtime.trace.traces import by_hand, recorded_run


def test_select():
    trace = by_hand()
    assert len(trace) == 6
    got = trace.select("started")
    assert (got.time.tolist(), got.invocation.tolist()) == ([0.5, 1.0, 3.0], [0, 1, 2])
    assert trace.select("started", function="b").time.tolist() == [0.5, 3.0]
    assert trace.select("started", start=2).invocation.tolist() == [1, 2]
    assert trace.select("started", function="b", start=2).invocation.tolist() == [2]
    assert trace.select("episode").value.tolist() == [-2.5]
    for empty in (trace.select("failed"), trace.select("started", function="c"), trace.select("started", start=6)):
        assert [len(column) for column in empty] == [0, 0, 0]


def test_what_was_selected_does_not_change():
    trace = by_hand()
    before = trace.select("started")
    frame = trace.to_dataframe()
    for _ in range(100):
        trace.append(4.0, "started", function="c")
    assert (len(before.time), len(frame), len(trace.select("started").time)) == (3, 6, 103)


def test_functions_are_those_that_were_invoked():
    assert by_hand().functions() == ("b", "a")
    assert Trace().functions() == ()


def test_the_log_of_a_small_run():
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


def test_a_trace_is_read_again_bit_for_bit(path):
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
    trace = Trace()
    trace.append(0.0, "started", function=name, invocation=0)
    if beside is not None:
        trace.append(1.0, name or "event", function=beside, invocation=1)
    trace.save(path)
    assert columns(Trace.load(path)) == columns(trace)


def test_an_empty_trace_is_read_again(path):
    Trace().save(path)
    trace = Trace.load(path)
    assert len(trace) == 0
    trace.append(1.0, "started", function="f", invocation=0)
    assert trace.select("started").time.tolist() == [1.0]


def test_a_csv_file_has_a_row_an_event(tmp_path):
    trace = Trace()
    trace.append(0.5, "started", function="f", invocation=3, container=2)
    trace.append(1.5, "episode", value=-2.25)
    for name in ("t.csv", "t.csv.gz"):
        trace.save(tmp_path / name)
    expected = 'time,event,function,invocation,container,value\n0.5,started,f,3,2,0.0\n1.5,episode,"",-1,-1,-2.25\n'
    text = (tmp_path / "t.csv").read_bytes().decode().replace("\r\n", "\n")
    assert text.replace("episode,,", 'episode,"",') == expected
    assert gzip.decompress((tmp_path / "t.csv.gz").read_bytes()) == (tmp_path / "t.csv").read_bytes()


@pytest.mark.parametrize("old", [False, True])
def test_an_interrupted_save_keeps_the_old_file(tmp_path, monkeypatch, old):
    """Neither half a file nor a draft stays."""
    path = tmp_path / "folder" / "trace.csv"
    if old:
        recorded_run().save(path)
        before = path.read_bytes()

    def broken(self, target, **arguments):
        target.write_text("half")
        assert target.parent == path.parent  # because a file can be renamed only within a file system
        raise KeyboardInterrupt

    monkeypatch.setattr(pd.DataFrame, "to_csv", broken)
    with pytest.raises(KeyboardInterrupt):
        Trace().save(path)
    assert list(path.parent.iterdir()) == ([path] if old else [])
    assert not old or path.read_bytes() == before


@pytest.mark.parametrize("name", ["trace.json", "trace", "csv", "trace.csv.zip", "trace.parquet.gz"])
def test_other_suffixes_are_refused(tmp_path, name):
    for call in (Trace().save, Trace.load):
        with pytest.raises(ValueError, match=f"{name}': a trace is a .parquet, .csv or .csv.gz file"):
            call(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_trace(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("time,event,function,value\n1,a,b,2\n")
    with pytest.raises(ValueError, match=r"other.csv is not a trace: columns are missing: invocation, container$"):
        Trace.load(path)
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b'time,event\n1,"open', b"time,event\n1,\xff", b"\x1f\x8b\x08\x00", b"PAR1\n"]
)
def test_a_file_that_cannot_be_read_is_named(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{path.name} is not a trace"):
        Trace.load(path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.95])
def test_a_file_of_which_a_part_is_missing_is_named(path, share):
    recorded_run().save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match=rf"{path.name} is (not a trace, or )?damaged"):
        Trace.load(path)


@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        ("invocation", 2**32 + 7),
        ("container", -(2**31) - 1),
        ("invocation", 1.5),
        ("container", math.nan),
        ("event", None),
        ("function", None),
    ],
)
def test_a_column_of_other_values_is_named(tmp_path, column, wrong):
    pytest.importorskip("pyarrow")
    frame = by_hand().to_dataframe().astype({"event": object, "function": object})
    frame[column] = [*frame[column][:-1], wrong]
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=rf"t.parquet is damaged or cut off: column {column}"):
        Trace.load(tmp_path / "t.parquet")


@pytest.mark.slow
def test_more_names_than_16_bits_count(path):
    trace, n = Trace(), 40_000
    for i in range(n):
        trace.append(float(i), "started", function=f"f{i}", invocation=i)
    trace.append(0.0, "last", function="g")
    assert [name for _, _, name, *_ in trace.rows()][-3:] == ["f39998", "f39999", "g"]
    assert trace.select("last", function="g").time.tolist() == [0.0]
    table = trace.invocations()
    assert [table.names[code] for code in table.function[-2:]] == ["f39998", "f39999"]
    trace.save(path)
    assert columns(Trace.load(path)) == columns(trace)
    again = Trace()
    again.restore_state(trace.save_state())
    assert columns(again) == columns(trace)


def test_a_file_that_was_cut_off(tmp_path):
    path = tmp_path / "run.csv"
    recorded_run().save(path)
    text = path.read_text()
    for cut in range(text.rindex("\n", 0, len(text) - 1) + 2, len(text)):  # within the last row
        path.write_text(text[:cut])
        with pytest.raises(ValueError, match=r"run.csv is damaged or cut off"):
            Trace.load(path)
