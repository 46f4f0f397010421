"""How many rollouts a trainer may begin, so that no data becomes too stale and none is thrown away."""

from typing import Any

import jax
import numpy as np

from stellaris._core import checks
from stellaris.types import Array


def rollout_capacity(
    version: Array | int, *, begun: Array | int, batch: Array | int, max_staleness: Array | int
) -> Any:
    """The rollouts that may begin now: `(max_staleness + version + 1) * batch - begun`, or 0.

    The batch that makes version `v` learns from rollouts in the order in which they were begun. With at most
    `(max_staleness + version + 1) * batch` of them begun, each is learned from at most `max_staleness` versions after
    it has begun, and none has to be discarded. Dropping stale data instead starves long rollouts, which are the
    stalest. With a bound of 0 acting and learning take turns.

    Args:
      version: of the newest policy; it counts the batches learned from, from 0.
      begun: rollouts begun since version 0 that have been, or may yet be, learned from: those running, waiting and
        learned from, and not those that were rejected.
      batch: rollouts that one version is learned from, at least 1.
      max_staleness: versions, at least 0.

    Returns:
      A number of rollouts, at least 0: an int for ints, an array for arrays.

    Raises:
      TypeError: if an argument is not a whole number.
      ValueError: if one is below its least.

    Source:
      Fu et al. 2025, AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning, Eq. 3.

    Example:
      >>> [rollout_capacity(version, begun=40, batch=16, max_staleness=1) for version in (0, 1, 2)]
      [0, 8, 24]
    """
    least = {"version": 0, "begun": 0, "batch": 1, "max_staleness": 0}
    given: dict[str, Any] = {"version": version, "begun": begun, "batch": batch, "max_staleness": max_staleness}
    for name, number in given.items():
        if isinstance(number, jax.core.Tracer) or np.ndim(number):
            checks.integers(**{name: number})
        else:
            checks.whole(at_least=least[name], **{name: number})
    version, begun, batch, max_staleness = map(_signed, given.values())
    capacity = (max_staleness + version + 1) * batch - begun
    return max(capacity, 0) if isinstance(capacity, int) else capacity.clip(min=0)


def _signed(x: Any) -> Any:
    """A number as an int, an array with a sign and of full width, so that neither bytes nor negative numbers wrap.

    Numbers of int32 may still wrap, products and rollouts alike: the difference of the two is right all the same.
    """
    if isinstance(x, jax.Array):
        return x.astype(int)
    return x.astype(np.int64) if np.ndim(x) else int(x)
