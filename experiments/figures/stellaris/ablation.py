"""Ablates Stellaris: one learner, no ratio cap, no staleness-aware aggregation, or neither cap nor aggregation.

Registered on 2026-12-01, before their first run: five more seeds of Hopper-v4, 5 to 9, of all five variants; of three
other aggregators of `stellaris-aggregators`, in this order: softsync(2), the synchronous one and Stellaris' mean step;
and of `stellaris-sensitivity` with rho = 1 and v = inf. By the variation of the first five seeds (`docs/results.md`),
ten show a ratio of 1.2 in the mean return over the run with a power of 0.8 for every pair there, but for two that need
25: stale-synchronous(2) and d = 0.9, which do not run. First outcome: the ratio of mean returns over the run of
Stellaris and each of the others, paired by seed, of all ten seeds, whose number follows from the variation and not from
the ratios seen; beside it the ratio of the five new seeds alone. Second outcome: the return at the end. Question: of
which is Stellaris ahead, and which is ahead of it, by an interval that excludes 1? The code has changed since the first
five seeds ran: actors begin in other states, and no setting is another one.
"""

import math
from collections.abc import Sequence
from typing import Any

from experiments.study import variants
from experiments.study.study import Variant
from experiments.tasks.presets import LEARNERS
from stellaris import fully_asynchronous, staleness_aware

DESCRIPTION = "Stellaris without asynchronous learners, without the cap, and without staleness-aware aggregation"


def _variants(environment: str) -> Sequence[Variant]:
    """Returns Stellaris and its ablations.

    Without aggregation, gradients are applied on arrival. A single learner does not share its GPU.
    """
    as_they_come = {"aggregator": fully_asynchronous(capacity=2 * LEARNERS)}
    without: dict[str, dict[str, Any]] = {
        "Stellaris": {},
        "one learner": {"learners": 1, "aggregator": staleness_aware(1, decay=1.0, combine="sequential")},
        "no cap": {"rho": math.inf},
        "no aggregation": as_they_come,
        "neither": {"rho": math.inf, **as_they_come},
    }
    return variants.of_stellaris(environment, without)


STUDY = variants.compared("stellaris-ablation", _variants)
add_arguments, main = STUDY.add_arguments, STUDY.main
