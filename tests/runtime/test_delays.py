"""Distributions of durations."""

import math

import numpy as np
import pytest

from stellaris.runtime import Faults, FunctionSpec, Outages, Transfer
from stellaris.runtime.delays import (
    Constant,
    Delay,
    Empirical,
    Exponential,
    Gamma,
    LogNormal,
    Measured,
    Mixture,
    Uniform,
)

DRAWS = 20_000


@pytest.mark.parametrize(
    ("delay", "mean", "cv", "median"),
    [
        (Constant(0.3), 0.3, 0.0, 0.3),
        (Exponential(2.0), 2.0, 1.0, 2 * math.log(2)),
        (LogNormal(0.5, 0.3), 0.5, 0.3, 0.5 / math.sqrt(1.09)),  # mean / sqrt(1 + cv^2)
        (LogNormal(3.0, 1.0), 3.0, 1.0, 3 / math.sqrt(2)),
        (LogNormal(2.0, 0.0), 2.0, 0.0, 2.0),
        (Gamma(2.0, 0.5), 2.0, 0.5, 0.5 * 3.67206),  # shape 4, scale 1/2
        (Gamma(3.0, 1.0), 3.0, 1.0, 3 * math.log(2)),  # exponential
        (Gamma(1.0, 2.0), 1.0, 2.0, 4 * 0.0436737),  # shape 1/4, scale 4
        (Uniform(1.0, 3.0), 2.0, 1 / math.sqrt(12), 2.0),
        (Mixture((Constant(1.0), Constant(3.0)), (0.75, 0.25)), 1.5, 1 / math.sqrt(3), 1.0),  # variance 3/4
        (Mixture((Constant(0.0), Exponential(1.0)), (0.5, 0.5)), 0.5, math.sqrt(3), 0.0),  # E x^2 = 1
        (Mixture((Uniform(0.0, 1.0), Constant(9.0), Constant(3.0)), (0.0, 0.0, 1.0)), 3.0, 0.0, 3.0),
        (Empirical((1.0, 2.0, 6.0)), 3.0, math.sqrt(14 / 3) / 3, 2.0),
        (Exponential(0.0), 0.0, None, 0.0),
    ],
    ids=str,
)
def test_moments(delay, mean, cv, median):
    """Mean, coefficient of variation and median against theory; durations are floats, finite and not negative."""
    rng = np.random.default_rng(0)
    drawn = delay.sample(rng, DRAWS)
    assert isinstance(delay, Delay)
    assert (drawn.shape, drawn.dtype) == ((DRAWS,), float)
    assert min(drawn) >= 0
    assert max(drawn) < math.inf
    np.testing.assert_allclose(np.mean(drawn), mean, rtol=4 * (cv or 0) / math.sqrt(DRAWS) + 1e-12)
    if cv is not None:
        np.testing.assert_allclose(np.std(drawn) / np.mean(drawn), cv, rtol=0.05, atol=1e-12)
    np.testing.assert_allclose(np.median(drawn), median, rtol=0.08, atol=0.02)


def test_ranges_and_frequencies():
    """Uniform fills its interval; mixtures and measured durations come in their proportions."""
    rng = np.random.default_rng(1)
    uniform = Uniform(1.0, 3.0).sample(rng, DRAWS)
    assert 1.0 <= min(uniform) < 1.01
    assert 2.99 < max(uniform) <= 3.0
    mixture = Mixture([Constant(float(i)) for i in range(4)], [0.1, 0.2, 0.3, 0.4])
    for delay, frequencies in [(mixture, [0.1, 0.2, 0.3, 0.4]), (Empirical([0.0, 1.0, 2.0, 1.0]), [0.25, 0.5, 0.25])]:
        counts = np.bincount(delay.sample(rng, DRAWS).astype(int))
        np.testing.assert_allclose(counts / DRAWS, frequencies, atol=0.02)


def test_draws_come_from_the_given_generator():
    """Equal generators give equal durations, whatever was drawn before; delays are values."""
    for delay in (Exponential(1.0), LogNormal(1.0, 1.0), Gamma(1.0, 0.7), Uniform(0.0, 1.0), Empirical((1.0, 2.0))):
        a, b = np.random.default_rng(7), np.random.default_rng(7)
        assert delay.sample(a, 9).tolist() == delay.sample(b, 9).tolist()
    assert Gamma(1.0, 0.5) == Gamma(mean=1.0, cv=0.5)
    assert len({Constant(1.0), Constant(1.0), Exponential(1.0)}) == 2


@pytest.mark.parametrize("bad", [-1.0, -1e-9, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x: Constant(x), "Constant(seconds="),
        (lambda x: Exponential(x), "Exponential(mean="),
        (lambda x: LogNormal(x, 1.0), "LogNormal(mean="),
        (lambda x: LogNormal(1.0, x), "LogNormal(cv="),
        (lambda x: Gamma(x, 1.0), "Gamma(mean="),
        (lambda x: Gamma(1.0, x), "Gamma(cv="),
        (lambda x: Uniform(x, 1.0), "Uniform(low="),
        (lambda x: Uniform(0.0, x), "Uniform(high="),
        (lambda x: Empirical((1.0, x)), "Empirical(samples[1]="),
        (lambda x: Measured(x), "Measured(factor="),
    ],
)
def test_durations_that_are_none(make, name, bad):
    """Found when the delay is made; the class, the argument and the value are named."""
    with pytest.raises(ValueError, match="a delay is finite and not negative") as error:
        make(bad)
    assert str(error.value).startswith(f"{name}{bad})")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Empirical(()), r"Empirical\(samples\) is empty"),
        (lambda: Gamma(2.0, 0.0), r"Gamma\(cv=0\) does not vary"),
        (lambda: Uniform(2.0, 1.0), r"Uniform\(low=2.0, high=1.0\): high is below low"),
        (lambda: Mixture((), ()), "Mixture of 0 delays with 0 probabilities"),
        (lambda: Mixture((Constant(1.0),), (0.5, 0.5)), "Mixture of 1 delays with 2 probabilities"),
        (lambda: Mixture((Constant(1.0),), (0.5,)), r"Mixture\(probabilities=\(0.5,\)\) is no distribution"),
        (lambda: Mixture((Constant(1.0),) * 2, (1.5, -0.5)), r"Mixture\(probabilities=\(1.5, -0.5\)\) is no distr"),
        (lambda: Mixture((Constant(1.0),), (math.nan,)), r"Mixture\(probabilities=\(nan,\)\) is no distribution"),
    ],
)
def test_arguments_that_are_no_distribution(make, message):
    """Empty, constant where it must vary, upside down, or not summing to one."""
    with pytest.raises(ValueError, match=message):
        make()


def test_measured_durations_are_not_drawn():
    """They are known only once the body has run."""
    with pytest.raises(TypeError, match="Measured is only a compute time"):
        Measured(1.0).sample(np.random.default_rng(0), 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FunctionSpec(0.5), r"compute=0.5 is not a delay: use delays.Constant\(0.5\) or a distribution"),
        (lambda: FunctionSpec(Constant(1.0), cold_start="1"), r"cold_start='1' is not a delay: use delays.Constant\("),
        (lambda: Transfer(0.1, 1.0), "latency=0.1 is not a delay"),
        (lambda: Faults(straggler_factor=2.0), "straggler_factor=2.0 is not a delay"),
        (lambda: Faults(lifetime=3.0), "lifetime=3.0 is not a delay"),
        (lambda: Faults(notice_after=1.0), "notice_after=1.0 is not a delay"),
        (lambda: Faults(duplicate_after=1.0), "duplicate_after=1.0 is not a delay"),
        (lambda: Outages(every=1.0), "every=1.0 is not a delay"),
        (lambda: Outages(lasting=1.0), "lasting=1.0 is not a delay"),
        (lambda: Mixture((Constant(1.0), 2.0), (0.5, 0.5)), r"delays\[1\]=2.0 is not a delay"),
    ],
)
def test_what_is_not_a_delay(unchecked, make, message):
    """Is found where it is given, and not when it is first drawn."""
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("make", [lambda: Faults(lifetime=Measured()), lambda: Outages(lasting=Measured())])
def test_what_cannot_be_drawn(make):
    """Only a compute time can be measured."""
    with pytest.raises(ValueError, match=r"=Measured\(\): only a compute time"):
        make()
