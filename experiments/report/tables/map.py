"""The tables of the map of where asynchronous learners win."""

from experiments.figures.map.deployments import DATA_PARALLEL, IN_ROUNDS, ONE_LEARNER, SAMPLING_ON, SYNCHRONOUS
from experiments.figures.map.outcomes import TIME, Speeds, rate
from experiments.report.tables.results import rows
from experiments.report.tables.table import Table

#: The columns of the table, in fragments.
_KAPPAS = (0.25, 1.0, 4.0, 16.0)
#: The rows: label, system, variation, learners and learners per GPU.
_DEPLOYMENTS = (
    ("Stellaris, in rounds, four learners on a GPU", IN_ROUNDS, 0.1, 4, 4),
    ("Stellaris, sampling on, four learners on a GPU", SAMPLING_ON, 0.1, 4, 4),
    ("the same, a GPU each", SAMPLING_ON, 0.1, 4, 1),
    ("the same, variation 1", SAMPLING_ON, 1.0, 4, 1),
    ("the same, 16 learners", SAMPLING_ON, 1.0, 16, 1),
    ("asynchronous actors, one learner", ONE_LEARNER, 0.1, 1, 1),
    ("the same, variation 1", ONE_LEARNER, 1.0, 1, 1),
    ("data-parallel, four learners, g = 1", DATA_PARALLEL, 0.1, 4, 1),
    ("the same, variation 1", DATA_PARALLEL, 1.0, 4, 1),
)


def speeds() -> Table:
    """Returns the steps per second of each system relative to the synchronous system on the same deployment."""
    known = Speeds.of(rows("stellaris-map/speed.csv"))
    lines = []
    for label, system, variation, learners, sharers in _DEPLOYMENTS:
        growth = 1.0 if system == DATA_PARALLEL else 0.0
        ratios = [
            rate(known.get(system, kappa, variation, learners, sharers=sharers, growth=growth), TIME)
            / rate(known.get(SYNCHRONOUS, kappa, variation), TIME)
            for kappa in _KAPPAS
        ]
        lines.append((label, *(f"{ratio:.2f}" for ratio in ratios)))
    return Table(("S, variation 0.1 unless said", *(f"κ = {kappa:g}" for kappa in _KAPPAS)), lines)
