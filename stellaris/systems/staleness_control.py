"""Limits on the staleness of trajectories, for asynchronous systems."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

from stellaris._core import checks


class Age(NamedTuple):
    """The age of a waiting fragment; an older fragment compares as less."""

    oldest: int  #: the lowest version that chose an action of the fragment.
    number: int  #: number of the delivery: fragments that arrived later have higher numbers.


@dataclass(frozen=True)
class StalenessControl:
    """Limits the rollouts that may start and the fragments that are kept. The oldest fragments are learned from first.

    The limits act together; by default all are infinite. A rollout samples one fragment. With `B` fragments per batch:

    * `pace=η`: a rollout may start only while `accepted + running < (η + learned + 1) B`, with the counts that `admits`
      explains. At most η + 1 batches are under way or waiting at any time. Actors wait, and no fragment is discarded.
      If all rollouts take equally long, each is learned from at most η batches after its start; a longer rollout may
      be overtaken, and is then learned from later. `pace=0` is synchronous.
    * `discard=η`: a fragment is discarded if, when a batch is made, its oldest step's action was chosen by a version
      more than η versions behind the newest. Long rollouts are therefore discarded more often than short ones.
    * `window=n`: only the n fragments that arrived last are kept. A run raises a ValueError at its start if n is below
      the number of fragments in a batch.
    * `rounds=True`: actors sample in rounds: a rollout may start only when all fragments of the previous batch are
      delivered. A round does not wait for learning, unless `pace` requires it.

    The pace counts batches. With a central learner each batch makes one version, so the pace also bounds versions;
    `Stellaris` publishes several versions per batch.

    Args:
      pace: number of batches that actors may be ahead of the learner, 0 or more; `math.inf` for no limit.
      discard: number of versions that a fragment may be behind, 0 or more; `math.inf` to keep all fragments.
      window: number of fragments that are kept, 1 or more; `math.inf` to keep all fragments.
      rounds: whether actors wait for each other after every batch of fragments.

    Raises:
      TypeError: if a limit is not a number, or `rounds` is not a bool.
      ValueError: if a limit is out of its range.

    Source:
      The capacity rule `N_r ≤ (i + η + 1) B` is AReaL's (Fu et al. 2025, Eq. 3), where each batch makes one version.

    Example:
      >>> control = StalenessControl(pace=1)
      >>> [control.admits(accepted=15, running=n, learned=0, batch=8) for n in (0, 1)]
      [True, False]
      >>> StalenessControl(discard=2).kept([Age(oldest=3, number=0), Age(oldest=5, number=1)], version=6)
      [1]
    """

    pace: float = math.inf
    discard: float = math.inf
    window: float = math.inf
    rounds: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.rounds, bool):
            raise TypeError(f"rounds={self.rounds!r} is not a bool: pass True or False")
        for name, least in (("pace", 0), ("discard", 0), ("window", 1)):
            limit = getattr(self, name)
            # Booleans are refused, because they are real numbers in Python, but not limits.
            if not isinstance(limit, Real) or isinstance(limit, bool):
                raise TypeError(f"{name}={limit!r} is not a number: pass math.inf for no limit")
            if limit != math.inf:
                checks.whole(at_least=least, **{name: limit})

    def admits(self, *, accepted: int, running: int, learned: int, batch: int) -> bool:
        """Returns whether one more rollout may start.

        Args:
          accepted: number of fragments that were delivered and not discarded, including fragments learned from.
          running: number of rollouts that have started and are not delivered yet.
          learned: number of batches that have been learned from.
          batch: number of fragments in a batch.
        """
        if self.rounds and accepted + running >= (accepted // batch + 1) * batch:
            return False
        return accepted + running < (self.pace + learned + 1) * batch

    def kept(self, waiting: Sequence[Age], version: int) -> list[int]:
        """Returns the indices of the waiting fragments that are kept.

        Args:
          waiting: the ages of the waiting fragments, in order of delivery.
          version: the newest version.
        """
        arrived_last = 0 if self.window == math.inf else max(len(waiting) - int(self.window), 0)
        return [i for i, age in enumerate(waiting) if i >= arrived_last and version - age.oldest <= self.discard]


def check_control(control: object) -> None:
    """Raises a TypeError unless `control` is a `StalenessControl`."""
    if not isinstance(control, StalenessControl):
        raise TypeError(f"control={control!r} is not a StalenessControl: pass StalenessControl(pace=1), for example")
