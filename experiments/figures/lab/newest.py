"""The newest policy's return against an imposed lag of the data: the runs of `lab-lag`, scored by evaluations.

`lab-lag` scores the episodes that were sampled, by policies as old as the data. The reason, and the order of the seeds,
were written down in docs/registrations/lab-newest.md before the first run.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace

from experiments.figures.lab import lag
from stellaris.systems import Evaluation

DESCRIPTION = "the newest policy's return against the lag of the data: the runs of lab-lag with evaluations"

PRESETS: Mapping[str, lag.Preset] = {
    "smoke": replace(lag.PRESETS["smoke"], evaluation=Evaluation(every=1, episodes=2)),
    "small": replace(lag.PRESETS["small"], seeds=8, evaluation=Evaluation(every=32, episodes=16)),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `lab-lag`."""
    lag.add_arguments(parser, "lab-newest")


def main(arguments: argparse.Namespace) -> int:
    """Runs the sweep of every environment, and writes tables and pictures after each environment."""
    return lag.study(PRESETS[arguments.preset], arguments)
