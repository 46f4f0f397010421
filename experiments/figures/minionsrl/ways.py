"""Ways to train a scheduler: those that are compared, and settings drawn from the ranges of the paper's Table 1."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stellaris import PPO
from stellaris.scheduling.training import AUTHORS_PPO, SCHEDULER_PPO

#: Number of rounds above that of any run: the first decision holds for the whole run.
WHOLE = 2**20
#: The width of the kernel by which neighbouring numbers of actors share logits, in ln(actors). Chosen on a made-up
#: workload, before any training here.
WIDTH = 0.25
#: The penalty of a failure, in runs. Our budgets end most runs of all actors. With 1, the first value, a scheduler
#: learned to spend the budget near the target; 4 is the second.
FAILURE = 4.0


@dataclass(frozen=True)
class Way:
    """A way to train a scheduler."""

    ppo: PPO
    hold: int = 1
    together: int = 2
    failure: float | None = FAILURE
    normalise: bool = True
    held_out: bool = True
    width: float = 0.0  #: of the kernel by which neighbouring numbers of actors share logits.

    def every(self, episodes: int) -> int:
        """Returns the number of updates after which a version is run on the held-out seeds: about four times in all."""
        return max(1, episodes // (4 * self.together))


_BEFORE = replace(SCHEDULER_PPO, lambda_=1.0)
WAYS: Mapping[str, Way] = {
    "one run, one epoch, raw states": Way(AUTHORS_PPO, together=1, failure=None, normalise=False, held_out=False),
    "four runs, lambda 1": Way(_BEFORE, together=4, failure=None, held_out=False),
    "two runs, lambda 0.85": Way(SCHEDULER_PPO),
    "held for five rounds": Way(SCHEDULER_PPO, hold=5),
    "held for the run": Way(SCHEDULER_PPO, hold=WHOLE, together=8),
    "held for the run, neighbours share": Way(SCHEDULER_PPO, hold=WHOLE, together=8, width=WIDTH),
}

#: The ranges of the search. Source: MinionsRL (AAAI 2024), Table 1; `hold` is ours. The table's range of KL targets is
#: left out: their KL coefficient is 0, which switches the target off. Its minibatches of 1, 2 and 4 are read as runs
#: that an update learns from at once: the authors' code learns from whole runs, and the advantage of a single decision
#: would be 0 after standardisation.
LEARNING_RATES, CLIPS = (0.001, 0.005, 0.01), (0.1, 0.2, 0.3)
ENTROPIES, VALUES = (0.005, 0.01, 0.015), (0.1, 0.3, 0.5, 0.7)
RUNS, HOLDS = (1, 2, 4), (1, 5, WHOLE)
#: If a decision holds for the whole run, a run has one: an update then learns from this many times as many runs.
_MORE = 4


def drawn(count: int, *, seed: int = 0) -> list[Way]:
    """Draws distinct settings of the search, all combinations being equally likely.

    Example:
      >>> [described(way) for way in drawn(2)] == [described(way) for way in drawn(3)[:2]]
      True
    """
    ranges = [*itertools.product(LEARNING_RATES, RUNS, CLIPS, ENTROPIES, VALUES, HOLDS)]
    return [_way(*ranges[i]) for i in np.random.default_rng(seed).permutation(len(ranges))[:count]]


def _way(learning_rate: float, runs: int, clip: float, entropy: float, value: float, hold: int) -> Way:
    ppo = replace(
        SCHEDULER_PPO, learning_rate=learning_rate, clip=clip, entropy_coefficient=entropy, value_coefficient=value
    )
    return Way(ppo, hold=hold, together=runs * _MORE if hold == WHOLE else runs)


def settings(way: Way) -> dict[str, Any]:
    """Returns the settings among which the search chooses, as columns of its table."""
    return {
        "learning_rate": way.ppo.learning_rate,
        "runs": way.together,
        "clip": way.ppo.clip,
        "entropy_coefficient": way.ppo.entropy_coefficient,
        "value_coefficient": way.ppo.value_coefficient,
        "hold": "run" if way.hold == WHOLE else way.hold,
    }


def described(way: Way) -> str:
    """Returns these settings as text.

    Example:
      >>> described(WAYS["held for the run"])
      'learning rate 0.005, runs 8, clip 0.2, entropy coefficient 0.01, value coefficient 0.5, hold run'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings(way).items())
