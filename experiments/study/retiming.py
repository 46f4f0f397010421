"""Gives the returns of an earlier run the clock and the bills of another deployment."""

from collections.abc import Sequence

from experiments.study.runs import Outcome
from stellaris.lab.dry_run import run_dry
from stellaris.runtime import SimulatedPlatform
from stellaris.systems import Row, Workload
from stellaris.systems.history import history


def retime(workload: Workload, outcome: Outcome, base: Sequence[Row]) -> None:
    """Fills an outcome with the rows of an earlier run, at the times and costs of the outcome's own deployment.

    The learning of a synchronous system in a round does not depend on how long the round takes. So its deployment is
    run dry, without learning, and the earlier run gives the returns and the metrics of each round.

    Args:
      workload: the workload of both runs.
      outcome: the outcome, which names the contender, the budget and the seed, and receives history and trace.
      base: the history of the earlier run.

    Raises:
      ValueError: if the dry run has other rounds than the earlier run.
    """
    contender = outcome.contender
    platform = SimulatedPlatform(contender.functions, seed=outcome.seed)
    outcome.begin()
    outcome.trace = platform.trace
    run_dry(contender.system, workload, platform=platform, budget=outcome.budget, seed=outcome.seed)
    timed = history(platform.trace, prices=contender.prices, functions=platform.functions)
    same = ("round", "steps", "version", "gradients")
    if [[row[name] for name in same] for row in timed] != [[row[name] for name in same] for row in base]:
        raise ValueError(f"{contender.name}: the rounds of the dry run are not those of the run that it retimes")
    for row, learned in zip(timed, base, strict=True):
        own = {name: value for name, value in row.items() if name == "seconds" or name.startswith("cost_")}
        outcome.add({**learned, **own})
    outcome.status = "done"
