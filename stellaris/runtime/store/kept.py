"""The base class of the stores of clusters, which keep each value in a form that can be sent."""

from abc import abstractmethod
from typing import Any

from stellaris.runtime.references import Object
from stellaris.runtime.store.store import Store
from stellaris.types import Tree, Versioned


class Kept:
    """A value of a store, as invocations refer to it; a subclass adds what is sent to containers.

    Args:
      value: any tree of arrays; do not change it afterwards.
      nbytes: bytes of its arrays.
    """

    def __init__(self, value: Any, nbytes: int) -> None:
        self.value = value
        self.nbytes = nbytes  # the attribute that `references.size` reads


class KeptStore(Store):
    """A `Store` that wraps each of its values; bodies get the wrappers, and `value` returns the values."""

    @abstractmethod
    def keep(self, name: str, tree: Tree) -> Kept:
        """Wraps a value.

        Args:
          name: the name under which it is published, or `"object"`; for errors.
          tree: the value.
        """

    def publish(self, name: str, tree: Tree) -> int:
        return super().publish(name, self.keep(name, tree))

    def put(self, tree: Tree) -> Object:
        return super().put(self.keep("object", tree))

    def value(self, name: str) -> Tree:
        # Systems ask for the value in this process, so it need not be fetched from anywhere.
        kept = super().value(name)
        assert isinstance(kept, Kept)
        return kept.value

    def plain(self, resolved: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(map(_unwrapped, resolved))


def _unwrapped(argument: object) -> object:
    """Returns an argument with the values of the store's wrappers: an object, a version, or a tuple of versions."""
    match argument:
        case Kept():
            return argument.value
        case Versioned(version, Kept() as kept):
            return Versioned(version, kept.value)
        case (Versioned(), *_):
            return tuple(map(_unwrapped, argument))
    return argument
