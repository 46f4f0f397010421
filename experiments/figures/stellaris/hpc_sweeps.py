"""Sweeps over assumptions: when do the ratios of Stellaris to PAR-RL hold?"""

from experiments.figures.stellaris import hpc
from experiments.study import sweeps
from experiments.study.study import Variant
from experiments.tasks.testbed import Assumed

DESCRIPTION = "the ratios against PAR-RL over stragglers, a gradient's time, and its growth with the samples"


def _pair(environment: str, assumed: Assumed) -> tuple[Variant, Variant]:
    own, other = hpc.variants(environment, assumed)
    return own, other


STUDY = sweeps.over(
    "stellaris-hpc-sweeps",
    hpc.SIZES,
    _pair,
    ("variation", "gradient", "growth"),
    ("stellaris", hpc.PAR_RL),
)
add_arguments, main = STUDY.add_arguments, STUDY.main
