"""What crosses to a container crosses once, and is forgotten when nobody refers to it any more."""

import gc
import math
import os
import threading
from concurrent.futures import Future
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.runtime import Function, FunctionError, FunctionSpec, Retry
from stellaris.runtime.delays import Measured
from stellaris.runtime.engine import ClusterPlatform, Deployment, WallClock
from stellaris.runtime.engine.messages import MessageBodies, MessageStore, Receiver, Sent
from tests.runtime.helpers import happened


class HereBodies(MessageBodies):
    """Answers each message at once, and keeps a list of them; a receiver in `lost` answers nothing any more."""

    def __init__(self, clock, seed: int) -> None:
        super().__init__(clock, seed)
        self.sent: list[Sent] = []
        self.receivers: list[Receiver] = []
        self.lost: set[Receiver] = set()
        self.unmade = 0  # number of containers that cannot be made from now on
        self.stopped = 0

    def launch(self, container, spec, first):
        receiver = Receiver(container.function, container.number, container.slot, self.seed)
        self.receivers.append(receiver)
        return self._answered(lambda: (receiver, self._noted(receiver, receiver.prepare, first)))

    def send(self, process, sent):
        return self._answered(lambda: self._noted(process, process.run, sent))

    def stop(self, made) -> None:
        self.stopped += 1

    def _noted(self, receiver, method, sent):
        self.sent.append(sent)
        if method == receiver.prepare and self.unmade:
            self.unmade -= 1
            raise ConnectionError("there is no room")
        if receiver in self.lost:
            raise ConnectionError("nobody answers")
        return method(sent)

    def _answered(self, compute) -> Future:
        future = Future()
        try:
            future.set_result(compute())
        except ConnectionError as error:
            future.set_exception(error)
        return future


class Here(ClusterPlatform):
    """A platform whose containers are objects of this process, which get everything as messages."""

    HANG_AFTER = 30.0

    def __init__(self, *, keep_versions: int = 1, **spec) -> None:
        functions = {"f": FunctionSpec(Measured(), **({"max_concurrency": 1} | spec))}
        clock = WallClock(stopped=True)
        self.bodies = HereBodies(clock, seed=0)
        deployment = Deployment(functions, keep_versions=keep_versions)
        super().__init__(deployment, clock, self.bodies, seed=0, hang_after=self.HANG_AFTER, store=MessageStore)

    def result(self, program, *args):
        """What a body returns, alone."""
        call = self.invoke("f", program, *args)
        assert self.next_completion() is call
        return call.result()

    def kept(self) -> int:
        """The number of values and programs that the newest container keeps."""
        receiver = self.bodies.receivers[-1]
        return len(receiver._values) + len(receiver._contents)


def last(context, *values):
    """A body that returns the last of its values."""
    return values[-1]


def test_programs_and_versions_are_sent_once() -> None:
    with Here() as platform:
        weights = np.arange(1000.0)
        platform.store.publish("policy", weights)
        program = Function(last)
        for _ in range(3):
            seen = platform.result(program, platform.store.latest("policy"))
            assert np.array_equal(seen.value, weights)
        prepared, *calls = platform.bodies.sent
        assert [len(prepared.new), *(len(sent.new) for sent in calls)] == [1, 1, 0, 0]  # the program, the version
        assert all(len(sent.arguments) < 1000 for sent in calls)
        platform.store.publish("policy", -weights)
        assert np.array_equal(platform.result(program, platform.store.latest("policy")).value, -weights)
        assert [len(sent.new) for sent in platform.bodies.sent[4:]] == [1]


def test_a_value_that_is_not_stored_is_sent_with_each_call() -> None:
    with Here() as platform:
        for _ in range(2):
            assert platform.result(last, "x" * 1000) == "x" * 1000
        assert all(len(sent.arguments) > 1000 for sent in platform.bodies.sent[1:])


def test_containers_forget_what_has_left_the_store() -> None:
    with Here() as platform:
        program = Function(last)
        for n in range(5):
            platform.store.publish("policy", np.full(3, n))
            platform.result(program, platform.store.latest("policy"))
        item = platform.store.put(np.ones(3))
        platform.result(program, item)
        platform.store.drop(item)
        platform.result(program, platform.store.latest("policy"))
        assert platform.kept() == 2  # the program, and the newest version


def test_a_program_is_kept_no_longer_than_its_system() -> None:
    with Here() as platform:
        program = Function(last)
        platform.bodies.check(program, "f")
        assert len(platform.bodies._programs) == 1
        del program
        gc.collect()
        assert len(platform.bodies._programs) == 0


def test_each_container_gets_its_own_copy() -> None:
    """What a body does to a version, which it must not, another container does not see."""

    def spoil(context, policy):
        policy.value[0] += 1
        return policy.value[0]

    with Here(max_concurrency=None) as platform:
        platform.store.publish("policy", np.zeros(1))
        calls = [platform.invoke("f", spoil, platform.store.latest("policy")) for _ in range(2)]
        while platform.next_completion():
            pass
        assert [call.result() for call in calls] == [1.0, 1.0]
        assert platform.store.value("policy")[0] == 0.0


def test_arrays_stay_arrays() -> None:
    """Of JAX and of NumPy, weakly typed or not, and random keys."""
    values = (jnp.float32(1.5), jnp.asarray(2.0), jnp.arange(3), np.arange(3), jax.random.key(7), None, "text")
    with Here() as platform:
        back = platform.result(lambda context, *values: values, *values)
        assert len(happened(platform, "computed")) == len(happened(platform, "unpacked")) == 1
    assert [type(value) for value in back] == [type(value) for value in values]
    assert [getattr(value, "weak_type", None) for value in back] == [getattr(v, "weak_type", None) for v in values]
    assert jax.random.uniform(back[4]) == jax.random.uniform(values[4])
    assert np.array_equal(back[2], values[2])


def test_a_container_without_an_answer_is_lost() -> None:
    """While it runs and while it is made: the call crashes, and another container gets everything anew."""
    with Here(retry=Retry(limit=2)) as platform:
        program = Function(last)
        platform.store.publish("policy", np.ones(2))
        platform.result(program, platform.store.latest("policy"))
        platform.bodies.lost.add(platform.bodies.receivers[-1])
        crashed = platform.invoke("f", program, platform.store.latest("policy"))
        assert platform.next_completion() is crashed
        with pytest.raises(FunctionError, match=r"crashed .*'f' was lost: nobody answers"):
            crashed.result()
        assert platform.bodies.stopped == 1
        again = platform.retry(crashed)
        assert platform.next_completion() is again
        assert again.result().value.tolist() == [1.0, 1.0]
        assert len(platform.bodies.receivers) == 2
        platform.bodies.lost.add(platform.bodies.receivers[-1])
        crashed = platform.invoke("f", program, platform.store.latest("policy"))
        platform.next_completion()
        platform.bodies.unmade = 1
        unmade = platform.retry(crashed)
        assert platform.next_completion() is unmade
        assert unmade.status == "crashed"
        with pytest.raises(FunctionError, match="container of function 'f' could not be made: there is no room"):
            unmade.result()
        assert len(happened(platform, "container_lost")) == 3
        assert platform.result(program, platform.store.latest("policy")).version == 0
    assert platform.bodies.stopped == 4
    assert platform.bodies.containers == {}


def test_a_platform_that_cannot_make_what_is_provisioned_ends_what_it_has_made(monkeypatch) -> None:
    """It gives up after `hang_after`."""
    made = []

    def never(self, container, spec, first) -> Future:
        made.append(self)
        return Future()

    monkeypatch.setattr(HereBodies, "launch", never)
    monkeypatch.setattr(Here, "HANG_AFTER", 0.02)
    with pytest.raises(RuntimeError, match=r"a provisioned container was not made within hang_after=0.02 s"):
        Here(provisioned=1)
    (bodies,) = made
    assert bodies.stopped == 1
    assert bodies.containers == {}


def test_provisioned_containers_are_awaited_without_a_limit(monkeypatch) -> None:
    monkeypatch.setattr(Here, "HANG_AFTER", math.inf)
    with Here(provisioned=1) as platform:
        assert platform.result(last, "value") == "value"


def test_a_provisioned_container_is_made_before_the_run() -> None:
    """For no program yet; its first call sends it one."""
    with Here(provisioned=1) as platform:
        (prepared,) = platform.bodies.sent
        assert prepared == Sent({}, [], None)
        assert platform.result(last, 3) == 3
        assert len(platform.bodies.receivers) == 1
        assert platform.trace.select("acquired").value.tolist() == [0.0]


def test_init_that_raises_is_tried_again_by_the_body(tmp_path: Path) -> None:
    path = tmp_path / "tries"

    def init(slot, key):
        with path.open("a") as file:
            file.write("x")
        if os.path.getsize(path) < 3:
            raise ValueError("not yet")
        return "state"

    program = Function(lambda context: context.state, init=init)
    with Here() as platform:
        with pytest.raises(FunctionError) as failure:
            platform.result(program)
        assert isinstance(failure.value.__cause__, ValueError)
        assert platform.result(program) == "state"
        assert len(happened(platform, "container_created")) == 1


class Unpicklable(Exception):
    """An error that is pickled, and cannot be unpickled."""

    def __init__(self, one, other) -> None:
        super().__init__(one)


class Sulks:
    """A value that is pickled, and cannot be unpickled."""

    def __reduce__(self):
        return int, ("not a number",)


def test_what_cannot_cross_fails_its_call_alone() -> None:
    def raises(context):
        raise Unpicklable(1, 2)

    lock = threading.Lock()
    with Here() as platform:
        for program, args, error, message in (
            (raises, (), RuntimeError, "Unpicklable: 1"),
            (lambda context: threading.Lock(), (), TypeError, "the result of function 'f' cannot be sent"),
            (last, ({"x": [lock]},), TypeError, r"an argument of function 'f' cannot be sent .*: 0\.x\.0 is <unl"),
            (last, (Sulks(),), ValueError, "invalid literal"),
            (lambda context: Sulks(), (), ValueError, "invalid literal"),
        ):
            with pytest.raises(FunctionError, match="failed") as failure:
                platform.result(program, *args)
            with pytest.raises(error, match=message):
                raise failure.value.__cause__
        with pytest.raises(
            TypeError, match=r"the program of function 'f' cannot be sent to another process: body\.lock"
        ):
            platform.invoke("f", lambda context: lock)
        assert platform.result(last, 1) == 1
        assert len(happened(platform, "container_created")) == 1
        assert happened(platform, "crashed") == []
