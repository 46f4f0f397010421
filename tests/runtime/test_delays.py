"""Delays: their moments, files of them, and streams that do not depend on one another."""

import math
import zlib

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
from tests.runtime.helpers import deploy, drain, nothing


def test_a_delay_that_draws_no_duration():
    """A distribution of one's own is checked when it is drawn from."""

    class Broken:
        def sample(self, rng, n):
            return np.full(n, -1.0)

    with deploy(Broken()) as platform:
        platform.invoke("f", nothing)
        with pytest.raises(ValueError, match=r"function 'f': its compute .* drew -1.0, which is not a duration"):
            platform.next_completion()


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
    """Changing one of `a` leaves b's draws as they were, to the last bit."""
    before, after = durations(), durations(**{f"a_{purpose}": delay})
    assert after["b"] == before["b"]
    assert after["a"] != before["a"]


def test_purposes_have_streams_of_their_own():
    """A function's other draws stay the same set when one of its distributions changes."""
    before = durations()["a"]
    after = durations(a_queueing=Constant(0.0), a_cold_start=Constant(0.0))["a"]
    np.testing.assert_allclose(*(sorted(computed for *_, computed in d) for d in (before, after)), rtol=1e-9)


def test_streams_differ():
    """Functions, purposes and seeds draw different numbers from equal distributions."""
    columns = [
        column for seed in (0, 1) for calls in durations(seed=seed).values() for column in zip(*calls, strict=True)
    ]
    # Cold starts are mostly zero: containers are reused. Compare what was queued and computed.
    drawn = [sorted(column) for i, column in enumerate(columns) if i % 3 != 1]
    assert len({round(column[-1], 9) for column in drawn}) == len(drawn) == 8


def test_draws_are_the_same_in_every_process():
    """Numbers of a run that was once made: seeds, names and purposes alone decide."""
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
    with pytest.raises(ValueError, match="a delay must be finite and not negative") as error:
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
        (
            lambda: Mixture((Constant(1.0),) * 2, (1.5, -0.5)),
            r"Mixture\(probabilities=\(1.5, -0.5\)\): probabilities must",
        ),
        (lambda: Mixture((Constant(1.0),), (math.nan,)), r"Mixture\(probabilities=\(nan,\)\): probabilities must"),
    ],
)
def test_arguments_that_are_no_distribution(make, message):
    """Empty, constant where it must vary, upside down, or not summing to one."""
    with pytest.raises(ValueError, match=message):
        make()


def test_measured_durations_are_not_drawn():
    """They are known only once the body has run."""
    with pytest.raises(TypeError, match="Measured cannot be drawn"):
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


def test_durations_from_a_file(tmp_path):
    """Those of the one column, in order, to the last bit; quotes, blanks and other columns do not matter."""
    path = tmp_path / "measured.csv"
    path.write_text('name,"cold start, s",seconds\na,0.25,7\n"b\nc", 1e-3,x\nd,"0",\ne,0.1,9\n')
    assert Empirical.from_csv(path, "cold start, s") == Empirical((0.25, 0.001, 0.0, 0.1))
    assert Empirical.from_csv(str(path), "cold start, s").samples == (0.25, 0.001, 0.0, 0.1)


def test_durations_from_a_file_are_drawn(tmp_path):
    """Each about as often as it is in the file."""
    path = tmp_path / "measured.csv"
    path.write_text("s\n1\n2\n2\n2\n")
    drawn = Empirical.from_csv(path, "s").sample(np.random.default_rng(0), 4000)
    assert set(drawn) == {1.0, 2.0}
    assert abs((drawn == 2.0).mean() - 0.75) < 0.03


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", r"column='s': .*measured.csv has the columns \['a', 'b'\]"),
        ("", r"column='s': .*measured.csv has the columns None"),
        ("s\n0.5\nfast\n", r"measured.csv, line 3: s='fast' is not a duration in seconds"),
        ("a,s\n1,0.5\n2,0.5\n3,\n", r"measured.csv, line 4: s='' is not a duration in seconds"),
        ("a,s\n1,0.5\n2\n", r"measured.csv, line 3: s=None is not a duration in seconds"),
        ("a,s\n1,0,5\n", r"measured.csv, line 2: the row has 3 values, but the columns are \['a', 's'\]"),
        ("s\n", r"measured.csv: Empirical\(samples\) is empty"),
        (b"s\n0.5\n\xff\n", r"measured.csv cannot be read as CSV: "),
        (b"s\xff\n0.5\n", r"measured.csv cannot be read as CSV: "),
        ("s\n0.5\n" + "1" * 200_000, r"measured.csv cannot be read as CSV: "),
    ],
)
def test_files_that_have_no_durations(tmp_path, text, message):
    """The message names the file, and says which column there is, or which line is wrong."""
    path = tmp_path / "measured.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message):
        Empirical.from_csv(path, "s")


@pytest.mark.parametrize("bad", ["-0.5", "nan", "inf"])
def test_numbers_in_a_file_that_are_no_durations(tmp_path, bad):
    """Are found when it is read, not when they are drawn; the message names the line, as for what is no number."""
    path = tmp_path / "measured.csv"
    path.write_text(f"s\n0.5\n{bad}\n")
    with pytest.raises(ValueError, match=r"measured.csv, line 3: s="):
        Empirical.from_csv(path, "s")


def test_a_file_that_is_not_there(tmp_path):
    """Is the error of the file system."""
    with pytest.raises(FileNotFoundError):
        Empirical.from_csv(tmp_path / "absent.csv", "s")


DELAYS = [
    Constant(0.3),
    Exponential(2.0),
    Uniform(1.0, 3.0),
    LogNormal(2.0, 0.5),
    Gamma(2.0, 0.5),
    Empirical((0.1, 0.2, 0.7)),
    Mixture((Constant(0.0), Exponential(1.0)), (0.5, 0.5)),
]


class Spy:
    """A distribution that says how it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def sample(self, rng, n):
        """Consecutive numbers."""
        begin = sum(self.asked)
        self.asked.append(n)
        return np.arange(begin, begin + n, dtype=float)


def test_draws_are_the_samples_in_order():
    """One after another, across the blocks in which they are drawn; and drawn in blocks they are."""
    spy = Spy()
    stream = Stream(spy, 0, "f/compute")
    assert spy.asked == []
    assert [stream.draw() for _ in range(1000)] == [float(i) for i in range(1000)]
    assert sum(spy.asked) >= 1000
    assert len(spy.asked) < 20


@pytest.mark.parametrize("delay", DELAYS)
def test_draws_are_those_of_the_distribution(delay):
    """From a generator that the seed and the name alone determine."""
    stream = Stream(delay, 7, "f/compute")
    rng = np.random.default_rng([7, zlib.crc32(b"f/compute")])
    expected = np.concatenate([delay.sample(rng, 256) for _ in range(3)])
    assert [stream.draw() for _ in range(600)] == expected[:600].tolist()


def test_streams_do_not_depend_on_one_another():
    """Drawn alternately, or one after the other: the same numbers; and different ones for other names and seeds."""
    one, two = (Stream(Exponential(1.0), 0, name) for name in ("f/compute", "g/compute"))
    alternately = [(one.draw(), two.draw()) for _ in range(300)]
    one, two = (Stream(Exponential(1.0), 0, name) for name in ("f/compute", "g/compute"))
    assert [one.draw() for _ in range(300)] == [a for a, _ in alternately]
    assert [two.draw() for _ in range(300)] == [b for _, b in alternately]
    firsts = {
        Stream(Exponential(1.0), seed, name).draw() for seed in range(3) for name in ("f/compute", "f/retry", "g/x")
    }
    assert len(firsts) == 9


def test_a_functions_draws_do_not_depend_on_other_functions():
    """Nor on how many containers there are: the durations of a's calls are the same with and without b's."""

    def durations(calls: str) -> list[float]:
        specs = {name: FunctionSpec(Exponential(1.0), Exponential(1.0), queueing=Exponential(0.1)) for name in "ab"}
        with SimulatedPlatform(specs, seed=5) as platform:
            for i, name in enumerate(calls):
                platform.invoke(name, lambda context: None, at=100.0 * i)
            done = list(iter(platform.next_completion, None))
        return [i.finished - i.started for i in done if i.function == "a"]

    assert durations("abbabba") == pytest.approx(durations("aaa"))


def run_once(platform: SimulatedPlatform) -> None:
    """One call, to its end."""
    platform.invoke("f", lambda context: None)
    platform.next_completion()


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
    """With the function, the purpose, and what it drew, the first time that it is drawn from."""

    class Broken:
        def __repr__(self):
            return "Broken()"

        def sample(self, rng, n):
            return drawn(n)

    with pytest.raises(ValueError, match=rf"^function 'a/b': its cold_start Broken\(\) drew {what}$"):
        Stream(Broken(), 0, "a/b/cold_start").draw()
    for purpose in ("compute", "cold_start", "initialisation", "queueing"):
        spec = FunctionSpec(**({"compute": Constant(1.0)} | {purpose: Broken()}))
        with SimulatedPlatform({"f": spec}) as platform, pytest.raises(ValueError, match=f"'f': its {purpose} Broken"):
            run_once(platform)


def test_measured_durations_come_in_runs() -> None:
    """Each of three that follow each other, the first after the last; one by one they do not."""
    rng = np.random.default_rng(0)
    numbers = Empirical(tuple(range(10)), block=3).sample(rng, 3001)
    starts = numbers[:3000].reshape(-1, 3)
    assert (np.diff(starts, axis=1) % 10 == 1).all()
    assert np.bincount(starts[:, 0].astype(int)).tolist() == pytest.approx([100] * 10, rel=0.4)
    steps = np.diff(Empirical(tuple(range(10))).sample(rng, 3000)) % 10
    assert 200 < (steps == 1).sum() < 400
