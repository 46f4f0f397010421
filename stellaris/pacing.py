"""Limits the rollouts that a trainer begins, so that no data becomes too stale and none is discarded."""

from typing import Any

import jax
import numpy as np

from stellaris._core import checks
from stellaris.types import Array


def rollout_capacity(
    version: Array | int, *, begun: Array | int, batch: Array | int, max_staleness: Array | int
) -> Any:
    """The number of rollouts that may begin now: `(max_staleness + version + 1) * batch - begun`, at least 0.

    Batches take rollouts in the order in which they began, and each batch makes one version. With at most
    `(max_staleness + version + 1) * batch` rollouts begun, no rollout is learned from later than `max_staleness`
    versions after it began, and none has to be discarded. Dropping stale data instead would starve long rollouts, whose
    data are the stalest. With `max_staleness=0` acting and learning take turns.

    Args:
      version: version of the newest policy, which equals the number of batches learned from.
      begun: rollouts begun since version 0 and not rejected: running, waiting or learned from.
      batch: rollouts per version, at least 1.
      max_staleness: the most versions from a rollout's beginning until it is learned from, at least 0.

    Returns:
      A number of rollouts, at least 0: an int for ints, an array for arrays.

    Raises:
      TypeError: if an argument is not a whole number.
      ValueError: if an argument is below its minimum.

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
            if not isinstance(number, jax.core.Tracer) and np.min(number, initial=least[name]) < least[name]:
                raise ValueError(f"{name} has {np.min(number)}, which is below {least[name]}")
        else:
            checks.whole(at_least=least[name], **{name: number})
    version, begun, batch, max_staleness = map(_signed, given.values())
    capacity = (max_staleness + version + 1) * batch - begun
    return max(capacity, 0) if isinstance(capacity, int) else capacity.clip(min=0)


def _signed(x: Any) -> Any:
    """Converts a number to an int, and an array to wide signed integers, so that differences do not wrap as in uint8.

    In int32 the product and `begun` in `rollout_capacity` may still wrap; their difference is correct nevertheless.
    """
    if isinstance(x, jax.Array):
        return x.astype(int)
    return x.astype(np.int64) if np.ndim(x) else int(x)
