"""The versioned parameter store: published versions, objects, and references to both."""

import math
from collections.abc import Callable

from stellaris._core import checks
from stellaris.runtime.references import At, Held, Lagged, Latest, Object
from stellaris.runtime.state.registry import register_part
from stellaris.runtime.store.leases import Entry, Lease, Leases
from stellaris.runtime.store.versions import OBJECTS, Versions
from stellaris.types import Tree, Versioned


@register_part("_owned", rebuilt=("_on_stored", "_leases", "_versions"))
class Store:
    """Published versions of named values, and objects.

    The store keeps the newest versions of each name, the objects that have not been dropped, and every version and
    object that a pending or running invocation holds.

    Args:
      keep: number of newest versions of each name to keep, at least 1.
      capacity: the most bytes that the store holds.
      on_stored: called with `(name, version, bytes)` of every stored value. For an object, the name is empty and the
        version is the object's number.

    Raises:
      ValueError: if an argument is out of its range.

    Example:
      >>> store = Store()
      >>> store.publish("policy", {"w": 1.0}), store.publish("policy", {"w": 2.0})
      (0, 1)
      >>> store.resolve((store.latest("policy"), store.lagged("policy", 1)), invocation=0, function="actor")
      (Versioned(version=1, value={'w': 2.0}), Versioned(version=0, value={'w': 1.0}))
    """

    def __init__(
        self,
        *,
        keep: int = 2,
        capacity: float = math.inf,
        on_stored: Callable[[str, int, int], None] = lambda name, version, nbytes: None,
    ) -> None:
        if not keep >= 1:
            raise ValueError(f"keep={keep} is below 1: the newest version must stay; give 1 or more")
        if not capacity > 0:
            raise ValueError(f"capacity={capacity} is not positive: give a number of bytes, or math.inf")
        self._on_stored = on_stored  # a callback, because the store knows neither the clock nor the trace
        self._owned: set[int] = set()  # numbers of objects that have not been dropped
        self._leases = Leases()
        self._versions = Versions(keep, capacity, self._leases.is_held)

    @property
    def nbytes(self) -> int:
        """The bytes that the store holds now."""
        return self._versions.nbytes

    def publish(self, name: str, tree: Tree) -> int:
        """Makes `tree` the newest version of `name`.

        Args:
          name: name of the value, new or known.
          tree: any tree of arrays; do not change it afterwards.

        Returns:
          The version: 0, 1, 2, ...

        Raises:
          StoreFullError: if the value does not fit; the store is then unchanged.
          TypeError: if the size of a leaf is unknown.
          ValueError: if the name is reserved.
        """
        if name in (OBJECTS, ""):  # the names of objects, here and in the trace
            raise ValueError(f"name={name!r} is reserved for objects: choose another")
        version, nbytes = self._versions.add(name, tree)
        self._on_stored(name, version, nbytes)
        return version

    def put(self, tree: Tree) -> Object:
        """Stores an object, which stays until it is dropped and no invocation holds it any more.

        Args:
          tree: any tree of arrays; do not change it afterwards.

        Returns:
          A reference to the value, to be passed as an argument of an invocation.

        Raises:
          StoreFullError: if the value does not fit; the store is then unchanged.
          TypeError: if the size of a leaf is unknown.

        Example:
          >>> store = Store()
          >>> reference = store.put([1, 2])
          >>> store.resolve((reference,), invocation=0, function="learner")
          ([1, 2],)
        """
        number, nbytes = self._versions.add(OBJECTS, tree)
        self._leases.hold((OBJECTS, number))  # for the caller, until the object is dropped
        self._owned.add(number)
        self._on_stored("", number, nbytes)
        return Object(number)

    def drop(self, reference: Object) -> None:
        """Drops an object: it is removed as soon as no pending or running invocation holds it.

        Raises:
          LookupError: if the object is not in the store, or was dropped before.
        """
        if reference.number not in self._owned:
            raise LookupError(f"{reference} is not in the store, or was dropped before: drop each object only once")
        # Only the hold that `put` took ends here, because running invocations may still hold the object.
        self._owned.discard(reference.number)
        self._versions.evict(self._leases.let_go([(OBJECTS, reference.number)]))

    def latest(self, name: str) -> Latest:
        """Returns a reference to the version that is newest when the body starts."""
        return Latest(name)

    def at(self, name: str, version: int) -> At:
        """Returns a reference to a fixed version.

        Raises:
          LookupError: if the version has not been published, or has been removed.
        """
        version = checks.plain(version)  # the version may be a NumPy integer, for example from a table
        self._versions.get(name, version)  # an unknown version raises here, and not when a call starts
        return At(name, int(version))

    def lagged(self, name: str, lag: int) -> Lagged:
        """Returns a reference to the version that is `lag` versions behind the newest when the body starts.

        Use it for a fixed staleness without simulated delays. Make it before versions are published: the store keeps
        as many versions as the lag needs from then on.

        Raises:
          LookupError: if the version has been removed already.
          TypeError: if `lag` is not an integer.
          ValueError: if `lag` is negative.
        """
        if lag < 0:
            raise ValueError(f"lag={lag} is negative: no version is newer than the newest; give 0 or more")
        checks.whole(at_least=0, lag=lag)
        self._versions.keep(name, int(lag) + 1)
        if (newest := self.newest(name)) >= 0:
            self._versions.get(name, max(newest - int(lag), 0))  # raises here, and not when a call starts
        return Lagged(name, int(lag))

    def held(self, name: str, *, slots: int) -> Held:
        """Returns a reference to the versions that the running invocations of the same function work on.

        The invocation's version comes first, then the versions of the other invocations, newest first, up to `slots` in
        all. If there are fewer versions, the invocation's version fills the rest: a fixed length avoids recompilation.
        A repeated version is fetched once. The invocation must also refer to `name` directly, by `latest` for example:
        that reference determines the invocation's version.

        Raises:
          TypeError: if `slots` is not an integer.
          ValueError: if `slots` is below 1.
        """
        if slots < 1:
            raise ValueError(f"slots={slots} is below 1: the invocation's version needs a slot, so give 1 or more")
        checks.whole(at_least=1, slots=slots)
        return Held(name, int(slots))

    def newest(self, name: str) -> int:
        """Returns the number of the newest version of `name`; -1 before the first."""
        return self._versions.newest(name)

    def value(self, name: str) -> Tree:
        """Returns the value of the newest version of `name`.

        Raises:
          LookupError: if `name` was never published.
        """
        return self._versions.get(name, self.newest(name))

    def pin(self, arguments: tuple[object, ...], *, invocation: int) -> None:
        """Holds the fixed versions and objects among `arguments` for an invocation that has not started.

        Raises:
          LookupError: if a version or object has been removed.
        """
        fixed = [_fixed(argument) for argument in arguments if isinstance(argument, At | Object)]
        # All entries are checked before any is held, so that a missing entry leaves the store unchanged.
        for name, version in fixed:
            self._versions.get(name, version)
        if fixed:
            self._leases.pin(fixed, invocation=invocation)

    def resolve(self, arguments: tuple[object, ...], *, invocation: int, function: str) -> tuple[object, ...]:
        """Replaces references by their current values, which the invocation holds until `release`.

        Args:
          arguments: values and references.
          invocation: number of the starting invocation.
          function: name of the invocation's function, for `held`.

        Returns:
          The arguments. A reference to a version becomes a `Versioned`. A `held` reference becomes a tuple of these. A
          reference to an object becomes the object's value.

        Raises:
          LookupError: if a name was never published, or a version has been removed.
        """
        lease, pinned = self._leases.start(invocation, function)
        try:
            resolved = [self._resolved(argument, lease) for argument in arguments]
            for i, argument in enumerate(arguments):
                if isinstance(argument, Held):  # after the other arguments, which determine the invocation's version
                    resolved[i] = self._held(argument, lease)
        finally:
            # The pins end last, because a pinned version may also be resolved, and must not be removed too early.
            self._versions.evict(self._leases.let_go(pinned))
        return tuple(resolved)

    def plain(self, resolved: tuple[object, ...]) -> tuple[object, ...]:
        """Returns the arguments from `resolve` as a body gets them; a store that wraps its values unwraps them."""
        return resolved

    def fetched(self, invocation: int) -> int:
        """Returns the bytes that an invocation fetched when it started, counting each version and object once."""
        lease = self._leases.get(invocation)
        return sum(map(self._versions.size, lease.fetched)) if lease else 0

    def release(self, invocation: int) -> None:
        """Ends an invocation's hold on versions and objects."""
        self._versions.evict(self._leases.end(invocation))

    def versions(self, name: str) -> tuple[int, ...]:
        """Returns the versions of `name` that are kept now, oldest first."""
        return self._versions.of(name)

    def _resolved(self, argument: object, lease: Lease) -> object:
        """Resolves an argument and adds it to the lease; leaves values and `Held` references as they are."""
        if isinstance(argument, Object):
            value = self._versions.get(OBJECTS, argument.number)
            self._leases.fetch(lease, (OBJECTS, argument.number))
            return value
        version = self._version(argument)
        if isinstance(argument, Latest | At | Lagged) and version is not None:
            versioned = Versioned(version, self._versions.get(argument.name, version))
            self._leases.fetch(lease, (argument.name, version))
            self._leases.work_on(lease, argument.name, version)
            return versioned
        return argument

    def _version(self, argument: object) -> int | None:
        match argument:
            case Latest(name):
                return max(self.newest(name), 0)  # for a name without versions, `get` raises an error with the name
            case At(_, version):
                return version
            case Lagged(name, lag):
                return max(self.newest(name) - lag, 0)
        return None

    def _held(self, reference: Held, lease: Lease) -> tuple[Versioned, ...]:
        name = reference.name
        own = lease.works_on.get(name)
        if own is None:
            raise LookupError(f"held({name!r}): pass a reference to {name!r} as well, such as latest({name!r})")
        others = sorted(self._leases.worked_on(lease.function, name) - {own}, reverse=True)
        # These versions are not added to the lease: their values are taken now, so the store may remove them later.
        versions = [own, *others][: reference.slots]
        # The versions count as fetched, so that their transfer takes time.
        lease.fetched.update((name, version) for version in versions)
        versions += [own] * (reference.slots - len(versions))
        return tuple(Versioned(version, self._versions.get(name, version)) for version in versions)


def _fixed(reference: At | Object) -> Entry:
    return (OBJECTS, reference.number) if isinstance(reference, Object) else (reference.name, reference.version)
