"""Durations from files, and the streams that they are drawn in."""

import zlib

import numpy as np
import pytest

from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant, Empirical, Exponential, Gamma, LogNormal, Mixture, Stream, Uniform

# ---- files ----------------------------------------------------------------------------------------------------------


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
        ("s\n0.5\nfast\n", r"measured.csv, line 3: s='fast' is no duration in seconds"),
        ("a,s\n1,0.5\n2,0.5\n3,\n", r"measured.csv, line 4: s='' is no duration in seconds"),
        ("a,s\n1,0.5\n2\n", r"measured.csv, line 3: s=None is no duration in seconds"),
        ("s\n", r"Empirical\(samples\) is empty"),
    ],
)
def test_files_that_have_no_durations(tmp_path, text, message):
    """The message says which column there is, or which line is wrong."""
    path = tmp_path / "measured.csv"
    path.write_text(text)
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


# ---- streams --------------------------------------------------------------------------------------------------------

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
        (lambda n: np.full(n, np.nan), "nan, which is no duration"),
        (lambda n: np.array([*[1.0] * (n - 1), -2.0]), "-2.0, which is no duration"),
        (lambda n: np.full(n, np.inf), "inf, which is no duration"),
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
