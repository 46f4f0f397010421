"""What the platform on Dask has of its own: how it connects, what it refuses, and what stays of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stellaris.runtime.dask
from experiments.cluster.faults import descendants
from stellaris.runtime import DaskPlatform, FunctionSpec
from stellaris.runtime.delays import Constant, Measured
from stellaris.systems import Budget, Stellaris, Synchronous, train
from tests.pages import blocks
from tests.runtime.ray.processes import gone, listening
from tests.systems import tiny

pytestmark = pytest.mark.slow

SPEC = FunctionSpec(Measured())


PAGE = Path(__file__).parents[3] / "docs" / "backend.md"


def test_it_is_short() -> None:
    """At most 400 lines, and the page that shows how to write a backend says how many, in all and of each file."""
    folder = Path(stellaris.runtime.dask.__file__).parent
    lines = {path.name: len(path.read_text().splitlines()) for path in folder.glob("*.py")}
    assert sum(lines.values()) <= 400
    page = PAGE.read_text()
    assert f"It has {sum(lines.values())} lines" in page
    assert {name: int(count) for name, count in re.findall(r"runtime/dask/(\w+\.py)\) \| (\d+) \|", page)} == lines


def test_the_example_of_the_page_is_a_program(tmp_path: Path) -> None:
    """It is run as a script, whose main module Dask's processes import."""
    (example,) = (block for block in blocks(PAGE) if "DaskPlatform" in block)
    script = tmp_path / "example.py"
    script.write_text(example)
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"512 steps in \d+ s\n", run.stdout)


def test_a_cluster_on_this_machine_ends_with_its_platform() -> None:
    """It listens on loopback alone, and is not the one on which the program's own Dask collections run."""
    import distributed

    before = descendants(os.getpid())
    with DaskPlatform({"f": FunctionSpec(Measured(), provisioned=1)}) as platform:
        assert platform.now < 0.2  # the clock starts when what is provisioned is there
        started = set(descendants(os.getpid())) - set(before)
        assert started
        found = [address for pid in (os.getpid(), *started) for address in listening(pid)]
        assert len(found) >= 2
        assert not [address for address in found if not address.is_loopback]
        call = platform.invoke("f", lambda context: os.getpid())
        assert platform.next_completion() is call
        assert call.result() in started
        with pytest.raises(ValueError, match="client"):
            distributed.get_client()
    platform.close()
    assert all(gone(pid) for pid in started)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"functions": {"f": Constant(1.0)}}, TypeError, "'f'"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"placement": "far"}, ValueError, "placement='far'"),
        ({"slots_per_gpu": 0}, ValueError, "slots_per_gpu=0"),
        ({"hang_after": 0.0}, ValueError, "hang_after=0.0"),
    ],
)
def test_arguments_out_of_their_range_are_named(
    unchecked: None, dask_on_this_machine: str, arguments, error, message: str
) -> None:
    with pytest.raises(error, match=message):
        DaskPlatform(**({"functions": {"f": SPEC}, "address": dask_on_this_machine} | arguments))


def test_an_address_where_no_scheduler_answers_is_named() -> None:
    import dask.config

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "300ms"}),
        pytest.raises(OSError, match=r"tcp://127\.0\.0\.1:9"),
    ):
        DaskPlatform({"f": SPEC}, address="tcp://127.0.0.1:9")


# Environments silence this when they are made, which Python does for all threads at once, or for none.
@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize(
    "system", [Synchronous(tiny.PPO_CONFIG), Stellaris(tiny.PPO_CONFIG, learners=1)], ids=["synchronous", "stellaris"]
)
def test_a_system_trains(deploy, system) -> None:
    """To its budget, and every call of its own accord."""
    platform = deploy(**{name: FunctionSpec(Measured(), max_concurrency=1) for name in system.functions})
    result = train(system, tiny.WORKLOAD, platform=platform, budget=Budget(steps=300), prices=tiny.PRICES[:1])
    last = result.history[-1]
    assert last["steps"] >= 300
    assert last["gradients"] > 0
    assert last["cost_demo"] == pytest.approx(0.01 * last["seconds"])
    versions = result.trace.select("published").value
    assert len(versions) > 2
    assert versions.tolist() == list(range(len(versions)))
    assert not [event for _, event, *_ in result.trace.rows() if event in ("failed", "crashed", "timed_out")]
