"""What a side is told to train, and the lines that it prints: one in JSON after every round."""

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

#: What a line of the protocol begins with: libraries print lines of their own.
MARK = "round: "


@dataclass(frozen=True)
class Task:
    """What is trained, how, and until when; the same for every side."""

    algorithm: str = "ppo"  #: or `"impala"`, or `"appo"`: PPO whose actors sample on.
    environment: str = "Hopper-v4"
    actors: int = 16
    fragment: int = 256
    hidden: int = 256  #: units in each of the two tanh layers of each of the two towers.
    learning_rate: float = 3e-4
    discount: float = 0.99
    lambda_: float = 0.95
    clip: float = 0.2
    value_coefficient: float = 0.5
    max_gradient_norm: float = 0.5
    epochs: int = 10
    minibatch: int = 512  #: of PPO; IMPALA computes one gradient from each batch.
    seed: int = 0
    warm_up: int = 0  #: rounds before the clock of `seconds` starts.
    seconds: float = 20.0  #: it trains for, at most.
    target: float | None = None  #: mean return of the last 100 training episodes that ends it.

    @property
    def batch(self) -> int:
        """Steps of a round."""
        return self.actors * self.fragment

    def encoded(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))


class Round(NamedTuple):
    """Where training stands."""

    seconds: float  #: since its first step: what was compiled then counts, imports do not.
    steps: int  #: of the environment that were learned from.
    episode_return: float | None  #: mean of the last 100 training episodes; None until there were as many.


class Reporter:
    """Prints a side's rounds. Made just before the first step of training.

    Args:
      task: which says when to end.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._rounds = 0
        self._steps = 0
        self._began = time.perf_counter()
        self._warm: float | None = None if task.warm_up else 0.0  # seconds at which the warm-up was over

    def report(self, steps: int, episode_return: float | None) -> bool:
        """Prints a line if more steps were learned from; returns whether to go on."""
        task = self._task
        seconds = time.perf_counter() - self._began
        if steps > self._steps:
            self._steps = steps
            self._rounds += 1
            print(MARK + json.dumps(Round(seconds, steps, episode_return)), flush=True)
            if self._rounds == task.warm_up:
                self._warm = seconds
        reached = task.target is not None and episode_return is not None and episode_return >= task.target
        return not reached and (self._warm is None or seconds < self._warm + task.seconds)


def task_given() -> Task:
    """The task on the command line."""
    return replace(Task(), **json.loads(sys.argv[1]))


def rounds_in(output: str) -> list[Round]:
    """The rounds that a side printed, among whatever else it did."""
    lines = (line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK))
    return [Round(*json.loads(line)) for line in lines]
