"""The versioned parameter store, and references that are resolved when a function's body starts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from stellaris.types import Tree


class Versioned(NamedTuple):
    """A value with the version under which it was published."""

    version: int
    value: Tree


@dataclass(frozen=True)
class Latest:
    """The newest version when the body starts."""

    name: str


@dataclass(frozen=True)
class At:
    """One given version."""

    name: str
    version: int


@dataclass(frozen=True)
class Lagged:
    """The version `lag` before the newest when the body starts (the first, while there are fewer)."""

    name: str
    lag: int


@dataclass(frozen=True)
class Held:
    """The versions that the running invocations of the same function hold, as a tuple of `slots`."""

    name: str
    slots: int


Reference: TypeAlias = Latest | At | Lagged | Held


@dataclass
class _Lease:
    """What one invocation holds: the first version of each name is the one it works on."""

    function: str
    versions: list[tuple[str, int]]


class Store:
    """Published versions of named values.

    It keeps the newest few of each name, and those that pending or running invocations hold.

    Args:
      keep: how many of the newest versions of a name stay, at least 1.
      on_publish: called with `(name, version)`.

    Example:
      >>> store = Store()
      >>> store.publish("policy", {"w": 1.0}), store.publish("policy", {"w": 2.0})
      (0, 1)
      >>> store.resolve((store.latest("policy"), store.lagged("policy", 1)), invocation=0, function="actor")
      (Versioned(version=1, value={'w': 2.0}), Versioned(version=0, value={'w': 1.0}))
    """

    def __init__(self, *, keep: int = 2, on_publish: Callable[[str, int], None] = lambda name, version: None) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} is below 1: the newest version must stay")
        self._default_keep = keep
        self._on_publish = on_publish
        self._keep: dict[str, int] = {}
        self._values: dict[str, dict[int, Tree]] = {}
        self._newest: dict[str, int] = {}
        self._pins: dict[tuple[str, int], int] = {}
        self._leases: dict[int, _Lease] = {}

    def publish(self, name: str, tree: Tree) -> int:
        """Makes `tree` the newest version of `name`.

        Args:
          name: of the value; new or known.
          tree: any tree of arrays; not to be changed afterwards.

        Returns:
          Its version: 0, 1, 2, ...
        """
        version = self._newest.get(name, -1) + 1
        self._newest[name] = version
        self._values.setdefault(name, {})[version] = tree
        self._evict(name)
        self._on_publish(name, version)
        return version

    def latest(self, name: str) -> Latest:
        """A reference to the version that is newest when the body starts."""
        return Latest(name)

    def at(self, name: str, version: int) -> At:
        """A reference to one version.

        Raises:
          LookupError: if it has not been published, or is kept no longer.
        """
        self._get(name, version)
        return At(name, version)

    def lagged(self, name: str, lag: int) -> Lagged:
        """A reference to the version `lag` before the newest when the body starts: imposed staleness, without delays.

        Raises:
          ValueError: if `lag` is negative.
        """
        if lag < 0:
            raise ValueError(f"lag={lag} is negative: no version is newer than the newest")
        self._keep[name] = max(self._keep.get(name, self._default_keep), lag + 1)
        return Lagged(name, lag)

    def held(self, name: str, *, slots: int) -> Held:
        """A reference to the versions that the running invocations of the same function hold.

        One's own comes first, then the others' that differ, newest first; padded with one's own up to `slots`. The
        invocation must also refer to `name` itself, which says what its own version is.

        Raises:
          ValueError: if `slots` is below 1.
        """
        if slots < 1:
            raise ValueError(f"slots={slots} is below 1: an invocation holds its own version at least")
        return Held(name, slots)

    def newest(self, name: str) -> int:
        """The newest version of `name`, or -1 before the first."""
        return self._newest.get(name, -1)

    def value(self, name: str) -> Tree:
        """The newest version's value.

        Raises:
          LookupError: if `name` was never published.
        """
        return self._get(name, self.newest(name))

    def pin(self, arguments: tuple[object, ...], *, invocation: int) -> None:
        """Keeps the fixed versions among `arguments` for an invocation that has yet to start.

        Raises:
          LookupError: if one is kept no longer.
        """
        fixed = [argument for argument in arguments if isinstance(argument, At)]
        for argument in fixed:
            self._get(argument.name, argument.version)
        lease = self._leases.setdefault(invocation, _Lease("", []))
        for argument in fixed:
            self._hold(lease, argument.name, argument.version)

    def resolve(self, arguments: tuple[object, ...], *, invocation: int, function: str) -> tuple[object, ...]:
        """Replaces references by what they stand for now; the invocation holds those versions until `release`.

        Args:
          arguments: values and references.
          invocation: number of the invocation that starts.
          function: its function's name, for `held`.

        Returns:
          The arguments, with a `Versioned` for each reference, and a tuple of them for `held`.

        Raises:
          LookupError: if a name was never published, or a version is kept no longer.
        """
        pinned, lease = self._leases.get(invocation), _Lease(function, [])
        self._leases[invocation] = lease
        resolved = list(arguments)
        try:
            for i, argument in enumerate(arguments):
                version = self._version(argument)
                if isinstance(argument, Latest | At | Lagged) and version is not None:
                    resolved[i] = Versioned(version, self._get(argument.name, version))
                    self._hold(lease, argument.name, version)
            for i, argument in enumerate(arguments):
                if isinstance(argument, Held):
                    resolved[i] = self._held(argument, lease)
        finally:
            self._let_go(pinned)
        return tuple(resolved)

    def release(self, invocation: int) -> None:
        """Lets go of what an invocation held."""
        self._let_go(self._leases.pop(invocation, None))

    def _let_go(self, lease: _Lease | None) -> None:
        for name, version in lease.versions if lease else ():
            self._pins[name, version] -= 1
            if not self._pins[name, version]:
                del self._pins[name, version]
                self._evict(name)

    def versions(self, name: str) -> tuple[int, ...]:
        """The versions of `name` that are kept now, oldest first."""
        return tuple(sorted(self._values.get(name, ())))

    def _version(self, argument: object) -> int | None:
        match argument:
            case Latest(name):
                return self._newest.get(name, 0)
            case At(_, version):
                return version
            case Lagged(name, lag):
                return max(self._newest.get(name, 0) - lag, 0)
        return None

    def _held(self, reference: Held, own: _Lease) -> tuple[Versioned, ...]:
        def working_on(lease: _Lease) -> int | None:
            return next((version for name, version in lease.versions if name == reference.name), None)

        mine = working_on(own)
        if mine is None:
            raise LookupError(f"held({reference.name!r}) needs a reference to {reference.name!r} beside it")
        alike = (working_on(lease) for lease in self._leases.values() if lease.function == own.function)
        others = sorted({version for version in alike if version is not None and version != mine}, reverse=True)
        versions = [mine, *others, *[mine] * reference.slots][: reference.slots]
        return tuple(Versioned(version, self._get(reference.name, version)) for version in versions)

    def _get(self, name: str, version: int) -> Tree:
        values = self._values.get(name)
        if values is None:
            raise LookupError(f"{name!r} was never published: the store knows {sorted(self._values)}")
        if version not in values:
            raise LookupError(f"{name!r} version {version} is not in the store, which keeps {self.versions(name)}")
        return values[version]

    def _hold(self, lease: _Lease, name: str, version: int) -> None:
        lease.versions.append((name, version))
        self._pins[name, version] = self._pins.get((name, version), 0) + 1

    def _evict(self, name: str) -> None:
        oldest = self._newest[name] - self._keep.get(name, self._default_keep)
        values = self._values[name]
        for version in [v for v in values if v <= oldest and (name, v) not in self._pins]:
            del values[version]
