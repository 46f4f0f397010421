"""The values that a store keeps: numbered versions by name, within a capacity."""

from collections.abc import Callable, Iterable

from stellaris.runtime.references import size
from stellaris.runtime.state.registry import register_part, register_value
from stellaris.runtime.store.leases import Entry
from stellaris.types import Tree

#: The name under which objects are kept: each object is a version of this name, so that limits and leases apply to it.
OBJECTS = "(objects)"


@register_value
class StoreFullError(RuntimeError):
    """Raised for a value that does not fit into the store's capacity."""


@register_part("_keep", "_values", "_sizes", "_newest", "nbytes", rebuilt=("_default_keep", "_capacity", "_is_held"))
class Versions:
    """The values of a store by name and version: the newest versions of each name, and every version that is held.

    Args:
      keep: number of newest versions of each name to keep.
      capacity: the most bytes of all values together.
      is_held: tells whether an entry has a holder.

    Example:
      >>> versions = Versions(1, capacity=100, is_held=lambda entry: False)
      >>> versions.add("policy", [1.0, 2.0]), versions.add("policy", [3.0, 4.0]), versions.of("policy")
      ((0, 16), (1, 16), (1,))
    """

    def __init__(self, keep: int, capacity: float, is_held: Callable[[Entry], bool]) -> None:
        self._default_keep = keep
        self._capacity = capacity
        self._is_held = is_held
        # The number of newest versions to keep, for names whose number differs from the default. For objects the number
        # is 0, because an object stays only while it is held.
        self._keep: dict[str, int] = {OBJECTS: 0}
        self._values: dict[str, dict[int, Tree]] = {}
        self._sizes: dict[Entry, int] = {}  # bytes of each value, because counting a large tree takes time
        self._newest: dict[str, int] = {}
        self.nbytes = 0  #: bytes of all values.

    def newest(self, name: str) -> int:
        """Returns the number of the newest version of `name`; -1 before the first."""
        return self._newest.get(name, -1)

    def of(self, name: str) -> tuple[int, ...]:
        """Returns the versions of `name` that are kept now, oldest first."""
        return tuple(sorted(self._values.get(name, ())))

    def size(self, entry: Entry) -> int:
        """Returns the bytes of a version that is kept."""
        return self._sizes[entry]

    def get(self, name: str, version: int) -> Tree:
        """Returns the value of a version.

        Raises:
          LookupError: if `name` was never published, or the version is not kept.
        """
        values = self._values.get(name)
        if values is None:
            known = sorted(self._values.keys() - {OBJECTS})
            raise LookupError(f"{name!r} was never published: the store knows {known}; publish a version of it first")
        if version not in values:
            raise LookupError(f"{name!r} version {version} is not in the store, which keeps {self.of(name)}")
        return values[version]

    def keep(self, name: str, count: int) -> None:
        """Keeps at least `count` of the newest versions of `name` from now on."""
        # The number never shrinks, because earlier references may have a larger lag.
        self._keep[name] = max(self._keep.get(name, self._default_keep), count)

    def add(self, name: str, tree: Tree) -> tuple[int, int]:
        """Adds the next version of `name`, and removes versions that are no longer needed.

        Returns:
          The number of the version, and its bytes.

        Raises:
          StoreFullError: if the version does not fit.
          TypeError: if the size of a leaf is unknown.
        """
        # Everything is checked before anything changes, so that an error leaves the store unchanged.
        version = self.newest(name) + 1
        nbytes = size(tree)
        unneeded = self._unneeded(name, newest=version)
        after = self.nbytes + nbytes - sum(self._sizes[name, old] for old in unneeded)
        if after > self._capacity:
            kept = {name: sorted(values) for name, values in self._values.items() if values}
            raise StoreFullError(
                f"{name!r} version {version}: its {nbytes:,} bytes do not fit into capacity={self._capacity:,}: the "
                f"store holds {self.nbytes:,} bytes in the versions {kept}, which are new or held by invocations; "
                "raise the capacity"
            )
        self._newest[name] = version
        self._values.setdefault(name, {})[version] = tree
        self._sizes[name, version] = nbytes
        self.nbytes += nbytes
        self._remove(name, unneeded)
        return version, nbytes

    def evict(self, freed: Iterable[Entry]) -> None:
        """Removes versions that are no longer needed, for each name among the `freed` entries."""
        # Each name is visited once, because all versions of a name are checked together.
        for name in dict.fromkeys(name for name, _ in freed):
            self._remove(name, self._unneeded(name, newest=self._newest[name]))

    def _unneeded(self, name: str, *, newest: int) -> list[int]:
        # A held version is needed, even an old one: an invocation that waits or runs refers to it.
        oldest = newest - self._keep.get(name, self._default_keep)
        return [v for v in self._values.get(name, ()) if v <= oldest and not self._is_held((name, v))]

    def _remove(self, name: str, versions: list[int]) -> None:
        for version in versions:
            del self._values[name][version]
            self.nbytes -= self._sizes.pop((name, version))
