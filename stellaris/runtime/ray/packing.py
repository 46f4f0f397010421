"""Values as messages to containers: bytes, with large arrays as references into Ray's object store."""

import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import ray
import ray.exceptions
from ray import cloudpickle

from stellaris.runtime.engine.pickling import refused
from stellaris.runtime.store import kept
from stellaris.types import NDArray

#: Arrays of this many bytes or more go into the object store, so that they are sent to each node once, and not at
#: every call. Ray has the same limit for arguments.
LARGE = 100 * 1024


class Kept(kept.Kept):
    """A value of the versioned store, and the reference to its copy in Ray's object store."""

    def __init__(self, value: Any, nbytes: int) -> None:
        super().__init__(value, nbytes)
        self.reference = ray.put(value)


class Packed(NamedTuple):
    """A value as a message: pickled content, small JAX arrays, and references into the object store."""

    content: bytes
    arrays: list[NDArray]  #: kept apart, so that one `device_put` moves all of them to the device.
    references: list[Any]


class Packer:
    """Packs values. A large JAX array is put into the object store once, and stays there while this process uses it."""

    def __init__(self) -> None:
        # A weak reference to each array, and its reference in the object store. The key is the array's identity,
        # because JAX arrays cannot be hashed.
        self._stored: dict[int, tuple[Any, Any]] = {}

    def pack(self, value: Any, what: str) -> Packed:
        """Packs a value.

        Args:
          value: any value that can be pickled.
          what: a name of the value, for errors.

        Raises:
          TypeError: if a part of the value cannot be pickled; the error names the part.
        """
        file = io.BytesIO()
        pickler = _Pickler(file, self.stored)
        try:
            pickler.dump(value)
        except ray.exceptions.RayError:
            raise  # for example a full object store, which is not the value's fault
        except Exception as error:
            raise refused(value, what, error, cloudpickle.dumps) from error
        return Packed(file.getvalue(), pickler.arrays, pickler.references)

    def stored(self, array: jax.Array) -> Any:
        """Puts a large array into the object store, unless it is there already; returns a reference."""
        known = self._stored.get(id(array))
        if known is not None and known[0]() is array:  # a new array may have the identity of a former array
            return known[1]
        number = id(array)
        reference = ray.put(np.asarray(array))
        self._stored[number] = weakref.ref(array, lambda _: self._stored.pop(number, None)), reference
        return reference


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Replaces JAX arrays and stored values by their indices in `arrays` and `references`."""

    def __init__(self, file: io.BytesIO, stored: Callable[[jax.Array], Any]) -> None:
        super().__init__(file, protocol=5)
        self._stored = stored
        self.arrays: list[NDArray] = []
        self.references: list[Any] = []

    def persistent_id(self, value: Any) -> tuple[str, int] | None:
        """Returns the kind of a value and its index; None for a value to be pickled."""
        if isinstance(value, Kept):
            self.references.append(value.reference)  # the container fetches it, at most once per node
            return "kept", len(self.references) - 1
        if not isinstance(value, jax.Array) or not _plain(value):
            return None
        if value.nbytes >= LARGE:
            self.references.append(self._stored(value))
            return "large", len(self.references) - 1
        self.arrays.append(np.asarray(value))
        return "array", len(self.arrays) - 1


def _plain(array: jax.Array) -> bool:
    """Returns whether an array can be sent as a NumPy array, unlike a random key or a weakly typed array."""
    return not (jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key) or array.weak_type)


class Unpacker:
    """Unpacks values, and remembers the objects that the last values fetched from the object store.

    Args:
      remembered: the objects fetched for this many of the last values are remembered. Keep the number small: an object
        that is in use here cannot be evicted from the object store.
    """

    def __init__(self, remembered: int = 4) -> None:
        self._remembered = remembered
        self._unpacked = 0  # number of values unpacked so far
        self._fetched: dict[str, tuple[int, Any]] = {}  # objects, each with the number of the last value to use it

    def unpack(self, packed: Packed) -> Any:
        """Unpacks a value."""
        self._unpacked += 1
        value = _Unpickler(packed, self.fetch).load()
        forgotten = self._unpacked - self._remembered
        self._fetched = {number: found for number, found in self._fetched.items() if found[0] > forgotten}
        return value

    def fetch(self, reference: Any, *, device: bool = False) -> Any:
        """Fetches an object from the object store; with `device`, as a JAX array."""
        number = reference.hex()
        if number in self._fetched:
            value = self._fetched[number][1]
        else:
            value = ray.get(reference)
            # A JAX array is remembered on the device, so that several calls share one copy.
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
    """Returns a pickled program.

    Raises:
      TypeError: if a part of the program cannot be pickled; the error names the part.
    """
    try:
        content: bytes = cloudpickle.dumps(program)
    except Exception as error:
        raise refused(program, what, error, cloudpickle.dumps) from error
    return content
