"""Compares aggregators of asynchronous learners' gradients in the same system."""

from collections.abc import Sequence
from typing import Any

from experiments.study import variants
from experiments.study.study import Variant
from experiments.tasks.presets import LEARNERS
from stellaris import fully_asynchronous, softsync, stale_synchronous, staleness_aware, synchronous

DESCRIPTION = "staleness-aware aggregation against softsync, stale-synchronous, fully asynchronous and synchronous"


def _variants(environment: str) -> Sequence[Variant]:
    """Returns one variant per aggregator; softsync's group and stale-synchronous' bound are half the learners.

    Every variant except the first also runs a second time, in which each invocation has the delay that was recorded in
    the first variant's run.
    """
    half = LEARNERS // 2
    aggregators: dict[str, dict[str, Any]] = {
        "Stellaris": {},
        "its mean step": {"aggregator": staleness_aware(LEARNERS, decay=1.0)},
        f"softsync({half})": {"aggregator": softsync(LEARNERS // half)},
        f"stale-synchronous({half})": {"aggregator": stale_synchronous(half, LEARNERS)},
        "fully asynchronous": {"aggregator": fully_asynchronous(capacity=2 * LEARNERS)},
        "synchronous": {"aggregator": synchronous(LEARNERS)},
    }
    first, *others = variants.of_stellaris(environment, aggregators)
    replayed = [one._replace(setting=f"{one.setting}, replayed", replays=first.setting) for one in others]
    return [first, *others, *replayed]


STUDY = variants.compared("stellaris-aggregators", _variants)
add_arguments, main = STUDY.add_arguments, STUDY.main
