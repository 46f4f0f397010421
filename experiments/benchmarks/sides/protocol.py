"""The protocol between a benchmark and its sides: a task on the command line, and a line of JSON after every round."""

import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

#: The prefix of the protocol's lines, because libraries print other lines.
MARK = "round: "


@dataclass(frozen=True)
class Task:
    """The workload, the hyperparameters and the end of training, which are the same for every side."""

    algorithm: str = "ppo"  #: `"ppo"`, `"impala"`, or `"appo"`, which is PPO with asynchronous actors.
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
    minibatch: int = 512  #: samples of PPO's minibatch; IMPALA computes one gradient from each batch.
    seed: int = 0
    warm_up: int = 0  #: rounds before the clock of `seconds` starts.
    seconds: float = 20.0  #: the most seconds of training after the warm-up.
    target: float | None = None  #: the mean return of the last 100 training episodes that ends training.
    steps: int = 10**9  #: the number of environment steps that ends training.
    scale_rewards: bool = False  #: whether rewards are divided by the running deviation of returns.

    @property
    def batch(self) -> int:
        """The number of steps of a round."""
        return self.actors * self.fragment

    def encoded(self) -> str:
        """Returns the task as an argument of a command line."""
        return json.dumps(asdict(self))


class Round(NamedTuple):
    """The state of training after a round: one batch, or about one second of RLlib's APPO and IMPALA."""

    seconds: float  #: seconds since the first step, including compilation but not imports.
    steps: int  #: environment steps from which the side has learned.
    episode_return: float | None  #: mean of the last 100 training episodes in these steps; None before 100 episodes.


class Reporter:
    """Prints a side's rounds. Create it just before the first step of training.

    Args:
      task: the task, which decides when training ends.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._rounds = 0
        self._steps = 0
        self._began = time.perf_counter()
        self._warm: float | None = None if task.warm_up else 0.0  # seconds at the end of the warm-up

    def report(self, steps: int, episode_return: float | None) -> bool:
        """Prints a line if `steps` has grown; returns whether to continue."""
        task = self._task
        seconds = time.perf_counter() - self._began
        if steps > self._steps:
            self._steps = steps
            self._rounds += 1
            print(MARK + json.dumps(Round(seconds, steps, episode_return)), flush=True)
            if self._rounds == task.warm_up:
                self._warm = seconds
        reached = task.target is not None and episode_return is not None and episode_return >= task.target
        within = self._warm is None or seconds < self._warm + task.seconds
        return not reached and within and steps < task.steps


def task_given() -> Task:
    """Returns the task on the command line."""
    return replace(Task(), **json.loads(sys.argv[1]))


def rounds_in(output: str) -> list[Round]:
    """Returns the rounds in a side's output, and ignores its other lines."""
    lines = (line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK))
    return [Round(*json.loads(line)) for line in lines]
