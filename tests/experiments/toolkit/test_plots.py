"""Pictures: their curves, by the numbers that are drawn; and files that are whole or not there."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from experiments.toolkit import plots
from stellaris.runtime import Trace


def history(seconds, returns):
    """Rows whose costs are the seconds, and ten times the seconds."""
    return [
        {"seconds": t, "episode_return": r, "cost_demo": t, "cost_pay_per_use": 10 * t, "staleness_mean": t / 2}
        for t, r in zip(seconds, returns, strict=True)
    ]


def runs(*histories, name="it"):
    contender = SimpleNamespace(name=name, colour="#0072B2", line="--")
    return plots.Curves(contender, histories)


def applied(*staleness):
    """Of a run that applied gradients so stale."""
    trace = Trace()
    for value in staleness:
        trace.append(1.0, "staleness", value=value)
    return trace


TWO = runs(history([1.0, 2.0, 4.0], [10.0, 20.0, 40.0]), history([1.0, 3.0], [30.0, 50.0]))


@pytest.fixture
def drawn(monkeypatch):
    """The figures, kept open to be looked at."""
    canvases = []

    @contextmanager
    def figure(path, title, *, columns, rows=1, **options):
        canvas, axes = plt.subplots(rows, columns, squeeze=False, layout="constrained")
        axes[0][0].set_title(title, loc="left")
        canvases.append(canvas)
        yield list(axes.flat)

    monkeypatch.setattr(plots, "figure", figure)
    yield canvases
    for canvas in canvases:
        plt.close(canvas)


def test_a_curve_is_the_mean_of_all_runs(drawn):
    """By hand: at 2 s one run has 20 and the other, half-way from 30 to 50, 40, which ends at 3 s and keeps its 50."""
    plots.reward_vs_time([TWO], Path("x"), title="Hopper", target=35.0)
    (axes,) = drawn[0].axes
    curve, target = axes.lines
    assert curve.get_xdata()[-1] == 4.0
    assert np.interp(2.0, curve.get_xdata(), curve.get_ydata()) == pytest.approx(30.0, abs=0.1)
    assert curve.get_ydata()[-1] == pytest.approx((40.0 + 50.0) / 2)
    assert np.isnan(curve.get_ydata()[0])  # before the first row nothing is known
    assert (curve.get_label(), curve.get_linestyle(), curve.get_color()) == ("it", "--", "#0072B2")
    assert (target.get_label(), set(target.get_ydata())) == ("target 35", {35.0})
    assert len(axes.collections) == 1  # the range
    assert axes.get_title(loc="left") == "Hopper (mean and range of 2 seeds)"
    assert labels(drawn[0]) == ["it", "target 35"]


def labels(figure):
    """The texts of a figure's legend."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_returns_of_evaluations(drawn):
    """In place of those of training episodes; rows without one are left out."""
    rows = [{"seconds": 1.0, "evaluation_return": 5.0}, {"seconds": 2.0, "evaluation_return": 7.0}, {"seconds": 3.0}]
    history = [{**row, "episode_return": 1.0} for row in rows]
    plots.learning([TWO._replace(histories=[history])], Path("x"), title="", over={"seconds": "s"}, evaluated=10)
    over, final = drawn[0].axes
    assert over.lines[0].get_ydata()[-1] == 7.0
    assert over.get_ylabel() == "mean return of\n10 evaluation episodes"
    assert final.patches[0].get_height() == 7.0


def test_a_learning_curve_keeps_runs_that_ended(drawn):
    """At 4 s the median of 40 and of 50, which was reached at 3 s."""
    plots.learning([TWO], Path("x"), title="Hopper", over={"seconds": "s"})
    curve = drawn[0].axes[0].lines[0]
    assert (curve.get_xdata()[-1], curve.get_ydata()[-1]) == (4.0, pytest.approx(45.0))


def test_many_runs_are_a_median_with_quartiles(drawn):
    """Of five runs, as far as three of them have rounds; of fewer runs there is a line each."""
    rows = [[{"round": i, "actors": float(run + 10 * i)} for i in range(2 + run)] for run in range(5)]
    several = plots.Curves(SimpleNamespace(name="it", colour="#0072B2", line="--"), rows)
    plots.per_run([several], Path("x"), title="", xlabel="round", panels={"actors": "actors"})
    plots.per_run([several._replace(histories=rows[:2])], Path("x"), title="", xlabel="", panels={"actors": "actors"})
    many, few = (figure.axes[0] for figure in drawn)
    (line,) = many.lines
    assert list(line.get_xdata()) == [0, 1, 2, 3]
    assert list(line.get_ydata()) == [2.0, 12.0, 22.5, 33.0]
    assert len(many.collections) == 1
    assert (len(few.lines), len(few.collections)) == (2, 0)


@pytest.mark.parametrize(("lowest", "from_zero"), [(-200.0, False), (20.0, True)])
@pytest.mark.parametrize("count", [2, 5])
def test_negative_returns_are_on_the_picture(lowest, from_zero, count, drawn):
    """Without them the axis begins at 0."""
    contender = SimpleNamespace(name="it", colour="#0072B2", line="-")
    rows = [{"round": 1.0, "return": lowest}, {"round": 2.0, "return": 300.0}]
    curves = plots.Curves(contender, [rows] * count)
    plots.per_run([curves], Path("x"), title="", xlabel="", panels={"return": "return"})
    low, _ = drawn[0].axes[0].get_ylim()
    assert (low == 0.0) if from_zero else (low <= lowest)


def test_a_group_of_bars_per_name(drawn):
    """A bar per part, side by side, on a logarithmic axis: 4 ms shows beside 2,000."""
    plots.grouped({"actor": {"waiting": 4.0, "running": 2000.0}}, Path("x"), title="", ylabel="ms")
    (axes,) = drawn[0].axes
    assert [bar.get_height() for bar in axes.patches] == [4.0, 2000.0]
    assert axes.patches[0].get_x() + axes.patches[0].get_width() == pytest.approx(axes.patches[1].get_x())
    assert (axes.get_yscale(), labels(drawn[0])) == ("log", ["waiting", "running"])


@pytest.mark.parametrize("values", [[0.8, 0.99], [0.3, 1.4], [4.0, 2000.0]])
def test_a_logarithmic_axis_has_numbers(values, drawn):
    """At least three of them within the axis, however little the values differ."""
    contender = SimpleNamespace(name="it", colour="#0072B2", line="-")
    panel = plots.Panel("x", "y", [plots.Line(contender, dict(enumerate([value] for value in values)))], log_y=True)
    plots.sweep([panel], Path("x"), title="")
    (axes,) = drawn[0].axes
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 3


def test_one_run_has_no_range(drawn):
    """Nor does the title speak of seeds; without a target there is no line of one."""
    one = runs(history([1.0, 2.0], [1.0, 2.0]))
    plots.reward_vs_time([one, one._replace()], Path("x"), title="Hopper", target=None)
    (axes,) = drawn[0].axes
    assert (len(axes.lines), len(axes.collections)) == (2, 0)
    assert axes.get_title(loc="left") == "Hopper"


def test_staleness_by_hand(drawn):
    """Of four gradients in either run two are fresh, none is 1 behind, one 2 and one 4."""
    plots.staleness(TWO, [applied(0, 0, 2, 4)] * 2, Path("x"), title="Hopper")
    distribution, over_time = drawn[0].axes
    assert [bar.get_height() for bar in distribution.patches] == [50.0, 0.0, 25.0, 0.0, 25.0]
    assert distribution.lines[0].get_label() == "mean 1.50"
    assert [list(line.get_ydata()) for line in over_time.lines] == [[0.5, 1.0, 2.0], [0.5, 1.5]]


def test_changes_lead_from_one_to_the_next(drawn):
    """By hand: up from 1 to 3, and down to 2; the medians of two runs."""
    changes = {"it": (1.0, 1.0), "up": (2.0, 4.0), "down": (2.0, 2.0)}
    plots.waterfall({"ratio": changes, "other": changes}, Path("x"), colours=["#000000"] * 3, title="Hopper")
    first, other = drawn[0].axes
    assert [(bar.get_y(), bar.get_height()) for bar in first.patches] == [(0, 1), (1, 2), (3, -1)]
    assert [label.get_text() for label in first.get_xticklabels()] == ["it", "up", "down"]
    assert (first.get_ylabel(), other.get_ylabel()) == ("ratio", "other")


def test_over_what_is_varied(drawn):
    """A line through the middles, a point a run, an interval from five runs on, and what to compare with."""
    one = SimpleNamespace(name="one", colour="#0072B2", line="-")
    other = SimpleNamespace(name="other", colour="#D55E00", line="--")
    five = [1.0, 2.0, 3.0, 4.0, 5.0]
    panel = plots.Panel(
        "x", "y", [plots.Line(one, {1: [1.0, 3.0], 4: five}), plots.Line(other, {1: [7.0]})], log=True, level=1.0
    )
    plots.sweep(
        [panel, panel._replace(lines=panel.lines[:1], log=False, log_y=True, level=None)], Path("x"), title="Hopper"
    )
    first, second = drawn[0].axes
    assert (first.get_xscale(), second.get_xscale()) == ("log", "linear")
    assert (first.get_yscale(), second.get_yscale()) == ("linear", "log")
    (through,) = (line for line in first.lines if line.get_label() == "one")
    assert (list(through.get_xdata()), list(through.get_ydata())) == ([1, 4], [2.0, 3.0])
    assert [list(line.get_ydata()) for line in first.lines if line.get_marker() == "o"] == [[1.0, 3.0], five, [7.0]]
    assert len(first.containers) == 1  # the interval
    assert labels(drawn[0]) == ["one", "other"]
    assert len(second.lines) < len(first.lines)


@pytest.mark.parametrize(("count", "columns"), [(5, 5), (6, 3), (7, 4)])
def test_many_panels_are_in_two_rows(count, columns, drawn):
    """Each shows its own values; a place that is left over stays empty."""
    contender = SimpleNamespace(name="it", colour="#0072B2", line="-")
    panels = [plots.Panel(f"{i}", "y", [plots.Line(contender, {0: [float(i)]})]) for i in range(count)]
    plots.sweep(panels, Path("x"), title="")
    shown = [axes for axes in drawn[0].axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in shown] == [f"{i}" for i in range(count)]
    assert drawn[0].axes[0].get_gridspec().ncols == columns


def test_boxes(drawn):
    """The median and the quartiles, whiskers from the 5th to the 95th percentile, and what is assumed."""
    plots.spread({"it": np.arange(1.0, 102.0)}, Path("x"), level=50.0, title="actor")
    (axes,) = drawn[0].axes
    heights = {float(y) for line in axes.lines for y in line.get_ydata()}
    assert {51.0, 26.0, 76.0, 6.0, 96.0, 50.0} <= heights
    assert [label.get_text() for label in axes.get_xticklabels()] == ["it"]


def test_a_picture_has_its_title_above_the_titles_of_its_panels(tmp_path):
    with plots.figure(tmp_path / "a.png", "whole", columns=2) as axes:
        axes[0].set_title("panel")
        figure = axes[0].figure
    assert figure.get_suptitle() == "whole"
    with plots.figure(tmp_path / "a.png", "whole", columns=2) as axes:
        figure = axes[0].figure
    assert (figure.get_suptitle(), axes[0].get_title(loc="left")) == ("", "whole")


def test_a_picture_appears_whole_or_not_at_all(tmp_path):
    """An error while it is drawn leaves what was there, nothing half written, no figure open and no setting changed."""
    path, before, font = tmp_path / "a.png", plt.get_fignums(), plt.rcParams["font.size"]
    with plots.figure(path, "title", columns=2) as axes:
        assert len(axes) == 2
        axes[0].plot([1, 2])
        assert not path.exists()
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG")
    with pytest.raises(ArithmeticError), plots.figure(path, "title", columns=1):
        raise ArithmeticError
    assert path.read_bytes() == content
    assert [*tmp_path.iterdir()] == [path]
    assert (plt.get_fignums(), plt.rcParams["font.size"]) == (before, font)
