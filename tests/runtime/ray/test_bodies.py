"""Containers are processes: made, killed and replaced for real, whatever happens to them meanwhile."""

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import ray

from stellaris.runtime import Function, FunctionError, FunctionSpec, RayPlatform, Resources, Retry
from stellaris.runtime.delays import Measured
from stellaris.runtime.engine.bodies import ContainerLostError
from stellaris.runtime.engine.calls import Call, Container
from stellaris.runtime.engine.clock import WallClock
from stellaris.runtime.engine.containers import Pool
from stellaris.runtime.ray.bodies import RayBodies
from stellaris.runtime.ray.container import Returned
from stellaris.runtime.ray.packing import LARGE, Packer
from stellaris.runtime.ray.session import Session
from stellaris.systems.deliveries import Deliveries
from tests.runtime.helpers import happened, rows
from tests.runtime.ray.processes import gone, kill

pytestmark = pytest.mark.slow


def pid(context) -> int:
    """A body that tells in which process it is."""
    return os.getpid()


def result(platform: RayPlatform, name: str, body: Callable, *args):
    """What a body returns, alone."""
    call = platform.invoke(name, body, *args)
    assert platform.next_completion() is call
    return call.result()


def await_event(platform: RayPlatform, event: str, function: str, times: int = 1) -> None:
    """Has the platform go on until something has happened."""
    until = platform.now + 60.0
    while len(happened(platform, event, function)) < times:
        assert platform.now < until
        assert platform.next_completion(until=platform.now + 0.05) is None


def test_a_container_is_a_process_that_ends_with_it() -> None:
    """When it has been idle for too long, is killed with what it runs, or when the platform closes."""
    functions = {
        "expires": FunctionSpec(Measured(), keep_alive=0.1),
        "is limited": FunctionSpec(Measured(), timeout=0.3, max_concurrency=1),
        "is provisioned": FunctionSpec(Measured(), provisioned=1),
        "is prewarmed": FunctionSpec(Measured(), max_concurrency=1),
    }
    with RayPlatform(functions) as platform:
        assert platform.now < 0.2  # the clock starts when what is provisioned is there
        platform.prewarm("is prewarmed")
        provisioned = result(platform, "is provisioned", pid)
        assert happened(platform, "container_ready", "is provisioned")[0] == 0.0
        expires = result(platform, "expires", pid)
        (acquired,) = platform.trace.select("acquired", function="expires").time
        (started,) = platform.trace.select("started", function="expires").time
        assert started - acquired > 0.05  # a cold start takes time, which is in the trace
        await_event(platform, "container_ended", "expires")
        assert gone(expires)
        idle = happened(platform, "container_ended", "expires")[0] - happened(platform, "completed", "expires")[0]
        assert idle > 0.099

        limited = result(platform, "is limited", pid)
        killed = platform.invoke("is limited", lambda context: time.sleep(1000))
        assert platform.next_completion() is killed
        assert killed.status == "timed_out"
        assert killed.finished - killed.started == pytest.approx(0.3, abs=0.2)
        assert gone(limited)

        await_event(platform, "container_ready", "is prewarmed")
        prewarmed = result(platform, "is prewarmed", pid)
        cancelled = platform.invoke("is prewarmed", lambda context: time.sleep(1000))
        assert platform.next_completion(until=platform.now + 0.05) is None
        assert cancelled.status == "running"
        platform.cancel(cancelled)
        assert platform.next_completion() is None
        assert gone(prewarmed)
        colds = {name: platform.trace.select("acquired", function=name).value.tolist() for name in functions}
        assert colds == {
            "expires": [1.0],
            "is limited": [1.0, 0.0],
            "is provisioned": [0.0],
            "is prewarmed": [0.0, 0.0],
        }
    assert gone(provisioned)
    ended = [number for _, event, _, _, number, _ in rows(platform) if event == "container_ended"]
    assert sorted(ended) == [0, 1, 2, 3]


class Sulks:
    """A value that is pickled, and cannot be unpickled."""

    def __reduce__(self):
        return int, ("not a number",)


def test_what_cannot_be_sent_or_raises_fails_the_call_by_name() -> None:
    lock = threading.Lock()

    def body(context, what):
        if what == "raises":
            raise KeyError(what)
        if what == "exits":
            raise SystemExit(3)
        if what == "sulks":
            return Sulks()
        return threading.Lock() if what == "returns a lock" else what

    with RayPlatform({"f": FunctionSpec(Measured(), max_concurrency=1)}) as platform:
        assert result(platform, "f", body, "nothing") == "nothing"
        for argument, error, message in (
            ("raises", KeyError, "raises"),
            ("exits", SystemExit, "3"),
            ("sulks", ValueError, "invalid literal"),
            (
                "returns a lock",
                TypeError,
                "the result of function 'f' cannot be sent to another process: it is <unlocked",
            ),
            (lock, TypeError, "an argument of function 'f' cannot be sent to another process: 0 is <unlocked"),
        ):
            with pytest.raises(FunctionError, match=r"function 'f', invocation \d \(attempt 1\) failed") as failure:
                result(platform, "f", body, argument)
            assert type(failure.value.__cause__) is error
            assert message in str(failure.value.__cause__)
            if argument in ("raises", "exits"):
                assert "in body" in failure.value.__cause__.__notes__[0]
        with pytest.raises(TypeError, match=r"the program of function 'f' cannot be sent .*: body\.lock is"):
            platform.invoke("f", lambda context: lock)
        # What is large crosses both ways, and so does what is kept in the store.
        large = jnp.arange(LARGE, dtype=jnp.float32)
        version = platform.store.publish("policy", {"w": large})
        doubled, seen = result(
            platform,
            "f",
            lambda context, x, policy: ({"x": 2 * x}, (policy.version, policy.value["w"][-1])),
            large,
            platform.store.latest("policy"),
        )
        assert isinstance(doubled["x"], jax.Array)
        assert np.array_equal(doubled["x"], 2 * large)
        assert seen == (version, large[-1])
        assert happened(platform, "fetched", "f")
        assert platform.trace.select("fetched").value.tolist() == [large.nbytes]
        ran = platform.trace.invocations().ending.size - 1  # all but the one whose argument was not sent
        assert len(happened(platform, "computed")) == len(happened(platform, "unpacked")) == ran
        assert len(happened(platform, "container_created")) == 1
        assert happened(platform, "crashed") == []


def die(context) -> None:
    """A body whose process is killed while it runs."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_once(context, body: Callable):
    """Kills its process at the first attempt."""
    return die(context) if context.attempt == 1 else body(context)


def test_what_is_lost_with_a_process_is_tried_again_under_its_key(tmp_path) -> None:
    """While it runs, while it is idle, and while it is made: by a new container."""
    made = tmp_path / "made"

    def dies_when_it_is_made(slot, key):
        if not made.exists():
            made.touch()
            die(None)

    with RayPlatform({"f": FunctionSpec(Measured(), max_concurrency=1, retry=Retry(limit=2))}) as platform:
        deliveries = Deliveries(platform)

        def delivered(program, *args):
            call = platform.invoke("f", program, *args, tag="work")
            done = deliveries.next()
            assert (done.key, done.attempt, done.tag) == (call.key, 2, "work")
            assert (call.status, done.status) == ("crashed", "completed")
            assert call.error is not None
            with pytest.raises(FunctionError, match=r"function 'f', invocation \d+ \(attempt 1\) crashed .*died"):
                call.result()
            return done.result()

        while_running = delivered(dies_once, pid)
        kill(while_running)
        while_idle = delivered(pid)
        while_made = delivered(Function(pid, init=dies_when_it_is_made))
        assert len({while_running, while_idle, while_made}) == 3
        assert deliveries.next() is None
        lost = len(happened(platform, "container_lost"))
        assert (lost, len(happened(platform, "crashed"))) == (3, 3)
    assert gone(while_made)


def called() -> tuple[RayBodies, Call]:
    """A call that nobody has sent yet, and who is to do it."""
    pool = Pool("f", FunctionSpec(Measured()), seed=0)
    call = Call(0, "f", None, 1, 0, 0.0, Function(pid), (), 1.0, 0, pool, None)
    return RayBodies((), seed=0, clock=WallClock(), session=Session()), call


def test_containers_take_turns_where_there_is_room_for_one() -> None:
    big = FunctionSpec(Measured(), resources=Resources(vcpus=3.0))
    with RayPlatform({"a": big, "b": big}) as platform:
        first = result(platform, "a", pid)
        # Ray has no room for both at once, so the first has really ended.
        result(platform, "b", pid)
        assert gone(first)
        assert len(happened(platform, "container_ended", "a")) == 1
    with pytest.raises(ValueError, match=r"function 'a': no node could ever hold its .*vcpus=5"):
        RayPlatform({"a": FunctionSpec(Measured(), resources=Resources(vcpus=5.0))})


def test_values_that_ray_has_lost_or_cannot_store_are_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again may help if a result was lost with its process, or if Ray's store has no room for an argument."""

    def raising(error: Exception):
        def call(*arguments):
            raise error

        return call

    packed = Packer().pack(jnp.zeros(LARGE), "it")
    monkeypatch.setattr(ray, "get", raising(ray.exceptions.OwnerDiedError(packed.references[0].hex(), b"", "")))
    monkeypatch.setattr(ray, "put", raising(ray.exceptions.ObjectStoreFullError("it is full")))
    bodies, lost = called()
    lost.task = Future()
    lost.task.set_result(Returned(packed, None, 0.0, 0.0))
    _, full = called()
    full.resolved = (jnp.zeros(LARGE),)
    full.container = Container(0, "f", 0, None)
    bodies.start(full, trusted=True, on_done=lambda call: None)
    for call, message in ((lost, "the container of function 'f' was lost"), (full, "has no room for the arguments")):
        value, error = bodies.finish(call)
        assert value is None
        assert isinstance(error, ContainerLostError)
        assert message in str(error)


def test_what_takes_too_long_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = RayBodies.make

    def noted(self, container, spec, on_made) -> None:
        make(self, container, spec, on_made)
        made.append(container.handle)

    monkeypatch.setattr(RayBodies, "make", noted)
    with RayPlatform({"f": FunctionSpec(Measured())}, hang_after=0.02) as platform:
        call = platform.invoke("f", pid)
        assert platform.next_completion() is call
        assert (call.status, call.started) == ("crashed", None)
    with pytest.raises(RuntimeError, match=r"a provisioned container was not made within hang_after=0.02 s"):
        RayPlatform({"f": FunctionSpec(Measured(), provisioned=1)}, hang_after=0.02)
    assert len(made) == 2
    for container in made:
        assert isinstance(container.prepared.exception(timeout=60), ray.exceptions.RayActorError)


def test_a_body_that_does_not_return_hangs() -> None:
    with RayPlatform({"f": FunctionSpec(Measured(), max_concurrency=1)}, hang_after=20.0) as platform:
        process = result(platform, "f", pid)
        platform._life._hang_after = 0.2  # the container has been made: from here on nothing else takes long
        call = platform.invoke("f", lambda context: time.sleep(1000))
        assert platform.next_completion() is call
        assert call.status == "hung"
        assert gone(process)
