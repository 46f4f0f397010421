"""Sweeps: every run is the run by itself, whatever it is vectorised with, and comes back from the disk."""

import dataclasses
import functools
import math
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import IMPALA, PPO, ActorCritic, softsync, staleness_aware
from stellaris.lab import CartPole, Constant, Maximum, dry_run, imposed, mean_evaluation, mean_return, sweep
from stellaris.lab.blocks import Call
from stellaris.lab.program import Program
from stellaris.lab.runs import runs_of
from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant as Seconds
from stellaris.systems import Budget, Evaluation, Synchronous, Workload, train

WORKLOAD = Workload(CartPole(), ActorCritic(hidden=(8,)), actors=2, fragment=16)
CONFIG = PPO(epochs=1, minibatch_size=16)
#: A schedule of queued gradients, with an aggregator that applies them.
QUEUED = {
    "schedule": imposed(2, actors=2, gradients=Constant(0), minibatches=2),
    "aggregator": staleness_aware(1, decay=1.0),
}


def schedule(lag):
    return imposed(6, actors=2, data=Constant(lag))


@pytest.fixture(scope="module")
def result():
    axes = {"lag": [0, 2], "algorithm.learning_rate": [1e-3, 1e-2]}
    return sweep(WORKLOAD, CONFIG, schedule, axes, seeds=[3, 7])


@pytest.mark.slow
def test_dimensions_are_the_axes(result):
    assert dict(result.sizes) == {"lag": 2, "algorithm.learning_rate": 2, "seed": 2, "update": 6}
    assert result.seed.values.tolist() == [3, 7]
    assert (result.steps == 32).all()


@pytest.mark.slow
def test_the_lag_is_imposed_and_has_no_spread(result):
    assert (result.data_lag_mean.sel(lag=0) == 0).all()
    assert (result.data_lag_mean.sel(lag=2).isel(update=slice(2, None)) == 2).all()
    assert (result.data_lag_max == result.data_lag_mean).all()


@pytest.mark.slow
def test_settings_that_vary_together_are_one_axis(result):
    cases = {"a": {"lag": 2, "algorithm.learning_rate": 1e-3}, "b": {"lag": 0, "algorithm.learning_rate": 1e-2}}
    together = sweep(WORKLOAD, CONFIG, schedule, {"case": cases}, seeds=[3, 7])
    assert dict(together.sizes) == {"case": 2, "seed": 2, "update": 6}
    for label, case in cases.items():
        np.testing.assert_allclose(together.kl.sel(case=label), result.kl.sel(case), rtol=1e-3, atol=1e-5)


def test_each_label_may_set_its_arguments_in_another_order():
    """The values alone, 1 and 2, are the same of both labels."""
    cases = {"a": {"lag": 1, "updates": 2}, "b": {"updates": 1, "lag": 2}}

    def made(lag, updates):
        return imposed(updates, actors=2, data=Constant(lag))

    runs, _ = runs_of(WORKLOAD, CONFIG, made, {"case": cases}, 1, None, 1.0)
    assert [run.schedule for run in runs] == [made(lag=1, updates=2), made(lag=2, updates=1)]


def test_settings_are_checked_together():
    """The KL target needs a weight above 0, which is 0 by default."""
    target, weights = {"algorithm.kl_target": [0.01]}, [0.2, 0.0]
    both = target | {"algorithm.kl_coefficient": weights}
    with pytest.raises(ValueError, match=r"kl_target=0\.01 with kl_coefficient=0"):
        runs_of(WORKLOAD, PPO(kl_coefficient=0.2), schedule(0), both, 1, None, 1.0)
    runs, _ = runs_of(WORKLOAD, PPO(), schedule(0), target | {"algorithm.kl_coefficient": weights[:1]}, 1, None, 1.0)
    assert [run.numbers for run in runs] == [{"algorithm.kl_target": 0.01, "algorithm.kl_coefficient": 0.2}]


def test_settings_that_fit_only_together():
    """A field that is compiled may need a number that is traced: each run has both of its own."""
    axes = {"algorithm.kl_target": [None, 0.01], "algorithm.kl_coefficient": [0.1, 0.5]}
    runs, _ = runs_of(WORKLOAD, CONFIG, imposed(2, actors=WORKLOAD.actors), axes, 1, None, 1.0)
    assert [run.static.algorithm.kl_target for run in runs] == [None, None, 0.01, 0.01]
    assert [run.numbers["algorithm.kl_coefficient"] for run in runs] == [0.1, 0.5, 0.1, 0.5]
    assert [run.static.algorithm.kl_coefficient for run in runs] == [0.0, 0.0, 0.1, 0.5]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"case": {"a": {"lag": 2}, "b": {"rho": 1.0}}}, r"case\['b'\] sets \['rho'\]: expected \['lag'\]"),
        ({"lag": [0], "case": {"a": {"lag": 2}}}, "lag is set by two axes"),
    ],
)
def test_errors_of_axes(axes, message):
    with pytest.raises(ValueError, match=message):
        sweep(WORKLOAD, CONFIG, schedule, axes)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 2])
def test_a_run_does_not_depend_on_its_block(result, lag):
    """Alone, with the learning rate compiled in, it is the same."""
    alone = sweep(WORKLOAD, PPO(epochs=1, minibatch_size=16, learning_rate=1e-2), schedule(lag), seeds=[7])
    among = result.sel(lag=lag, seed=7).sel({"algorithm.learning_rate": 1e-2})
    for name in ("episode_return", "kl", "value_loss"):
        np.testing.assert_allclose(alone[name].isel(seed=0), among[name], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_settings_make_a_difference(result):
    loss = result.value_loss.isel(update=-1)
    assert len(np.unique(loss)) == loss.size


@pytest.mark.slow
def test_drawn_lags_may_follow_the_seed():
    def drawn(k, seed):
        return imposed(6, actors=2, data=Maximum(k, seed))

    several = sweep(WORKLOAD, CONFIG, drawn, {"k": [3, 4]}, seeds=[3, 7])
    for k in (3, 4):
        for seed in (3, 7):
            alone = sweep(WORKLOAD, CONFIG, drawn(k, seed), seeds=[seed]).isel(seed=0)
            np.testing.assert_array_equal(several.data_lag_mean.sel(k=k, seed=seed), alone.data_lag_mean)
            np.testing.assert_allclose(several.value_loss.sel(k=k, seed=seed), alone.value_loss, rtol=1e-4)
    assert (several.data_lag_mean.sel(seed=3) != several.data_lag_mean.sel(seed=7)).any()


@pytest.mark.slow
def test_evaluations_are_those_of_a_run():
    """`train` evaluates the same versions on the same seeds, by another program."""
    system, budget = Synchronous(CONFIG), Budget(steps=9 * 32)
    functions = {"actor": FunctionSpec(Seconds(0.01)), "learner": FunctionSpec(Seconds(0.1))}
    evaluation = Evaluation(every=4, episodes=3)
    own = {"platform": SimulatedPlatform(functions, seed=5), "budget": budget}
    history = train(system, WORKLOAD, **own, evaluation=evaluation, seed=5).history
    planned = dry_run(system, WORKLOAD, **own | {"platform": SimulatedPlatform(functions, seed=5)})
    result = sweep(WORKLOAD, CONFIG, planned, {"rho": [1.0, 2.0]}, seeds=[5], evaluation=evaluation)
    assert mean_evaluation(result, 4).values == pytest.approx(result.evaluation_return.values[..., 7])
    assert mean_evaluation(result, 9).values == pytest.approx(result.evaluation_return.values[..., [3, 7]].mean(-1))
    for returns in result.evaluation_return.values[:, 0]:
        played = {update: x for update, x in enumerate(returns.tolist(), 1) if not math.isnan(x)}
        expected = {row["round"]: row["evaluation_return"] for row in history if "evaluation_return" in row}
        assert played == pytest.approx(expected, rel=1e-6)
        assert played.keys() == {4, 8}


@pytest.mark.slow
def test_an_evaluation_changes_nothing_else(result):
    axes = {"lag": [0, 2], "algorithm.learning_rate": [1e-3, 1e-2]}
    evaluated = sweep(WORKLOAD, CONFIG, schedule, axes, seeds=[3, 7], evaluation=Evaluation(every=2, episodes=3))
    assert {*evaluated} == {*result, "evaluation_return"}
    for name in ("steps", "episodes", "episode_return", "data_lag_mean"):
        np.testing.assert_array_equal(evaluated[name], result[name])
    np.testing.assert_allclose(evaluated.value_loss, result.value_loss, rtol=1e-4)


@pytest.mark.slow
def test_an_evaluation_scores_the_newest_policy(result):
    """All data are of the first policy, and so are the episodes that were sampled; the evaluations are not.

    The first version already plays other episodes than the untrained policy does on the same seeds.
    """
    each = {"seeds": [3], "evaluation": Evaluation(every=1, episodes=4)}
    old = sweep(WORKLOAD, PPO(learning_rate=0.03), schedule(6), **each)
    untrained = sweep(WORKLOAD, PPO(learning_rate=1e-12), schedule(6), **each)
    np.testing.assert_array_equal(old.episode_return, untrained.episode_return)
    assert (old.evaluation_return != untrained.evaluation_return).all()
    with pytest.raises(ValueError, match="evaluation_return is missing from the result: pass evaluation="):
        mean_evaluation(result, 1)


@pytest.mark.slow
def test_a_mean_return_counts_episodes(result):
    one = result.isel(lag=0, seed=0).isel({"algorithm.learning_rate": 0})
    total = np.nansum(one.episode_return * one.episodes)
    assert float(mean_return(one, 6)) == pytest.approx(total / one.episodes.values.sum())


@pytest.mark.slow
def test_a_mean_return_ends_with_each_run():
    """A run with fewer updates has its own last ones; runs of equal length have the same mean as a slice has."""
    several = sweep(WORKLOAD, CONFIG, lambda n: imposed(n, actors=2), {"n": [12, 5]}, seeds=2)
    assert several.updates.values.tolist() == [[12, 12], [5, 5]]
    for n, last in ((12, 4), (5, 4), (5, 5), (12, 12)):
        alone = sweep(WORKLOAD, CONFIG, imposed(n, actors=2), seeds=2).isel(update=slice(-last, None))
        total = (alone.episode_return.fillna(0.0) * alone.episodes).sum("update")
        expected = (total / alone.episodes.sum("update")).values
        np.testing.assert_array_equal(mean_return(several, last).sel(n=n).values, expected)
    np.testing.assert_array_equal(mean_return(several, 7).sel(n=5), mean_return(several, 5).sel(n=5))
    part = several.isel(update=slice(2, 8))
    np.testing.assert_array_equal(mean_return(part, 3).sel(n=5), mean_return(several, 3).sel(n=5))
    np.testing.assert_array_equal(mean_return(part, 9), mean_return(part, 6))
    with pytest.raises(ValueError, match="last=0 is below 1"):
        mean_return(several, 0)


@pytest.mark.slow
def test_values_of_an_axis_may_be_tuples_or_an_array():
    """The result, which is made after all runs, holds them."""
    lags = sweep(
        WORKLOAD, CONFIG, lambda lags: imposed(2, actors=2, data=Constant(lags[0])), {"lags": [(1, 1), (0, 1)]}
    )
    assert lags.lags.values.tolist() == [(1, 1), (0, 1)]
    ranges = sweep(WORKLOAD, CONFIG, lambda lags: schedule(lags[0]), {"lags": [range(2), range(1, 3)]})
    assert ranges.lags.values.tolist() == [range(2), range(1, 3)]
    rates = sweep(WORKLOAD, CONFIG, schedule(0), {"algorithm.learning_rate": jnp.geomspace(1e-3, 1e-2, 2)})
    assert rates["algorithm.learning_rate"].values == pytest.approx([1e-3, 1e-2])
    assert sweep(WORKLOAD, CONFIG, schedule(0), seeds=np.int64(2)).sizes["seed"] == 2


@pytest.mark.slow
def test_values_of_an_axis_keep_their_types():
    """So that `sel` finds them: NumPy alone would make texts of all, or numbers of bools."""
    axes = {"one": ["none", 2], "two": [True, 2], "three": [None, 0.5]}
    result = sweep(WORKLOAD, CONFIG, lambda one, two, three: schedule(0), axes)
    for name, values in axes.items():
        found = [result.sel({name: value})[name].item() for value in values]
        assert [(type(value), value) for value in found] == [(type(value), value) for value in values]


@pytest.mark.slow
def test_equal_values_of_two_types_are_two_values():
    """1 equals True, but a schedule may read them in two ways."""
    result = sweep(WORKLOAD, CONFIG, lambda lag: schedule(0 if lag is True else lag), {"lag": [1, True]})
    assert result.data_lag_mean.isel(seed=0, update=-1).values.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("axes", "error", "message"),
    [
        ({"seed": [0, 1]}, ValueError, "the axis 'seed' has the name of"),
        ({"steps": [3, 4]}, ValueError, "the axis 'steps' has the name of"),
        ({"kl": [3, 4]}, ValueError, "the axis 'kl' has the name of"),
        ({"cost_demo": [3, 4]}, ValueError, "the axis 'cost_demo' has the name of"),
        (["lag"], TypeError, r"axes=\['lag'\] is not a mapping: pass lists of values by name"),
        ({1: [0]}, TypeError, "axes has the name 1, which is not a text"),
        ({"lag": [[1], [2]]}, TypeError, r"the axis 'lag' has the value \[1\], which cannot be hashed"),
        ({"lag": [([1],)]}, TypeError, r"the axis 'lag' has the value \(\[1\],\), which cannot be hashed"),
        ({"case": {"a": {"lag": [1]}}}, TypeError, r"the axis 'case' has the value \[1\], which cannot be hashed"),
    ],
)
def test_axes_that_are_refused_before_the_first_run(axes, error, message):
    def billed(**lags):
        made = imposed(2, actors=2)
        return dataclasses.replace(made, seconds=np.arange(3.0), costs={"demo": np.arange(3.0)})

    with pytest.raises(error, match=message):
        sweep(WORKLOAD, CONFIG, billed, axes, on_progress=_no_run)


def test_arguments_that_are_refused_before_the_first_run(tmp_path):
    with pytest.raises(TypeError, match="schedule=None is neither a Schedule nor a function"):
        sweep(WORKLOAD, CONFIG, None, on_progress=_no_run)
    with pytest.raises(TypeError, match="on_progress=3 is not a function"):
        sweep(WORKLOAD, CONFIG, schedule(0), on_progress=3)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        sweep(WORKLOAD, CONFIG, schedule(0), directory=tmp_path / "file" / "folder", on_progress=_no_run)


def _no_run(progress):
    raise AssertionError("a run has begun")


@pytest.mark.slow
def test_algorithms_are_an_axis():
    both = sweep(WORKLOAD, {"ppo": CONFIG, "impala": IMPALA(minibatch_size=1)}, schedule(1))
    assert both.algorithm.values.tolist() == ["ppo", "impala"]
    assert np.isfinite(both.value_loss).all()


@pytest.mark.slow
def test_what_changes_shapes_is_compiled_for_each_value():
    result = sweep(WORKLOAD, CONFIG, schedule(0), {"algorithm.epochs": [1, 2]})
    assert np.isfinite(result.value_loss).all()
    assert len(np.unique(result.value_loss.isel(update=-1))) == 2


@pytest.mark.slow
def test_an_aggregators_numbers_are_swept():
    ages = imposed(3, actors=2, gradients=Constant(3), minibatches=2)
    result = sweep(WORKLOAD, CONFIG, ages, {"rho": [1.0, math.inf]}, aggregator=softsync(1))
    assert dict(result.sizes) == {"rho": 2, "seed": 1, "update": 6}
    assert np.isfinite(result.value_loss).all()
    assert result.staleness_mean.isel(rho=0, seed=0).values.tolist() == [0, 1, 2, 3, 3, 3]


class Limited:
    """CartPole whose time limit is an attribute, read by a function of this module."""

    def __init__(self, limit):
        self.limit = limit
        self.spec = CartPole().spec

    def reset(self, key):
        return CartPole().reset(key)

    def step(self, state, action, key):
        return CartPole(allowed(self)).step(state, action, key)


def allowed(environment):
    return environment.limit


@pytest.mark.slow
def test_programs_are_kept_over_sweeps_until_their_code_changes(monkeypatch):
    """Other numbers, seeds and lags compile nothing; an attribute that is set, or a function that is edited, does."""
    traced, run = [], Program.run
    monkeypatch.setattr(Program, "run", lambda *arguments: traced.append(1) or run(*arguments))
    environment = Limited(7)  # and one step for the reset

    def episodes(rate=1e-3, seed=0, lags=(1, 2)):
        workload = Workload(environment, ActorCritic(hidden=(8,)), actors=2, fragment=16)
        axes = {"lag": lags, "algorithm.learning_rate": [rate]}
        result = sweep(workload, CONFIG, schedule, axes, seeds=[seed])
        return result.episodes.values[..., 1:].mean(), len(traced)

    assert [episodes(), episodes(rate=1e-2), episodes(seed=5), episodes(lags=(0, 2))] == [(4, 1)] * 4
    environment.limit = 3
    assert episodes() == (8, 2)
    monkeypatch.setitem(globals(), "allowed", lambda environment: 1)
    assert episodes() == (16, 3)


@dataclasses.dataclass(frozen=True)
class Measured(PPO):
    """PPO with metrics of its own, of which one is a maximum below zero."""

    def loss(self, *arguments, **options):
        total, metrics = super().loss(*arguments, **options)
        return total, metrics | {"surprise": -metrics["entropy"], "surprise_max": -metrics["entropy"]}


@pytest.mark.slow
def test_a_maximum_of_queued_gradients_may_be_negative():
    """It is that of the gradients of its update; without any there is none."""
    ages = imposed(2, actors=2, gradients=Constant(0), minibatches=2, group=2)
    columns = ("gradient_before", "gradient_batch", "gradient_version")
    at_first = dataclasses.replace(ages, **dict.fromkeys(columns, np.zeros(4, np.int32)))
    for own, some in ((ages, [True, True]), (at_first, [True, False])):
        result = sweep(WORKLOAD, Measured(epochs=1, minibatch_size=16), own, aggregator=softsync(2, capacity=4))
        mean, most = result.surprise.isel(seed=0).values, result.surprise_max.isel(seed=0).values
        assert np.isfinite(most).tolist() == np.isfinite(mean).tolist() == some
        assert ((mean <= most) & (most < -0.5)).tolist() == some


@pytest.mark.slow
def test_a_queue_that_overflows_is_no_result():
    ages = imposed(3, actors=2, gradients=Constant(0), minibatches=2)
    together = np.array([0, 0, 2, 2, 4, 4], np.int32)
    late = dataclasses.replace(ages, gradient_before=together, gradient_version=together)
    with pytest.raises(ValueError, match="its queue was full and lost gradients"):
        sweep(WORKLOAD, CONFIG, late, aggregator=softsync(1, capacity=1))


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on(tmp_path, monkeypatch):
    """What was computed is read, what is missing is computed, and the result is the same."""

    monkeypatch.setattr("stellaris.lab.threads.count", lambda devices: 1)  # so that every machine reports the same

    def run(stop=math.inf):
        seen = []

        def watch(progress):
            seen.append(progress)
            if len(seen) > stop:
                raise KeyboardInterrupt

        axes = {"algorithm.epochs": [1, 2], "lag": [0, 1]}
        return sweep(WORKLOAD, CONFIG, schedule, axes, directory=tmp_path, on_progress=watch), seen

    with pytest.raises(KeyboardInterrupt):
        run(stop=1)
    assert len(list(tmp_path.glob("block-*.npz"))) == 1
    resumed, seen = run()
    assert [progress.nbytes > 0 for progress in seen] == [False, True, False]
    assert [progress.done for progress in seen] == [0, 2, 4]
    again, _ = run()
    assert resumed.equals(again)
    for kept, size in zip(sorted(tmp_path.glob("block-*.npz")), (0, 1000), strict=True):
        kept.write_bytes(kept.read_bytes()[:size])  # as a crash of the machine leaves a file
    repaired, seen = run()
    assert [progress.nbytes > 0 for progress in seen] == [True, True, False]
    assert resumed.equals(repaired)


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr("stellaris.lab.threads.count", lambda devices: 2)


@pytest.mark.slow
def test_two_cores_compute_two_blocks_at_once(two_cores, monkeypatch):
    """Each of the blocks waits for another; the results, and what is said of them, are those of one core."""
    told, first_told = [], threading.Event()

    def on_progress(progress):
        told.append(progress)
        if progress.done:
            first_told.set()

    together = functools.partial(
        sweep, WORKLOAD, CONFIG, schedule, {"lag": [0, 1]}, seeds=2, block=1, on_progress=on_progress
    )
    compute, both = Call.__call__, threading.Barrier(2)

    def waits(call):
        # Two blocks that end together are reported together, so one waits for the report of the other.
        if both.wait(timeout=60):
            assert first_told.wait(timeout=60)
        return compute(call)

    with monkeypatch.context() as patched:
        patched.setattr(Call, "__call__", waits)
        at_once = together()
    assert [progress.done for progress in told] == [0, 0, 1, 2, 3, 4]
    assert [progress.block for progress in told] == [1, 1, 1, 1, 0, 0]
    monkeypatch.setattr("stellaris.lab.threads.count", lambda devices: 1)
    assert at_once.equals(together())


@pytest.mark.slow
def test_an_error_of_one_block_keeps_the_results_of_the_other(two_cores, monkeypatch, tmp_path):
    compute, both = Call.__call__, threading.Barrier(2)

    def fails_once(call):
        if both.wait(timeout=60):
            raise MemoryError("no room")
        return compute(call)

    monkeypatch.setattr(Call, "__call__", fails_once)
    with pytest.raises(MemoryError, match="no room"):
        sweep(WORKLOAD, CONFIG, schedule, {"lag": [0, 1]}, block=1, directory=tmp_path)
    assert len([*tmp_path.glob("block-*.npz")]) == 1


@pytest.mark.slow
def test_equal_blocks_are_computed_once(two_cores, monkeypatch, tmp_path):
    """An axis whose values make equal schedules; without a folder each is computed."""
    computed, compute = [], Call.__call__
    monkeypatch.setattr(Call, "__call__", lambda call: computed.append(call) or compute(call))
    kinds = {"a": Constant(1), "b": Constant(1), "c": Constant(1)}

    def by_kind(kind):
        return imposed(6, actors=2, data=kinds[kind])

    result = sweep(WORKLOAD, CONFIG, by_kind, {"kind": [*kinds]}, block=1, directory=tmp_path)
    assert len(computed) == len([*tmp_path.glob("block-*.npz")]) == 1
    assert result.sel(kind="a", drop=True).equals(result.sel(kind="c", drop=True))


@pytest.mark.slow
def test_an_error_is_raised_at_once(two_cores, monkeypatch):
    """No block begins after it, though an earlier block is still computed."""
    begun, compute, failed = [], Call.__call__, threading.Event()

    def second_fails(call):
        begun.append(call)
        if len(begun) == 2:
            failed.set()
            raise MemoryError("no room")
        assert failed.wait(timeout=60)
        return compute(call)

    monkeypatch.setattr(Call, "__call__", second_fails)
    with pytest.raises(MemoryError, match="no room"):
        sweep(WORKLOAD, CONFIG, schedule, {"lag": [0, 1, 2, 3]}, block=1)
    assert len(begun) == 2


@pytest.mark.slow
def test_nan_are_found_where_jax_is_asked_to(monkeypatch):
    """The request of a context manager reaches the caller's thread only."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    wild = dataclasses.replace(CONFIG, learning_rate=1e38)
    assert not np.isfinite(sweep(WORKLOAD, wild, schedule(0)).step_norm.values[0, -1])
    with jax.debug_nans(True), pytest.raises(Exception, match="nan"):
        sweep(WORKLOAD, wild, schedule(0))


@pytest.mark.slow
def test_results_of_other_code_are_not_read(tmp_path):
    """Two algorithms of one name and equal fields, as after an edit of a loss."""

    def first():
        @dataclasses.dataclass(frozen=True)
        class Own(PPO):
            def loss(self, *arguments, **options):
                return super().loss(*arguments, **options)

        return Own(epochs=1, minibatch_size=16)

    def second():
        @dataclasses.dataclass(frozen=True)
        class Own(PPO):
            def loss(self, *arguments, **options):
                total, metrics = super().loss(*arguments, **options)
                return 2.0 * total, metrics

        Own.__qualname__ = type(first()).__qualname__
        return Own(epochs=1, minibatch_size=16)

    for edited, blocks in ((first, 1), (first, 1), (second, 2)):
        sweep(WORKLOAD, edited(), schedule(0), directory=tmp_path)
        assert len(list(tmp_path.glob("block-*.npz"))) == blocks


def narrow(spec):
    return ActorCritic(hidden=(4,))(spec)


def wide(spec):
    return ActorCritic(hidden=(8,))(spec)


def unscaled(spec):
    return dataclasses.replace(narrow(spec), normalise=False)


@pytest.mark.slow
def test_results_of_another_policy_are_not_read(tmp_path, monkeypatch):
    """Functions of one name, as after an edit of the function that makes the policy."""
    for policy, blocks in ((narrow, 1), (narrow, 1), (wide, 2), (unscaled, 3)):
        monkeypatch.setattr(policy, "__qualname__", "policy")
        sweep(dataclasses.replace(WORKLOAD, policy=policy), CONFIG, schedule(0), directory=tmp_path)
        assert len(list(tmp_path.glob("block-*.npz"))) == blocks


@pytest.mark.slow
def test_results_with_another_precision_are_not_read(tmp_path):
    for x64, blocks in ((False, 1), (False, 1), (True, 2)):
        with jax.enable_x64(x64):
            sweep(WORKLOAD, CONFIG, schedule(0), directory=tmp_path)
        assert len(list(tmp_path.glob("block-*.npz"))) == blocks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"workload": Workload("CartPole-v1")},
            r"'CartPole-v1' is not written in JAX: pass lab.Gymnax\('CartPole-v1'\)",
        ),
        ({"workload": {"a": WORKLOAD}}, r"workload=\{'a': .* is not a Workload"),
        ({"workload": Workload(CartPole(), restart=True)}, "restart=True is not supported"),
        ({"axes": {"algorithm.speed": [1.0]}}, r"algorithm.speed is not a setting: PPO\(.* has no field 'speed'"),
        ({"axes": {"algorithm.clip": [0.1, -1.0]}}, "clip=-1.0"),
        ({"axes": {"rho": [1.0, 0.5]}, **QUEUED}, "rho=0.5 is below 1"),
        ({"rho": math.nan}, "rho=nan is below 1"),
        ({"axes": {"rho": [1.0, math.nan]}, **QUEUED}, "rho=nan is below 1"),
        ({"axes": {"aggregator.smoothness": [3.0, -3.0]}, **QUEUED}, "smoothness=-3.0 is not positive"),
        ({"axes": {"aggregator.group_size": [1, 0]}, **QUEUED}, "group_size=0 is not a positive whole number"),
        ({"axes": {"algorithm.optimizer": [1.0]}}, r"algorithm\.optimizer is not a setting: PPO\(.* has no field"),
        ({"axes": {"lag": []}}, "lag has no values"),
        ({"axes": {"case": {"a": 2.0}}}, r"case\['a'\] is 2\.0: pass its settings by name, \{'rho': 2\.0\}"),
        ({"algorithm": {}}, "algorithm has no values"),
        ({"axes": {"rho": 2.0}}, r"the axis 'rho' is 2\.0: pass its values as a list, \[2\.0\]"),
        ({"axes": {"mode": "fast"}}, r"the axis 'mode' is 'fast': pass its values as a list, \['fast'\]"),
        ({"axes": {"aggregator.smoothness": [1.0]}}, r"aggregator\.smoothness is not .*: the sweep has no aggregator"),
        (
            {"axes": {"lag": [1]}, "schedule": schedule(0)},
            r"axes \['lag'\] are not settings, such as 'algorithm.clip': for arguments of the schedule pass a function",
        ),
        (
            {"axes": {"delay": [1]}, "schedule": lambda lag: 0},
            r"axes \['delay'\] do not fit the schedule's arguments: missing .* a setting, such as 'algorithm\.clip'",
        ),
        ({"aggregator": softsync(1)}, "the schedule has no queued gradients; leave the aggregator out"),
        ({"schedule": imposed(2, actors=2, gradients=Constant(0))}, "aggregator=None: the schedule applies queued"),
        (
            {**QUEUED, "schedule": imposed(2, actors=2, gradients=Constant(0))},
            r"the schedule computes 1 gradients per batch: PPO\(.* has \d+, and the others would never be",
        ),
        (
            {**QUEUED, "schedule": dataclasses.replace(QUEUED["schedule"], update_batch=np.int32([-1, 0, -1, -1]))},
            "update 1 of the schedule learns from a whole batch, and update 0 applies queued gradients",
        ),
        ({"schedule": imposed(2, actors=3)}, "actors=2 of the workload: the schedule was made for 3"),
        ({"workload": Workload(CartPole(), actors=2, fragment=16, refresh=4)}, "refresh=4 makes 4 pieces"),
        (
            {"schedule": imposed(2, actors=2, gradients=Constant(0), minibatches=3), "aggregator": softsync(1)},
            "the schedule computes 3 gradients per batch: PPO",
        ),
        ({"seeds": [-1]}, "seed=-1"),
        ({"seeds": 0}, "seeds has no values"),
        ({"seeds": [3, 4, 3]}, r"seeds=\[3, 4, 3\] has 3 twice"),
        ({"axes": {"rho": [1.0, 2.0, 1.0]}}, "the axis 'rho' has 1.0 twice, whose runs would be equal"),
        ({"axes": {"rho": np.array([2, 2])}}, "the axis 'rho' has 2 twice"),
        ({"seeds": 2.0}, r"seeds=2\.0 is neither a number of seeds nor a list of them"),
        ({"algorithm": "ppo"}, "algorithm='ppo' is not an Algorithm"),
        ({"schedule": lambda: 3}, "schedule returned 3"),
        ({"evaluation": Evaluation(every=7)}, "evaluation.every=7: a run of 6 updates would not be evaluated"),
        ({"evaluation": 7}, "evaluation=7 is not an Evaluation"),
    ],
)
def test_errors(changes, message):
    arguments = {"workload": WORKLOAD, "algorithm": CONFIG, "schedule": schedule(0)} | changes
    with pytest.raises((TypeError, ValueError), match=message):
        sweep(**arguments)
