"""The learned scheduler: its decisions, what they depend on, and its file."""

import io
import json
import math
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris._core.describe import describe, digest
from stellaris.acting.normalisation import Statistics
from stellaris.scheduling import Learned, SchedulerError, State
from stellaris.scheduling.learned import observed, policy_for

MOST = 8
KEYS = [jax.random.key(i) for i in range(20)]
BEFORE = State(4, 0.5, 20.0, 0.01, 0.5, 1.25, 2.0, budget=0.75)
finite = st.floats(allow_nan=False, allow_infinity=False)


def experienced(seed: int = 0, most: int = MOST) -> Learned:
    """With parameters that prefer some decisions, and statistics of some states."""
    fresh = Learned.untrained(most=most, seed=seed)
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda x: (x + rng.normal(0, 0.3, x.shape)).astype(x.dtype), fresh.params)
    seen = rng.normal(1.0, 3.0, (50, len(State._fields)))
    return Learned(most, params, Statistics.of(seen))


ONE = experienced()


def decisions(scheduler: Learned, *states: State) -> list[int]:
    return [scheduler.decide(states, most=scheduler.most, key=key) for key in KEYS]


def arrays(scheduler: Learned) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves((scheduler.params, scheduler.statistics))]


@settings(max_examples=60, deadline=None)
@given(
    st.builds(State, *[finite] * 8),
    st.integers(0, 2**31 - 1),
    st.sampled_from([ONE, Learned.untrained(most=MOST, seed=1)]),
)
def test_decisions_are_whole_and_possible(state: State, seed: int, scheduler: Learned) -> None:
    decided = scheduler.decide([state], most=MOST, key=jax.random.key(seed))
    assert type(decided) is int
    assert 1 <= decided <= MOST


def test_a_state_of_a_run_that_diverges() -> None:
    """What is not a number is seen as 0, what is infinite as something large: the decision is still drawn."""
    state = State(3, math.nan, -math.inf, math.inf, 1.0, 1.0, 1.0, budget=1e300)
    np.testing.assert_array_equal(observed([state]), np.array([[3, 0, -1e15, 1e15, 1, 1, 1, 1e15]], np.float32))
    assert len(set(decisions(Learned.untrained(most=MOST, seed=0), state))) > 1


def test_nothing_but_the_last_state_is_seen() -> None:
    """Neither the number of earlier states nor their values; the key decides among what is possible."""
    before = [State(k, *[float(k)] * 7) for k in range(1, 6)]
    alone = decisions(ONE, BEFORE)
    assert len(set(alone)) > 1
    in_sixth = decisions(ONE, *before, BEFORE)
    assert in_sixth != alone  # every round draws anew
    for earlier in (before[::-1], [State(*[-1e30] * 8)] * 5):
        assert decisions(ONE, *earlier, BEFORE) == in_sixth
    assert decisions(ONE, *before, before[0]) != in_sixth


def test_a_decision_holds() -> None:
    """For three rounds, whatever is seen in between, in a loaded scheduler too; then another is drawn."""
    held = replace(ONE, hold=3)
    run = [State(k, *[float(k)] * 7) for k in range(1, 7)]
    each = [decisions(held, *run[:rounds]) for rounds in range(1, 7)]
    assert each[0] == each[1] == each[2] == decisions(ONE, run[0])
    assert each[3] == each[4] == each[5] == decisions(ONE, *run[:4]) != each[0]


@pytest.mark.parametrize(("number", "missing"), [(1, ("hold", "width")), (2, ("width",))])
def test_files_of_earlier_formats(number: int, missing: tuple[str, ...], tmp_path: Path) -> None:
    """Without `hold`, every decision holds for one round; without `width`, numbers have logits of their own."""
    path = tmp_path / "old.npz"
    changed(lambda h, a: (h.update(format=number), [h.pop(name) for name in missing]), path)
    assert digest(Learned.load(path)) == digest(ONE)


def test_neighbours_share_logits() -> None:
    """By the formula, written out; with a narrow kernel each number keeps its own."""
    raw: Any = policy_for(MOST).apply(ONE.version, observed([BEFORE]))[0].logits[0]
    for width in (1e-3, 0.25, 2.0):
        own: Any = policy_for(MOST).apply(replace(ONE, width=width).version, observed([BEFORE]))[0].logits[0]
        for i in range(1, MOST + 1):
            weights = [math.exp(-((math.log(i) - math.log(j)) ** 2) / (2 * width**2)) for j in range(1, MOST + 1)]
            scale = math.sqrt(sum(weight**2 for weight in weights))
            expected = sum(weight * float(x) for weight, x in zip(weights, raw, strict=True)) / scale
            assert float(own[i - 1]) == pytest.approx(expected, abs=1e-5)
        if width < 0.01:
            np.testing.assert_allclose(own, raw, atol=1e-6)
    with pytest.raises(ValueError, match=r"width=-0\.1 is negative"):
        Learned.untrained(most=MOST, seed=0, width=-0.1)
    with pytest.raises(ValueError, match=r"seed=4294967296 is not below 2\*\*31"):
        Learned.untrained(most=MOST, seed=2**32)
    with pytest.raises(ValueError, match="a kernel needs most <= 4096"):
        Learned.untrained(most=2**12 + 1, seed=0, width=0.25)


def test_all_fields_of_the_state_are_seen() -> None:
    """Each of the eight changes how likely decisions are, and there is no ninth."""
    policy = policy_for(MOST)
    states = [BEFORE, *(BEFORE._replace(**{name: getattr(BEFORE, name) + 1.0}) for name in State._fields)]
    logits: Any = policy.apply(ONE.version, observed(states))[0].logits
    assert observed(states).shape == (9, 8)
    assert all(np.abs(changed - logits[0]).max() > 1e-3 for changed in logits[1:])


BROKEN = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), ONE.params)


def test_parameters_for_another_number_of_actors() -> None:
    with pytest.raises(ValueError, match=r"Dense_2\.bias is \(8,\) instead of \(9,\), .*: pass .* with most=9"):
        replace(ONE, most=9)
    with pytest.raises(ValueError, match=r"params is None instead of \{.*\}: pass .* with most=8"):
        replace(ONE, params=None)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ONE.decide([BEFORE], most=9, key=KEYS[0]), ValueError, "made for workloads of 8 actors, but .* has 9"),
        (
            lambda: ONE.decide([BEFORE._replace(budget=math.inf)], most=MOST, key=KEYS[0]),
            ValueError,
            r"needs a budget of cost, which is part of the state: pass Budget\(cost=",
        ),
        (lambda: Learned.untrained(most=0, seed=0), ValueError, "most=0 is below 1"),
        (lambda: Learned.untrained(most=2**16 + 1, seed=0), ValueError, "most=65537 is above 65536"),
        (lambda: Learned.untrained(most=1.5, seed=0), TypeError, r"most=1\.5 is not a whole number"),
        (
            lambda: replace(ONE, params=BROKEN),
            ValueError,
            r"params of Learned\(most=8, states=50, hold=1\) are not finite",
        ),
        (
            lambda: replace(ONE, statistics=ONE.statistics._replace(m2=np.full(8, np.nan))),
            ValueError,
            r"statistics of Learned\(most=8, states=50, hold=1\) are not finite",
        ),
    ],
)
def test_what_is_refused(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.slow
def test_its_configuration() -> None:
    """Equal parameters, one description; any other parameter, statistic or number of actors, another one."""
    assert digest(ONE) == digest(experienced())
    assert describe(ONE) == describe(experienced())
    one_weight = jax.tree.map(np.copy, ONE.params)
    jax.tree.leaves(one_weight)[-1].flat[0] += 1e-3
    others = [
        experienced(seed=1),
        replace(ONE, params=one_weight),
        replace(ONE, statistics=ONE.statistics._replace(count=np.float64(51))),
        Learned.untrained(most=MOST, seed=0),
        Learned.untrained(most=MOST + 1, seed=0),
    ]
    assert len({digest(one) for one in (ONE, *others)}) == 6
    json.dumps(describe(ONE), allow_nan=False)


def test_numbers_of_numpy_are_saved(tmp_path: Path) -> None:
    """They come back as numbers of Python."""
    replace(ONE, most=np.int64(ONE.most), hold=np.int64(7), width=np.float32(0.5)).save(tmp_path / "one.npz")
    again = Learned.load(tmp_path / "one.npz")
    assert (again.most, again.hold, again.width) == (ONE.most, 7, 0.5)
    assert {type(again.most), type(again.hold), type(again.width)} == {int, float}


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "scheduler"
    replace(ONE, hold=7, width=0.5).save(path)
    again = Learned.load(str(path))
    for one, other in zip(arrays(ONE), arrays(again), strict=True):
        assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes())
    assert (again.most, again.hold, again.width) == (MOST, 7, 0.5)
    assert digest(again) == digest(replace(ONE, hold=7, width=0.5))
    assert decisions(again, BEFORE) == decisions(replace(ONE, width=0.5), BEFORE) != decisions(ONE, BEFORE)
    assert [file.name for file in path.parent.iterdir()] == ["scheduler"]


def changed(change: Callable[[dict[str, Any], dict[str, Any]], Any], path: Path) -> None:
    """Saves a scheduler whose file's header and arrays are changed in place."""
    ONE.save(path)
    with np.load(path) as file:
        held = dict(file)
    header = json.loads(str(held.pop("header")))
    change(header, held)
    with path.open("wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **held)


#: By the change to header `h` and arrays `a`, what is said.
REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "format": (lambda h, a: h.update(format=4), "another kind: format is 4 instead of 3"),
    "widths": (lambda h, a: h.update(hidden=[64, 32]), r"another kind: hidden\[1\] is 32 instead of 64"),
    "layers": (lambda h, a: h.update(hidden=[64]), r"another kind: hidden is \[64\] instead of \[64, 64\]"),
    "state": (
        lambda h, a: h["state"].__setitem__(1, "entropy"),
        r"another kind: state\[1\] is 'entropy' instead of 'loss'",
    ),
    "more": (lambda h, a: h.update(version="x"), "another kind: version is 'x' instead of 'nothing'"),
    "no actors": (lambda h, a: h.update(most=0), "does not hold a scheduler: most=0 is below 1"),
    "shape": (lambda h, a: a.update(leaf0=a["leaf0"][:-1]), r"array 0 is float32\[63\] instead of float32\[64\]"),
    "dtype": (lambda h, a: a.update(leaf0=a["leaf0"].astype(str)), r"array 0 is <U\d+\[64\] instead of float32\[64\]"),
    "missing": (lambda h, a: a.pop("leaf3"), r"another kind: array 3 is nothing instead of float32\["),
    "too many actors": (lambda h, a: h.update(most=10**7), "does not hold a scheduler: most=10000000 is above 65536"),
    "not finite": (lambda h, a: a["leaf0"].__setitem__(3, np.nan), "does not hold a scheduler: params .* not finite"),
    "great mean": (lambda h, a: a["leaf13"].__setitem__(0, 1e300), "statistics .* not finite"),
    "count": (lambda h, a: a.update(leaf12=np.float64(np.nan)), "does not hold a scheduler: statistics .* not finite"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_files_of_other_schedulers_are_refused(what: str, tmp_path: Path) -> None:
    change, said = REFUSED[what]
    path = tmp_path / "other.npz"
    changed(change, path)
    with pytest.raises(SchedulerError, match=f"^{re.escape(str(path))} .*{said}"):
        Learned.load(path)


def test_files_that_hold_no_scheduler(tmp_path: Path) -> None:
    """Nothing, garbage, half a file, a single array, other arrays, pickled objects."""
    path = tmp_path / "scheduler.npz"
    with pytest.raises(FileNotFoundError, match=r"scheduler\.npz"):
        Learned.load(path)
    ONE.save(path)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    with np.load(path) as plain:
        np.savez_compressed(tmp_path / "packed.npz", **plain)
    assert digest(Learned.load(tmp_path / "packed.npz")) == digest(ONE)
    for content in (b"", b"garbage", whole[: len(whole) // 2], whole[:-1], bytes(damaged), b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(SchedulerError, match=r"scheduler\.npz does not hold a scheduler: ."):
            Learned.load(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(SchedulerError, match="does not hold a scheduler"):
        Learned.load(path)
    for other in ({"weights": np.zeros(3)}, {"header": np.array("[]")}, {"header": np.array({}, dtype=object)}):
        np.savez(path, **other)  # type: ignore[arg-type]
        with pytest.raises(SchedulerError, match="does not hold a scheduler"):
            Learned.load(path)


def held(file: zipfile.ZipFile, name: str, shape: tuple[int, ...], data: bytes) -> None:
    """Puts an array into a file whose header says that it has this shape, whatever its data."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    file.writestr(f"{name}.npy", header.getvalue() + data, zipfile.ZIP_DEFLATED)


def header_of(**changes: Any) -> bytes:
    """The header of a file, as `save` writes it, but for some changes."""
    content = io.BytesIO()
    header = {"format": 1, "most": MOST, "hidden": [64, 64], "state": list(State._fields)} | changes
    np.save(content, np.array(json.dumps(header)))
    return content.getvalue()


NESTED = io.BytesIO()
np.save(NESTED, np.array("[" * 12_000))
#: By what is wrong, what is written beside the header, the header, and what is said.
HOSTILE: dict[str, tuple[Callable[[zipfile.ZipFile], Any], bytes, str]] = {
    "large data": (lambda file: held(file, "leaf0", (64,), bytes(10**8)), header_of(), r"leaf0 has \d+ bytes"),
    "large shape": (lambda file: held(file, "leaf0", (10**12,), b""), header_of(), r"array 0 is float32\[10{12}\]"),
    "large header": (lambda file: None, header_of(note="x" * 10**6), r"header has \d+ bytes"),
    "large number": (lambda file: None, header_of(most=10**9), "most=1000000000 is above 65536"),
    "nested header": (lambda file: None, NESTED.getvalue(), "."),
    "not an array": (lambda file: file.writestr("leaf0.npy", b"?" * 50), header_of(), "."),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_small_file_takes_little(what: str, tmp_path: Path) -> None:
    """Whatever it claims, or would become: it is refused before that is made."""
    write, header, said = HOSTILE[what]
    path = tmp_path / "scheduler.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.npy", header, zipfile.ZIP_DEFLATED)
        write(file)
    tracemalloc.start()
    with pytest.raises(SchedulerError, match=rf"scheduler\.npz (holds|does not hold) .*{said}"):
        Learned.load(path)
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()
