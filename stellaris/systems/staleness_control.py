"""How stale a trajectory may be when it is learned from: asynchronous systems take any of these policies."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

from stellaris._core import checks


class Age(NamedTuple):
    """What decides how old a fragment that waits is."""

    oldest: int  #: the lowest version that chose one of its actions.
    number: int  #: of its delivery: fragments that arrived later have higher numbers.


@dataclass(frozen=True)
class StalenessControl:
    """Which fragments are sampled, and which are thrown away; what is kept is learned from oldest first.

    The limits act together; the default is no control at all. With `B` fragments a batch:

    * `pace=η`: a rollout may start only while `accepted + running < (η + learned + 1) B`, where `learned` counts the
      batches that have been learned from: at most η + 1 batches are ever under way or waiting. Actors wait, and nothing
      is thrown away. Rollouts that take equally long are learned from at most η batches after they started; one that
      takes longer may be overtaken, and be older when it arrives. `pace=0` is synchronous.
    * `discard=η`: a fragment is thrown away if, when its batch is made, its oldest step was chosen by a version more
      than η versions behind the newest. Those that take long to sample are then learned from less often.
    * `window=n`: only the n fragments that arrived last are kept; at least as many as a batch has, one of each actor,
      or a run ends with a ValueError as it begins.

    How a batch becomes versions is the system's: with a central learner each batch makes one, and the pace's bound is
    one in versions. Stellaris publishes several a batch.

    Args:
      pace: batches that actors may be ahead, 0 or more; `math.inf` for no limit.
      discard: versions, 0 or more; `math.inf` to keep all.
      window: fragments, 1 or more; `math.inf` to keep all.

    Raises:
      TypeError: if a limit is not a number.
      ValueError: if a limit is out of its range.

    Source:
      The capacity rule `N_r ≤ (i + η + 1) B` is AReaL's (Fu et al. 2025, Eq. 3), where a version is a batch.

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

    def __post_init__(self) -> None:
        for name, least in (("pace", 0), ("discard", 0), ("window", 1)):
            limit = getattr(self, name)
            if not isinstance(limit, Real) or isinstance(limit, bool):
                raise TypeError(f"{name}={limit!r} is not a number: pass math.inf for no limit")
            if limit != math.inf:
                checks.whole(at_least=least, **{name: limit})

    def admits(self, *, accepted: int, running: int, learned: int, batch: int) -> bool:
        """Whether one more rollout may start.

        Args:
          accepted: fragments that were delivered and not thrown away, those learned from included.
          running: rollouts that have started and were not delivered.
          learned: batches that have been learned from.
          batch: fragments of a batch.
        """
        return accepted + running < (self.pace + learned + 1) * batch

    def kept(self, waiting: Sequence[Age], version: int) -> list[int]:
        """Which of the fragments that wait are kept, by their places.

        Args:
          waiting: in order of delivery.
          version: the newest.
        """
        arrived_last = 0 if self.window == math.inf else max(len(waiting) - int(self.window), 0)
        return [i for i, age in enumerate(waiting) if i >= arrived_last and version - age.oldest <= self.discard]


def check_control(control: object) -> None:
    """Raises a TypeError unless this is a `StalenessControl`."""
    if not isinstance(control, StalenessControl):
        raise TypeError(f"control={control!r} is no StalenessControl: pass StalenessControl(pace=1), or with discard=")
