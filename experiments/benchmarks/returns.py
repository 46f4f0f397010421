"""Compares returns after as many environment steps: our tuned PPO against other libraries' own presets for PPO.

Every side trains on Hopper-v4 with normalised observations and scaled rewards. Its result is the mean return of the
last 100 training episodes, as the environment gives it, when the side has learned from the last step. Our setting was
chosen on the seeds from 100 (`experiments.tuning_steps`); the comparison uses the seeds from 0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import tuning_steps
from experiments.benchmarks.measuring import Comparison
from experiments.benchmarks.running import SB3, SBX, Side, Way, run
from experiments.benchmarks.sides.protocol import Round, Task
from experiments.toolkit import output, provenance
from experiments.toolkit.statistics import estimate, ratio
from experiments.tuning_steps import STEPS, Setting

#: The seconds after which a run that has not ended is an error.
PATIENCE = 1800.0
#: The part of the best peer's return that ours is to reach.
WANTED = 0.95

#: The peers' presets bring their hyperparameters; the task gives the number of environments, which is that of the
#: presets, and the end of training.
_OWN = Task(actors=1, steps=STEPS, seconds=PATIENCE, scale_rewards=True)


def _peer(name: str, library: str, preset: str, requirements: tuple[str, ...]) -> Side:
    return Side(name, _OWN, "baselines", (Way("1 thread", (library, preset), 1),), requirements)


PEERS = (
    _peer("Stable-Baselines3, defaults", "stable_baselines3", "defaults", SB3),
    _peer("SBX, defaults", "sbx", "defaults", SBX),
    _peer("Stable-Baselines3, the zoo's Hopper-v4", "stable_baselines3", "zoo", SB3),
)


def ours(setting: Setting) -> Side:
    """Returns our synchronous system with a setting."""
    task = replace(
        _OWN,
        actors=setting.actors,
        fragment=setting.fragment,
        minibatch=setting.minibatch,
        learning_rate=setting.rate,
        lambda_=setting.lambda_,
    )
    return Side("synchronous system, tuned", task, "ours", (Way("1 thread", ("1",), 1),))


def measure(say: Callable[[str], None], seeds: int, out: Path) -> Iterator[Comparison]:
    """Trains every side with every seed, one after the other, and writes the returns after each run.

    Args:
      say: the function that gets the progress, a line of text at a time.
      seeds: the number of seeds, from 0.
      out: the results folder; the files are in its folder `peers-returns`.
    """
    sides = (ours(tuning_steps.SETTINGS[tuning_steps.CHOSEN]), *PEERS)
    for side in sides:
        side.python(say)
    home = out / "peers-returns"
    provenance.write(home / "provenance.json", setting=tuning_steps.CHOSEN)
    runs: list[dict[str, Any]] = []
    for seed in range(seeds):
        for side in sides:
            last = last_round(side, run(replace(side, task=replace(side.task, seed=seed)), side.ways[0]))
            say(f"seed {seed}: {side.name}: {last.episode_return:,.0f} after {last.seconds:.0f} s")
            runs.append({"side": side.name, "seed": seed, "return": last.episode_return})
            output.write_rows(home / "runs.csv", runs)
    yield from rows({side.name: [one["return"] for one in runs if one["side"] == side.name] for side in sides})


def last_round(side: Side, rounds: Sequence[Round]) -> Round:
    """Returns the round after which the side has learned from all of its steps.

    Raises:
      RuntimeError: if the run ended at another step, or before 100 episodes.
    """
    steps = rounds[-1].steps if rounds else 0
    if steps != side.task.steps:
        raise RuntimeError(f"{side.name}: the last round was after {steps:,} steps, not {side.task.steps:,}")
    if rounds[-1].episode_return is None:
        raise RuntimeError(f"{side.name}: fewer than 100 episodes ended in {steps:,} steps")
    return rounds[-1]


def rows(returns: Mapping[str, Sequence[float]]) -> Iterator[Comparison]:
    """Yields one row per peer: our return against the peer's; the best peer is the one that is to be reached.

    Args:
      returns: each side's return by seed, ours first.
    """
    (name, own), *others = ((name, estimate(each)) for name, each in returns.items())
    best = max(other.middle for _, other in others)
    seeds = len(returns[name])
    for peer, other in others:
        yield Comparison(
            f"{name}, return after {STEPS:,} steps, against {peer}, {seeds} seeds",
            format(own, ",.0f"),
            format(other, ",.0f"),
            ratio(own.middle, other.middle),
            f">= {WANTED:.2f}" if other.middle == best else "",
        )
