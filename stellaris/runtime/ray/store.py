"""The versioned store of a cluster: values are kept in Ray's object store, and are sent to each node once."""

from typing import Any

import ray.exceptions

from stellaris.runtime.ray.packing import Kept
from stellaris.runtime.ray.session import Session
from stellaris.runtime.references import size
from stellaris.runtime.store.kept import KeptStore
from stellaris.runtime.store.versions import StoreFullError
from stellaris.types import Tree


class RayStore(KeptStore):
    """A `Store` that also keeps each of its values in Ray's object store, until this store removes the value.

    After Ray was shut down, `publish` and `put` raise a RuntimeError.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._session = Session()

    def keep(self, name: str, tree: Tree) -> Kept:
        """Puts a value into Ray's object store.

        Raises:
          RuntimeError: if Ray was shut down.
          StoreFullError: if the object store is full.
        """
        self._session.check()  # checked before Ray is called, which would otherwise start itself again
        nbytes = size(tree)  # counted before `ray.put`, because a leaf of unknown size raises a TypeError
        try:
            return Kept(tree, nbytes)
        except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
            raise StoreFullError(
                f"{name!r}: its {nbytes:,} bytes do not fit into Ray's object store: {error}"
            ) from error
