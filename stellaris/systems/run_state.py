"""The state of a run: everything that a checkpoint saves, except the platform."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from stellaris.acting.normalisation import Normaliser, Statistics
from stellaris.acting.policies import PolicyVersion
from stellaris.runtime.functions import Invocation
from stellaris.runtime.state.registry import register_value
from stellaris.systems.deliveries import Handled
from stellaris.systems.rollouts import Rollouts
from stellaris.types import Tree


@register_value
@dataclass(eq=False)
class RunState:
    """Everything that a checkpoint saves of a run, except the platform.

    A run has one `RunState`. `Session` and `Fragments` hold it and change it in place.

    Args:
      rollouts: the fragments between actors and learners.
      statistics: statistics of all observations and returns that were learned from.
    """

    rollouts: Rollouts
    statistics: Statistics
    loop: Any = None  #: the state of the system's event loop.
    round: int = 0  #: number of rounds that are over.
    version: int = -1  #: the newest version of the policy.
    batches: int = 0  #: number of batches made.
    steps: int = 0  #: number of environment steps delivered, which the budget limits.
    restarts: int = 0  #: number of restarts of the environments: one per checkpoint.
    normaliser: Normaliser = field(init=False)  #: normaliser of the newest version.
    compared: PolicyVersion | None = None  #: the version after the last batch, compared with that after the next.
    sample: Tree = None  #: observations of the last batch, until the version after that batch is published.
    handled: Handled = field(default_factory=Handled)  #: idempotency keys of completions that were handed out.
    retries: dict[int, Invocation] = field(default_factory=dict)  #: the latest attempt of each retried invocation.

    def __post_init__(self) -> None:
        self.normaliser = self.statistics.normaliser()

    def restore(self, saved: "RunState") -> None:
        """Replaces every field by the saved one; objects that hold this state then see the restored run."""
        for name in (one.name for one in dataclasses.fields(self)):
            setattr(self, name, getattr(saved, name))
