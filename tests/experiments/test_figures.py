"""The studies' commands on a tiny problem: what they run, print and draw. Each run is done here, in this process."""

import multiprocessing
from collections.abc import Sequence
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from experiments import catalogue, command, tuning
from experiments.figures.map import rates as map_rates
from experiments.figures.minionsrl import motivation as actors_motivation
from experiments.figures.minionsrl import scaling as actors_scaling
from experiments.figures.minionsrl import training as actors_training
from experiments.figures.minionsrl.ceiling import Schedule
from experiments.figures.stellaris import calibration, challenges, hpc, latency, motivation, scaling, training
from experiments.study import cells, curves, study
from experiments.tasks import minionsrl, presets
from stellaris.acting import ActorCritic
from stellaris.runtime.delays import Empirical
from stellaris.runtime.endings import ENDINGS
from stellaris.scheduling import Fixed, Learned, Stepped
from stellaris.systems import Workload
from tests.experiments import csv_rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("optimised")]

#: Actors of MinionsRL's, at most.
MOST = 4


class Here:
    """In place of `Worker`: a cell is run at once, and all that it says is that it went well."""

    def __init__(self, out):
        self._out = out
        self.wire, self._far_end = multiprocessing.Pipe()

    def begin(self, cell):
        watcher = cells._Wire(self._far_end)
        watcher.row = lambda run: None
        cells.run(cell, self._out / "cells" / cell.key, watcher, out=self._out)
        self._far_end.send(True)

    def end(self):
        """It has no process."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One folder for all: runs that studies have in common are done once."""
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def schedulers(tmp_path_factory):
    """A folder with one for CartPole; it has not learned yet."""
    folder = tmp_path_factory.mktemp("schedulers")
    Learned.untrained(most=MOST, seed=0).save(folder / "CartPole-v1-tuned-time.npz")
    return folder


@pytest.fixture(autouse=True)
def tiny(monkeypatch, schedulers):
    """Short fragments, a small network; a small part of the HPC testbed, and of MinionsRL's."""
    size = {"policy": ActorCritic(hidden=(8,)), "actors": 16, "fragment": 32}
    monkeypatch.setattr(presets, "workload", lambda environment: Workload(environment, **size))
    monkeypatch.setattr(study, "Worker", Here)
    monkeypatch.setattr(hpc, "ACTORS", 64)
    monkeypatch.setattr(scaling, "BATCH", 1024)
    schedules = {"fixed": Fixed(2), "increase": Stepped(1, 1, every=4), "decrease": Stepped(3, -1, every=4)}
    styled = {name: (schedules[name], *style) for name, (_, *style) in actors_motivation.SCHEDULES.items()}
    monkeypatch.setattr(actors_motivation, "SCHEDULES", styled)
    monkeypatch.setattr(actors_scaling, "ACTORS", (1, 2, MOST))
    everyone, two = (Schedule(number, number, 0) for number in (MOST, 2))
    monkeypatch.setattr(actors_training, "ALL", everyone)
    monkeypatch.setattr(actors_training, "_FEW", (everyone, two))
    monkeypatch.setattr(minionsrl, "ACTORS", MOST)
    monkeypatch.setattr(minionsrl, "FRAGMENT", 32)
    monkeypatch.setattr(minionsrl, "SCHEDULERS", schedulers)


def run(name, out, *options):
    few = ("--preset", "smoke", "--steps", "6144", "--seeds", "1", "--resume", "--out", str(out))
    return command.main([name, *few, *options])


#: The colours that a system has in every picture, where it is drawn.
STELLARIS, SYNCHRONOUS = "#0072B2", "#D55E00"
ALL = f"{STELLARIS} {SYNCHRONOUS} #009E73 #56B4E9 #000000"
_WHY = "baseline; 4 x gradients; minibatches / 4; serverless; asynchrony; cap; groups; no waiting; weights"
_WHY += "".join(f"; {name}, 0 s" for name in _WHY.split("; ")[:-2])
_SHARED = ("asynchronous actors, shared rate",)


def variants(systems, settings):
    """The options that choose these systems in these settings."""
    return [word for one in settings for system in systems for word in ("--variant", f"{system}, {one}")]


class Shown(NamedTuple):
    rows: str  #: systems or variants in its table, with semicolons between them.
    pictures: str
    colours: str = STELLARIS  #: every picture contains each of these.
    options: Sequence[str] = ()


#: The other files of a study's folder.
TABLES = ("runs.csv", "curves.csv", "wall_seconds.csv", "table.csv", "provenance.json")


def swept(name, rows, other, *options):
    """A sweep: its pictures show the return, and the cost under both bills."""
    pictures = " ".join(f"{name}_{kind}" for kind in ("return", "demo", "use"))
    return Shown(rows, pictures, options=[*options, *variants(("stellaris", other), rows.split("; "))])


_SCALED = "stellaris, actors 64; synchronous, actors 64; data-parallel, learners 4"
#: The synchronous system, asynchronous actors with one learner, and Stellaris in both ways, on one deployment.
_ON_THE_MAP = [point for point in map_rates.RUN if point.kappa == 4.0 or point.system == "synchronous"]
_CHALLENGES = "challenges_staleness_mean challenges_kl challenges_policy_kl challenges_learners"
_TESTBEDS = ("tuned", "authors")
STUDIES = {
    "stellaris-training": Shown("; ".join(("untrained", *training.SYSTEMS, *_SHARED)), "training", ALL),
    "stellaris-motivation": Shown("stellaris; synchronous", "motivation", f"{STELLARIS} {SYNCHRONOUS}"),
    "stellaris-equal-time": Shown(
        "; ".join(tuning.of("CartPole-v1").chosen), "equal_time", f"{STELLARIS} {SYNCHRONOUS} #009E73 #56B4E9 #CC79A7"
    ),
    "stellaris-cost": Shown("; ".join(training.SYSTEMS), "cost", ALL),
    "stellaris-challenges": Shown("cap; no cap", _CHALLENGES),
    "stellaris-ablation": Shown("Stellaris; one learner; no cap; no aggregation; neither", "stellaris-ablation"),
    "stellaris-why": Shown(
        _WHY,
        "why_returns why_spent why_returns_no_overhead why_spent_no_overhead",
        f"{STELLARIS} {SYNCHRONOUS}",
    ),
    "stellaris-sweeps": swept("sweeps", "variation 0.1; variation 1; gradient 1", "synchronous"),
    "stellaris-demo-sweeps": swept("demo-sweeps", "growth 0; growth 1", "synchronous"),
    "stellaris-hpc-sweeps": swept("hpc-sweeps", "growth 0; growth 1", "PAR-RL", "--steps", "8192"),
    "stellaris-scaling": Shown(
        _SCALED, "scaling_actors scaling_learners", "", [w for one in _SCALED.split("; ") for w in ("--variant", one)]
    ),
    "stellaris-hpc": Shown(
        "stellaris; PAR-RL; ratio, return at equal time", "hpc", f"{STELLARIS} #CC79A7", ("--steps", "8192")
    ),
    "stellaris-map-hopper": Shown(
        "; ".join(point.system for point in _ON_THE_MAP[2:]),
        "",
        options=[word for point in _ON_THE_MAP for word in ("--variant", map_rates.label(point))],
    ),
    "stellaris-latency": Shown("actor; learner; parameter", "latency", "#000000"),
    "minionsrl-motivation": Shown(
        "; ".join(["tuned"] * 3 + ["authors"] * 3),
        "motivation_tuned motivation_authors schedules",
        "#000000 #009E73 #CC79A7",
        ("--steps", "768"),
    ),
    "minionsrl-training": Shown(
        "; ".join(["tuned"] * 7 + ["authors"] * 5),
        "numbers " + " ".join(f"{kind}_{of}" for kind in ("training", "decisions") for of in _TESTBEDS),
        "",  # runs that miss the target are not in the picture of numbers
        ("--steps", "512"),
    ),
    "minionsrl-scaling": Shown("; ".join(["tuned"] * 3 + ["authors"] * 3), "scaling", f"{STELLARIS} {SYNCHRONOUS}"),
    "minionsrl-latency": Shown(
        "; ".join(["tuned"] * 4 + ["authors"] * 4), "latency_tuned latency_authors", "#000000", ("--steps", "512")
    ),
}


def printed(capsys):
    """The cells of the table that was printed, row by row."""
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("\u2502")]
    return [[cell.strip() for cell in line.split("\u2502")] for line in lines]


@pytest.mark.parametrize("name", STUDIES)
def test_a_study(name, results, capsys):
    """A row a system or variant; pictures that hold something, as PNG and PDF; tidy files.

    Pictures of the runs that the tables told of before are gone; files that the user has put there stay.
    """
    shown = STUDIES[name]
    rows, pictures = shown.rows.split("; "), shown.pictures.split()
    home = results / name
    home.mkdir()
    (home / "runs.csv").write_text("environment,seed\nEarlier-v0,0\n../up,0\n")
    for own in pictures:
        (home / f"{own}_Earlier-v0.png").write_text("of a run before")
    users = {"notes.png", "slides.pdf", *(f"{picture}_mine.png" for picture in pictures)}
    for mine in users:
        (home / mine).write_text("the user's")
    assert run(name, results, *shown.options) == 0
    assert {path.name for path in home.iterdir() if path.name in users} == users
    for mine in users:
        assert (home / mine).read_text() == "the user's"
        (home / mine).unlink()
    assert [cells[2] for cells in printed(capsys)] == rows
    assert len(csv_rows.rows(home / "table.csv")) == len(rows)
    (environment,) = catalogue.EXPERIMENTS[name].load().STUDY.sizes["smoke"].environments
    names = {f"{picture}_{environment}.{kind}" for picture in pictures for kind in ("png", "pdf")}
    assert {path.name for path in home.iterdir()} == {*names, *TABLES}
    for picture in home.glob("*.png"):
        pixels = np.unique(np.asarray(Image.open(picture).convert("RGB")).reshape(-1, 3), axis=0).astype(int)
        for colour in shown.colours.split():
            own = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
            faded = 255 + 0.7 * (own - 255)  # as lines of single runs are
            assert any(np.abs(pixels - one).max(axis=1).min() <= 2 for one in (own, faded)), (picture, colour)


def test_calibration(results, capsys):
    """What each body took, as a distribution that delays can be drawn from; the factor is that of the medians."""
    assert run("stellaris-calibration", results) == 0
    home = results / "stellaris-calibration"
    for row, name in zip(printed(capsys), ("actor", "learner", "parameter"), strict=True):
        drawn = Empirical.from_csv(home / "times.csv", f"CartPole-v1 {name}")
        assert len(drawn.samples) == 101
        median, assumed, factor = float(row[4]), float(row[6]), float(row[7])
        assert median == pytest.approx(1e3 * drawn.samples[50], rel=0.01)
        assert factor == pytest.approx(assumed / median, rel=0.1)
        assert (home / f"calibration_{name}.png").stat().st_size > 5000


def result_of(history=(), **calls):
    """A result with a history and with columns of invocations."""
    calls = SimpleNamespace(names=("actor", "learner"), **{name: np.array(column) for name, column in calls.items()})
    return SimpleNamespace(history=history, trace=SimpleNamespace(invocations=lambda: calls))


def test_what_compiles_is_not_measured():
    """The first half of a function's calls is left out, and calls that were cancelled or never ended."""
    started, ended = [0.0, 0.0, 5.0, 6.0, 7.0, 7.4], [5.0, 2.0, 6.0, 7.5, np.nan, 7.5]
    ending = [*[ENDINGS.index("completed")] * 4, -1, ENDINGS.index("cancelled")]
    result = result_of(function=[0, 1, 0, 0, 0, 0], started=started, ended=ended, ending=ending)
    times = calibration.seconds(result)
    assert {name: took.tolist() for name, took in times.items()} == {"actor": [1.0, 1.5], "learner": [2.0]}


def test_studies_share_their_runs(results):
    assert run("stellaris-training", results) == 0
    before = {path.name for path in (results / "cells").iterdir()}
    assert run("stellaris-cost", results) == 0
    assert {path.name for path in (results / "cells").iterdir()} == before


def test_cost_to_a_target():
    history = [{"episode_return": r, "cost_pay_per_use": c} for r, c in ((1.0, 0.1), (5.0, 0.2), (4.0, 0.3))]
    assert curves.cost_to(result_of(history), 4.5) == 0.2
    assert curves.cost_to(result_of(history), 6.0) is None


def test_learners_in_use():
    """Two at once for a second of two, one for the other: 1.5 on average."""
    calls = {"function": [1, 1, 0], "started": [0.0, 1.0, 0.0], "ended": [2.0, 2.0, 2.0]}
    times, used = challenges._in_use(result_of([{"seconds": 2.0}], **calls))
    np.testing.assert_allclose(used, np.where(times < 1, 1.0, 2.0))


def test_latencies():
    """By hand, in milliseconds; an invocation that never ended is not counted."""
    times = {"submitted": [0.0, 1.0, 5.0], "acquired": [0.0, 1.2, 5.0], "started": [0.5, 1.3, 5.0]}
    means = latency._means([result_of(function=[0, 0, 0], ended=[1.5, 2.3, np.nan], **times)])["actor"]
    np.testing.assert_allclose([means[part] for part in latency.PARTS], [100.0, 300.0, 1000.0])


def test_frameworks(capsys):
    assert command.main(["stellaris-frameworks"]) == 0
    rows = {cells[1]: cells[2:6] for cells in printed(capsys)}
    assert rows["Stellaris"] == ["yes"] * 4
    assert rows["RLlib"] == ["no", "no", "yes", "no"]
    assert len(rows) == 6


def test_the_demos_steps_are_its_rounds():
    """20 of them, as in the preset `paper`."""
    assert motivation.SIZES["small"].steps == presets.paper("Hopper-v4").budget.steps
