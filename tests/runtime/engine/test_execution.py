"""Execution: the state of containers, and bodies and batches that raise."""

import asyncio
import traceback

import jax
import pytest

from stellaris.runtime import Function, FunctionError
from tests.runtime.helpers import deploy, drain, nothing


def test_container_state():
    """`init` runs once a container, with its slot and a key; the state goes from one of its calls to the next."""
    made, keys = [], []

    def init(slot, key):
        made.append(slot)
        keys.append(jax.random.key_data(key).tolist())
        return [f"slot {slot}"]

    def body(context, x):
        context.state = [*context.state, x]
        return context.state

    function = Function(body, init=init)
    with deploy(1.0) as platform:
        for x in (0, 1):
            platform.invoke("f", function, x)
        drain(platform)
        for x in (2, 3):
            platform.invoke("f", function, x)
        results = [i.result() for i in drain(platform)]
        assert results == [["slot 1", 1, 2], ["slot 0", 0, 3]]  # the newest container first
        assert sorted(made) == [0, 1]
        assert keys[0] != keys[1]
        container = platform.invoke("f", function, 4)
        drain(platform)
    assert container.container.state is None  # let go of when it ended


def test_a_cancelled_task_of_asyncio_fails_its_call_alone():
    """Also on the calling thread, where a body runs once it is known to be quick."""

    def body(context):
        if context.number >= 20:
            raise asyncio.CancelledError

    with deploy(1.0) as platform:
        statuses = []
        for _ in range(22):
            platform.invoke("f", body)
            statuses.append(platform.next_completion().status)
        assert statuses == [*["completed"] * 20, "failed", "failed"]


def test_a_new_container_starts_anew():
    function = Function(lambda context: context.state.append(context.number) or list(context.state), init=lambda *_: [])
    with deploy(1.0, keep_alive=1.0, timeout=2.0) as platform:
        for at, work in [(0.0, 1.0), (1.5, 1.0), (9.0, 1.0), (10.0, 5.0), (20.0, 1.0)]:
            platform.invoke("f", function, at=at, work=work)
        done = drain(platform)
        assert [i.status for i in done] == [*["completed"] * 3, "timed_out", "completed"]
        assert [i.result() for i in done if i.status == "completed"] == [[0], [0, 1], [2], [4]]


def test_an_init_that_raises():
    attempts = []

    def init(slot, key):
        attempts.append(slot)
        if len(attempts) == 1:
            raise OSError("out of luck")
        return "made"

    function = Function(lambda context: context.state, init=init)
    with deploy(1.0, max_concurrency=1) as platform:
        for _ in range(3):
            platform.invoke("f", function)
        first, *rest = drain(platform)
        assert (first.status, str(first.error)) == ("failed", "out of luck")
        assert [i.result() for i in rest] == ["made", "made"]
    assert attempts == [0, 0]


@pytest.mark.parametrize(
    ("batched", "message"),
    [
        (lambda contexts, arguments: [1 / 0 for _ in contexts], "ZeroDivisionError"),
        (lambda contexts, arguments: [0], "ValueError: batched returned 1 results for 4 invocations"),
    ],
)
def test_a_batch_that_fails(batched, message):
    with deploy(1.0) as platform:
        for _ in range(2):
            platform.invoke("f", Function(nothing, batched=batched))
        function = Function(nothing, batched=batched)
        for _ in range(2):
            platform.invoke("f", function)
        done = drain(platform)[2:]
        assert [i.status for i in done] == ["failed", "failed"]
        for invocation in done:
            with pytest.raises(FunctionError, match=f"invocation {invocation.number} .*{message}"):
                invocation.result()


def test_results_that_are_exceptions_fail_alone():
    def batched(contexts, arguments):
        return [ValueError(f"bad {x}") if x % 2 else 10 * x for (x,) in arguments]

    function = Function(lambda context, x: None, batched=batched)
    with deploy(1.0) as platform:
        for x in range(5):
            platform.invoke("f", function, x)
        done = drain(platform)
        assert [i.status for i in done] == ["completed", "failed", "completed", "failed", "completed"]
        assert [i.result() for i in done if i.status == "completed"] == [0, 20, 40]
        assert [str(i.error) for i in done if i.status == "failed"] == ["bad 1", "bad 3"]
        with pytest.raises(FunctionError, match="failed at 1 s: ValueError: bad 3") as error:
            done[3].result()
        assert error.value.__cause__ is done[3].error
        assert platform.trace.select("container_ended").time.tolist() == []


def test_an_init_that_raises_in_a_batch_fails_its_own_invocation():
    tried, calls = [], []

    def init(slot, key):
        tried.append(slot)
        if slot == 1 and tried.count(1) == 1:
            raise OSError("out of luck")
        return f"slot {slot}"

    def batched(contexts, arguments):
        calls.append([(context.state, x) for context, (x,) in zip(contexts, arguments, strict=True)])
        return [f"{context.state}: {x}" for context, (x,) in zip(contexts, arguments, strict=True)]

    function = Function(lambda context, x: None, init=init, batched=batched)
    with deploy(1.0) as platform:
        for x in "abc":
            platform.invoke("f", function, x)
        first, second, third = drain(platform)
        assert (first.result(), second.status, third.result()) == ("slot 0: a", "failed", "slot 2: c")
        assert (type(second.error), str(second.error)) == (OSError, "out of luck")
        assert calls == [[("slot 0", "a"), ("slot 2", "c")]]
        for x in "def":
            platform.invoke("f", function, x)
        assert sorted(i.result() for i in drain(platform)) == ["slot 0: f", "slot 1: e", "slot 2: d"]
        assert sorted(tried) == [0, 1, 1, 2]


@pytest.mark.parametrize("runs", [1, 40])
@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_exceptions_keep_their_traceback(runs, clock):
    def deep_inside():
        raise KeyError("the reason")

    def faulty(context, last):
        if last:
            deep_inside()

    with deploy(0.001, clock=clock) as platform:
        for run in range(runs):
            platform.invoke("f", faulty, run == runs - 1)
            failed = platform.next_completion()
        assert failed.status == "failed"
        frames = [frame.name for frame in traceback.extract_tb(failed.error.__traceback__)]
        assert frames[-2:] == ["faulty", "deep_inside"]
        with pytest.raises(FunctionError, match="KeyError: 'the reason'") as error:
            failed.result()
        assert error.value.__cause__ is failed.error


@pytest.mark.parametrize("batch", [False, True])
def test_init_has_a_key_of_its_own(batch):
    def init(slot, key):
        return tuple(jax.random.key_data(key).tolist())

    def body(context):
        return context.state, tuple(jax.random.key_data(context.key).tolist())

    def batched(contexts, arguments):
        return [body(context) for context in contexts]

    def keys(seed: int) -> list:
        with deploy(1.0, seed=seed, keep_alive=0.0) as platform:
            function = Function(body, init=init, batched=batched if batch else None)
            for at in (0.0, 0.0, 5.0, 5.0):
                platform.invoke("f", function, at=at)
            return [i.result() for i in drain(platform)]

    drawn = keys(0)
    assert len({key for pair in drawn for key in pair}) == 8
    assert keys(0) == drawn
    assert not {key for pair in keys(1) for key in pair} & {key for pair in drawn for key in pair}


@pytest.mark.parametrize("calls", [1, 40])
def test_a_body_that_exits_fails(calls):
    """On the calling thread, too, where a body runs that has often been quick."""

    def body(context, exits):
        if exits:
            raise SystemExit(3)

    with deploy(1.0) as platform:
        for exits in (calls - 1) * [False] + [True]:
            platform.invoke("f", body, exits)
            last = platform.next_completion()
        assert last.status == "failed"
        assert isinstance(last.error, SystemExit)
