"""The tables of the map of where asynchronous learners win."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from experiments.figures.map.deployments import DATA_PARALLEL, IN_ROUNDS, ONE_LEARNER, SAMPLING_ON, SYNCHRONOUS
from experiments.figures.map.outcomes import MACHINES, TIME, USE, Speeds, around, rate, slowed
from experiments.report.tables.results import rounded, rows
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


_TASKS = ("CartPole", "Acrobot-v1")
_WAYS = {IN_ROUNDS: "in rounds", SAMPLING_ON: "sampling on"}
#: The quantities that are compared, with the growth of a gradient's time on which the best of the others may depend.
_COMPARED = (
    ("time, g = 0", TIME, 0.0),
    ("time, g = 1", TIME, 1.0),
    ("machines, g = 0", MACHINES, 0.0),
    ("use, g = 0", USE, 0.0),
)


def efficiencies() -> Table:
    """Returns η with its interval, by task, on the deployments of κ = 8; with ≤ if a curve stayed below the target."""
    tables = [rows(f"stellaris-map/eta_{task}.csv") for task in _TASKS]
    lines = []
    for of in zip(*tables, strict=True):
        row = of[0]
        if row["kappa"] == "8.0":
            cells = [
                f"{'≤ ' if one['missed'] == 'True' else ''}{float(one['eta']):.2f} "
                f"({float(one['eta_low']):.2f} to {float(one['eta_high']):.2f})"
                for one in of
            ]
            lines.append((row["system"], f"{float(row['variation']):g}", row["learners"], *cells))
    return Table(("κ = 8", "variation", "learners", *_TASKS), lines)


def answers() -> Table:
    """Returns Stellaris' largest advantage over the best of the others, if each learner has a GPU."""
    return _answers(_COMPARED, "", sharers=1)


def answers_of_shared() -> Table:
    """Returns the same if four learners share a GPU and an update takes as long as on the testbed."""
    return _answers(_COMPARED, "_shared", sharers=4)


def _answers(compared: Sequence[tuple[str, str, float]], suffix: str, sharers: int) -> Table:
    """Returns Stellaris' largest advantage over the best of the others, over numbers of learners, with its interval.

    Where a curve of a neighbouring deployment stayed below the target, η and the advantage are upper bounds. They are
    given as well if they exceed every measured advantage, and alone if none is measured.
    """
    lines = []
    of = {task: rows(f"stellaris-map/map_{task}{suffix}.csv") for task in _TASKS}
    for (label, what, growth), variation, (system, way) in itertools.product(compared, (0.1, 1.0), _WAYS.items()):
        cells = []
        for task, kappa in itertools.product(_TASKS, _KAPPAS):
            place = (growth, variation, kappa)
            found = [
                (float(row["best"]), int(float(row["learners"])), float(row["best_low"]), float(row["best_high"]))
                for row in of[task]
                if (row["what"], row["system"]) == (what, system)
                and (float(row["growth"]), float(row["variation"]), float(row["kappa"])) == place
            ]
            missed = _missed(task, system, variation)
            measured = (one for one in found if not bounded(slowed(kappa, sharers, one[1]), one[1], missed))
            sure = max(measured, default=None)
            shown = [] if sure is None else [f"{sure[0]:.2f} ({sure[2]:.2f} to {sure[3]:.2f}) with {sure[1]}"]
            cells.append(", ".join(shown if max(found) == sure else [*shown, f"≤ {max(found)[0]:.2f}"]))
        lines.append((label, f"{variation:g}", way, *cells))
    kappas = [f"{task}, κ = {kappa:g}" for task, kappa in itertools.product(("CartPole", "Acrobot"), _KAPPAS)]
    return Table(("equal", "variation", "actors", *kappas), lines, left=("actors",))


def _missed(task: str, system: str, variation: float) -> AbstractSet[tuple[float, int]]:
    """Returns κ and the number of learners of the deployments of which a curve stayed below the target."""
    return {
        (float(row["kappa"]), int(row["learners"]))
        for row in rows(f"stellaris-map/eta_{task}.csv")
        if row["system"] == system and float(row["variation"]) == variation and row["missed"] == "True"
    }


#: κ and the numbers of learners for which η was measured; between them it is interpolated.
_MEASURED_KAPPAS, _MEASURED_LEARNERS = (1.0, 8.0), (1, 4, 16, 64)


def bounded(kappa: float, learners: int, missed: AbstractSet[tuple[float, int]]) -> bool:
    """Whether η of a deployment is interpolated from one of which a curve stayed below the target, so an upper bound.

    Example:
      >>> bounded(16.0, 4, {(8.0, 16)}), bounded(16.0, 8, {(8.0, 16)}), bounded(0.25, 8, {(8.0, 16)})
      (False, True, False)
    """
    kappas, numbers = around(kappa, _MEASURED_KAPPAS), around(learners, _MEASURED_LEARNERS)
    return any(place in missed for place in itertools.product(kappas, numbers))


def foretold() -> Table:
    """Returns what the map foretold of the deployments that were run on the event loop, as it was registered."""
    lines = []
    for row in rows("small/stellaris-map-hopper/table.csv"):
        told = [_registered(task, row) for task in _TASKS]
        marked = [_marked(one, name) for name in ("eta", "best") for one in told]
        lines.append((_WAYS[row["system"]], *_deployment(row), f"{float(told[0]['speed']):.2f}", *marked))
    headings = ("Stellaris' actors", "κ", "variation", "learners", "S", "η, CartPole", "η, Acrobot")
    return Table((*headings, "time of the best other / time of Stellaris, CartPole", "Acrobot"), lines)


def confirmed() -> Table:
    """Returns what the map foretold of Hopper's deployments, what it says now, and what was found on the event loop."""
    lines = []
    for row in rows("small/stellaris-map-hopper/table.csv"):
        told, now = ([of(task, row) for task in _TASKS] for of in (_registered, _repeated))
        times, etas, times_now = (
            " and ".join(_marked(one, name) for one in of)
            for of, name in ((told, "best"), (told, "eta"), (now, "best"))
        )
        found = times_now, rounded(row[row["best other"]]), row["best other"], etas, rounded(row["eta"])
        lines.append((_WAYS[row["system"]], *_deployment(row), times, *found, row["reached"]))
    deployment = ("actors", "κ", "variation", "learners")
    ahead = ("time of the best other / Stellaris', foretold", "by the repeated map", "on Hopper", "the best other")
    headings = (*deployment, *ahead, "η, foretold", "η on Hopper", "reached 200")
    return Table(headings, lines, left=("the best other",))


def _deployment(row: Mapping[str, str]) -> Sequence[str]:
    return [f"{float(row[name]):g}" for name in _PLACE]


#: The columns of a deployment, beside the system.
_PLACE = ("kappa", "variation", "learners")


def _of(table: Iterable[Mapping[str, str]], row: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the row of a table that is about the deployment of another row."""
    (found,) = (one for one in table if one["system"] == row["system"] and _deployment(one) == _deployment(row))
    return found


def _registered(task: str, row: Mapping[str, str]) -> Mapping[str, str]:
    """Returns S, η and the advantage at equal time of the map from which Hopper's deployments were chosen."""
    return _of((one for one in rows("stellaris-map/foretold.csv") if one["task"] == task), row)


def _repeated(task: str, row: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the same by the map's present tables."""
    compared = (
        one for one in rows(f"stellaris-map/map_{task}.csv") if (one["what"], float(one["growth"])) == (TIME, 0.0)
    )
    found = _of(compared, row)
    kappa, variation, learners = (float(row[name]) for name in _PLACE)
    at_most = bounded(kappa, int(learners), _missed(task, row["system"], variation))
    return {**found, "at_most": str(at_most)}


def _marked(one: Mapping[str, str], name: str) -> str:
    """The number, with ≤ if η is an upper bound."""
    return f"{'≤ ' if one['at_most'] == 'True' else ''}{float(one[name]):.2f}"
