"""What crosses to a container: arguments as bytes, and large arrays as references into Ray's object store."""

import contextlib
import functools
import inspect
import io
import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import jax
import numpy as np
import ray
import ray.exceptions
from ray import cloudpickle

from stellaris.types import NDArray

#: Bytes from which on an array goes into the object store: so it crosses once a node, however many calls have it. It is
#: what Ray itself takes for large.
LARGE = 100 * 1024


class Kept:
    """A value of the versioned store, with its place in Ray's object store.

    Args:
      value: any tree of arrays; not to be changed.
      nbytes: of its arrays.
    """

    def __init__(self, value: Any, nbytes: int) -> None:
        self.value = value
        self.nbytes = nbytes
        self.reference = ray.put(value)


class Packed(NamedTuple):
    """A value on its way. What is in it of arrays of the device's is beside it: together they are put there at once."""

    content: bytes
    arrays: list[NDArray]
    references: list[Any]  #: into the object store.


class Packer:
    """Packs values; a large array of the device's goes into the object store once, for as long as it lives here."""

    def __init__(self) -> None:
        self._stored: dict[int, tuple[Any, Any]] = {}  # by identity: a weak reference to an array, and where it is

    def pack(self, value: Any, what: str) -> Packed:
        """A value as it crosses.

        Args:
          value: whatever can be pickled.
          what: it is, for errors.

        Raises:
          TypeError: if something in it cannot go to another process; names it.
        """
        file = io.BytesIO()
        pickler = _Pickler(file, self.stored)
        try:
            pickler.dump(value)
        except ray.exceptions.RayError:
            raise
        except Exception as error:
            raise _refused(value, what, error) from error
        return Packed(file.getvalue(), pickler.arrays, pickler.references)

    def stored(self, array: jax.Array) -> Any:
        """Where a large array is in the object store."""
        known = self._stored.get(id(array))
        if known is not None and known[0]() is array:
            return known[1]
        number = id(array)
        reference = ray.put(np.asarray(array))
        self._stored[number] = weakref.ref(array, lambda _: self._stored.pop(number, None)), reference
        return reference


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Replaces arrays of the device's, and what is in the object store, by their places among these."""

    def __init__(self, file: io.BytesIO, stored: Callable[[jax.Array], Any]) -> None:
        super().__init__(file, protocol=5)
        self._stored = stored
        self.arrays: list[NDArray] = []
        self.references: list[Any] = []

    def persistent_id(self, value: Any) -> tuple[str, int] | None:
        """Of which kind a value is, and its place among these; None for what is pickled."""
        if isinstance(value, Kept):
            self.references.append(value.reference)
            return "kept", len(self.references) - 1
        if not isinstance(value, jax.Array) or not _plain(value):
            return None
        if value.nbytes >= LARGE:
            self.references.append(self._stored(value))
            return "large", len(self.references) - 1
        self.arrays.append(np.asarray(value))
        return "array", len(self.arrays) - 1


def _plain(array: jax.Array) -> bool:
    """Whether an array is its numbers: neither a key, nor weakly typed."""
    return not (jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key) or array.weak_type)


class Unpacker:
    """Unpacks values, and remembers for a while what it has fetched from the object store.

    Not for long: what is remembered may be in the object store's memory, which is then not free for anything else.

    Args:
      remembered: of so many values, the last.
    """

    def __init__(self, remembered: int = 4) -> None:
        self._remembered = remembered
        self._unpacked = 0  # values
        self._fetched: dict[str, tuple[int, Any]] = {}  # with the number of the value that last had it

    def unpack(self, packed: Packed) -> Any:
        """The value."""
        self._unpacked += 1
        value = _Unpickler(packed, self.fetch).load()
        forgotten = self._unpacked - self._remembered
        self._fetched = {number: found for number, found in self._fetched.items() if found[0] > forgotten}
        return value

    def fetch(self, reference: Any, *, device: bool = False) -> Any:
        """What is at a place in the object store; on the device if it is an array that belongs there."""
        number = reference.hex()
        if number in self._fetched:
            value = self._fetched[number][1]
        else:
            value = ray.get(reference)
            value = jax.numpy.asarray(value) if device else value
        self._fetched[number] = self._unpacked, value
        return value


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: Packed, fetch: Callable[..., Any]) -> None:
        super().__init__(io.BytesIO(packed.content))
        self._references = packed.references
        self._arrays = jax.device_put(packed.arrays) if packed.arrays else []
        self._fetch = fetch

    def persistent_load(self, place: tuple[str, int]) -> Any:
        kind, number = place
        if kind == "array":
            return self._arrays[number]
        return self._fetch(self._references[number], device=kind == "large")


def packed_program(program: Any, what: str) -> bytes:
    """A program as bytes.

    Raises:
      TypeError: if something in it cannot go to another process; names it.
    """
    try:
        content: bytes = cloudpickle.dumps(program)
    except Exception as error:
        raise _refused(program, what, error) from error
    return content


def _refused(value: Any, what: str, error: Exception) -> TypeError:
    """An error that names what cannot be pickled, and where it is."""
    where, culprit = _culprit(value, "")
    return TypeError(
        f"{what} cannot go to another process: {where or 'it'} is {culprit!r:.100} ({error}): have the body or `init` "
        "make it in the container instead"
    )


def _culprit(value: Any, where: str, depth: int = 8) -> tuple[str, Any]:
    """The innermost part of a value that cannot be pickled, and the way that leads there."""
    for name, part in _parts(value) if depth else ():
        try:
            cloudpickle.dumps(part)
        except Exception:
            return _culprit(part, f"{where}.{name}" if where else name, depth - 1)
    return where, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value consists of, by name: of a function, what it refers to."""
    if isinstance(value, functools.partial):
        value = {"func": value.func, "args": value.args, "keywords": value.keywords}
    if inspect.ismethod(value):
        yield "self", value.__self__
    elif inspect.isfunction(value):
        yield from _variables(value)
    elif isinstance(value, Mapping):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(i), part) for i, part in enumerate(value))
    else:
        yield from getattr(value, "__dict__", {}).items()


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function refers to, as far as it is defined yet."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it has no value yet
            yield name, cell.cell_contents
    yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
