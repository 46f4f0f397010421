"""Blocks on threads: at most so many at once, each begun when there is room, and errors on the caller's thread."""

import subprocess
import sys
import threading

import jax
import pytest

from stellaris.lab import threads


@pytest.mark.parametrize("at_once", [1, 3])
def test_calls_are_taken_when_they_can_start(at_once):
    """So that their arguments are not all in memory at once; on the caller's thread."""
    taken, ended, most, lock = [], [], [], threading.Lock()
    running = 0

    def call():
        nonlocal running
        with lock:
            running += 1
            most.append(running)
        with lock:
            running -= 1
        return threading.get_ident()

    def calls():
        for i in range(10):
            assert len(taken) - len(ended) < at_once
            taken.append(threading.get_ident())
            yield i, call

    for i, thread in threads.computed(calls(), at_once):
        ended.append(i)
        assert (thread == threading.get_ident()) == (at_once == 1)
    assert sorted(ended) == [*range(10)]
    assert max(most) <= at_once
    assert {*taken} == {threading.get_ident()}


def test_results_come_in_the_order_in_which_calls_end():
    """One call waits until the result of another has been taken."""
    go = threading.Event()
    calls = [("slow", lambda: go.wait(timeout=60)), ("quick", lambda: True), ("last", lambda: True)]
    order = []
    for key, reached in threads.computed(iter(calls), 2):
        assert reached
        order.append(key)
        if len(order) == 2:
            go.set()
    assert order == ["quick", "last", "slow"]


def test_an_error_waits_for_the_calls_that_run():
    done, failed = [], threading.Event()

    def fails():
        failed.set()
        raise MemoryError("no room")

    def ends():
        assert failed.wait(timeout=60)
        done.append(True)

    with pytest.raises(MemoryError, match="no room"):
        list(threads.computed(iter([(0, ends), (1, fails)]), 2))
    assert done == [True]


@pytest.mark.parametrize(
    ("cores", "devices", "expected"), [({0}, 1, 1), ({0, 1, 5}, 1, 3), ({0, 1}, 2, 1), ({0}, 2, 1)]
)
def test_how_many_at_once(monkeypatch, cores, devices, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: cores)
    assert threads.count(devices) == expected
    for asked in (jax.debug_nans, jax.debug_infs, jax.disable_jit):
        with asked(True):
            assert threads.count(devices) == 1


@pytest.mark.slow
def test_a_thread_goes_on_after_the_main_thread():
    program = """
import threading
from stellaris.lab.threads import computed
ended = threading.Event()
def work():
    threading.main_thread().join()
    print(sorted(number for number, _ in computed(((i, lambda: None) for i in range(3)), 2)))
threading.Thread(target=work).start()
"""
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (got.returncode, got.stdout, got.stderr) == (0, "[0, 1, 2]\n", "")


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("150000 100000\n", 2), ("100000 100000\n", 1), ("6400000 100000\n", 3), ("max 100000\n", 3), ("", 3), (None, 3)],
)
def test_a_container_may_have_less_than_the_machine(limit, expected, tmp_path, monkeypatch):
    """A core in part counts as one; without a limit, or where no file tells one, all cores of the process count."""
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(threads, "_QUOTA", tmp_path / "cpu.max")
    if limit is not None:
        (tmp_path / "cpu.max").write_text(limit)
    assert threads.count() == expected
