"""The advantage of learners that share a GPU: it comes out again, and sharing that slows more takes from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.figures.map import command, sharing
from experiments.figures.map.outcomes import Speeds
from experiments.toolkit import output
from experiments.toolkit.repeat import COMMITTED, matching

FOLDER = COMMITTED / "stellaris-map"


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict]:
    """The rows of one deployment on CartPole."""
    (tmp_path := tmp_path_factory.mktemp("map")).joinpath("learning_CartPole.csv.gz").symlink_to(
        Path(FOLDER / "learning_CartPole.csv.gz").resolve()
    )
    ((name, (eta, drawn, _)),) = command._learned(tmp_path).items()
    speeds = Speeds.of(output.read_rows(FOLDER / "speed.csv"))
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(sharing, "_KAPPAS", (16.0,))
        patches.setattr(sharing, "_VARIATIONS", (1.0,))
        (shared,) = (way for way in command.WAYS if way.sharers == sharing.LEARNERS)
        return [*sharing.compared(command.PRESETS["small"].grid, speeds, {name: (eta, drawn)}, shared.update)]


@pytest.mark.slow
def test_the_committed_rows_come_out_again(found):
    committed = output.read_rows(FOLDER / "sharing.csv")
    assert len(found) == 6
    for row in found:
        place = {name: row[name] for name in ("task", "what", "slower", "kappa", "variation")}
        (known,) = matching(committed, place)
        assert [float(known[name]) for name in ("best", "best_low", "best_high")] == pytest.approx(
            [row[name] for name in ("best", "best_low", "best_high")], rel=1e-3
        )


@pytest.mark.slow
def test_on_one_gpu_cost_of_machines_is_time(found):
    """As the best other system also rents one GPU; and more sharing costs more."""
    by = {(row["what"], row["slower"]): row["best"] for row in found}
    for slower in sharing.SLOWER:
        assert by["time", slower] == pytest.approx(by["machines", slower], rel=1e-3)
    for what in ("time", "machines", "use"):
        assert by[what, 2.0] > 1.1 * by[what, 2.65]


def test_a_grid_without_sharers_has_no_rows():
    grid = replace(command.PRESETS["smoke"].grid, kappas=(4.0,))
    assert [*sharing.compared(grid, Speeds.of([]), {}, 1.4)] == []
