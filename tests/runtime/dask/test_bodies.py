"""Containers are actors in the processes of workers: they share a process, and are lost with it."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from stellaris.runtime import Function, FunctionError, FunctionSpec, Node, Resources, Retry
from stellaris.runtime.delays import Measured
from stellaris.runtime.engine import WallClock
from stellaris.runtime.engine.messages import Sent
from stellaris.systems.deliveries import Deliveries
from tests.runtime.helpers import happened

pytestmark = pytest.mark.slow

ONE = FunctionSpec(Measured(), max_concurrency=1)


def pid(context) -> int:
    """A body that tells in which process it is."""
    return os.getpid()


BARRIER = threading.Barrier(2)


def meets(context) -> int:
    """A body that waits for another one in its process. It is pickled by its name, so that both have one barrier."""
    BARRIER.wait(timeout=30.0)
    return os.getpid()


class Locked:
    """A value whose size is known, and which cannot be pickled."""

    nbytes = 8

    def __init__(self) -> None:
        self.lock = threading.Lock()


def result(platform, name: str, body, *args):
    """What a body returns, alone."""
    call = platform.invoke(name, body, *args)
    assert platform.next_completion() is call
    return call.result()


def dies_once(context, body):
    """Kills its process at the first attempt."""
    return os.kill(os.getpid(), signal.SIGKILL) if context.attempt == 1 else body(context)


def await_workers(platform, count: int = 2) -> None:
    """Waits until Dask has restarted what was killed."""
    platform._bodies._client.wait_for_workers(count, timeout=60)


def test_containers_are_spread_over_the_workers(deploy) -> None:
    platform = deploy(f=FunctionSpec(Measured()))
    for _ in range(2):
        platform.invoke("f", lambda context: (time.sleep(0.5), os.getpid())[1])
    assert len({call.result() for call in iter(platform.next_completion, None)}) == 2


def test_containers_of_one_process_run_at_once(deploy) -> None:
    """Both bodies wait for each other."""
    platform = deploy(f=FunctionSpec(Measured(), resources=Resources(vcpus=0.5)))
    for _ in range(2):
        platform.invoke("f", meets)
    first, second = (call.result() for call in iter(platform.next_completion, None))
    assert first == second


def test_what_is_lost_with_a_worker_is_tried_again_under_its_key(deploy, tmp_path: Path) -> None:
    """While it runs, while it is idle and while it is made, by a container in another process."""
    made = tmp_path / "made"

    def dies_when_it_is_made(slot, key) -> None:
        if not made.exists():
            made.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    platform = deploy(f=FunctionSpec(Measured(), max_concurrency=1, retry=Retry(limit=3)))
    deliveries = Deliveries(platform)

    def delivered(program, *args):
        call = platform.invoke("f", program, *args, tag="work")
        done = deliveries.next()
        assert (call.status, done.status, done.key, done.tag) == ("crashed", "completed", call.key, "work")
        assert done.attempt > 1
        with pytest.raises(
            FunctionError, match=r"'f', invocation \d+ \(attempt 1\) crashed .*(was lost|could not be made)"
        ):
            call.result()
        # Dask tries to reach a dead worker for 30 s, unless the platform notices its death.
        assert call.finished - call.submitted < 15.0
        return done.result()

    while_running = delivered(dies_once, pid)
    os.kill(while_running, signal.SIGKILL)
    while_idle = delivered(pid)
    assert while_idle != while_running
    await_workers(platform)
    delivered(Function(pid, init=dies_when_it_is_made))
    assert deliveries.next() is None
    assert len(happened(platform, "container_lost")) >= 3
    await_workers(platform)


def test_a_call_whose_worker_is_lost_does_not_wait_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask goes on trying to reach the worker, but the scheduler has told the client that the actor is lost."""
    from stellaris.runtime.dask import bodies as module

    class Silent:
        async def run(self, sent: Sent) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    bodies = module.DaskBodies((Node("one"), Node("other")), seed=0, clock=WallClock(), client=None)
    process = module._Process(Silent(), SimpleNamespace(status="error"), place=1)
    with pytest.raises(RuntimeError, match="its worker was lost"):
        asyncio.run(asyncio.wait_for(bodies._answer(process, "run", Sent({}, [], 0)), timeout=20.0))
    bodies._client = SimpleNamespace(nthreads=lambda: {"one": 1, "other": 1})  # the scheduler may notice later
    assert list(bodies.lost_nodes()) == [1]


def test_a_container_with_resources_is_replaced_on_another_worker(deploy) -> None:
    """Of a lost worker the engine makes no more use, even if Dask restarts it."""
    needy = FunctionSpec(Measured(), max_concurrency=1, resources=Resources(vcpus=1.0), retry=Retry(limit=3))
    platform = deploy(f=needy)
    assert [node.vcpus for node in platform.deployment.nodes] == [1.0, 1.0]
    assert all(0 < node.memory < 10_000 for node in platform.deployment.nodes)
    deliveries = Deliveries(platform)
    first = result(platform, "f", pid)
    platform.invoke("f", dies_once, pid)
    assert deliveries.next().result() != first
    await_workers(platform)
    crashes = platform.invoke("f", lambda context: os.kill(os.getpid(), signal.SIGKILL))
    assert platform.next_completion() is crashes
    await_workers(platform)
    waits = platform.retry(crashes)
    assert platform.next_completion(until=platform.now + 0.5) is None
    assert waits.status == "pending"
    assert len(happened(platform, "container_created")) == 2
    with pytest.raises(ValueError, match=r"function 'f': no node could ever hold its .*vcpus=5"):
        deploy(f=FunctionSpec(Measured(), resources=Resources(vcpus=5.0)))


def test_a_killed_body_keeps_its_slot_until_it_returns(deploy, tmp_path: Path) -> None:
    """A thread cannot be stopped, so that environments by slot are never used by two bodies."""
    platform = deploy(f=FunctionSpec(Measured(), timeout=0.5))
    assert platform.slots("f", concurrent=1) == 2
    path = tmp_path / "goes on"

    def waits(context) -> int:
        while not path.exists():
            time.sleep(0.01)
        return context.slot

    result(platform, "f", pid)
    killed = platform.invoke("f", waits)
    assert platform.next_completion() is killed
    assert killed.status == "timed_out"
    assert result(platform, "f", lambda context: context.slot) == 1
    path.touch()
    until = platform.now + 30.0
    while platform._life.pools["f"].occupied and platform.now < until:
        platform.next_completion(until=platform.now + 0.05)
    for _ in range(2):
        platform.invoke("f", lambda context: (time.sleep(0.2), context.slot)[1])
    assert sorted(call.result() for call in iter(platform.next_completion, None)) == [0, 1]


def test_what_cannot_be_sent_or_raises_fails_the_call_by_name(deploy) -> None:
    lock = threading.Lock()

    def body(context, what):
        if what == "raises":
            raise KeyError(what)
        if what == "exits":
            raise SystemExit(3)
        return threading.Lock() if what == "returns a lock" else what

    platform = deploy(f=ONE)
    for argument, error, message in (
        ("raises", KeyError, "raises"),
        ("exits", SystemExit, "3"),
        ("returns a lock", TypeError, "the result of function 'f' cannot be sent to another process: it is <unlocked"),
        (lock, TypeError, "an argument of function 'f' cannot be sent to another process: 0 is <unlocked"),
    ):
        with pytest.raises(FunctionError, match=r"function 'f', invocation \d \(attempt 1\) failed") as failure:
            result(platform, "f", body, argument)
        assert type(failure.value.__cause__) is error
        assert message in str(failure.value.__cause__)
    with pytest.raises(TypeError, match=r"the program of function 'f' cannot be sent .*: body\.lock is"):
        platform.invoke("f", lambda context: lock)
    with pytest.raises(TypeError, match=r"the value of 'policy' cannot be sent .*: w\.lock is"):
        platform.store.publish("policy", {"w": Locked()})
    assert platform.store.newest("policy") == -1
    assert result(platform, "f", body, "nothing") == "nothing"


def test_arrays_and_keys_cross_both_ways(deploy) -> None:
    """As JAX arrays, of the store and by value; durations are in the trace."""
    platform = deploy(f=ONE)
    large = jnp.arange(1_000_000, dtype=jnp.float32)
    version = platform.store.publish("policy", {"w": large})

    def body(context, x, key, policy):
        return 2 * x, jax.random.uniform(key), context.key, (policy.version, policy.value["w"][-1])

    key = jax.random.key(3)
    doubled, drawn, own, seen = result(platform, "f", body, large, key, platform.store.latest("policy"))
    assert isinstance(doubled, jax.Array)
    assert (doubled == 2 * large).all()
    assert drawn == jax.random.uniform(key)
    assert (jax.random.key_data(own) == jax.random.key_data(jax.random.fold_in(jax.random.key(0), 0))).all()
    assert seen == (version, large[-1])
    assert platform.trace.select("fetched").value.tolist() == [large.nbytes]
    assert len(happened(platform, "computed")) == len(happened(platform, "unpacked")) == 1
