"""Arrays as nodes of a snapshot: what is written, what is read again, and what is refused."""

import base64
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.runtime.state import arrays
from stellaris.runtime.state.arrays import DEVICE, DTYPES, FEW, HOST, WEAK
from stellaris.types import NDArray


class Kept(dict[str, NDArray]):
    """Where larger arrays are kept, under numbers."""

    def __call__(self, array: NDArray) -> str:
        self[str(len(self))] = array
        return str(len(self) - 1)


def again(value: Any, *, kept: Kept | None = None) -> Any:
    """What comes back, through JSON."""
    kept = Kept() if kept is None else kept
    node = json.loads(json.dumps(arrays.written(value, kept)))
    return arrays.read_key(node, kept) if "key" in node else arrays.read(node, kept)


def test_a_node_by_hand() -> None:
    """Little-endian numbers in base 64, their type and shape, and that NumPy holds them."""
    node = arrays.written(np.array([[1, 256]], np.int16), Kept())
    assert node == {"numbers": "AQAAAQ==", "dtype": "int16", "shape": [1, 2], "on": HOST}
    assert frozenset(node) in arrays.NODES


@pytest.mark.parametrize("more", [0, 1])
def test_up_to_so_many_bytes_are_in_the_node(more: int) -> None:
    """One more and they are kept, contiguous, under the name that was given."""
    kept = Kept()
    array = np.arange(FEW + more, dtype=np.uint8)[::-1]
    node = arrays.written(array, kept)
    assert ("array" in node, len(kept)) == (bool(more), more)
    assert frozenset(node) in arrays.NODES
    if more:
        assert (node["array"], kept["0"].flags.c_contiguous) == ("0", True)
    np.testing.assert_array_equal(arrays.read(node, kept), array)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 2), (2, FEW)])
def test_round_trip(name: str, shape: tuple[int, ...]) -> None:
    """Of every type, to the last bit, on the host and on the device."""
    array = np.random.default_rng(0).integers(0, 2, shape).astype(DTYPES[name])
    with jax.enable_x64(True):
        for value in (array, jnp.asarray(array)):
            loaded = again(value)
            assert isinstance(loaded, np.ndarray) == isinstance(value, np.ndarray)
            assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)
            assert np.asarray(loaded).tobytes() == array.tobytes()


def test_what_is_read_may_be_written_to() -> None:
    """Whether it was in the node or kept; one that is kept read-only is copied."""
    kept = Kept()
    for array in (np.zeros(3), np.zeros(FEW)):
        again(array, kept=kept)[0] = 1.0
    fixed = np.zeros(FEW)
    fixed.flags.writeable = False
    node = arrays.written(fixed, kept)
    kept[node["array"]] = fixed
    loaded = arrays.read(node, kept)
    loaded[0] = 1.0
    assert fixed[0] == 0.0


def test_places() -> None:
    """The host, the device, and weakly typed ones, which do not decide on the type of a result."""
    weak, strong = jnp.asarray(2.0), jnp.asarray(2.0, jnp.float32)
    for value, where in ((np.zeros(1), HOST), (strong, DEVICE), (weak, WEAK)):
        assert arrays.written(value, Kept())["on"] == where
    assert again(weak).weak_type
    assert not again(strong).weak_type


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_keys(impl: str) -> None:
    """They draw what they would have drawn."""
    keys = jax.random.split(jax.random.key(3, impl=impl), 2)
    loaded = again(keys)
    assert (loaded.shape, loaded.dtype) == (keys.shape, keys.dtype)
    np.testing.assert_array_equal(jax.random.bits(loaded[1]), jax.random.bits(keys[1]))


@pytest.mark.parametrize(
    "value", [np.float32(1.1), np.int8(-3), np.bool_(True), np.complex64(1 - 2j), np.float64(-0.0)]
)
def test_scalars(value: np.generic) -> None:
    """Of their type, by their numbers: a real part and an imaginary one."""
    node = arrays.written_scalar(value, float)
    assert len(node["scalar"]) == (2 if np.iscomplexobj(value) else 1)
    loaded = arrays.read_scalar(node["scalar"], node["dtype"])
    assert (type(loaded), loaded.tobytes()) == (type(value), value.tobytes())


def test_bit_generators_are_numpys() -> None:
    """Each under its own name."""
    for name, made in arrays.BIT_GENERATORS.items():
        assert made(0).state["bit_generator"] == name


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.array(["text"]),
        np.array([print]),
        np.array([(1, 2.0)], "i4,f8"),
        np.arange(3.0).astype(">f8"),
        np.array(["2026-01-01"], "M8[D]"),
    ],
    ids=lambda array: str(array.dtype),
)
def test_what_holds_no_numbers_is_not_written(array: NDArray) -> None:
    """Text, objects, records, dates, and numbers of another byte order."""
    kept = Kept()
    with pytest.raises(ValueError, match="cannot be saved: one of numbers can"):
        arrays.written(array, kept)
    assert not kept


@pytest.mark.parametrize("name", ["object", "O", "<U4", "f4", ">f8", "M8[D]", None, 3, ["float32"]])
def test_what_is_no_type_of_numbers_is_not_read(name: Any) -> None:
    """Only the names that are written, so that nothing is ever unpickled."""
    with pytest.raises(ValueError, match="is none of numbers"):
        arrays.dtype_named(name)


SOUND = {"numbers": base64.b64encode(bytes(8)).decode(), "dtype": "float32", "shape": [2], "on": HOST}
LARGE = {"array": "x", "dtype": "float32", "shape": [2], "on": HOST}


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (SOUND | {"numbers": "AAAA"}, "buffer size must be a multiple"),
        (SOUND | {"numbers": "no base 64"}, "base64"),
        (SOUND | {"shape": [3]}, "cannot reshape"),
        (SOUND | {"on": "disk"}, "'disk' is no place of an array"),
        (SOUND | {"dtype": "O"}, "dtype 'O' is none of numbers"),
        (SOUND | {"dtype": "float64", "shape": [1], "on": DEVICE}, "which JAX holds only with jax_enable_x64"),
        (LARGE | {"array": "y"}, "there is no array 'y'"),
        (LARGE | {"shape": [1, 2]}, r"of float32 and shape \(2,\), and should be of float32 and \(1, 2\)"),
        (LARGE | {"dtype": "int32"}, r"of float32 and shape \(2,\), and should be of int32 and \(2,\)"),
    ],
)
def test_a_node_that_makes_no_sense(node: dict[str, Any], message: str) -> None:
    """It says what does not fit; the sound ones do."""
    kept = {"x": np.zeros(2, np.float32)}
    for sound in (SOUND, LARGE):
        np.testing.assert_array_equal(arrays.read(sound, kept), np.zeros(2))
    with pytest.raises(ValueError, match=message):
        arrays.read(node, kept)


@pytest.mark.parametrize("data", [3, {}, {"numbers": ""}, [SOUND], SOUND | {"more": 1}])
def test_keys_of_what_is_no_array(data: Any) -> None:
    """Refused before JAX sees it."""
    with pytest.raises(ValueError, match="is no array"):
        arrays.read_key({"key": "threefry2x32", "data": data}, {})


@pytest.mark.parametrize("numbers", [[], [1, 2, 3], ["1"], [None]])
def test_scalars_that_are_none(numbers: list[Any]) -> None:
    """One number, or two for a complex one."""
    with pytest.raises(ValueError, match="is no number"):
        arrays.read_scalar(numbers, "float32")
