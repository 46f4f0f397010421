"""A container keeps its state, and an error ends the call alone; without a process of its own."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import ray

from stellaris.runtime import Function, SimulatedPlatform
from stellaris.runtime.ray.container import PROGRAMS, Process, Returned, Sent, fields, message
from stellaris.runtime.ray.packing import Packer, Unpacker, packed_program
from tests.runtime.helpers import spec

pytestmark = pytest.mark.slow


def stored(program: Function):
    """Where a program is in the object store."""
    return ray.put(packed_program(program, "it"))


def run(process: Process, program, *arguments, number: int = 0, attempt: int = 1) -> Returned:
    """One call of a program, which is in the object store, or of one that is known here alone."""
    packed = Packer().pack(arguments, "it") if arguments else None
    return Returned(
        *fields(process.run(message(Sent(loaded(process, program), number, attempt, 0.5, packed), plain=not arguments)))
    )


def loaded(process: Process, program):
    """The number of a program that a container has been sent."""
    number = hash(program)
    if isinstance(program, Function):
        process._programs[number] = program
    elif number not in process._programs:
        process.load(number, [program])
    return number


def value(returned: Returned):
    """What a body has returned."""
    assert returned.error is None
    return Unpacker().unpack(returned.value)


def test_a_body_gets_its_arguments_and_its_context() -> None:
    """And its value comes back as it is, nothing included."""
    program = stored(
        Function(lambda context, x, y: (context.number, context.attempt, context.now, context.slot, x + y))
    )
    process = Process("f", number=5, slot=2, seed=0)
    assert value(run(process, program, jnp.ones(2), 1.0, number=7, attempt=3))[:4] == (7, 3, 0.5, 2)
    assert value(run(process, program, np.ones(2), 1.0))[4].tolist() == [2.0, 2.0]
    assert run(process, stored(Function(lambda context: None)))[:2] == (None, None)


def test_state_is_made_once_and_stays() -> None:
    """By `prepare` if a call waits for the container, else by the first body."""

    def init(slot, key):
        return [f"slot {slot}"]

    def body(context):
        context.state.append(context.number)
        return context.state

    program = stored(Function(body, init=init))
    for prepared in (True, False):
        process = Process("f", number=0, slot=1, seed=0)
        assert process.prepare(loaded(process, program) if prepared else None) >= 0
        assert value(run(process, program, number=0)) == ["slot 1", 0]
        assert value(run(process, program, number=1)) == ["slot 1", 0, 1]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_init_that_raises_is_tried_again_by_the_next_call(error: type[BaseException]) -> None:
    """It fails the call that had it run, not the container: whatever it raises."""
    tries = []

    def init(slot, key):
        tries.append(slot)
        if len(tries) < 3:
            raise error("not yet")
        return len(tries)

    process = Process("f", number=0, slot=0, seed=0)
    program = Function(lambda context: context.state, init=init)  # known here alone, so that `tries` is this one
    process.prepare(loaded(process, program))
    returned = run(process, program)
    assert isinstance(returned.error, error)
    assert value(run(process, program)) == 3
    assert len(tries) == 3


@pytest.mark.parametrize("error", [ValueError("wrong"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_ends_the_call_alone_and_tells_where_it_was_raised(error: BaseException) -> None:
    """Also one that elsewhere ends the process."""

    def body(context, fails):
        if fails:
            raise error
        return "well"

    program = stored(Function(body))
    process = Process("f", number=0, slot=0, seed=0)
    returned = run(process, program, True)
    assert type(returned.error) is type(error)
    assert returned.error.args == error.args
    (note,) = returned.error.__notes__
    assert "in body" in note
    assert "test_container.py" in note
    assert value(run(process, program, False)) == "well"


def test_an_error_that_cannot_be_sent_is_told_in_words() -> None:
    """What it was, what it said, and where."""

    class BrokenError(Exception):
        """Cannot be pickled: it holds a lock."""

        def __init__(self) -> None:
            super().__init__("it broke")
            self.lock = threading.Lock()

    def body(context):
        raise BrokenError

    returned = run(Process("f", number=0, slot=0, seed=0), Function(body))  # the class is of this test alone
    assert type(returned.error) is RuntimeError
    assert "BrokenError: it broke" in str(returned.error)
    assert "in body" in str(returned.error)


def test_a_result_that_cannot_be_sent_fails_the_call_by_name() -> None:
    """With the way that leads to what is at fault."""
    program = stored(Function(lambda context: {"lock": threading.Lock()}))
    returned = run(Process("sampler", number=0, slot=0, seed=0), program)
    assert returned.value is None
    assert isinstance(returned.error, TypeError)
    assert "the result of function 'sampler' cannot go to another process: lock is <unlocked" in str(returned.error)


def test_arguments_that_cannot_be_unpacked_fail_the_call() -> None:
    """The body is not run."""
    program = stored(Function(lambda context, argument: "ran"))
    returned = run(Process("f", number=0, slot=0, seed=0), program, _Unreadable())
    assert isinstance(returned.error, ValueError)
    assert str(returned.error) == "unreadable"


class _Unreadable:
    def __reduce__(self):
        return _raise, ()


def _raise() -> None:
    raise ValueError("unreadable")


def test_keys_are_those_that_a_simulated_platform_gives() -> None:
    """To a container and to an invocation, of the same seed and numbers."""

    def init(slot, key):
        return jax.random.key_data(key)

    def body(context):
        return context.state, jax.random.key_data(context.key)

    program = Function(body, init=init)
    with SimulatedPlatform({"f": spec()}, seed=11) as platform:
        for _ in range(2):
            platform.invoke("f", program)
        simulated = {call.number: call.result() for call in iter(platform.next_completion, None)}
    there = stored(program)
    keys = set()
    for number in (0, 1):  # the second has a container of its own
        found = value(run(Process("f", number=number, slot=number, seed=11), there, number=number))
        for got, wanted in zip(found, simulated[number], strict=True):
            assert np.array_equal(got, wanted)
            keys.add(tuple(np.asarray(got).tolist()))
    assert len(keys) == 4


def test_calls_of_numbers_go_as_bytes_and_others_as_lists() -> None:
    """Ray looks for references in lists alone."""
    process = Process("f", 0, 0, 0)
    process._programs[0] = Function(lambda context, *x: x[0] if x else None)
    assert isinstance(process.run(message(Sent(0, 0, 1, 0.5, None), plain=True)), bytes)
    packed = Packer().pack((7,), "it")
    returned = process.run(message(Sent(0, 0, 1, 0.5, packed), plain=False))
    assert isinstance(returned, list)
    assert value(Returned(*fields(returned))) == 7


def test_a_program_is_loaded_once() -> None:
    """So that what it has compiled stays compiled."""

    def body(context):
        return id(body)

    program = stored(Function(body))
    process = Process("f", number=0, slot=0, seed=0)
    assert value(run(process, program)) == value(run(process, program))


def test_programs_are_forgotten_in_the_order_in_which_they_came() -> None:
    """And one that cannot be loaded fails the calls that run it."""
    process = Process("f", number=0, slot=0, seed=0)
    for number in range(PROGRAMS + 2):
        process.load(number, [stored(Function(lambda context, number=number: number))])
    assert [*process._programs] == [*range(2, PROGRAMS + 2)]
    assert value(Returned(*fields(process.run([2, 0, 1, 0.0, None])))) == 2
    process.load(500, [ray.put(b"no program")])
    assert isinstance(Returned(*fields(process.run([500, 0, 1, 0.0, None]))).error, Exception)


def test_the_time_of_a_body_includes_that_of_its_arrays() -> None:
    """Which jax computes later than it returns."""
    program = stored(Function(lambda context, x: x @ x))
    process = Process("f", number=0, slot=0, seed=0)
    returned = run(process, program, jnp.ones((300, 300)))
    assert returned.computing > 0
    assert returned.fetching > 0
    assert value(returned)[0, 0] == 300
