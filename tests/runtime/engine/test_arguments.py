"""What a caller must not pass is refused at once: named, with its value."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from stellaris.runtime import Function, FunctionSpec, SimulatedPlatform, Trace, Transfer
from stellaris.runtime.delays import Constant
from tests.runtime.helpers import deploy, drain, nothing

SPEC = FunctionSpec(Constant(0.01))


def test_what_is_of_unknown_size_is_refused():
    """At `invoke`: it would be carried for nothing. Where bytes cost no time, nobody asks."""
    with deploy(0.0, transfer=Transfer(Constant(0.0), bandwidth=100.0)) as platform:
        with pytest.raises(ValueError, match=r"function 'f' has Transfer.*declare how many bytes its program returns"):
            platform.invoke("f", nothing, np.zeros(3))
        with pytest.raises(TypeError, match=r"function 'f' has Transfer.* a object is of unknown size"):
            platform.invoke("f", Function(nothing, upload=0), [np.zeros(3), object()])
        assert drain(platform) == []
    for transfer in (None, Transfer(Constant(0.0), float("inf"))):
        with deploy(0.0, transfer=transfer) as platform:
            platform.invoke("f", nothing, object())
            assert platform.next_completion().status == "completed"


def test_an_instant_that_has_just_passed_on_the_wall_clock_is_now():
    with SimulatedPlatform({"f": SPEC}, clock="wall") as platform:
        platform.invoke("f", nothing, at=platform.now)
        platform.prewarm("f", at=platform.now)
        assert platform.next_completion(until=platform.now + 60.0).status == "completed"
        with pytest.raises(ValueError, match=r"at=-1\.0 is past"):
            platform.invoke("f", nothing, at=-1.0)


@dataclass
class Returns:
    """A body that is equal to any other of its class, and cannot be hashed."""

    value: int = field(compare=False)

    def __call__(self, context):
        return self.value

    def method(self, context):
        return self.value


def test_equal_bodies_are_told_apart():
    with deploy(1.0) as platform:
        for value in (1, 2):
            platform.invoke("f", Returns(value))
            platform.invoke("f", Returns(value).method)
        assert [call.result() for call in drain(platform)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.invoke("f", nothing, at=0.5), ValueError, r"at=0.5 is past \(now is 1\)"),
        (lambda p: p.invoke("f", nothing, at=math.inf), ValueError, "at=inf is past .* or not finite"),
        (lambda p: p.invoke("f", nothing, at=math.nan), ValueError, "at=nan is past .* or not finite"),
        (lambda p: p.invoke("f", nothing, work=-1.0), ValueError, "work=-1.0 is negative or not finite"),
        (lambda p: p.invoke("f", nothing, work=math.nan), ValueError, "work=nan is negative or not finite"),
        (lambda p: p.next_completion(until=math.nan), ValueError, "until=nan is not a number"),
        (lambda p: p.prewarm("f", 0), ValueError, "function 'f': count=0 is below 1"),
        (lambda p: p.prewarm("f", 1.5), TypeError, r"count=1\.5 is not a whole number"),
        (lambda p: p.prewarm("f", at=0.5), ValueError, r"at=0.5 is past \(now is 1\)"),
        (lambda p: SimulatedPlatform({}, clock="sundial"), ValueError, "clock='sundial' is neither 'virtual' nor"),
        (lambda p: SimulatedPlatform({}, threads=0), ValueError, "threads=0 is below 1"),
        (lambda p: SimulatedPlatform({}, threads=1.5), TypeError, r"threads=1\.5 is not a whole number"),
        (lambda p: SimulatedPlatform({}, replay=Trace()), TypeError, r"replay=.*: expected Recording\(trace\)"),
        (lambda p: SimulatedPlatform({}, seed=-1), ValueError, "seed=-1 is below 0"),
        (lambda p: SimulatedPlatform({}, seed=2**31), ValueError, r"seed=2147483648 is not below 2\*\*31"),
        (lambda p: SimulatedPlatform({}, seed=1.5), TypeError, r"seed=1\.5 is not a whole number"),
    ],
)
def test_what_is_refused(unchecked, call, error, message):
    """The error names the argument and its value; nothing has changed."""
    with deploy(1.0) as platform:
        platform.invoke("f", nothing)
        platform.next_completion()
        before = len(platform.trace)
        with pytest.raises(error, match=message):
            call(platform)
        assert len(platform.trace) == before
        assert platform.next_completion() is None


def test_invocations_of_another_platform_are_refused():
    """They are named; the platform's own invocation of the same number goes on."""
    with deploy(2.0) as platform, deploy(2.0, timeout=1.0) as other:
        own, theirs = platform.invoke("f", nothing), other.invoke("f", nothing)
        message = "function 'f', invocation 0 belongs to another platform"
        for call in (platform.cancel, platform.retry):
            with pytest.raises(ValueError, match=message):
                call(theirs)
        assert other.next_completion() is theirs
        with pytest.raises(ValueError, match=message):
            platform.retry(theirs)
        assert platform.next_completion() is own
        assert own.status == "completed"
