"""The versioned parameter store: what is published and put there, and what references to it stand for."""

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

    It keeps the newest versions of each name, the objects that have not been dropped, and every version and object that
    a pending or running invocation holds.

    Args:
      keep: how many of the newest versions of a name stay, at least 1.
      capacity: the most bytes that it holds.
      on_stored: called with `(name, version, bytes)`; the name of an object is empty.

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
            raise ValueError(f"keep={keep} is below 1: the newest version must stay")
        if not capacity > 0:
            raise ValueError(f"capacity={capacity} is not positive: bytes, or math.inf")
        self._on_stored = on_stored
        self._owned: set[int] = set()  # objects that have not been dropped
        self._leases = Leases()
        self._versions = Versions(keep, capacity, self._leases.is_held)

    @property
    def nbytes(self) -> int:
        """Bytes that it holds now."""
        return self._versions.nbytes

    def publish(self, name: str, tree: Tree) -> int:
        """Makes `tree` the newest version of `name`.

        Args:
          name: of the value, new or known.
          tree: any tree of arrays; not to be changed afterwards.

        Returns:
          Its version: 0, 1, 2, ...

        Raises:
          StoreFullError: if it does not fit; the store is then as it was.
          TypeError: if the size of a leaf is not known.
          ValueError: if the name is the store's own.
        """
        if name in (OBJECTS, ""):
            raise ValueError(f"name={name!r} is the store's own")
        version, nbytes = self._versions.add(name, tree)
        self._on_stored(name, version, nbytes)
        return version

    def put(self, tree: Tree) -> Object:
        """Stores an object, which stays until it is dropped and no invocation holds it any more.

        Args:
          tree: any tree of arrays; not to be changed afterwards.

        Returns:
          A reference; among an invocation's arguments it stands for the value.

        Raises:
          StoreFullError: if it does not fit; the store is then as it was.
          TypeError: if the size of a leaf is not known.

        Example:
          >>> store = Store()
          >>> reference = store.put([1, 2])
          >>> store.resolve((reference,), invocation=0, function="learner")
          ([1, 2],)
        """
        number, nbytes = self._versions.add(OBJECTS, tree)
        self._leases.hold((OBJECTS, number))  # its owner does, until it is dropped
        self._owned.add(number)
        self._on_stored("", number, nbytes)
        return Object(number)

    def drop(self, reference: Object) -> None:
        """Gives an object up: it is removed as soon as no pending or running invocation holds it.

        Raises:
          LookupError: if it is not in the store, or was dropped before.
        """
        if reference.number not in self._owned:
            raise LookupError(f"{reference} is not in the store, or was dropped before")
        self._owned.discard(reference.number)
        self._versions.evict(self._leases.let_go([(OBJECTS, reference.number)]))

    def latest(self, name: str) -> Latest:
        """A reference to the newest version at the time when the body starts."""
        return Latest(name)

    def at(self, name: str, version: int) -> At:
        """A reference to one version.

        Raises:
          LookupError: if it has not been published, or is no longer kept.
        """
        version = checks.plain(version)
        self._versions.get(name, version)
        return At(name, int(version))

    def lagged(self, name: str, lag: int) -> Lagged:
        """A reference to the version `lag` versions before the newest when the body starts: staleness without delays.

        Raises:
          TypeError: if `lag` is not whole.
          ValueError: if `lag` is negative.
        """
        if lag < 0:
            raise ValueError(f"lag={lag} is negative: no version is newer than the newest")
        checks.whole(at_least=0, lag=lag)
        self._versions.keep(name, int(lag) + 1)
        return Lagged(name, int(lag))

    def held(self, name: str, *, slots: int) -> Held:
        """A reference to the versions that the running invocations of the same function work on.

        The invocation's own version comes first, then the others, newest first, up to `slots` versions in all. If there
        are fewer, the own version fills the rest, so that the length is fixed and nothing is compiled anew. Each
        version is fetched once, however often it is repeated. The invocation must also refer to `name` itself, which
        says what its own version is.

        Raises:
          TypeError: if `slots` is not whole.
          ValueError: if `slots` is below 1.
        """
        if slots < 1:
            raise ValueError(f"slots={slots} is below 1: an invocation holds its own version at least")
        checks.whole(at_least=1, slots=slots)
        return Held(name, int(slots))

    def newest(self, name: str) -> int:
        """The newest version of `name`, or -1 before the first."""
        return self._versions.newest(name)

    def value(self, name: str) -> Tree:
        """The newest version's value.

        Raises:
          LookupError: if `name` was never published.
        """
        return self._versions.get(name, self.newest(name))

    def pin(self, arguments: tuple[object, ...], *, invocation: int) -> None:
        """Keeps the fixed versions and objects among `arguments` for an invocation that has yet to start.

        Raises:
          LookupError: if one of them is no longer kept.
        """
        fixed = [_fixed(argument) for argument in arguments if isinstance(argument, At | Object)]
        for name, version in fixed:
            self._versions.get(name, version)
        if fixed:
            self._leases.pin(fixed, invocation=invocation)

    def resolve(self, arguments: tuple[object, ...], *, invocation: int, function: str) -> tuple[object, ...]:
        """Replaces references by the values that they stand for now, which the invocation holds until `release`.

        Args:
          arguments: values and references.
          invocation: number of the invocation that starts.
          function: its function's name, for `held`.

        Returns:
          The arguments, with a `Versioned` for each reference, and a tuple of them for `held`.

        Raises:
          LookupError: if a name was never published, or a version is no longer kept.
        """
        lease, pinned = self._leases.start(invocation, function)
        try:
            resolved = [self._resolved(argument, lease) for argument in arguments]
            for i, argument in enumerate(arguments):
                if isinstance(argument, Held):  # last, because the other arguments say which version is its own
                    resolved[i] = self._held(argument, lease)
        finally:
            # Last, because the pinned versions may be those that were just resolved: removed in between, they are gone.
            self._versions.evict(self._leases.let_go(pinned))
        return tuple(resolved)

    def fetched(self, invocation: int) -> int:
        """Bytes that an invocation fetched when it started: each version and object that it refers to counts once."""
        lease = self._leases.get(invocation)
        return sum(map(self._versions.size, lease.fetched)) if lease else 0

    def release(self, invocation: int) -> None:
        """Ends an invocation's hold on versions and objects."""
        self._versions.evict(self._leases.end(invocation))

    def versions(self, name: str) -> tuple[int, ...]:
        """The versions of `name` that are kept now, oldest first."""
        return self._versions.of(name)

    def _resolved(self, argument: object, lease: Lease) -> object:
        """The value that an argument stands for now, added to the lease; `Held` references stay as they are."""
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
                return max(self.newest(name), 0)
            case At(_, version):
                return version
            case Lagged(name, lag):
                return max(self.newest(name) - lag, 0)
        return None

    def _held(self, reference: Held, lease: Lease) -> tuple[Versioned, ...]:
        name = reference.name
        own = lease.works_on.get(name)
        if own is None:
            raise LookupError(f"held({name!r}) needs a reference to {name!r} beside it")
        others = sorted(self._leases.worked_on(lease.function, name) - {own}, reverse=True)
        # Not added to the lease: the values are taken now, so it does not matter if they leave the store later.
        versions = [own, *others][: reference.slots]
        lease.fetched.update((name, version) for version in versions)
        versions += [own] * (reference.slots - len(versions))
        return tuple(Versioned(version, self._versions.get(name, version)) for version in versions)


def _fixed(reference: At | Object) -> Entry:
    return (OBJECTS, reference.number) if isinstance(reference, Object) else (reference.name, reference.version)
