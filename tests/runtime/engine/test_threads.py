"""Threads: replaced if they hang, and never in the way of the process' end."""

import gc
import subprocess
import sys
import threading
import time

import pytest

from stellaris.runtime.engine import platform as events_module
from stellaris.runtime.engine import threads
from tests.runtime.helpers import deploy, drain


def test_threads_that_hang_are_replaced(blocked):
    with deploy(1.0, hang_after=0.1, threads=1) as platform:
        for _ in range(3):
            platform.invoke("f", blocked)
            assert platform.next_completion().status == "hung"
        platform.invoke("f", lambda context: "fine")
        assert platform.next_completion().result() == "fine"


def test_bodies_that_run_at_once_on_the_wall_clock_do_not_wait_for_threads():
    together = threading.Barrier(4)
    with deploy(0.0, clock="wall", timeout=30.0, threads=1) as platform:
        for _ in range(4):
            platform.invoke("f", lambda context: together.wait(20.0))
        assert [done.status for done in drain(platform)] == ["completed"] * 4


def test_threads_end_with_a_platform_that_nobody_closes():
    before = set(threading.enumerate())
    platforms = [deploy(0.01, threads=2) for _ in range(5)]
    for platform in platforms:
        platform.invoke("f", slow)
        platform.next_completion()
    started = set(threading.enumerate()) - before
    assert len(started) == 5
    del platform
    platforms.clear()
    gc.collect()
    for thread in started:
        thread.join(20.0)
    assert not [thread for thread in started if thread.is_alive()]


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_an_exception_does_not_wait_for_bodies_that_run(blocked, clock, monkeypatch):
    monkeypatch.setattr(events_module, "_PATIENCE", 0.1)
    begun = threading.Event()

    def body(context):
        begun.set()
        blocked(context)

    def interrupted():
        with deploy(1.0, clock=clock, timeout=50.0) as platform:
            platform.invoke("f", body)
            platform.next_completion(until=0.05)
            assert begun.wait(20.0)
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 10.0


@pytest.mark.slow
@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_process_ends_in_spite_of_bodies_that_hang(clock, closed):
    program = f"""
import threading, time
from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant
platform = SimulatedPlatform({{"f": FunctionSpec(Constant(0.01))}}, clock={clock!r}, hang_after=0.2, threads=2)
platform.invoke("f", lambda context: threading.Event().wait())
print(platform.next_completion().status)
platform.invoke("f", lambda context: threading.Event().wait())
print(platform.next_completion().status, flush=True)
began = time.monotonic()
if {closed}:
    platform.close()
print(time.monotonic() - began < 5.0)
"""
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (got.returncode, got.stdout.split(), got.stderr) == (0, ["hung", "hung", "True"], "")


_COMPUTES = """
import atexit, jax, jax.numpy as jnp, os, sys, time
late = []
atexit.register(lambda: late and print(late[0].next_completion().status))
from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant, Measured
compute = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda i, x: jnp.tanh(x @ x), x))
x = compute(jnp.ones((300, 300)))
def body(context):
    return compute(x).block_until_ready()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (
            """
platform = SimulatedPlatform({"f": FunctionSpec(Measured(), timeout=0.1)}, clock="wall")
platform.invoke("f", body)
print(platform.next_completion().status)
""",
            ["timed_out"],
        ),
        (
            """
platform = SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, threads=2)
for _ in range(100):
    platform.invoke("f", body)
print(platform.next_completion().status)
""",
            ["completed"],
        ),
        (
            """
platform = SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, threads=1, hang_after=50.0)
for _ in range(2):
    platform.invoke("f", body)
print(platform.next_completion().status)
late.append(platform)
""",
            ["completed", "completed"],
        ),
    ],
    ids=["killed", "queued", "waited for at exit"],
)
def test_a_process_ends_well_while_bodies_compute(program, printed):
    """A thread that computes with JAX after the interpreter has ended would abort the process."""
    program = _COMPUTES + program
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (got.returncode, got.stdout.split()) == (0, printed), got.stderr


@pytest.mark.slow
def test_a_forked_process_does_not_wait_for_bodies_of_its_parent():
    program = """
import os, time, warnings
from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant
warnings.simplefilter("ignore")  # of forks
platform = SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, clock="wall")
platform.invoke("f", lambda context: time.sleep(20.0))
platform.next_completion(until=0.5)
began = time.monotonic()
if child := os.fork():
    os.waitpid(child, 0)
    print(time.monotonic() - began < 4.0, flush=True)
    os._exit(0)
"""
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (got.returncode, got.stdout.split()) == (0, ["True"]), got.stderr


def slow(context):
    """A body that takes longer than to hand it over."""
    time.sleep(0.002)
    return threading.get_ident()


def test_a_thread_that_cannot_start_is_not_waited_for(monkeypatch):
    """The exit of a process waits for running tasks: this one never runs."""

    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads.threading.Thread, "start", start)
    task = threads.Task(list)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads.Threads(None).submit(task)
    assert task not in threads._running
