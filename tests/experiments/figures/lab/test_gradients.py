"""The study of gradients: its optimizers against the library's, its steps of equal mean size, its verdicts by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from matplotlib.axes import Axes

from experiments import command
from experiments.figures.lab import cosines, gradients
from experiments.figures.lab.compensated import LIMIT, METHODS, Compensated
from experiments.figures.lab.gradients import GROUPS, Case, scale_of
from experiments.figures.lab.gradients_report import border, helps, surface_of
from experiments.figures.lab.outcomes import Cells
from stellaris import PPO
from stellaris.aggregation import add_delay_compensation, gap_aware, limit_alignment
from tests.experiments.committed import RESULTS
from tests.experiments.csv_rows import rows as csv_rows

PRESET = gradients.PRESETS["small"]
GRADIENTS = jnp.array([[0.1, -0.2], [0.3, -0.1], [-0.2, 0.3]])


def steps(optimizer, weight=1.0):
    """The steps of an optimizer whose gradients were computed at parameters of 1, eight versions before."""

    def one(state, gradient):
        params, state = state
        extra = {"params_then": jnp.ones(2), "staleness": jnp.array([8])}
        with jax.numpy_dtype_promotion("standard"):
            step, state = optax.with_extra_args_support(optimizer).update(gradient, state, params, **extra)
        return (params + step, state), step

    _, found = jax.lax.scan(one, (jnp.zeros(2), optimizer.init(jnp.zeros(2))), GRADIENTS)
    return weight * found


def _limited():
    def update(updates, previous, params=None):
        return limit_alignment(updates, previous, limit=LIMIT), updates

    return optax.chain(optax.GradientTransformation(jnp.zeros_like, update), PPO().optimizer())


@pytest.mark.parametrize(
    ("method", "optimizer"),
    [
        ("uncorrected", PPO().optimizer()),
        ("delay compensation", optax.chain(add_delay_compensation(2.0, decay=0.95), PPO().optimizer())),
        ("gap-aware", gap_aware(PPO().optimizer())),
        ("limited alignment", _limited()),
    ],
)
def test_a_correction_is_the_librarys(method, optimizer):
    found = steps(Compensated(method=float([*METHODS].index(method))).optimizer())
    np.testing.assert_allclose(found, steps(optimizer), rtol=1e-5, atol=1e-9)
    if method != "uncorrected":
        assert not np.allclose(found, steps(PPO().optimizer()), rtol=1e-3)


@pytest.mark.parametrize(("method", "weight"), [("weight, cube root", 0.5), ("weight, 1/lag", 0.125)])
def test_a_weight_multiplies_the_step(method, weight):
    found = steps(Compensated(method=float([*METHODS].index(method)), scale=3.0).optimizer())
    np.testing.assert_allclose(found, steps(PPO().optimizer(), 3.0 * weight), rtol=1e-5)


@pytest.mark.parametrize("case", PRESET.cases, ids=str)
def test_mean_steps_are_equal(case):
    """The mean of weight times factor is 1; of a group, the weight is the mean of its gradients'."""
    schedule = PRESET.schedule(case)
    power = METHODS.get(case.method, 1.0)  # of groups, 1 over the lag
    weight = np.maximum(schedule.gradient_lag, 1) ** -power
    of_steps = np.bincount(schedule.gradient_before, weight) / np.bincount(schedule.gradient_before)
    assert (of_steps * scale_of(case, schedule)).mean() == pytest.approx(1.0, rel=1e-6)
    assert len(of_steps) == (512 if case.method == GROUPS else 2048)


def test_weights_have_no_cases_of_their_own_at_constant_ages():
    cases = PRESET.cases
    assert len(cases) == len(set(cases)) == 5 * 11 + 2 * 3
    assert Case("weight, 1/lag", "drawn", 8) in cases
    assert Case("weight, 1/lag", "constant", 8) not in cases


def test_weights_without_lag_are_the_gradients_as_they_are():
    def row(method, kind, lag, final):
        rest = {"learning_rate": "0.1", "seed": "0", "final_return": str(final), "mean_return": "0"}
        return {"method": method, "kind": kind, "lag": str(lag), **rest}

    table = [
        row("uncorrected", "constant", 0, 500),
        row("uncorrected", "drawn", 2, 400),
        row("weight, 1/lag", "drawn", 2, 450),
    ]
    cells = surface_of("CartPole", "drawn", table).cells
    assert cells.methods == ["uncorrected", "weight, 1/lag"]
    assert cells.final[:, :, 0, 0].tolist() == [[500, 400], [500, 450]]


def test_what_helps():
    """Two lags on both tasks at constant ages, and one at drawn ages; below nowhere."""

    def of(kind, method, verdicts):
        return [
            {"kind": kind, "task": task, "method": method, "verdict": verdict}
            for task, several in zip("AB", verdicts, strict=True)
            for verdict in several
        ]

    two, one, loses = ["beats", "beats", "level"], ["beats", "level"], ["beats", "beats", "below"]
    table = of("constant", "a", [two, two]) + of("constant", "b", [two, one]) + of("constant", "c", [two, loses])
    table += of("drawn", "a", [one, one])
    assert [row["helps"] for row in helps(table)] == ["yes", "no", "no", "yes"]


def test_the_border_by_hand():
    """The largest stable rate falls tenfold with a tenfold lag; the lag of 0 is left out."""
    score = np.array([[9, 9, 9], [10, 9, 8], [10, 9, 1], [10, 1, 0]], float)
    final = np.repeat(score[None, ..., None], 4, axis=-1)
    cells = Cells(["uncorrected"], [0, 1, 10, 100], [1e-3, 1e-2, 1e-1], final, final, floor=0.0)
    found = list(border("CartPole", cells))
    assert [(row["lag"], row["largest_stable_rate"], row["edge"]) for row in found] == [
        (1, 1e-1, "highest"),
        (10, 1e-2, ""),
        (100, 1e-3, "lowest"),
    ]
    assert {row["slope"] for row in found} == {-1.0}
    assert {row["verdict"] for row in found} == {"S·η"}


def test_rounding_does_not_exclude_a_slope_of_0():
    """The slope of equal rates, which rounding would make -5e-16, is exactly 0, and so are the ends of its interval."""
    lags, rates = [0, 1, 2, 4, 8, 16, 32, 64], [1e-3, 3e-3, 1e-2]
    final = np.broadcast_to(np.array([9.0, 10.0, 1.0])[:, None], (1, len(lags), len(rates), 4))
    found = [*border("CartPole", Cells(["uncorrected"], lags, rates, final, final, floor=0.0))]
    assert {row["largest_stable_rate"] for row in found} == {3e-3}
    assert {(row["slope"], row["low"], row["high"], row["verdict"]) for row in found} == {(0.0, 0.0, 0.0, "not S·η")}


def test_a_report_needs_runs(tmp_path, capsys):
    assert command.main(["lab-gradients", "--parts", "report", "--out", str(tmp_path)]) == 2
    assert "run the part runs first" in capsys.readouterr().err


@pytest.mark.slow
def test_the_study(tmp_path):
    """A row per run, with the imposed age measured in versions; the report writes the answers from this table."""
    assert command.main(["lab-gradients", "--preset", "smoke", "--out", str(tmp_path)]) == 0
    found = csv_rows(tmp_path / "runs_CartPole.csv.gz")
    preset = gradients.PRESETS["smoke"]
    assert len(found) == len(preset.cases) * 2 * 2
    lag = {(row["method"], row["kind"], row["lag"]): float(row["measured_lag"]) for row in found}
    assert lag["uncorrected", "constant", "0"] == 0
    assert lag["uncorrected", "constant", "8"] == pytest.approx(8 - 36 / 80)  # 0 to 8 at the start
    assert lag[GROUPS, "constant", "8"] == pytest.approx(2 - 3 / 20)
    fresh = {row["method"]: row["final_return"] for row in found if (row["lag"], row["seed"]) == ("0", "1")}
    assert fresh["delay compensation"] == fresh["uncorrected"]
    answers = {name: (tmp_path / f"{name}.csv").read_text() for name in ("best", "half", "helps", "border", "cosine")}
    assert command.main(["lab-gradients", "--preset", "smoke", "--parts", "report", "--out", str(tmp_path)]) == 0
    assert {name: (tmp_path / f"{name}.csv").read_text() for name in answers} == answers


def test_lines_of_cosines_differ_in_print(tmp_path, monkeypatch):
    """Five methods, as in the study, have five dashes."""
    drawn = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda *args, **style: drawn.append(style) or plot(*args, **style))
    methods = dict.fromkeys(row["method"] for row in csv_rows(RESULTS / "lab-gradients" / "cosine.csv"))
    number = {"lag": 0, "cosine": 0.5, "low": 0.4, "high": 0.6}
    cosines.draw([{"task": "CartPole", "method": method, **number} for method in methods], tmp_path / "cosines")
    assert [style["label"] for style in drawn] == [*methods]
    assert len({style["linestyle"] for style in drawn}) == len(methods) == 5
