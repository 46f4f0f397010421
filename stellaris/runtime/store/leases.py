"""Leases: the versions and objects that invocations hold, and that the store keeps until the invocations end."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from stellaris.runtime.state.registry import register_part, register_value

#: A name and a version of it; for an object, `versions.OBJECTS` and the object's number.
Entry: TypeAlias = tuple[str, int]


@register_value
@dataclass
class Lease:
    """The entries that one invocation holds."""

    function: str  #: name of the invocation's function; empty until the invocation starts.
    entries: list[Entry] = field(
        default_factory=list
    )  #: with repetitions: an entry that is held twice has two holders.
    works_on: dict[str, int] = field(default_factory=dict)  #: by name, the version that the invocation refers to first.
    fetched: set[Entry] = field(default_factory=set)  #: a set, because each entry is fetched once.


@register_part("_holders", "_leases", "_worked_on")
class Leases:
    """The leases of pending and running invocations, and the number of holders of each entry.

    Example:
      >>> leases = Leases()
      >>> leases.pin([("policy", 3)], invocation=0)
      >>> leases.is_held(("policy", 3)), leases.end(0), leases.is_held(("policy", 3))
      (True, [('policy', 3)], False)
    """

    def __init__(self) -> None:
        self._holders: dict[Entry, int] = {}
        self._leases: dict[int, Lease] = {}  # by invocation
        # The versions that running invocations work on, by function and name. They are counted, because several
        # invocations may work on the same version.
        self._worked_on: dict[tuple[str, str], Counter[int]] = {}

    def get(self, invocation: int) -> Lease | None:
        """Returns an invocation's lease; None if it holds nothing."""
        return self._leases.get(invocation)

    def is_held(self, entry: Entry) -> bool:
        """Returns whether an entry has a holder."""
        return entry in self._holders

    def hold(self, entry: Entry) -> None:
        """Adds a holder of an entry."""
        self._holders[entry] = self._holders.get(entry, 0) + 1

    def let_go(self, entries: Iterable[Entry]) -> list[Entry]:
        """Removes one holder of each entry; returns the entries that nobody holds any more."""
        freed = []
        for entry in entries:
            self._holders[entry] -= 1
            if not self._holders[entry]:
                del self._holders[entry]
                freed.append(entry)
        return freed

    def pin(self, entries: Iterable[Entry], *, invocation: int) -> None:
        """Holds entries for an invocation that has not started."""
        lease = self._leases.setdefault(invocation, Lease(""))
        for entry in entries:
            self._take(lease, entry)

    def start(self, invocation: int, function: str) -> tuple[Lease, list[Entry]]:
        """Begins the lease of an invocation that starts.

        Returns:
          The lease, and the entries pinned for the invocation. Let go of the pinned entries only after the arguments
          are resolved: the arguments may be the same entries, and would otherwise be removed too early.
        """
        pinned = self._leases.get(invocation)
        lease = self._leases[invocation] = Lease(function)
        return lease, [] if pinned is None else pinned.entries

    def fetch(self, lease: Lease, entry: Entry) -> None:
        """Records that a starting invocation fetches an entry, and holds the entry until the invocation ends."""
        lease.fetched.add(entry)
        self._take(lease, entry)

    def work_on(self, lease: Lease, name: str, version: int) -> None:
        """Records the version of a name that an invocation works on."""
        # Only the first reference to a name is recorded: a later one may be a lagged or fixed version, for comparison.
        if name not in lease.works_on:
            lease.works_on[name] = version
            self._worked_on.setdefault((lease.function, name), Counter())[version] += 1

    def worked_on(self, function: str, name: str) -> set[int]:
        """Returns the versions of a name that running invocations of a function work on."""
        return set(self._worked_on.get((function, name), ()))

    def end(self, invocation: int) -> list[Entry]:
        """Ends an invocation's lease; returns the entries that nobody holds any more."""
        lease = self._leases.pop(invocation, None)
        if lease is None:
            return []
        for name, version in lease.works_on.items():
            versions = self._worked_on[lease.function, name]
            versions[version] -= 1
            if not versions[version]:
                # `worked_on` lists the keys, so a version with a count of 0 is removed.
                del versions[version]
        return self.let_go(lease.entries)

    def _take(self, lease: Lease, entry: Entry) -> None:
        lease.entries.append(entry)
        self.hold(entry)
