"""The versioned store of a cluster: values are kept in Ray's object store, and are sent to each node once."""

from typing import Any

import ray.exceptions

from stellaris.runtime.ray.packing import Kept
from stellaris.runtime.ray.session import Session
from stellaris.runtime.references import Object, size
from stellaris.runtime.store.store import Store
from stellaris.runtime.store.versions import StoreFullError
from stellaris.types import Tree


class RayStore(Store):
    """A `Store` that also keeps each of its values in Ray's object store, until this store removes the value.

    After Ray was shut down, `publish` and `put` raise a RuntimeError.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._session = Session()

    def publish(self, name: str, tree: Tree) -> int:
        self._session.check()  # checked before Ray is called, which would otherwise start itself again
        return super().publish(name, _kept(name, tree))

    def put(self, tree: Tree) -> Object:
        self._session.check()
        return super().put(_kept("object", tree))

    def value(self, name: str) -> Tree:
        # Systems ask for the value on this machine, so it need not be read from the object store.
        kept = super().value(name)
        assert isinstance(kept, Kept)
        return kept.value


def _kept(name: str, tree: Tree) -> Kept:
    """Puts a value into Ray's object store.

    Raises:
      StoreFullError: if the object store is full.
    """
    nbytes = size(tree)  # counted before `ray.put`, because a leaf of unknown size raises a TypeError
    try:
        return Kept(tree, nbytes)
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
        raise StoreFullError(f"{name!r}: its {nbytes:,} bytes do not fit into Ray's object store: {error}") from error
