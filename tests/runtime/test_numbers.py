"""Settings that should be numbers and are not, such as texts read from a file or a command line."""

import pytest

from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.costs.price_sheets import Machine, Rate
from stellaris.runtime.delays import Constant, Empirical, Exponential, Gamma, LogNormal, Mixture, Uniform
from stellaris.runtime.engine.deployment import Deployment
from stellaris.runtime.engine.faults import KINDS, Faults
from stellaris.runtime.functions import Retry, Transfer
from stellaris.runtime.resources import Node, Resources

ONE = Constant(1.0)
LIMITS = ("keep_alive", "timeout", "max_concurrency", "reserved_concurrency", "provisioned")


@pytest.mark.parametrize("wrong", ["1", None, (1.0,)], ids=repr)
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("seconds", Constant),
        ("mean", Exponential),
        ("cv", lambda x: LogNormal(1.0, x)),
        ("mean", lambda x: Gamma(x, 1.0)),
        ("high", lambda x: Uniform(0.0, x)),
        (r"probabilities\[0\]", lambda x: Mixture((ONE,), (x,))),
        (r"samples\[1\]", lambda x: Empirical((1.0, x))),
        ("bandwidth", lambda x: Transfer(ONE, x)),
        *(
            (name, lambda x, name=name: Retry(**{name: x}))
            for name in ("limit", "first", "factor", "maximum", "jitter")
        ),
        *((name, lambda x, name=name: Resources(**{name: x})) for name in ("memory", "vcpus", "gpu_slots")),
        *((name, lambda x, name=name: Node("n", **{name: x})) for name in ("memory", "gpus", "gpu_sharing")),
        *((name, lambda x, name=name: Faults(**{name: x})) for name in KINDS),
        *((name, lambda x, name=name: Rate(**{name: x})) for name in ("per_second", "granularity")),
        ("per_second", Machine),
        ("places", lambda x: Machine(1.0, places=x)),
        ("keep_versions", lambda x: Deployment({}, keep_versions=x)),
        ("store_capacity", lambda x: Deployment({}, store_capacity=x)),
        ("hang_after", lambda x: SimulatedPlatform({}, hang_after=x)),
    ],
)
def test_settings_that_are_no_numbers(unchecked, name, make, wrong):
    with pytest.raises(TypeError, match=rf"^{name}=.* is not a number"):
        make(wrong)


@pytest.mark.parametrize("wrong", ["1", (1.0,)], ids=repr)
@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_a_function(unchecked, name, wrong):
    """None means no limit for some of them."""
    with pytest.raises(TypeError, match=rf"^{name}=.* is not a number"):
        FunctionSpec(ONE, **{name: wrong})
