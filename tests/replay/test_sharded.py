"""Shards on eight devices, and on two processes: each in processes of their own, because JAX counts devices once."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent


def environment(devices):
    """This process's, with so many virtual devices on the CPU."""
    flags = f"--xla_force_host_platform_device_count={devices} {os.environ.get('XLA_FLAGS', '')}"
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def test_eight_devices():
    """All tests in `eight_devices.py`."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / "eight_devices.py")]
    run = subprocess.run(command, env=environment(8), capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout or "." * 30 in run.stdout


def test_two_processes(tmp_path):
    """Each with four devices: rows and steps are those of one process with eight, and the parts make its batch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = [(0, 1, 8), (0, 2, 4), (1, 2, 4)]
    outs = [tmp_path / f"{number} of {processes}.npz" for number, processes, _ in names]
    runs = []
    for (number, processes, devices), out in zip(names, outs, strict=True):
        command = [sys.executable, FOLDER / "processes.py", str(number), str(processes), str(port), out]
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        runs.append(subprocess.Popen(command, env=environment(devices), **pipes))
    try:
        for run in runs:
            _, errors = run.communicate(timeout=300)
            assert run.returncode == 0, errors
    finally:
        for run in runs:
            run.kill()
            run.communicate()
    one, first, second = map(np.load, outs)
    assert {*one} == {*first} == {*second}
    assert str(one["all fault"]) == "an index is not a row of a trajectory in the table: its weight was ignored"
    for name in one:
        if name.startswith("all"):
            np.testing.assert_array_equal(first[name], one[name])
            np.testing.assert_array_equal(second[name], one[name])
        else:
            np.testing.assert_array_equal(np.concatenate([first[name], second[name]]), one[name])
