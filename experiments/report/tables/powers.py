"""The table of how many seeds the results have, and how many a difference would need."""

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.report.tables.results import runs
from experiments.report.tables.table import Table
from experiments.toolkit.statistics import detectable, pooled_variation, seeds_needed

_PPO = "synchronous PPO"
_STELLARIS = ("stellaris", "synchronous", f"Stellaris, {_PPO}")
_CONTROL = ("stellaris", "asynchronous actors, PPO", "Stellaris, one PPO learner")
_PARTS = [("Stellaris", other, f"Stellaris, {other}") for other in ("one learner", "no cap", "no aggregation")]
_AGGREGATORS = [
    ("Stellaris", other, f"Stellaris, {other}")
    for other in ("softsync(2)", "stale-synchronous(2)", "fully asynchronous")
]
_DEFAULT = "d = 1, rho = 2, v = 3"
_SETTINGS = [(_DEFAULT, other, f"{_DEFAULT}; {other}") for other in ("d = 0.9", "rho = 1", "v = inf")]
_DEMO = ("no waiting", "baseline", "the demo, its baseline")
_HPC = ("stellaris", "PAR-RL", "Stellaris, PAR-RL")
_AUTHORS = ("authors: learned, for time", "authors: 32", "trained scheduler, all actors")
_TESTBED = "authors-0.0003"
_TRAINED = (f"{_TESTBED}: learned, for time, fine-tuned", f"{_TESTBED}: 32", _AUTHORS[2])
_FINAL = ("final_return", "final return")
_MEAN = ("mean_return", "mean return")
_TIME = ("seconds_to_target", "time to the target")
_EQUAL = "small/stellaris-equal-time"
_LARGER = f"{_EQUAL}/Hopper-v4-rivals"
_BOTH_LARGER = ("stellaris: 0.0003, 1024 items, sampling on", "synchronous: 0.0003, 10 x 2048", _STELLARIS[2])
#: The folders with further seeds, or other systems, of a folder's settings.
_CONTINUED: Mapping[str, Sequence[str]] = {
    "small/stellaris-ablation": ("small/stellaris-ablation/more",),
    _LARGER: tuple(f"{_EQUAL}/Hopper-v4-{which}" for which in ("beyond", "larger-more")),
}
#: The pairs of systems that the pages compare: the study's name on the page, the folder of its runs, the environment,
#: both variants with their name on the page, and the outcome's column with its name.
_PAIRS: Sequence[tuple[str, str, str, tuple[str, str, str], tuple[str, str]]] = (
    *(
        ("`stellaris-equal-time`", f"{_EQUAL}{folder}", environment, _STELLARIS, outcome)
        for folder, environment in (
            ("", "Hopper-v4"),
            *((f"/{name}", name) for name in ("HalfCheetah-v4", "Walker2d-v4", "Humanoid-v4")),
        )
        for outcome in (_FINAL, _MEAN)
    ),
    ("`stellaris-equal-time`", _EQUAL, "Hopper-v4", _CONTROL, _MEAN),
    *(("the same, larger minibatches", _LARGER, "Hopper-v4", _BOTH_LARGER, outcome) for outcome in (_FINAL, _MEAN)),
    *(
        ("`stellaris-training`", "small/stellaris-training", environment, _STELLARIS, _FINAL)
        for environment in ("Hopper-v4", "Walker2d-v4")
    ),
    ("`stellaris-why`, `stellaris-motivation`", "small/stellaris-why", "Hopper-v4", _DEMO, _FINAL),
    *(("`stellaris-hpc`", "small/stellaris-hpc", "Hopper-v4", _HPC, outcome) for outcome in (_FINAL, _MEAN)),
    *(("`stellaris-ablation`", "small/stellaris-ablation", "Hopper-v4", pair, _MEAN) for pair in _PARTS),
    *(("`stellaris-aggregators`", "small/stellaris-aggregators", "Hopper-v4", pair, _MEAN) for pair in _AGGREGATORS),
    *(("`stellaris-sensitivity`", "small/stellaris-sensitivity", "Hopper-v4", pair, _MEAN) for pair in _SETTINGS),
    ("`minionsrl-training`", "small/minionsrl-training", "CartPole-v1", _AUTHORS, _TIME),
    ("`minionsrl-training`", "small/minionsrl-training/hopper", "Hopper-v4", _TRAINED, _TIME),
    ("`minionsrl-training`", "small/minionsrl-training/halfcheetah-more", "HalfCheetah-v4", _TRAINED, _TIME),
)


def _runs(folder: str, environment: str) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """Returns the runs of a folder by variant, together with those of the folders that continue it."""
    together: dict[str, list[Mapping[str, str]]] = {}
    for one in (folder, *_CONTINUED.get(folder, ())):
        for name, of in runs(one, environment).items():
            together.setdefault(name, []).extend(of)
    return together


def needed() -> Table:
    """Returns the seeds of each compared pair, the least ratio that they show, and the seeds for ratios of 1.2 and 1.1.

    A run without the outcome, which did not reach the target, is left out; `seeds` counts the runs of the system that
    has fewer.
    """
    lines: list[Sequence[str]] = []
    before = ""
    for name, folder, environment, (first, second, pair), (column, outcome) in _PAIRS:
        of = _runs(folder, environment)
        both = [[float(row[column]) for row in of[variant] if row[column]] for variant in (first, second)]
        variations = [float(np.std(values, ddof=1) / np.mean(values)) for values in both]
        together, seeds = pooled_variation(*variations), min(map(len, both))
        lines.append(
            (
                "the same" if name == before else name,
                environment,
                pair,
                outcome,
                *(f"{variation:.2f}" for variation in variations),
                str(seeds),
                f"{1 + detectable(together, seeds):.2f}",
                *(f"{seeds_needed(together, effect)}" for effect in (0.2, 0.1)),
            )
        )
        before = name
    words = ("environment", "pair", "outcome")
    numbers = ("variation of the first", "of the second", "seeds", "ratio shown", "seeds for 1.2", "seeds for 1.1")
    return Table(("study", *words, *numbers), lines, left=words)
