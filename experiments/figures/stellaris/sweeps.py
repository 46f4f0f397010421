"""Sweeps over assumptions, with tuned settings: when do the ratios of Stellaris to its baseline hold?"""

from experiments.study import sweeps, variants
from experiments.study.study import Variant
from experiments.tasks import presets
from experiments.tasks.testbed import Assumed

DESCRIPTION = (
    "the headline ratios over straggler variation, the times of a gradient, an update and a step, the slow-down of a "
    "shared GPU, and what is billed"
)

_SYSTEMS = ("stellaris", "synchronous")
_ASSUMED = ("variation", "gradient", "sharing", "update", "step", "places", "idle")


def _pair(environment: str, assumed: Assumed) -> tuple[Variant, Variant]:
    """Returns both systems of `tuned`. All minibatches have 512 samples, so `growth` has no effect."""
    own, other = presets.tuned(environment, assumed, scaled=False).contenders
    workload = presets.workload(environment, scaled=False)
    return Variant(own, workload), Variant(other, workload)


STUDY = sweeps.over("stellaris-sweeps", variants.SIZES, _pair, _ASSUMED, _SYSTEMS)
add_arguments, main = STUDY.add_arguments, STUDY.main
