"""Delays: their moments, files of them, and streams that do not depend on one another."""

import math

import numpy as np
import pytest

from stellaris.runtime import Faults, FunctionSpec, Outages, SimulatedPlatform, Transfer
from stellaris.runtime.delays import (
    Constant,
    Delay,
    Empirical,
    Exponential,
    Gamma,
    LogNormal,
    Measured,
    Mixture,
    Stream,
    Uniform,
)
from tests.runtime.helpers import drain, nothing


def durations(*, seed: int = 0, **changes) -> dict:
    """Open-loop arrivals of two functions: `{function: [(queued, cold start, computed) of each invocation]}`."""
    specs = {
        name: {"compute": Exponential(1.0), "cold_start": Exponential(1.0), "queueing": Exponential(1.0)}
        for name in "ab"
    }
    for place, delay in changes.items():
        function, purpose = place.split("_", 1)
        specs[function][purpose] = delay
    with SimulatedPlatform({name: FunctionSpec(**spec) for name, spec in specs.items()}, seed=seed) as platform:
        submitted = [platform.invoke("ab"[i % 2], nothing) for i in range(60)]
        drain(platform)
        acquired = dict(zip(*platform.trace.select("acquired")[1::-1], strict=True))
    return {
        name: [
            (acquired[i.number] - i.submitted, i.started - acquired[i.number], i.finished - i.started)
            for i in submitted
            if i.function == name
        ]
        for name in "ab"
    }


@pytest.mark.parametrize("purpose", ["compute", "cold_start", "queueing"])
@pytest.mark.parametrize(
    "delay", [Constant(0.5), Gamma(1.0, 0.3), Mixture((Exponential(1.0),) * 2, (0.5, 0.5))], ids=str
)
def test_every_distribution_has_a_stream_of_its_own(purpose, delay):
    before, after = durations(), durations(**{f"a_{purpose}": delay})
    assert after["b"] == before["b"]
    assert after["a"] != before["a"]


def test_draws_are_the_same_in_every_process():
    first = {name: calls[0] for name, calls in durations(seed=5).items()}
    np.testing.assert_allclose(first["a"], [0.28630940456771564, 0.5382696394426987, 1.6559866963609475], rtol=1e-9)
    np.testing.assert_allclose(first["b"], [0.9899695848214382, 1.3518789557214284, 0.9424255677061386], rtol=1e-9)


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
    with pytest.raises(ValueError, match="must be finite and not negative") as error:
        make(bad)
    assert str(error.value).startswith(f"{name}{bad})")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Empirical(()), r"Empirical\(samples\) is empty"),
        (lambda: Empirical((1.0,), block=0), "block=0"),
        (lambda: Gamma(2.0, 0.0), r"Gamma\(cv=0\) does not vary"),
        (lambda: Uniform(2.0, 1.0), r"Uniform\(low=2.0, high=1.0\): high is below low"),
        (lambda: Mixture((), ()), "Mixture of 0 delays with 0 probabilities"),
        (lambda: Mixture((Constant(1.0),), (0.5, 0.5)), "Mixture of 1 delays with 2 probabilities"),
        (lambda: Mixture((Constant(1.0),), (0.5,)), r"Mixture\(probabilities=\(0.5,\)\): probabilities must"),
        (lambda: Mixture((Constant(1.0),) * 2, (1.5, -0.5)), r"probabilities=\(1.5, -0.5\)\): probabilities must"),
        (lambda: Faults(lifetime=Measured()), r"=Measured\(\): only a compute time"),
        (lambda: Outages(lasting=Measured()), r"=Measured\(\): only a compute time"),
        (lambda: Transfer(latency=Measured(), bandwidth=1.0), r"latency=Measured\(\)"),
        (lambda: FunctionSpec(Constant(1.0), cold_start=Measured()), "only a compute time can be measured"),
    ],
)
def test_arguments_that_are_no_distribution(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FunctionSpec(0.5), r"compute=0.5 is not a delay: use delays.Constant\(0.5\) or a distribution"),
        (lambda: FunctionSpec(Constant(1.0), cold_start="1"), r"cold_start='1' is not a delay: use delays.Constant\("),
        (lambda: Transfer(0.1, 1.0), "latency=0.1 is not a delay"),
        (lambda: Faults(straggler_factor=2.0), "straggler_factor=2.0 is not a delay"),
        (lambda: Faults(lifetime=3.0), "lifetime=3.0 is not a delay"),
        (lambda: Outages(every=1.0), "every=1.0 is not a delay"),
        (lambda: Mixture((Constant(1.0), 2.0), (0.5, 0.5)), r"delays\[1\]=2.0 is not a delay"),
        (lambda: Measured(1.0).sample(np.random.default_rng(0), 1), "Measured cannot be drawn"),
    ],
)
def test_what_is_not_a_delay(unchecked, make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_durations_from_a_file(tmp_path):
    path = tmp_path / "measured.csv"
    path.write_text('name,"cold start, s",seconds\na,0.25,7\n"b\nc", 1e-3,x\nd,"0",\ne,0.1,9\n')
    assert Empirical.from_csv(path, "cold start, s") == Empirical((0.25, 0.001, 0.0, 0.1))
    assert Empirical.from_csv(str(path), "cold start, s").samples == (0.25, 0.001, 0.0, 0.1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", r"column='s': .*measured.csv has the columns \['a', 'b'\]"),
        ("", r"column='s': .*measured.csv has the columns None"),
        ("s\n0.5\nfast\n", r"measured.csv, line 3: s='fast' is not a duration in seconds"),
        ("a,s\n1,0.5\n2,0.5\n3,\n", r"measured.csv, line 4: s='' is not a duration in seconds"),
        ("a,s\n1,0.5\n2\n", r"measured.csv, line 3: s=None is not a duration in seconds"),
        ("s,s\n1,9\n", r"measured.csv has the column 's' twice: leave one"),
        ("a,s\n1,0,5\n", r"measured.csv, line 2: the row has 3 values: expected one for each of \['a', 's'\]"),
        ("s\n", r"measured.csv: column 's' has no durations"),
        (b"s\n0.5\n\xff\n", r"measured.csv cannot be read as CSV: "),
        ("s\n0.5\n-0.5\n", r"measured.csv, line 3: s="),
        ("s\n0.5\nnan\n", r"measured.csv, line 3: s="),
        ("s\n0.5\n" + "1" * 200_000, r"measured.csv cannot be read as CSV: "),
    ],
)
def test_files_that_have_no_durations(tmp_path, text, message):
    path = tmp_path / "measured.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        Empirical.from_csv(path, "s")


def test_streams_do_not_depend_on_one_another():
    one, two = (Stream(Exponential(1.0), 0, name) for name in ("f/compute", "g/compute"))
    alternately = [(one.draw(), two.draw()) for _ in range(300)]
    one, two = (Stream(Exponential(1.0), 0, name) for name in ("f/compute", "g/compute"))
    assert [one.draw() for _ in range(300)] == [a for a, _ in alternately]
    assert [two.draw() for _ in range(300)] == [b for _, b in alternately]
    firsts = {
        Stream(Exponential(1.0), seed, name).draw() for seed in range(3) for name in ("f/compute", "f/retry", "g/x")
    }
    assert len(firsts) == 9


@pytest.mark.parametrize(
    ("drawn", "what"),
    [
        (lambda n: np.full(n, np.nan), "nan, which is not a duration"),
        (lambda n: np.array([*[1.0] * (n - 1), -2.0]), "-2.0, which is not a duration"),
        (lambda n: np.full(n, np.inf), "inf, which is not a duration"),
        (lambda n: np.ones(n + 1), r"the shape \(257,\)"),
        (lambda n: np.ones((n, 1)), r"the shape \(256, 1\)"),
        (lambda n: 1.0, r"the shape \(\)"),
    ],
)
def test_a_broken_distribution_is_named(drawn, what):
    class Broken:
        def __repr__(self):
            return "Broken()"

        def sample(self, rng, n):
            return drawn(n)

    with pytest.raises(ValueError, match=rf"^function 'a/b': cold_start=Broken\(\) drew {what}; let sample"):
        Stream(Broken(), 0, "a/b/cold_start").draw()
    for purpose in ("compute", "cold_start", "initialisation"):
        spec = FunctionSpec(**({"compute": Constant(1.0)} | {purpose: Broken()}))
        with SimulatedPlatform({"f": spec}) as platform:
            platform.invoke("f", nothing)
            with pytest.raises(ValueError, match=f"'f': {purpose}=Broken"):
                platform.next_completion()


def test_measured_durations_come_in_runs() -> None:
    rng = np.random.default_rng(0)
    numbers = Empirical(tuple(range(10)), block=3).sample(rng, 3001)
    starts = numbers[:3000].reshape(-1, 3)
    assert (np.diff(starts, axis=1) % 10 == 1).all()
    assert np.bincount(starts[:, 0].astype(int)).tolist() == pytest.approx([100] * 10, rel=0.4)
    steps = np.diff(Empirical(tuple(range(10))).sample(rng, 3000)) % 10
    assert 200 < (steps == 1).sum() < 400


@pytest.mark.parametrize("block", [100, 300, 1000])
def test_a_stream_keeps_runs_of_measured_durations_whole(block: int) -> None:
    """Successive measurements follow one another within every run, however many the stream draws at a time."""
    stream = Stream(Empirical(tuple(map(float, range(5000))), block=block), 0, "f/compute")
    runs = np.array([stream.draw() for _ in range(6 * block)]).reshape(6, block)
    assert (np.diff(runs, axis=1) % 5000 == 1).all()
