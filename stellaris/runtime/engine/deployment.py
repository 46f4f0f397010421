"""The configuration of a platform: functions, nodes, limits and faults, as a value that no run changes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stellaris._core import checks
from stellaris._core.describe import digest
from stellaris.runtime.engine.faults import Faults, StoreFaults
from stellaris.runtime.engine.placement import Placement
from stellaris.runtime.functions import FunctionSpec
from stellaris.runtime.resources import Node


@dataclass(frozen=True)
class Deployment:
    """The configuration of a platform, to compare and to record. `SimulatedPlatform` documents the fields.

    Raises:
      LookupError: if there are faults for a function that is not deployed.
      TypeError: if `functions` or `faults` is not a mapping with such values, `nodes` is not a sequence of `Node`s,
        `store_faults` is not a `StoreFaults`, or a limit is not a number or not whole.
      ValueError: if an argument is out of its range.

    Example:
      >>> from stellaris.runtime.delays import Constant
      >>> one, other = (Deployment({"f": FunctionSpec(Constant(1.0))}, keep_versions=n) for n in (2, 3))
      >>> one == other, one.differences(other)
      (False, ['keep_versions'])
    """

    functions: Mapping[str, FunctionSpec]
    nodes: Sequence[Node] = ()
    placement: Placement = "pack"
    max_concurrency: int | None = None
    keep_versions: int = 2
    store_capacity: float = math.inf
    faults: Mapping[str, Faults] = field(default_factory=dict)
    store_faults: StoreFaults | None = None

    def __hash__(self) -> int:
        return hash(digest(self))  # the hash of the content, because a mapping cannot be hashed

    def __post_init__(self) -> None:
        # Collections are copied, because the caller may change them, and a run records and compares its deployment.
        checks.mapping(FunctionSpec, "FunctionSpec(compute=...)", functions=self.functions)
        object.__setattr__(self, "functions", dict(self.functions))
        checks.mapping(Faults, "Faults(...)", faults=self.faults)
        object.__setattr__(self, "faults", dict(self.faults))
        if not isinstance(self.nodes, Sequence):
            raise TypeError(f"nodes={self.nodes!r}: expected a sequence, such as [Node(name, ...)]")
        object.__setattr__(self, "nodes", tuple(self.nodes))
        for node in self.nodes:
            if not isinstance(node, Node):
                raise TypeError(f"nodes=[..., {node!r}, ...]: expected Node(name, ...)")
        if not isinstance(self.store_faults, StoreFaults | None):
            raise TypeError(f"store_faults={self.store_faults!r}: expected StoreFaults(...)")
        # An unknown name is refused, because a misspelt name would give a run without faults.
        unknown = sorted(self.faults.keys() - self.functions.keys())
        if unknown:
            deployed = sorted(self.functions)
            raise LookupError(f"faults={unknown}: no such function is deployed: the platform has {deployed}")
        limits = {"keep_versions": self.keep_versions, **checks.given(max_concurrency=self.max_concurrency)}
        checks.single(store_capacity=self.store_capacity, **limits)
        # The checks have the form `not x >= 1`, so that NaN is refused.
        if self.max_concurrency is not None and not self.max_concurrency >= 1:
            raise ValueError(f"max_concurrency={self.max_concurrency} is below 1: nothing could ever run; raise it")
        if not self.keep_versions >= 1:
            raise ValueError(f"keep_versions={self.keep_versions} is below 1: the newest version must stay; raise it")
        checks.whole(at_least=1, **limits)
        if not self.store_capacity > 0:
            raise ValueError(
                f"store_capacity={self.store_capacity} is not positive: give a number of bytes, or math.inf"
            )

    def differences(self, other: "Deployment") -> list[str]:
        """Returns the names of the arguments that differ between two deployments."""
        return [name for name in self.__dataclass_fields__ if getattr(self, name) != getattr(other, name)]
