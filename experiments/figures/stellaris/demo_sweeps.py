"""Sweeps over assumptions, with the demo's own settings: when do the ratios of Stellaris to its baseline hold?"""

from experiments.figures.stellaris.motivation import SIZES
from experiments.study import sweeps
from experiments.study.study import Variant
from experiments.tasks import presets
from experiments.tasks.testbed import Assumed

DESCRIPTION = (
    "stellaris-sweeps with the demo's settings, and also over the time that a round spends on making workers and on "
    "evaluation"
)


def _pair(environment: str, assumed: Assumed) -> tuple[Variant, Variant]:
    """Returns both systems of the demo; the baseline computes a gradient from four times as many samples."""
    preset = presets.paper(environment, assumed)
    own, other = preset.contenders
    return Variant(own, preset.workload), Variant(other, preset.workload)


#: "smoke" has ten rounds: without overhead, rounds that do not wait begin until the first learner has started.
_SIZES = {**SIZES, "smoke": SIZES["smoke"]._replace(steps=40_960)}
STUDY = sweeps.over(
    "stellaris-demo-sweeps",
    _SIZES,
    _pair,
    ("variation", "gradient", "sharing", "growth", "overhead", "update", "step", "places", "idle"),
    ("stellaris", "synchronous"),
    assumed=presets.DEMO,
)
add_arguments, main = STUDY.add_arguments, STUDY.main
