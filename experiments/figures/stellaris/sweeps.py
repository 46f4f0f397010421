"""Sweeps over assumptions, with tuned settings: when do the ratios of Stellaris to its baseline hold?"""

from experiments.study import sweeps, variants
from experiments.study.study import Variant
from experiments.tasks import presets
from experiments.tasks.testbed import Assumed

DESCRIPTION = (
    "the headline ratios over straggler variation, the times of a gradient, an update and a step, the slow-down of a "
    "shared GPU, the growth of a gradient's time with its samples, and what is billed"
)

_SYSTEMS = ("stellaris", "synchronous")
_ASSUMED = ("variation", "gradient", "sharing", "growth", "update", "step", "places", "idle")


def _pair(environment: str, assumed: Assumed) -> tuple[Variant, Variant]:
    """Returns both systems of `tuned`; the baseline computes a gradient from twice as many samples."""
    own, other = presets.tuned(environment, assumed).contenders
    workload = presets.workload(environment)
    return Variant(own, workload), Variant(other, workload)


STUDY = sweeps.over("stellaris-sweeps", variants.SIZES, _pair, _ASSUMED, _SYSTEMS)
add_arguments, main = STUDY.add_arguments, STUDY.main
