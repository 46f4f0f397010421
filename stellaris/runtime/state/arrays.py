"""Arrays, and what is made of them, as nodes of a snapshot: written and read.

An array's numbers are kept beside the tree, under a name, or are in the node itself if they are few: every array beside
the tree takes half a millisecond. A node says their type, their shape, and where they belong.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.types import NDArray

#: Types of arrays by name: those that hold numbers.
DTYPES: Mapping[str, np.dtype[Any]] = {
    np.dtype(dtype).name: np.dtype(dtype)
    for dtype in (
        *(jnp.bool_, jnp.int8, jnp.int16, jnp.int32, jnp.int64, jnp.uint8, jnp.uint16, jnp.uint32, jnp.uint64),
        *(jnp.float16, jnp.float32, jnp.float64, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2),
        *(jnp.complex64, jnp.complex128),
    )
}
#: NumPy's own bit generators by name.
BIT_GENERATORS: Mapping[str, type[Any]] = {
    cls.__name__: cls
    for cls in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
#: Bytes up to which an array is in its node, in base 64.
FEW = 4096
#: The keys of an array's node.
NODES = (frozenset({"array", "dtype", "shape", "on"}), frozenset({"numbers", "dtype", "shape", "on"}))
HOST, DEVICE, WEAK = "host", "device", "device, weakly typed"


def dtype_named(name: Any) -> np.dtype[Any]:
    """The type of arrays of this name.

    Raises:
      ValueError: if it is none that holds numbers.
    """
    if not isinstance(name, str) or name not in DTYPES:
        raise ValueError(f"dtype {name!r} is none of numbers")
    return DTYPES[name]


def name_of(dtype: np.dtype[Any]) -> str:
    """The name of a type of arrays.

    Raises:
      ValueError: if it is none that holds numbers.
    """
    if DTYPES.get(dtype.name) != dtype:
        raise ValueError(f"an array of {dtype!r} cannot be saved: one of numbers can")
    return dtype.name


def written(value: Any, keep: Callable[[NDArray], str]) -> dict[str, Any]:
    """The node of an array, or of an array of random keys.

    Args:
      value: NumPy's or JAX's.
      keep: takes an array's numbers, and gives the name that they are kept under.

    Returns:
      Plain data.

    Raises:
      ValueError: if it does not hold numbers.
    """
    if not isinstance(value, jax.Array):
        return _node(value, HOST, keep)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = _node(np.asarray(jax.random.key_data(value)), DEVICE, keep)
        return {"key": str(jax.random.key_impl(value)), "data": data}
    return _node(np.asarray(value), WEAK if value.weak_type else DEVICE, keep)


def _node(array: NDArray, where: str, keep: Callable[[NDArray], str]) -> dict[str, Any]:
    node = {"dtype": name_of(array.dtype), "shape": list(array.shape), "on": where}
    if array.nbytes > FEW:
        return {"array": keep(np.asarray(array, order="C")), **node}
    return {"numbers": base64.b64encode(array.tobytes()).decode(), **node}


def read(node: Mapping[str, Any], kept: Mapping[str, NDArray]) -> Any:
    """The array that a node says.

    Args:
      node: with the keys `array` (a name) or `numbers`, `dtype`, `shape`, `on`.
      kept: arrays by name.

    Returns:
      NumPy's, to be written to, or JAX's.

    Raises:
      ValueError: if there is no such array.
    """
    array, where = _kept(node, kept), node["on"]
    if where == HOST:
        return array if array.flags.writeable else array.copy()
    if where not in (DEVICE, WEAK):
        raise ValueError(f"{where!r} is no place of an array")
    device: Any = jnp.array(array)
    if device.dtype != array.dtype:
        raise ValueError(f"its dtype is {array.dtype}, which JAX holds only with jax_enable_x64")
    if where == WEAK:
        device.aval = device.aval.update(weak_type=True)  # as JAX itself does it when it unpickles one
    return device


def read_key(node: Mapping[str, Any], kept: Mapping[str, NDArray]) -> jax.Array:
    """The random keys that a node with the keys `key` and `data` says.

    Raises:
      ValueError: if there are none.
    """
    data = node["data"]
    if type(data) is not dict or frozenset(data) not in NODES:
        raise ValueError(f"{data!r} is no array")
    key: jax.Array = jax.random.wrap_key_data(jnp.array(_kept(data, kept)), impl=node["key"])
    return key


def _kept(node: Mapping[str, Any], kept: Mapping[str, NDArray]) -> NDArray:
    dtype, shape = dtype_named(node["dtype"]), tuple(node["shape"])
    if "numbers" in node:
        content = base64.b64decode(node["numbers"], validate=True)
        return np.frombuffer(content, dtype).reshape(shape)
    name = node["array"]
    if name not in kept:
        raise ValueError(f"there is no array {name!r}")
    array = kept[name]
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"its array is of {array.dtype} and shape {array.shape}, and should be of {dtype} and {shape}")
    return array


def written_scalar(value: np.generic, plain: Callable[[float], Any]) -> dict[str, Any]:
    """The node of a number of NumPy's.

    Args:
      value: the number.
      plain: says a Python number as plain data.

    Returns:
      Plain data.

    Raises:
      ValueError: if it is no number.
    """
    name, number = name_of(value.dtype), value.item()
    numbers = (number.real, number.imag) if isinstance(number, complex) else (number,)
    return {"scalar": [plain(number) for number in numbers], "dtype": name}


def read_scalar(numbers: list[Any], dtype: Any) -> Any:
    """The number of NumPy's that was written.

    Raises:
      ValueError: if it is none.
    """
    if not all(isinstance(number, int | float) for number in numbers) or len(numbers) not in (1, 2):
        raise ValueError(f"{numbers!r} is no number")
    return dtype_named(dtype).type(numbers[0] if len(numbers) == 1 else complex(*numbers))
