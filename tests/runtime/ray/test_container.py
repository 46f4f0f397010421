"""A container keeps its state, and an error ends the call alone; without a process of its own."""

import threading

import jax
import numpy as np
import pytest
import ray

from stellaris.runtime import Function, SimulatedPlatform
from stellaris.runtime.ray.container import Process, Returned, Sent, fields, message
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


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_an_init_that_raises_is_tried_again_by_the_next_call(error: type[BaseException]) -> None:
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


def test_arguments_that_cannot_be_unpacked_fail_the_call() -> None:
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
