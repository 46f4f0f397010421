"""The task of the lab's benchmark, which every side runs: CartPole, PPO, the same sizes and settings."""

import json
from typing import Any, NamedTuple


class LabTask(NamedTuple):
    """Many runs of one setting."""

    runs: int = 256
    updates: int = 100
    actors: int = 16
    fragment: int = 64
    epochs: int = 4
    minibatches: int = 4
    hidden: int = 64
    learning_rate: float = 1e-3

    @property
    def steps(self) -> int:
        """The environment steps of a run."""
        return self.updates * self.actors * self.fragment

    @property
    def minibatch_size(self) -> int:
        """The samples of a minibatch."""
        return self.actors * self.fragment // self.minibatches


def report(task: LabTask, *, runs: int, compiling: float, running: float, returns: Any) -> None:
    """Prints the result of a side: seconds of compiling and of running, and the mean return after every update."""
    print(json.dumps({"runs": runs, "steps": runs * task.steps, "compiling": compiling, "running": running}))
    print(json.dumps([float(x) for x in returns]))
