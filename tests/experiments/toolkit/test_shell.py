"""How a command gets on with its shell, tried on one that does nothing but stop at every stage to be interrupted."""

import contextlib
import errno
import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.toolkit import shell

ROOT = Path(__file__).parents[3]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A test in the background, or under nohup, inherits signals that are ignored; a user at a terminal does not.
HEARING = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)"
)
#: Says where it is, waits for a line, and goes on; what it computes are numbers, which it writes in two steps.
COMMAND = """
import os, pathlib, sys, time
from experiments.toolkit import shell

shell.PATIENCE = 0.3

def stop(where):
    print(where, flush=True)
    sys.stdin.readline()

@shell.command
def main():
    stop("importing")
    computed = []
    def work():
        computed.append(1)
        {work}
        computed.append(2)
    interrupted = shell.interruptible(work)
    draft = pathlib.Path({out!r} + ".draft")
    draft.write_text(str(computed))
    if {stop_to_write}:
        stop("writing")
    draft.replace({out!r})
    print("written", flush=True)
    return 130 if interrupted else 0

shell.start(main)
"""


class Running:
    def __init__(self, code, **streams):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
        command = [sys.executable, "-c", f"{HEARING}\n{code}"]
        self.process = subprocess.Popen(command, cwd=ROOT, text=True, bufsize=1, **pipes)

    def wait_for(self, *stages):
        """Waits for the last of these stages; it goes on after each of the others."""
        for number, where in enumerate(stages):
            if number:
                self.go_on()
            assert self.process.stdout.readline() == where + "\n"

    def go_on(self):
        self.process.stdin.write("\n")

    def signal(self, number):
        self.process.send_signal(number)

    def hear(self, number):
        """Sends a signal, and waits until it has been heard."""
        self.signal(number)
        assert "interrupted" in self.process.stderr.readline()

    def end(self):
        """Exit status, and what was printed from here on."""
        out, err = self.process.communicate("\n\n\n", timeout=20)
        return self.process.returncode, out, err


@pytest.fixture
def run(tmp_path):
    """Starts the command, which writes `tmp_path`/out."""
    started = []

    def start(work="stop('working')", *, stop_to_write=True, **streams):
        code = COMMAND.format(work=work, out=str(tmp_path / "out"), stop_to_write=stop_to_write)
        started.append(Running(code, **streams))
        return started[-1]

    yield start
    for running in started:
        with contextlib.suppress(OSError), running.process:
            running.process.kill()


def test_without_a_signal_it_ends_with_its_own_status(run, tmp_path):
    running = run()
    assert running.end() == (0, "importing\nworking\nwriting\nwritten\n", "")
    assert (tmp_path / "out").read_text() == "[1, 2]"


@pytest.mark.parametrize("number", SIGNALS)
def test_while_it_imports(run, number, tmp_path):
    running = run()
    running.wait_for("importing")
    running.signal(number)
    status, _, err = running.end()
    assert status == 128 + number
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_while_it_works(run, number, tmp_path):
    """What was computed is written; further signals, while that is being done, change nothing."""
    running = run()
    running.wait_for("importing", "working")
    running.hear(number)
    running.wait_for("writing")
    for again in (number, signal.SIGINT, signal.SIGTERM):
        running.signal(again)
    assert running.end() == (128 + number, "written\n", "")
    assert (tmp_path / "out").read_text() == "[1]"


@pytest.mark.parametrize("number", SIGNALS)
def test_while_it_writes(run, number, tmp_path):
    running = run()
    running.wait_for("importing", "working", "writing")
    running.hear(number)
    running.signal(number)
    assert running.end() == (128 + number, "written\n", "")
    assert (tmp_path / "out").read_text() == "[1, 2]"
    assert os.listdir(tmp_path) == ["out"]


#: Work that asks now and then whether it was interrupted, and in between would not like to be.
LOOKING = """
        shell.check()
        try:
            stop("working")
            while not pathlib.Path({path!r}).exists():
                pass
        except KeyboardInterrupt:
            computed.append("torn")
            raise
        computed.append("whole")
        shell.check()
"""


@pytest.mark.parametrize(("looks", "computed"), [(True, "[1, 'whole']"), (False, "[1, 'torn']")])
def test_work_is_interrupted_where_it_looks_or_after_a_while(run, tmp_path, looks, computed):
    running = run(LOOKING.format(path=str(tmp_path / "go")))
    running.wait_for("importing", "working")
    running.hear(signal.SIGINT)
    if looks:
        running.go_on()
        (tmp_path / "go").touch()
    assert running.end()[0] == 130
    assert (tmp_path / "out").read_text() == computed


def test_an_interruption_that_is_lost_comes_again(run, tmp_path):
    work = """
        class Swallowing:
            def __del__(self):
                stop("working")
        thing = Swallowing()
        del thing
        time.sleep(60)
"""
    running = run(work)
    running.wait_for("importing", "working")
    running.hear(signal.SIGINT)
    assert running.end() == (130, "writing\nwritten\n", "")
    assert (tmp_path / "out").read_text() == "[1]"


def test_at_any_moment(run, tmp_path):
    """One or two signals, at random, while it computes and writes: the status tells, and the file is whole."""
    rng = random.Random(0)
    statuses = []
    for _ in range(15):
        (tmp_path / "out").unlink(missing_ok=True)
        running = run("[sum(range(1000)) for _ in range(1000)]", stop_to_write=False)
        running.wait_for("importing")
        running.go_on()
        time.sleep(rng.uniform(0.0, 0.04))
        for _ in range(rng.choice((1, 2))):
            running.signal(signal.SIGINT)
        status, _, err = running.end()
        assert status in (0, 130)
        assert err.count("\n") == (status == 130), err
        if (tmp_path / "out").exists():
            assert (tmp_path / "out").read_text() in ("[]", "[1]", "[1, 2]")
        else:
            assert status == 130  # before the work began
        statuses.append(status)
    assert 130 in statuses


def test_while_jax_compiles(run, tmp_path):
    """On a thread that nobody waits for: where such a process ends as usual, it crashes (SIGABRT or SIGSEGV)."""
    work = """
        import jax, jax.numpy as jnp, threading
        def slow(x):
            for _ in range(300):
                x = jnp.sort(jnp.sin(x) @ x, axis=0)
            return x
        lowered = jax.jit(slow).lower(jnp.ones((8, 8)))
        threading.Thread(target=lowered.compile, daemon=True).start()
        print("compiling", flush=True)
        time.sleep(60)
"""
    running = run(work, stop_to_write=False)
    running.wait_for("importing", "compiling")
    running.signal(signal.SIGINT)
    status, out, err = running.end()
    assert (status, out) == (130, "written\n")
    assert err.count("\n") == 1
    assert (tmp_path / "out").read_text() == "[1]"


def test_a_signal_that_the_parent_ignores_is_ignored(tmp_path):
    code = COMMAND.format(work="stop('working')", out=str(tmp_path / "out"), stop_to_write=False)
    running = Running(f"signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{code}")
    running.wait_for("importing")
    running.signal(signal.SIGHUP)
    assert running.end()[0] == 0


# ---- output that fails ----------------------------------------------------------------------------------------------


def test_a_reader_that_goes_away_ends_nothing(run, tmp_path):
    """`| head -1`: everything is computed and written, without a word."""
    running = run()
    running.wait_for("importing")
    running.process.stdout.close()
    running.process.stdout = None
    assert running.end() == (0, None, "")
    assert (tmp_path / "out").read_text() == "[1, 2]"


def test_a_full_device_ends_nothing(run, tmp_path):
    with open("/dev/full", "wb") as full:
        running = run(stdout=full.fileno())
        status, _, err = running.end()
    assert status == 1
    assert err == "error: standard output: No space left on device: some output was lost\n"
    assert (tmp_path / "out").read_text() == "[1, 2]"


def test_closed_streams_end_nothing(tmp_path):
    code = "os.write(2, b'noise'); stop('working')"
    script = COMMAND.format(work=code, out=str(tmp_path / "out"), stop_to_write=False)
    status = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, script.replace("sys.stdin.readline()", "pass")],
        cwd=ROOT,
        timeout=20,
    ).returncode
    assert status == 0
    assert (tmp_path / "out").read_text() == "[1, 2]"


class Failing(io.StringIO):
    """A stream that fails after the first line."""

    def __init__(self, error):
        super().__init__()
        self._error = error

    def write(self, text):
        if "\n" in self.getvalue():
            raise self._error
        return super().write(text)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 0),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
        (ValueError("I/O operation on closed file"), 1),
    ],
)
def test_printing_that_fails(error, status, monkeypatch, capsys):
    """By Python's own means, and by rich's, which ends the process at a closed pipe."""
    from rich.console import Console

    stream, done = Failing(error), []

    @shell.command
    def main():
        console = Console()
        for i in range(3):
            print("print", i)
            console.print("rich", i)
            done.append(i)
        return 0

    monkeypatch.setattr(sys, "stdout", stream)
    assert main() == status
    assert sys.stdout is stream
    assert stream.getvalue() == "print 0\n"
    assert done == [0, 1, 2]
    assert capsys.readouterr().err.count("\n") == status


def test_what_the_terminal_cannot_show_is_escaped(monkeypatch):
    raw = io.BytesIO()

    @shell.command
    def main():
        print("x\N{SUPERSCRIPT TWO}")
        print("more")
        return 0

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    assert main() == 0
    assert raw.getvalue() == b"x\\xb2\nmore\n"


# ---- in this process ------------------------------------------------------------------------------------------------


def test_errors_of_use_are_one_line(capsys):
    """And status 2."""

    @shell.command
    def main():
        raise shell.UsageError("--what: not\nlike this")

    assert main() == 2
    assert capsys.readouterr().err == "error: --what: not like this\n"


def test_interrupted_in_this_process(capsys):
    def work():
        raise KeyboardInterrupt

    @shell.command
    def main():
        assert shell.interruptible(lambda: None) is False
        assert shell.interruptible(work) is True
        raise KeyboardInterrupt

    assert main() == 130
    assert capsys.readouterr().err.count("interrupted") == 2


@pytest.mark.parametrize(
    ("code", "status", "said"), [("1 / 0", 1, "ZeroDivisionError"), ("raise SystemExit(0)", 0, "")]
)
def test_a_defect_ends_the_process_with_a_traceback(code, status, said):
    script = f"from experiments.toolkit import shell\ndef main():\n    {code}\nshell.start(main)"
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert ended.returncode == status
    assert said in ended.stderr
