"""`train`: budgets, progress, determinism, errors at the edge."""

import itertools
import math
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import pytest

from stellaris import PPO, fully_asynchronous, softsync, stale_synchronous, synchronous
from stellaris.acting import envs
from stellaris.runtime import Checkpoints, FunctionError, FunctionSpec, Machine, PriceSheet, Rate, SimulatedPlatform
from stellaris.runtime.delays import Constant
from stellaris.systems import (
    AsynchronousActors,
    Budget,
    DataParallel,
    Evaluation,
    Stellaris,
    Synchronous,
    Workload,
    programs,
    train,
)
from stellaris.systems.history import WINDOW
from tests.systems import tiny
from tests.systems.test_stellaris import Pairs

STELLARIS = Stellaris(tiny.PPO_CONFIG, learners=3)
SYNCHRONOUS = Synchronous(tiny.PPO_CONFIG)


def everything(result: Any) -> tuple[Any, ...]:
    frame = result.trace.to_dataframe().astype({"event": str, "function": str})
    leaves = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result.policy)]
    return [repr(row) for row in result.history], frame.to_csv(), leaves


@pytest.mark.parametrize("system", [STELLARIS, SYNCHRONOUS], ids=["stellaris", "synchronous"])
def test_the_same_seed_gives_the_same_run(system: Any) -> None:
    """History, trace and parameters are equal bit for bit, whatever the number of threads."""
    first = everything(tiny.run(system, tiny.JITTERY, seed=7, threads=1))
    assert everything(tiny.run(system, tiny.JITTERY, seed=7, threads=3)) == first
    assert everything(tiny.run(system, tiny.JITTERY, seed=8))[0] != first[0]


@pytest.mark.slow
@pytest.mark.parametrize("system", [STELLARIS, SYNCHRONOUS], ids=["stellaris", "synchronous"])
def test_a_loaded_machine_gives_the_same_run(system: Any) -> None:
    first = everything(tiny.run(system, tiny.JITTERY, seed=7, threads=3))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as load:
        try:
            assert everything(tiny.run(system, tiny.JITTERY, seed=7, threads=3)) == first
        finally:
            load.kill()


def test_budget_of_seconds_is_exact() -> None:
    result = tiny.run(STELLARIS, tiny.JITTERY, budget=Budget(seconds=1.2345))
    assert result.history[-1]["seconds"] == 1.2345
    assert result.trace.select("cancelled").time.tolist() == [1.2345] * len(result.trace.select("cancelled").time)
    assert result.bill["demo"].total == pytest.approx(0.01 * 1.2345)


def test_history_streams() -> None:
    """Every row is handed out as soon as it is there, and is what the trace says."""
    seen: list[Any] = []
    result = tiny.run(STELLARIS, tiny.JITTERY, on_progress=seen.append)
    assert seen == list(result.history)
    assert [row["round"] for row in seen] == sorted(row["round"] for row in seen)
    episodes = result.trace.select("episode").value
    assert seen[-1]["episodes"] == len(episodes)
    assert seen[-1]["episode_return"] == pytest.approx(episodes[-WINDOW:].mean())


def training(**options: Any) -> Any:
    platform = SimulatedPlatform(tiny.deployment(), threads=1)
    few = {"system": SYNCHRONOUS, "workload": tiny.WORKLOAD, "budget": Budget(steps=32), "platform": platform}
    return train(**few | options)


def with_aggregator(learners: int, aggregator: Any) -> Stellaris:
    return Stellaris(learners=learners, aggregator=aggregator)


@dataclass
class Changeable(Pairs):
    """An aggregator that can be compared, and not hashed."""


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Stellaris(learners=0), ValueError, r"learners=0"),
        (lambda: Stellaris(learners=2.5), TypeError, r"learners=2\.5 is not a whole number"),
        (lambda: Stellaris(rho=0.5), ValueError, r"rho=0\.5"),
        (lambda: Stellaris(rho=math.nan), ValueError, r"rho=nan"),
        (lambda: training(workload=Workload("CartPole-v9")), ValueError, r"unknown .*'CartPole-v9'.*CartPole-v1"),
        (lambda: training(budget=Budget(cost=1.0)), ValueError, r"budget\.cost=1\.0"),
        (
            lambda: training(budget=Budget(steps=32, target_evaluation=9.0)),
            ValueError,
            r"budget\.target_evaluation=9\.0 needs evaluations: pass evaluation=Evaluation\(every=1\)",
        ),
        (lambda: training(system=object()), TypeError, r"system=<object.*> is not a System: pass an instance of a sub"),
        (lambda: training(seed=-1), ValueError, r"seed=-1 is below 0"),
        (lambda: training(seed=2**31), ValueError, r"seed=2147483648 is not below 2\*\*31"),
        (lambda: training(seed=1.5), TypeError, r"seed=1\.5 is not a whole number"),
        (lambda: training(checkpoints="folder"), TypeError, r"checkpoints='folder' is not a Checkpoints: pass Check"),
        (
            lambda: training(resume=True),
            ValueError,
            r"resume=True needs checkpoints: pass checkpoints=Checkpoints\(fol",
        ),
        (lambda: training(workload="CartPole-v1"), TypeError, r"'CartPole-v1' is not a Workload: pass Workload\('Car"),
        (lambda: training(platform={}), TypeError, r"platform={} is not a platform: pass SimulatedPlatform"),
        (lambda: training(budget=100), TypeError, r"budget=100 is not a Budget: pass Budget\(steps="),
        (lambda: training(evaluation=3), TypeError, r"evaluation=3 is not an Evaluation: pass Evaluation\("),
        (lambda: training(prices=["aws"]), TypeError, "prices has 'aws': expected a PriceSheet"),
        (lambda: training(prices=tiny.PRICES[0]), TypeError, "prices is a single sheet, 'demo': pass a sequence"),
        (lambda: PriceSheet("p", {"actor": 1.0}), TypeError, r"'p': 'actor' is priced by 1\.0: expected a Rate"),
        (lambda: PriceSheet("p", machines={"vm": Rate()}), TypeError, "'vm' is priced by Rate.*: expected a Machine"),
        (lambda: Machine(1.0, runs="learner"), TypeError, r"runs='learner' is one name: pass .*, \('learner',\)"),
        (lambda: Stellaris("ppo"), TypeError, "algorithm='ppo' is not an Algorithm: it lacks optimizer, .* Pass PPO"),
        (lambda: Synchronous(PPO), TypeError, r"algorithm=<class .*PPO'> is not an Algorithm: it is a class"),
        (lambda: Stellaris(PPO(clip=np.array(0.2))), TypeError, r"algorithm=PPO\(.*\) cannot be hashed"),
        *(
            (lambda system=system: system(control=3), TypeError, r"control=3 is not a StalenessControl: pass Staleness")
            for system in (Stellaris, AsynchronousActors)
        ),
        (lambda: with_aggregator(2, Changeable()), TypeError, r"Changeable\(\) cannot be hashed .*a frozen dataclass"),
        (
            lambda: with_aggregator(2, "softsync"),
            TypeError,
            r"'softsync' is not an Aggregator: it lacks init, push, ready, pop, admit; use softsync\(2\)",
        ),
        (lambda: with_aggregator(2, Pairs), TypeError, r"aggregator=<class .* is not an Aggregator: it is a class"),
        (lambda: with_aggregator(2, softsync), TypeError, r"aggregator=<function softsync.* is not an Aggregator"),
        (lambda: with_aggregator(4, fully_asynchronous(capacity=1)), ValueError, "learners=4: .* queue holds only 1"),
        (lambda: with_aggregator(2, stale_synchronous(1, 4)), ValueError, "learners=2: .* the slowest of its 4"),
        (lambda: with_aggregator(2, stale_synchronous(1, 1)), IndexError, "learner=1 does not exist: the 1 learners"),
        (lambda: with_aggregator(2, synchronous(1)), ValueError, r"learners=2: the aggregator's queue holds only 1"),
        (lambda: with_aggregator(5, softsync(2)), ValueError, r"learners=5: the aggregator's queue holds only 4"),
    ],
)
def test_bad_input_is_refused_at_once(
    make: Any, error: Any, message: str, unchecked: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each error names the argument and its value, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        make()
    assert os.listdir(tmp_path) == []


PRICED = Rate(per_second=1.0)


def priced(*sheets: PriceSheet) -> Any:
    platform = SimulatedPlatform(tiny.deployment(), threads=1)
    return train(
        SYNCHRONOUS, tiny.WORKLOAD, platform=platform, budget=Budget(cost=0.02, seconds=30.0), prices=sheets
    ).history[-1]


VM = {"vm": Machine(1.0)}
NOTHING = r"price sheet 'p' prices {}: name deployed functions, \['actor', 'learner', 'parameter'\]"


@pytest.mark.parametrize(
    ("sheet", "message"),
    [
        # Under these a budget of cost would never end, or all would be idle.
        (PriceSheet("p", {"learners": PRICED}), NOTHING.format(r"\['learners'\]")),
        (
            PriceSheet("p", machines={"vm": Machine(1.0, runs=("learners", "actors"))}),
            NOTHING.format(r"\['actors', 'learners'\]"),
        ),
        (PriceSheet("p", {"learners": PRICED}, VM), NOTHING.format(r"\['learners'\]")),
        (PriceSheet("p"), NOTHING.format(r"\[\]")),
        # The second would replace the first, in the history, the bills and the budget.
        (PriceSheet("demo", machines=VM), "prices: 2 sheets have the name 'demo'"),
    ],
)
def test_sheets_that_are_refused(sheet: PriceSheet, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        priced(tiny.PRICES[0], sheet)


@pytest.mark.parametrize(
    "sheet",
    [
        PriceSheet("p", {"actor": PRICED}),  # the others are free
        PriceSheet("p", machines=VM),  # what it runs is not said
        PriceSheet("p", {"actor": PRICED}, {"vm": Machine(1.0, runs=("learner",))}),
        PriceSheet("p", dict.fromkeys(("actor", "learner", "parameter", "evaluator"), PRICED)),  # a shared sheet
    ],
)
def test_sheets_that_price_something(sheet: PriceSheet) -> None:
    assert priced(sheet)["cost_p"] >= 0.02


def test_a_sheet_that_looks_like_a_slip() -> None:
    message = (
        r"price sheet 'p' prices \['learners'\], which are not deployed, and not \['learner', 'parameter'\], which are"
    )
    with pytest.warns(UserWarning, match=message):
        priced(PriceSheet("p", {"actor": PRICED, "learners": PRICED}))


@pytest.mark.parametrize("name", ["actor", "learner", "parameter"])
def test_a_body_that_raises_ends_the_run_and_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the invocation and keeps the cause; rows were handed out; no thread is left behind."""
    make, calls, threads = getattr(programs, name), itertools.count(), threading.active_count()

    def broken(*args: Any, **options: Any) -> programs.Function:
        program = make(*args, **options)

        def body(*args: Any) -> Any:
            if next(calls) == 20:
                raise ArithmeticError("no luck")
            return program.body(*args)

        return programs.Function(body, init=program.init)

    monkeypatch.setattr(programs, name, broken)
    rows: list[Any] = []
    with pytest.raises(FunctionError, match=rf"function '{name}', invocation \d+ .* failed .*no luck") as caught:
        tiny.run(STELLARIS, tiny.JITTERY, budget=Budget(steps=100_000), on_progress=rows.append)
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert rows
    tiny.run(STELLARIS, tiny.JITTERY)
    assert threading.active_count() <= threads


@pytest.mark.slow
@pytest.mark.parametrize("system", [Stellaris, Synchronous, DataParallel])
def test_a_non_finite_gradient_is_caught_where_it_arises(system: Any) -> None:
    """The error names the learner's invocation, the version and the loss."""
    ppo = PPO(learning_rate=1e38, minibatch_size=8, epochs=4, max_gradient_norm=None)
    functions = tiny.JITTERY | {"all_reduce": FunctionSpec(Constant(0.0))}
    with pytest.raises(FunctionError, match=r"function 'learner', invocation \d+.*non-finite.*version \d+.*loss"):
        tiny.run(system(ppo), functions, budget=Budget(steps=50_000))


def test_environments_are_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those before a checkpoint when they restart, the last at the end of the run, whether it succeeds or fails."""
    made, closed, seen = [], set(), set()
    make = envs.make

    def watched(*args: Any, **options: Any) -> Any:
        env = make(*args, **options)
        close = env.close
        env.close = lambda: (closed.add(id(env)), close())
        made.append(env)
        return env

    monkeypatch.setattr(envs, "make", watched)
    note = lambda row: seen.add(len(made) - len(closed))  # noqa: E731
    tiny.run(SYNCHRONOUS, tiny.JITTERY, checkpoints=Checkpoints(tmp_path, every=1), on_progress=note)
    assert (len(made), seen) == (1 + 4, {1})
    with pytest.raises(KeyError):
        tiny.run(SYNCHRONOUS, tiny.JITTERY, on_progress=lambda row: {}["nothing"])
    assert len(made) == len(closed) == 1 + 4 + 1


def test_evaluation_changes_nothing_else() -> None:
    """Not the parameters, the time, the bills or any other column; it is of the newest version, every other round."""
    options = {"budget": Budget(steps=32 * 6)}
    plain = tiny.run(STELLARIS, tiny.JITTERY, **options)
    looked_at = tiny.run(STELLARIS, tiny.JITTERY, evaluation=Evaluation(every=2, episodes=3), **options)
    chex.assert_trees_all_equal(looked_at.policy, plain.policy)
    assert looked_at.bill == plain.bill
    rows = [{name: value for name, value in row.items() if name != "evaluation_return"} for row in looked_at.history]
    assert repr(rows) == repr([dict(row) for row in plain.history])
    rounds = [row["round"] for row in looked_at.history if "evaluation_return" in row]
    assert set(rounds) == {row["round"] for row in plain.history if row["round"] % 2 == 0}
    assert len(looked_at.trace.select("evaluated").value) == 3 * len(rounds)
