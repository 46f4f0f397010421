"""Windows of every pattern against a loop over steps; returns to go by hand; faults, which leave masks empty."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from stellaris.replay import Selection, Window, gather, init, insert, random_steps, return_to_go
from stellaris.replay import windows as module
from tests.replay.by_hand import window_of

CAPACITY = 4
LENGTH = 5
LENGTHS = [1, 3, 5]  # of the trajectories; the fourth row holds nothing

pytestmark = pytest.mark.usefixtures("unchecked")


def table_of(dtype, shape=()):
    """Three trajectories of random numbers, and the numbers as NumPy has them."""
    random = np.random.default_rng(0)
    columns = random.integers(1, 200, (3, LENGTH, *shape)).astype(dtype)
    table = init({"x": jax.ShapeDtypeStruct(shape, columns.dtype)}, capacity=CAPACITY, length=LENGTH)
    return insert(table, {"x": columns}, length=jnp.array(LENGTHS), version=jnp.array([7, 8, 9])), columns


def chosen(rows, faults=0):
    return Selection(jnp.asarray(rows, jnp.int32), jnp.full(len(rows), 1 / 3), jnp.int32(faults))


def assert_by_hand(batch, columns, rows, steps, windows):
    """Every number and every flag of a batch; sums are close."""
    for name, window in windows.items():
        for i, (row, step) in enumerate(zip(rows, steps, strict=True)):
            values, mask = window_of(columns[row], LENGTHS[row], step, window)
            assert batch.mask[name][i].tolist() == mask
            got = np.asarray(batch.values[name][i])
            assert (got.dtype, got.shape) == (values.dtype, values.shape)
            np.testing.assert_allclose(got, values, rtol=0 if window.return_to_go is None else 1e-6)
    assert batch.length.tolist() == [LENGTHS[row] for row in rows]
    assert batch.version.tolist() == [7 + row for row in rows]


#: Every offset from where nothing is there yet to where nothing is left, of windows of one step to the table's length.
PATTERNS = {
    f"{length} from {offset}, {pad}": Window("x", length, offset=offset, pad=pad, value=-1.0)
    for length, offset, pad in itertools.product((1, 3, LENGTH), (-6, -2, 0, 1, 5), ("head", "tail"))
}
ROWS, STEPS = zip(*((row, step) for row, n in enumerate(LENGTHS) for step in range(n)), strict=True)


RETURN_TO_GO = {
    f"{discount} from {offset}, {pad}": Window("x", 3, offset=offset, pad=pad, value=-1.0, return_to_go=discount)
    for discount, offset, pad in itertools.product((0.0, 0.9, 1.0), (-2, 1), ("head", "tail"))
}


@pytest.mark.slow
@pytest.mark.parametrize("windows", [PATTERNS, RETURN_TO_GO], ids=["steps", "returns to go"])
def test_every_pattern(windows):
    """Returns are discounted from each step to the trajectory's end, which may be far behind the window."""
    table, columns = table_of("float32")
    batch = gather(table, chosen(ROWS), windows, step=jnp.array(STEPS))
    assert_by_hand(batch, columns, ROWS, STEPS, windows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "shape", "value"),
    [("float64", (2,), 0.1), ("uint8", (4, 3), 255), ("int32", (), -3), ("bool", (2,), True), ("float32", (1, 2), 0)],
)
def test_every_dtype(dtype, shape, value):
    windows = {pad: Window("x", 3, offset=-1, pad=pad, value=value) for pad in ("head", "tail")}
    if dtype == "float64":
        windows["to go"] = Window("x", 4, value=value, return_to_go=0.9)
    with jax.enable_x64(dtype == "float64"):
        table, columns = table_of(dtype, shape)
        batch = gather(table, chosen(ROWS), windows, step=jnp.array(STEPS))
        assert_by_hand(batch, columns, ROWS, STEPS, windows)


@pytest.mark.parametrize("pad", ["head", "tail"])
def test_what_lies_far_outside_is_padding(pad):
    """Sums of a step, an offset and a length that do not fit into int32 do not wrap."""
    table, columns = table_of("float32")
    last, first = 2**31 - 1, -(2**31)
    for step, offset in [(1, last), (last, last), (last, 0), (0, first), (first, first), (last, -last), (first, last)]:
        windows = {"x": Window("x", 3, offset=offset, pad=pad, value=-1.0)}
        assert_by_hand(gather(table, chosen([0, 2]), windows, step=step), columns, [0, 2], [step] * 2, windows)


def test_small_integers_of_numpy():
    table, columns = table_of("float32")
    windows = {"x": Window("x", np.int8(3), offset=np.int8(-1)), "y": Window("x", np.uint8(3), offset=np.uint8(1))}
    assert_by_hand(gather(table, chosen([2, 0, 1]), windows, step=1), columns, [2, 0, 1], [1] * 3, windows)


def test_rows_that_the_table_lacks_are_padding():
    """As of a selection from a larger table."""
    full = insert(init({"x": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=2, length=3), {"x": jnp.ones((2, 3))})
    batch = gather(full, chosen([1, 2, -1]), {"x": Window("x", 2, value=-1.0)})
    assert batch.mask["x"].any(axis=1).tolist() == [True, False, False]
    assert batch.length.tolist() == [3, 0, 0]


def test_windows_padded_with_nan_are_equal():
    """So that each does not compile a program of its own."""
    assert Window("x", 3, value=float("nan")) == Window("x", 3, value=float("nan")) != Window("x", 3)


def test_one_step_for_all():
    table, columns = table_of("float32")
    windows = {"x": Window("x", 3, offset=-1)}
    for step in (1, np.int64(1)):
        assert_by_hand(gather(table, chosen([2, 0, 1]), windows, step=step), columns, [2, 0, 1], [1] * 3, windows)


def test_nothing_large_is_copied():
    """A window of 1 kB of a column of 4 MB, also where it has to be padded, takes less than 100 kB."""
    spec = {"x": jax.ShapeDtypeStruct((16,), jnp.float32)}
    table = jax.eval_shape(lambda: init(spec, capacity=1024, length=64))
    selection = jax.eval_shape(lambda: chosen([0, 1]))
    windows = tuple({"x": Window("x", 16, offset=-8, pad="head")}.items())
    memory = module._gather.lower(table, selection, windows, 0, None).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 100_000


@pytest.mark.parametrize("faults", [4, 8])
def test_a_selection_with_a_fault_leaves_the_mask_empty(faults):
    """All is padding: nothing of a table is taken for a batch, neither of the rows that it happens to name."""
    table, _ = table_of("float32")
    batch = gather(table, chosen(ROWS, faults), PATTERNS, step=jnp.array(STEPS))
    assert not any(mask.any() for mask in batch.mask.values())
    assert all((values == -1).all() for values in batch.values.values())
    assert batch.length.tolist() == batch.version.tolist() == [0] * len(ROWS)


@pytest.mark.slow
def test_random_steps_are_alike():
    """Chi-squared of 30,000 steps: each trajectory's own, all of its steps alike; the same key draws the same."""
    table, _ = table_of("float32")
    rows = np.repeat([0, 1, 2], 10_000)
    steps = np.asarray(random_steps(table, chosen(rows), jax.random.key(0)))
    for row, length in enumerate(LENGTHS):
        counts = np.bincount(steps[rows == row])
        assert len(counts) == length
        assert length == 1 or scipy.stats.chisquare(counts).pvalue > 1e-3
    np.testing.assert_array_equal(random_steps(table, chosen(rows), jax.random.key(0)), steps)


def test_returns_to_go_by_hand():
    """Of 1, 2, 4: 7, 6, 4 undiscounted; with 0.5: 3, 4, 4. What lies behind the end counts for nothing, even NaN."""
    values = jnp.array([[1.0, 2.0, 4.0, jnp.nan], [1.0, 2.0, 4.0, 8.0]])
    length = jnp.array([3, 1])
    assert return_to_go(values, length).tolist() == [[7, 6, 4, 0], [1, 0, 0, 0]]
    assert return_to_go(values, length, discount=0.5).tolist() == [[3, 4, 4, 0], [1, 0, 0, 0]]
    assert return_to_go(values, length, discount=0.0).tolist() == [[1, 2, 4, 0], [1, 0, 0, 0]]
    both = return_to_go(jnp.stack([values, 2 * values], axis=-1), length, discount=0.5)  # of several rewards
    assert both[0, :3].tolist() == [[3, 6], [4, 8], [4, 8]]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_returns_to_go_are_summed_in_full(dtype):
    """Five thousand rewards of 1, rounded once: a narrow sum would stand still at 256 or 2,048."""
    expected = np.arange(5000, 0, -1).astype(np.float32)
    got = return_to_go(jnp.ones((1, 5000), dtype), jnp.array([5000]))
    np.testing.assert_array_equal(got[0], jnp.asarray(expected, dtype))
    discounted = return_to_go(jnp.ones((1, 5000), dtype), jnp.array([5000]), discount=0.999)
    np.testing.assert_allclose(discounted[0, 0].astype(np.float32), 1000 * (1 - 0.999**5000), rtol=2**-8)


def test_errors_of_returns_to_go():
    with pytest.raises(TypeError, match="values has dtype int32: expected floating point"):
        return_to_go(jnp.ones((1, 3), int), jnp.array([3]))
    with pytest.raises(ValueError, match=re.escape("discount=1.5 lies outside [0, 1]")):
        return_to_go(jnp.ones((1, 3)), jnp.array([3]), discount=1.5)


def of(column, length=2, **more):
    return {"column": column, "length": length, **more}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "windows is empty"),
        (of("y"), "window 'a': column 'y' is unknown; the table has done, frame, x"),
        (of("x", 6), "window 'a': length=6 is not between 1 and the table's 5"),
        (of("x", 0), "window 'a': length=0 is not between 1 and the table's 5"),
        (of("x", 2.0), "window 'a': length has dtype float32: expected integers"),
        (of("x", pad="left"), "window 'a': pad='left', expected 'head' or 'tail'"),
        (of("x", offset=0.5), "window 'a': offset has dtype float32: expected"),
        (of("x", offset=2**31), "window 'a': offset has 2147483648: expected a"),
        (of("frame", value=256), "window 'a': value=256 does not fit into uint8"),
        (of("frame", value=-1), "window 'a': value=-1 does not fit into uint8"),
        (of("frame", value=0.5), "window 'a': value=0.5 does not fit into uint8"),
        (of("frame", value=np.nan), "window 'a': value=nan does not fit into uint8"),
        (of("frame", value=np.inf), "window 'a': value=inf does not fit into uint8"),
        (of("done", value=2), "window 'a': value=2 does not fit into bool"),
        (of("x", value=1e39), "window 'a': value=1e+39 does not fit into float32"),
        (of("frame", return_to_go=1.0), "return_to_go needs a floating-point column, and this one has dtype uint8"),
        (of("x", return_to_go=1.5), "return_to_go=1.5 lies outside [0, 1]"),
        (np.full(3, 2**32), "step has 4294967296: expected a whole number that int32"),
        (2**31, "step has 2147483648: expected a whole number that int32"),
        (np.zeros(2, int), "step has shape (2,): expected (3,)"),
        (1.5, "step has dtype float32: expected integers"),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_errors(unchecked, given, message, traced):
    """A case is a window, or a step of a valid window."""
    window, step = (given, 0) if isinstance(given, dict) else (of("x"), given)
    windows = {"a": Window(**window)} if window else {}
    spec = {"done": ((), "bool"), "frame": ((2,), "uint8"), "x": ((), "float32")}
    table = init({k: jax.ShapeDtypeStruct(*v) for k, v in spec.items()}, capacity=CAPACITY, length=LENGTH)

    def collected(table):
        return gather(table, chosen([0, 1, 2]), windows, step=step)

    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        (jax.jit(collected) if traced else collected)(table)
