"""Compares the time of function bodies on this machine with the testbed's assumptions about the paper's hardware.

Stellaris runs, and every body is timed while it runs alone on all cores. `times.csv` gets the percentiles of the times,
one column per environment and function, in the format of `delays.Empirical.from_csv`. The factor between the testbed's
time and the median is the assumed ratio between the paper's hardware and this machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from experiments.study import tidy, variants
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import testbed
from experiments.tasks.presets import FRAGMENT
from experiments.toolkit import output, plots
from stellaris.runtime import FunctionSpec
from stellaris.runtime.delays import Measured
from stellaris.runtime.endings import ENDINGS
from stellaris.types import NDArray

DESCRIPTION = "seconds of an actor's fragment, a learner's gradient and an aggregation on this machine, by network"

SIZES = {
    "smoke": Size(("CartPole-v1",), 12_288, 1),
    "small": Size(("Hopper-v4", "Humanoid-v4", "Walker2d-v4", "Qbert-v5"), 49_152, 1),
    "paper": Size(
        ("Hopper-v4", "Humanoid-v4", "Walker2d-v4", "Gravitar-v5", "SpaceInvaders-v5", "Qbert-v5"), 196_608, 1
    ),
}
#: The work that one call of each function does.
BODIES = {
    "actor": f"a fragment of {FRAGMENT} steps",
    "learner": "a gradient",
    "parameter": "an aggregation",
}
#: The seconds of each body on the testbed; a learner is alone on its GPU.
ASSUMED = {
    "actor": FRAGMENT * testbed.ENVIRONMENT_STEP,
    "learner": testbed.GRADIENT,
    "parameter": testbed.POLICY_UPDATE,
}


def _variants(environment: str) -> Sequence[Variant]:
    """Returns the tuned Stellaris on functions whose virtual time is the measured time of their bodies."""
    (row,) = variants.of_stellaris(environment, {"measured": {}})
    functions = {
        # The platform multiplies an actor's time by its number of steps; the factor 1 / FRAGMENT undoes this.
        name: FunctionSpec(Measured(1 / FRAGMENT if name == "actor" else 1.0), max_concurrency=spec.max_concurrency)
        for name, spec in row.contender.functions.items()
    }
    return [row._replace(contender=replace(row.contender, functions=functions))]


def seconds(result: Finished) -> Mapping[str, NDArray]:
    """Returns the bodies' seconds by function, from the second half of the completed calls: the first half compiles.

    Calls that the end of the run cancels are left out, because their bodies did not run to their end.
    """
    calls = result.trace.invocations()
    completed = calls.ending == ENDINGS.index("completed")
    times = {}
    for index, name in enumerate(calls.names):
        took = (calls.ended - calls.started)[completed & (calls.function == index)]
        times[name] = took[len(took) // 2 :]
    return times


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Writes, draws and tabulates the distributions of the times."""
    times = {result.cell.environment: seconds(result) for result in results}
    percentiles = {
        f"{environment} {name}": np.percentile(took, range(101))
        for environment, of in times.items()
        for name, took in of.items()
    }
    output.write_rows(
        out / "times.csv", [{column: f"{of[i]:.6g}" for column, of in percentiles.items()} for i in range(101)]
    )
    rows = []
    for environment, of in times.items():
        for name, took in of.items():
            low, middle, high = 1e3 * np.quantile(took, (0.05, 0.5, 0.95))
            assumed = 1e3 * ASSUMED[name]
            numbers = (f"{middle:.3g}", f"{low:.3g} to {high:.3g}", f"{assumed:.3g}", f"{assumed / middle:.2g}")
            rows.append((environment, f"{name}: {BODIES[name]}", str(len(took)), *numbers))
    for name in BODIES:
        spread = {environment: 1e3 * of[name] for environment, of in times.items() if name in of}
        plots.spread(spread, out / f"calibration_{name}", level=1e3 * ASSUMED[name], title=f"{name}: {BODIES[name]}")
    headings = ("environment", "body", "runs", "median, ms", "5 to 95 %, ms", "testbed, ms", "factor")
    tidy.show("bodies on this machine", headings, rows, out, console)


STUDY = Study(
    "stellaris-calibration", SIZES, _variants, _report, [f"calibration_{name}" for name in BODIES], alone=True
)
add_arguments, main = STUDY.add_arguments, STUDY.main
