"""`python -m experiments report`: one page that holds all it needs."""

import errno
import html
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import pytest

from experiments import command
from stellaris.runtime import Trace


class Page(HTMLParser):
    """What a page has: its links, pictures, and tables by rows; and that its tags are closed in order."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.attributes = []
        self.rows = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def write(folder):
    """A study's results, by hand, and a run of Stellaris with a cold start."""
    study = folder / "stellaris-training"
    study.mkdir(parents=True)
    (study / "runs.csv").write_text(
        "environment,system,setting,seed,final_return,virtual_seconds,steps,cost_demo,cost_pay_per_use\n"
        "Hopper-v4,stellaris,a <b> & c,0,500.0,10.0,4096,0.2,0.1\n"
        "Hopper-v4,stellaris,a <b> & c,1,700.0,10.0,4096,0.2,0.1\n"
    )
    (study / "curves.csv").write_text("environment,system,setting,seed,seconds,steps,episode_return,cost_pay_per_use\n")
    (study / "wall_seconds.csv").write_text("environment,wall_seconds\nHopper-v4,30\nHopper-v4,60.0\n")
    (study / "table.csv").write_text('environment,system,return\nHopper-v4,"IMPALA, <i>",12 (10 to 14)\n')
    (study / "training_Hopper-v4.png").write_bytes(b"\x89PNG")
    cell = folder / "cells" / "0123"
    cell.mkdir(parents=True)
    (cell / "cell.json").write_text('{"settings": {"system": {"type": "Stellaris"}}}')
    trace = Trace()
    for time, event in ((0.0, "submitted"), (0.1, "acquired"), (0.4, "started"), (1.0, "completed")):
        trace.append(time, event, function="actor", invocation=0, container=3, value=float(event == "acquired"))
    trace.append(2.0, "submitted", function="actor", invocation=1)  # never ended
    trace.save(cell / "trace.parquet")


def test_the_page(tmp_path, capsys):
    """Claims, pictures, tables, assumptions and the timeline; nothing is fetched; what is not HTML is escaped."""
    write(tmp_path)
    assert command.main(["report", "--out", str(tmp_path)]) == 0
    assert "1 of " in capsys.readouterr().out
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    links = [of[name] for _, of in page.attributes for name in ("src", "href") if name in of]
    assert all(link.startswith(("#", "data:")) for link in links)
    anchors = {of["id"] for _, of in page.attributes if "id" in of}
    assert {link[1:] for link in links if link.startswith("#")} <= anchors
    assert "data:image/png;base64,iVBORw==" in links
    figures = ["600 (500 to 700)", "2", "10", "4,096", "0.2", "0.1"]
    assert ["Hopper-v4", "stellaris", "a <b> & c", *figures] in page.rows
    assert any(row[0].startswith("episodic reward") and row[3] == "not run" for row in page.rows)
    (cold_start,) = (row for row in page.rows if row[0] == "ACTOR_COLD_START")
    assert cold_start[1] == "0.3"
    assert "Source: MinionsRL (AAAI 2024)" in cold_start[2]
    assert "2 runs, which took 1.5 minutes" in text
    assert "Their provenance was not recorded." in text
    assert ["Hopper-v4", "IMPALA, <i>", "12 (10 to 14)"] in page.rows
    assert ["Stellaris", "yes", "yes", "yes", "yes", "Stellaris"] in page.rows
    found = re.search(r'id="invocations">(.*?)</script>', text)
    assert json.loads(found[1]) == [["actor", 3, 0.1, 0.4, 1.0, 1]]


def test_provenance(tmp_path):
    """A line below a study's tables."""
    write(tmp_path)
    of = {name: f"<{name}>" for name in ("commit", "code", "jax", "numpy", "processor", "instructions", "devices")}
    (tmp_path / STUDY / "provenance.json").write_text(json.dumps(of))
    assert command.main(["report", "--out", str(tmp_path)]) == 0
    said = "Commit <commit>, code <code>, jax <jax>, NumPy <numpy>, on <processor> (<instructions>; <devices>)."
    assert html.escape(said) in (tmp_path / "report.html").read_text()


def test_a_claim_that_was_looked_at(tmp_path):
    """A row for each environment, with the command that does it again; and why it differs."""
    write(tmp_path)
    curves = tmp_path / "stellaris-training" / "curves.csv"
    heading = "environment,system,setting,seed,seconds,steps,episode_return,cost_demo,cost_pay_per_use\n"
    curves.write_text(heading + "Hopper-v4,stellaris,,0,1,10,3,1,1\nHopper-v4,synchronous,,0,1,10,2,4,4\n")
    assert command.main(["report", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "report.html").read_text()
    several = [row for row in Page(text).rows if row[0].startswith("episodic reward") and "tuned" in row[3]]
    assert [row[3:] for row in several] == [
        [f"1.5 (Hopper-v4; {under})", "1", "", "python -m experiments stellaris-training --env Hopper-v4"]
        for under in ("tuned", "tuned, mean over the run")
    ]
    assert "<em>episodic reward against the baselines at equal wall-clock time.</em> In the demo" in text
    assert "<em>episodic reward against PAR-RL.</em>" not in text


STUDY = "stellaris-training"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (f"{STUDY}/table.csv", None),
        (f"{STUDY}/table.csv", b"environment,system,return\nHopper-v4\n"),
        (f"{STUDY}/table.csv", b"\xff\xfe\x00"),
        (f"{STUDY}/runs.csv", b""),
        (f"{STUDY}/runs.csv", b"environment,system,setting,seed,final_return\nHopper-v4,stellaris,,0,many\n"),
        (f"{STUDY}/wall_seconds.csv", b"wall_seconds\nlong\n"),
        (f"{STUDY}/provenance.json", b'{"commit": "abc"}'),
        (f"{STUDY}/provenance.json", b"{"),
        (f"{STUDY}/curves.csv", b"environment,system,setting,seed\nH,stellaris,,0\nH,synchronous,,0\n"),
        (f"{STUDY}/curves.csv", b"environment,system,setting,seed,steps\nH,stellaris,,0,many\nH,synchronous,,0,1\n"),
        ("cells/0123/cell.json", b"\xff\xfe\x00"),
        ("cells/0123/trace.parquet", None),
        ("cells/0123/trace.parquet", b"PAR1 cut off"),
    ],
)
def test_a_damaged_file(name, content, tmp_path, capsys):
    """Missing, empty, cut off or of other content: one line names it, and nothing is written."""
    write(tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    assert command.main(["report", "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert str(tmp_path / name) in line
    assert not (tmp_path / "report.html").exists()


def test_links_are_not_followed(tmp_path, capsys):
    out, secret = tmp_path / "results", tmp_path / "secret"
    write(out)
    secret.write_bytes(b"private")
    (out / STUDY / "linked.png").symlink_to(secret)
    assert command.main(["report", "--out", str(out)]) == 0
    assert "cHJpdmF0ZQ" not in (out / "report.html").read_text()  # as it would stand there
    table = out / STUDY / "table.csv"
    table.unlink()
    table.symlink_to(secret)
    assert command.main(["report", "--out", str(out)]) == 2
    assert f"{table} is a link, which is not followed" in capsys.readouterr().err


def test_what_the_repository_has_measured(tmp_path):
    """Is said whatever was run: the replay beside Reverb."""
    write(tmp_path)
    assert command.main(["report", "--out", str(tmp_path)]) == 0
    rows = {(row[0], row[3]) for row in Page((tmp_path / "report.html").read_text()).rows if len(row) == 7}
    reverb = {ours for claim, ours in rows if claim.startswith("trajectory throughput")}
    steps, frames = "5.702 (steps; 1 run)", "4.148 (frames; 1 run)"
    assert reverb == {steps, frames, f"{steps}, the greatest of steps, frames"}


def test_nothing_was_run(tmp_path, capsys):
    assert command.main(["report", "--out", str(tmp_path)]) == 2
    assert "holds no study's results: run one, such as" in capsys.readouterr().err


def test_an_empty_trace_has_no_timeline(tmp_path):
    write(tmp_path)
    Trace().save(tmp_path / "cells" / "0123" / "trace.parquet")
    assert command.main(["report", "--out", str(tmp_path)]) == 0
    assert 'id="invocations">[]</script>' in (tmp_path / "report.html").read_text()


def test_a_full_disk_costs_no_earlier_page(tmp_path, monkeypatch, capsys):
    write(tmp_path)
    (tmp_path / "report.html").write_text("earlier")
    names = set(os.listdir(tmp_path))
    monkeypatch.setattr(Path, "replace", mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    assert command.main(["report", "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --out {tmp_path} cannot be written into: No space left on device")
    assert line.endswith("the studies' results are unchanged")
    assert (tmp_path / "report.html").read_text() == "earlier"
    assert set(os.listdir(tmp_path)) == names
