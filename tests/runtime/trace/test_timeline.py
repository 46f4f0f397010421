"""Timelines in Chrome's format."""

import json
import math

import pytest

from stellaris.runtime import Trace
from stellaris.runtime.trace import timeline
from tests.runtime.trace.traces import recorded_run


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_json_cannot_say_is_left_out(tmp_path, number):
    trace = Trace()
    for event, time in (("submitted", 0.0), ("started", 0.0), ("completed", number)):
        trace.append(time, event, function="f", invocation=0)
    for event, time in (("started", 1.0), ("completed", 3.0)):
        trace.append(time, event, function="f", invocation=1)
    for time, value in ((1.0, number), (number, 1.0), (2.0, 3.0)):
        trace.append(time, "staleness", value=value)
    trace.to_chrome(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(), parse_constant=pytest.fail)["traceEvents"]
    assert [(e["ts"], e["args"]) for e in events if e["ph"] == "C"] == [(2e6, {"staleness": 3.0})]
    assert [(e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [(1e6, 2e6)]


def test_to_chrome(tmp_path):
    """A slice for each call and each cold start, in microseconds, on the container's track; counters for versions."""
    path = tmp_path / "deep" / "trace.json"
    trace = recorded_run()
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


def test_an_interrupted_export_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    recorded_run().to_chrome(path)
    before = path.read_bytes()

    def broken(*arguments):
        yield "half"
        raise KeyboardInterrupt

    monkeypatch.setattr(timeline, "events", broken)
    with pytest.raises(KeyboardInterrupt):
        Trace().to_chrome(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
