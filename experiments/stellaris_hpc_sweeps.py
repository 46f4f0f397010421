"""When the ratios against PAR-RL hold."""

from experiments import stellaris_hpc, sweeps
from experiments.study import Variant
from experiments.testbed import Assumed

DESCRIPTION = "the ratios against PAR-RL over stragglers, a gradient's time, and how that grows with its samples"


def _pair(environment: str, assumed: Assumed) -> tuple[Variant, Variant]:
    own, other = stellaris_hpc.variants(environment, assumed)
    return own, other


STUDY = sweeps.over(
    "stellaris-hpc-sweeps",
    stellaris_hpc.SIZES,
    _pair,
    ("variation", "gradient", "growth"),
    ("stellaris", stellaris_hpc.PAR_RL),
)
add_arguments, main = STUDY.add_arguments, STUDY.main
