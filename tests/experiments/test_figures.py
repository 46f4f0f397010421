"""The studies' commands on a tiny problem: what they run, print and draw. Each run is done here, in this process."""

import csv
import multiprocessing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from experiments import catalogue, command
from experiments.figures.minionsrl import motivation as actors_motivation
from experiments.figures.minionsrl import scaling as actors_scaling
from experiments.figures.stellaris import calibration, challenges, cost, hpc, latency, motivation, scaling, training
from experiments.study import cells, study
from experiments.study.cells import Cell
from experiments.tasks import minionsrl, presets
from stellaris.acting import ActorCritic
from stellaris.runtime.delays import Empirical
from stellaris.scheduling import Fixed, Learned, Stepped
from stellaris.systems import Workload

pytestmark = pytest.mark.slow

#: Actors of MinionsRL's, at most.
MOST = 4


class Here:
    """In place of `Worker`: a cell is run at once, and all that it says is that it went well."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.wire, self._far_end = multiprocessing.Pipe()

    def begin(self, cell: Cell) -> None:
        """Runs it."""
        watcher: Any = cells._Wire(self._far_end)
        watcher.row = lambda run: None
        cells.run(cell, self._out / "cells" / cell.key, watcher, out=self._out)
        self._far_end.send(True)

    def end(self) -> None:
        """It has no process."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: runs that studies have in common are done once."""
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def schedulers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one for CartPole, and one from it for Hopper with its episodes; neither has learned yet."""
    folder = tmp_path_factory.mktemp("schedulers")
    for name in ("CartPole-v1", "Hopper-v4-tuned"):
        Learned.untrained(most=MOST, seed=0).save(folder / f"{name}.npz")
    (folder / "Hopper-v4-tuned.csv").write_text("episode,seconds,cost\n1,30.0,0.02\n2,25.0,0.03\n")
    return folder


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, schedulers: Path) -> None:
    """Short fragments, a small network; a small part of the HPC testbed, and of MinionsRL's."""

    def workload(environment: str) -> Workload:
        return Workload(environment, policy=ActorCritic(hidden=(8,)), actors=16, fragment=32)

    monkeypatch.setattr(presets, "workload", workload)
    monkeypatch.setattr(study, "Worker", Here)
    monkeypatch.setattr(hpc, "ACTORS", 64)
    monkeypatch.setattr(scaling, "BATCH", 1024)
    schedules = {"fixed": Fixed(2), "increase": Stepped(1, 1, every=4), "decrease": Stepped(3, -1, every=4)}
    styled = {name: (schedules[name], *style) for name, (_, *style) in actors_motivation.SCHEDULES.items()}
    monkeypatch.setattr(actors_motivation, "SCHEDULES", styled)
    monkeypatch.setattr(actors_scaling, "ACTORS", (1, 2, MOST))
    monkeypatch.setattr(minionsrl, "ACTORS", MOST)
    monkeypatch.setattr(minionsrl, "FRAGMENT", 32)
    monkeypatch.setattr(minionsrl, "SCHEDULERS", schedulers)


def run(name: str, out: Path, *options: str) -> int:
    """A study, of a dozen rounds."""
    few = ("--preset", "smoke", "--steps", "6144", "--seeds", "1", "--resume", "--out", str(out))
    return command.main([name, *few, *options])


#: The colours that a system has in every picture, where it is drawn.
STELLARIS, SYNCHRONOUS, ASYNCHRONOUS, IMPACT = "#0072B2", "#D55E00", "#009E73", "#56B4E9"
ALL = (STELLARIS, SYNCHRONOUS, ASYNCHRONOUS, IMPACT, "#000000")
#: And MinionsRL's own; those of the motivation.
MINIONS = (STELLARIS, "#000000", "#E69F00")
SCHEDULES = ("#000000", "#009E73", "#CC79A7")
_WHY = ("baseline", "4 x gradients", "minibatches / 4", "serverless", "asynchrony", "cap", "groups", "weights")


class Shown(NamedTuple):
    """What a study leaves to be looked at."""

    rows: Sequence[str]  #: of its table: systems or variants.
    pictures: Sequence[str]
    colours: Sequence[str]  #: that are in each picture.
    options: Sequence[str] = ()


STUDIES: Mapping[str, Shown] = {
    "stellaris-training": Shown(
        ("untrained", *training.SYSTEMS, "asynchronous actors, shared rate", "IMPACT, shared rate"),
        ("training",),
        ALL,
    ),
    "stellaris-motivation": Shown(("stellaris", "synchronous"), ("motivation",), (STELLARIS, SYNCHRONOUS)),
    "stellaris-cost": Shown(training.SYSTEMS, ("cost",), ALL),
    "stellaris-challenges": Shown(
        ("cap", "no cap"),
        ("challenges_staleness_mean", "challenges_kl", "challenges_policy_kl", "challenges_learners"),
        (STELLARIS,),
    ),
    "stellaris-ablation": Shown(
        ("Stellaris", "one learner", "no cap", "no aggregation", "neither"), ("stellaris-ablation",), (STELLARIS,)
    ),
    "stellaris-why": Shown(
        (*_WHY, "evaluated", "billed by use"), ("why_returns", "why_spent"), (STELLARIS, SYNCHRONOUS)
    ),
    "stellaris-sweeps": Shown(
        ("variation 0.1", "variation 1", "gradient 1"),
        ("sweeps_return", "sweeps_demo", "sweeps_use"),
        (STELLARIS,),
        [
            word
            for setting in ("variation 0.1", "variation 1", "gradient 1")
            for system in ("stellaris", "synchronous")
            for word in ("--variant", f"{system}, {setting}")
        ],
    ),
    "stellaris-demo-sweeps": Shown(
        ("growth 0", "growth 1"),
        ("demo-sweeps_return", "demo-sweeps_demo", "demo-sweeps_use"),
        (STELLARIS,),
        [
            word
            for setting in ("growth 0", "growth 1")
            for system in ("stellaris", "synchronous")
            for word in ("--variant", f"{system}, {setting}")
        ],
    ),
    "stellaris-hpc-sweeps": Shown(
        ("growth 0", "growth 1"),
        ("hpc-sweeps_return", "hpc-sweeps_demo", "hpc-sweeps_use"),
        (STELLARIS,),
        [
            *("--steps", "8192"),
            *(
                word
                for setting in ("growth 0", "growth 1")
                for system in ("stellaris", "PAR-RL")
                for word in ("--variant", f"{system}, {setting}")
            ),
        ],
    ),
    "stellaris-scaling": Shown(
        ("stellaris, actors 64", "synchronous, actors 64", "data-parallel, learners 4"),
        ("scaling_actors", "scaling_learners"),
        (),
        [
            *("--variant", "stellaris, actors 64", "--variant", "synchronous, actors 64"),
            *("--variant", "data-parallel, learners 4"),
        ],
    ),
    "stellaris-hpc": Shown(
        ("stellaris", "PAR-RL", "ratio, return at equal time"),
        ("hpc",),
        (STELLARIS, "#CC79A7"),
        ("--steps", "8192"),
    ),
    "stellaris-latency": Shown(("actor", "learner", "parameter"), ("latency",), ("#000000",)),
    "minionsrl-motivation": Shown(
        ("fixed", "increase", "decrease"), ("motivation", "schedules"), SCHEDULES, ("--steps", "768")
    ),
    "minionsrl-training": Shown(
        ("MinionsRL", "MinionsRL-Max", "MinionsRL-Adapt", "Azure ML", "IMPACT"),
        ("training", "ablation", "decisions"),
        MINIONS,
        ("--steps", "1024"),
    ),
    "minionsrl-scaling": Shown(("1 actors", "2 actors", "4 actors"), ("scaling",), (STELLARIS,)),
    "minionsrl-latency": Shown(
        ("actor, on demand", "learner, on demand", "actor, pre-warmed", "learner, pre-warmed"),
        ("latency",),
        ("#000000",),
        ("--steps", "512"),
    ),
    "minionsrl-finetuning": Shown(
        ("fine-tuned", "before fine-tuning"), ("finetuning",), (STELLARIS,), ("--steps", "512")
    ),
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study(name: str, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row a system or variant; pictures that hold something, as PNG and PDF; tidy files.

    Pictures of the runs that the tables told of before are gone; files that the user has put there stay.
    """
    rows, pictures, drawn, options = STUDIES[name]
    home = results / name
    home.mkdir()
    (home / "runs.csv").write_text("environment,seed\nEarlier-v0,0\n../up,0\n")
    for own in pictures:
        (home / f"{own}_Earlier-v0.png").write_text("of a run before")
    users = {"notes.png", "slides.pdf", f"{pictures[0]}_mine.png"}
    for mine in users:
        (home / mine).write_text("the user's")
    assert run(name, results, *options) == 0
    assert {path.name for path in home.iterdir() if path.name in users} == users
    for mine in users:
        assert (home / mine).read_text() == "the user's"
        (home / mine).unlink()
    printed = [line.split("\u2502") for line in capsys.readouterr().out.splitlines() if line.startswith("\u2502")]
    assert tuple(cells[2].strip() for cells in printed) == rows
    with (home / "table.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    (environment,) = catalogue.EXPERIMENTS[name].load().STUDY.sizes["smoke"].environments
    names = {f"{picture}_{environment}.{kind}" for picture in pictures for kind in ("png", "pdf")}
    assert {path.name for path in home.iterdir()} == {*names, "runs.csv", "curves.csv", "wall_seconds.csv", "table.csv"}
    for picture in home.glob("*.png"):
        pixels = np.unique(np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3), axis=0).astype(int)
        for colour in drawn:
            own = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
            faded = 255 + 0.7 * (own - 255)  # as lines of single runs are
            assert any(np.abs(pixels - one).max(axis=1).min() <= 2 for one in (own, faded)), (picture, colour)


def test_calibration(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What each body took, as a distribution that delays can be drawn from; the factor is that of the medians."""
    assert run("stellaris-calibration", results) == 0
    rows = [line.split("\u2502") for line in capsys.readouterr().out.splitlines() if line.startswith("\u2502")]
    home = results / "stellaris-calibration"
    for row, name in zip(rows, ("actor", "learner", "parameter"), strict=True):
        drawn = Empirical.from_csv(home / "times.csv", f"CartPole-v1 {name}")
        assert len(drawn.samples) == 101
        median, assumed, factor = float(row[4]), float(row[6]), float(row[7])
        assert median == pytest.approx(1e3 * drawn.samples[50], rel=0.01)
        assert factor == pytest.approx(assumed / median, rel=0.1)
        assert (home / f"calibration_{name}.png").stat().st_size > 5000


def test_what_compiles_is_not_measured() -> None:
    """The first half of a function's invocations; nor what never ended."""
    calls: Any = SimpleNamespace(
        function=np.array([0, 1, 0, 0, 0]),
        names=("actor", "learner"),
        started=np.array([0.0, 0.0, 5.0, 6.0, 7.0]),
        ended=np.array([5.0, 2.0, 6.0, 7.5, np.nan]),
    )
    result: Any = SimpleNamespace(trace=SimpleNamespace(invocations=lambda: calls))
    times = calibration.seconds(result)
    assert {name: took.tolist() for name, took in times.items()} == {"actor": [1.0, 1.5], "learner": [2.0]}


def test_studies_share_their_runs(results: Path) -> None:
    """The cost is of the training's runs: none is done again."""
    assert run("stellaris-training", results) == 0
    before = {path.name for path in (results / "cells").iterdir()}
    assert run("stellaris-cost", results) == 0
    assert {path.name for path in (results / "cells").iterdir()} == before


def test_cost_to_a_target() -> None:
    """Of the first row that has it."""
    history = [{"episode_return": r, "cost_pay_per_use": c} for r, c in ((1.0, 0.1), (5.0, 0.2), (4.0, 0.3))]
    result: Any = type("Result", (), {"history": history})
    assert cost._cost_of(result, 4.5) == 0.2
    assert cost._cost_of(result, 6.0) is None


def test_learners_in_use() -> None:
    """Two at once for a second of two, one for the other: 1.5 on average."""
    calls: Any = type(
        "Calls",
        (),
        {
            "function": np.array([1, 1, 0]),
            "names": ("actor", "learner"),
            "started": np.array([0.0, 1.0, 0.0]),
            "ended": np.array([2.0, 2.0, 2.0]),
        },
    )
    trace: Any = type("Trace", (), {"invocations": lambda self: calls})()
    result: Any = type("Result", (), {"history": [{"seconds": 2.0}], "trace": trace})
    times, used = challenges._in_use(result)
    np.testing.assert_allclose(used, np.where(times < 1, 1.0, 2.0))


def test_latencies() -> None:
    """By hand, in milliseconds; what never ended is not counted."""
    calls: Any = type(
        "Calls",
        (),
        {
            "function": np.array([0, 0, 0]),
            "names": ("actor",),
            "submitted": np.array([0.0, 1.0, 5.0]),
            "acquired": np.array([0.0, 1.2, 5.0]),
            "started": np.array([0.5, 1.3, 5.0]),
            "ended": np.array([1.5, 2.3, np.nan]),
        },
    )
    trace: Any = type("Trace", (), {"invocations": lambda self: calls})()
    result: Any = type("Result", (), {"trace": trace})
    means = latency._means([result])["actor"]
    np.testing.assert_allclose([means[part] for part in latency.PARTS], [100.0, 300.0, 1000.0])


def test_frameworks(capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's table."""
    assert command.main(["stellaris-frameworks"]) == 0
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:6]]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("\u2502") and (cells := line.split("\u2502"))
    }
    assert rows["Stellaris"] == ["yes"] * 4
    assert rows["RLlib"] == ["no", "no", "yes", "no"]
    assert len(rows) == 6


def test_the_demos_steps_are_its_rounds() -> None:
    """20 of them, as in the preset `paper`."""
    assert motivation.SIZES["small"].steps == presets.paper("Hopper-v4").budget.steps
    assert {*STUDIES} <= {*catalogue.EXPERIMENTS}
