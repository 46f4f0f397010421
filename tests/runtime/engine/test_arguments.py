"""What a caller must not pass is refused at once: named, with its value."""

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


def test_invocations_of_another_platform():
    """Neither cancels one's own of the same number, nor is tried again here."""
    with deploy(2.0) as platform, deploy(2.0, timeout=1.0) as other:
        own = platform.invoke("f", nothing)
        theirs = other.invoke("f", nothing)
        for call in (platform.cancel, platform.retry):
            with pytest.raises(ValueError, match="function 'f', invocation 0 belongs to another platform"):
                call(theirs)
        assert other.next_completion() is theirs
        with pytest.raises(ValueError, match="belongs to another platform"):
            platform.retry(theirs)
        assert platform.next_completion() is own
        platform.cancel(own)  # has ended: left as it is
        assert own.status == "completed"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SimulatedPlatform({"f": 1.0}), TypeError, r"functions=\{'f': 1.0\}: expected FunctionSpec"),
        (lambda: SimulatedPlatform({}, replay=Trace()), TypeError, r"replay=.*: expected Recording\(trace\)"),
        (lambda: SimulatedPlatform({"f": SPEC}, faults={"f": 0.1}), TypeError, r"faults=\{'f': 0.1\}: expected Faults"),
        (lambda: SimulatedPlatform({}, seed=-1), ValueError, "seed=-1 is below 0"),
        (lambda: SimulatedPlatform({}, seed=2**31), ValueError, r"seed=2147483648 is not below 2\*\*31"),
        (lambda: SimulatedPlatform({}, seed=1.5), TypeError, r"seed=1\.5 is not a whole number"),
        (lambda: SimulatedPlatform({}, store_capacity=0), ValueError, "store_capacity=0 is not positive"),
    ],
)
def test_arguments_of_another_kind(unchecked, make, error, message):
    """Are named at once, with what is expected."""
    with pytest.raises(error, match=message):
        make()


def test_what_is_to_happen_now_on_the_wall_clock():
    """An instant that has passed since it was looked up is now; there was none before the start."""
    with SimulatedPlatform({"f": SPEC}, clock="wall") as platform:
        platform.invoke("f", nothing, at=platform.now)
        platform.prewarm("f", at=platform.now)
        assert platform.next_completion(until=platform.now + 60.0).status == "completed"
        with pytest.raises(ValueError, match=r"at=-1\.0 is past"):
            platform.invoke("f", nothing, at=-1.0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.invoke("g", nothing), LookupError, r"no function 'g' is deployed: the platform has \['f'\]"),
        (lambda p: p.invoke("f", nothing, at=0.5), ValueError, r"at=0.5 is past \(now is 1\)"),
        (lambda p: p.invoke("f", nothing, at=float("inf")), ValueError, "at=inf is past .* or not finite"),
        (lambda p: p.invoke("f", nothing, at=float("nan")), ValueError, "at=nan is past .* or not finite"),
        (lambda p: p.invoke("f", nothing, work=-1.0), ValueError, "work=-1.0 is negative or not finite"),
        (lambda p: p.invoke("f", nothing, work=float("inf")), ValueError, "work=inf is negative or not finite"),
        (lambda p: p.invoke("f", nothing, work=float("nan")), ValueError, "work=nan is negative or not finite"),
        (lambda p: SimulatedPlatform({}, clock="sundial"), ValueError, "clock='sundial' is neither 'virtual' nor"),
        (lambda p: SimulatedPlatform({}, threads=0), ValueError, "threads=0 is below 1"),
    ],
)
def test_what_is_refused(call, error, message):
    """At once, and without a trace: the argument, its value, and what it should be."""
    with deploy(1.0) as platform:
        platform.invoke("f", nothing)
        platform.next_completion()
        before = len(platform.trace)
        with pytest.raises(error, match=message):
            call(platform)
        assert len(platform.trace) == before
        assert platform.next_completion() is None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("g",), LookupError, r"no function 'g' is deployed: the platform has \['f'\]"),
        (("f", 0), ValueError, "function 'f': count=0 is below 1"),
        (("f", 1.5), TypeError, r"count=1\.5 is not a whole number"),
        (("f", float("nan")), TypeError, "count=nan is not a whole number"),
    ],
)
def test_prewarming_what_is_not_there(unchecked, arguments, error, message):
    """Is refused, and changes nothing."""
    with deploy() as platform:
        with pytest.raises(error, match=message):
            platform.prewarm(*arguments)
        assert platform.slots("f", concurrent=3) == 3


def test_prewarming_in_the_past():
    """Is refused, and now is not past."""
    with deploy() as platform:
        platform.next_completion(until=2.0)
        with pytest.raises(ValueError, match=r"at=1.5 is past \(now is 2\)"):
            platform.prewarm("f", at=1.5)
        platform.prewarm("f", at=2.0)
