"""What crosses to a container: arguments as bytes, and large arrays as references into Ray's object store."""

import functools
import inspect
import io
import pickle
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import ray
from ray import cloudpickle

#: Bytes from which on an array goes into the object store: so it crosses once a node, however many calls have it. It is
#: what Ray itself takes for large.
LARGE = 100 * 1024
#: Values from the object store that a container remembers: policies that it acts with, and the batch it learns from.
_REMEMBERED = 64


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
    """Arguments on their way."""

    content: bytes
    references: list[Any]  #: into the object store.


class Packer:
    """Packs arguments; a large array goes into the object store once, for as long as it lives here."""

    def __init__(self) -> None:
        self._stored: dict[int, tuple[Any, Any]] = {}  # by identity: a weak reference to an array, and where it is

    def pack(self, arguments: tuple[Any, ...], what: str) -> Packed | None:
        """Arguments as they cross; None if there are none.

        Args:
          arguments: resolved ones.
          what: they are, for errors.

        Raises:
          TypeError: if something among them cannot go to another process; names it.
        """
        if not arguments:
            return None
        file = io.BytesIO()
        pickler = _Pickler(file, self)
        try:
            pickler.dump(arguments)
        except Exception as error:
            raise _refused(arguments, what, error) from error
        return Packed(file.getvalue(), pickler.references)

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
    """Replaces what is in the object store by its place among `references`."""

    def __init__(self, file: io.BytesIO, packer: Packer) -> None:
        super().__init__(file, protocol=5)
        self._packer = packer
        self.references: list[Any] = []

    def persistent_id(self, value: Any) -> tuple[int, bool] | None:
        """Where a value is, and whether it is an array of the device's; None for what is packed."""
        if isinstance(value, Kept):
            self.references.append(value.reference)
            return len(self.references) - 1, False
        if isinstance(value, jax.Array) and _is_large(value):
            self.references.append(self._packer.stored(value))
            return len(self.references) - 1, True
        return None


def _is_large(array: jax.Array) -> bool:
    return array.nbytes >= LARGE and not jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)


class Unpacker:
    """Unpacks arguments, and remembers what it has fetched from the object store."""

    def __init__(self) -> None:
        self._fetched: OrderedDict[str, Any] = OrderedDict()

    def unpack(self, packed: Packed | None) -> tuple[Any, ...]:
        """The arguments."""
        if packed is None:
            return ()
        arguments: tuple[Any, ...] = _Unpickler(packed, self).load()
        return arguments

    def fetch(self, reference: Any, *, device: bool = False) -> Any:
        """What is at a place in the object store; on the device if it is an array that belongs there."""
        number = reference.hex()
        if number in self._fetched:
            self._fetched.move_to_end(number)
            return self._fetched[number]
        value = ray.get(reference)
        self._fetched[number] = jax.numpy.asarray(value) if device else value
        if len(self._fetched) > _REMEMBERED:
            self._fetched.popitem(last=False)
        return self._fetched[number]


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: Packed, unpacker: Unpacker) -> None:
        super().__init__(io.BytesIO(packed.content))
        self._references: Sequence[Any] = packed.references
        self._unpacker = unpacker

    def persistent_load(self, place: tuple[int, bool]) -> Any:
        number, device = place
        return self._unpacker.fetch(self._references[number], device=device)


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
        variables = inspect.getclosurevars(value)
        yield from (*variables.nonlocals.items(), *variables.globals.items())
    elif isinstance(value, Mapping):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(i), part) for i, part in enumerate(value))
    else:
        yield from getattr(value, "__dict__", {}).items()
