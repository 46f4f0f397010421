"""`train`: budgets, progress, determinism, errors at the edge."""

import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chex
import jaxtyping
import numpy as np
import pytest

from stellaris import (
    PPO,
    fully_asynchronous,
    softsync,
    stale_synchronous,
    staleness_aware,
    synchronous,
)
from stellaris.acting import ActorCritic, envs
from stellaris.acting.policies import PolicyVersion
from stellaris.runtime import (
    Checkpoints,
    Faults,
    FunctionError,
    FunctionSpec,
    Machine,
    PriceSheet,
    Rate,
    Retry,
    SimulatedPlatform,
    Trace,
)
from stellaris.runtime.delays import Constant, Exponential, Gamma, LogNormal
from stellaris.systems import Budget, Evaluation, StalenessControl, Stellaris, Synchronous, Workload, programs, train
from stellaris.systems.history import WINDOW
from stellaris.systems.session import Session
from stellaris.systems.system import System
from tests.systems import tiny

STELLARIS = Stellaris(tiny.PPO_CONFIG, learners=3)
SYNCHRONOUS = Synchronous(tiny.PPO_CONFIG)
JITTERY = tiny.deployment(LogNormal(0.01, 0.5), Gamma(0.1, 1.0), LogNormal(0.02, 0.5), cold_start=LogNormal(0.3, 0.5))


@pytest.fixture
def a_loaded_machine() -> Iterator[None]:
    """Another process that keeps a processor busy, until the test ends."""
    code = "print(flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield
    process.kill()
    process.communicate()


def everything(result: Any) -> tuple[Any, ...]:
    """All that a run computes, to compare bit for bit."""
    frame = result.trace.to_dataframe().astype({"event": str, "function": str})
    leaves = [np.asarray(leaf).tobytes() for leaf in _leaves(result.policy)]
    return [repr(row) for row in result.history], frame.to_csv(), leaves


def _leaves(tree: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(tree)


@pytest.mark.parametrize("system", [STELLARIS, SYNCHRONOUS], ids=["stellaris", "synchronous"])
def test_the_same_seed_gives_the_same_run(system: Any, a_loaded_machine: None) -> None:
    """Bit for bit: history, trace and parameters; with other threads; while another process loads the machine."""
    first = everything(tiny.run(system, JITTERY, seed=7, threads=1))
    assert everything(tiny.run(system, JITTERY, seed=7, threads=3)) == first
    assert everything(tiny.run(system, JITTERY, seed=8))[0] != first[0]


def test_budget_of_seconds_is_exact() -> None:
    """The run ends at its limit, not at the event after it."""
    result = tiny.run(STELLARIS, JITTERY, budget=Budget(seconds=1.2345))
    assert result.history[-1]["seconds"] == 1.2345
    assert result.trace.select("cancelled").time.tolist() == [1.2345] * len(result.trace.select("cancelled").time)
    assert result.bill["demo"].total == pytest.approx(0.01 * 1.2345)


def test_budget_of_steps() -> None:
    """Whole fragments are delivered, until the limit is reached."""
    assert tiny.run(SYNCHRONOUS, JITTERY, budget=Budget(steps=65)).history[-1]["steps"] == 80


def test_budget_of_cost() -> None:
    """The run stops after the first round that has spent it."""
    rows = tiny.run(SYNCHRONOUS, JITTERY, budget=Budget(cost=0.02, steps=10_000)).history
    assert rows[-1]["cost_demo"] >= 0.02 > rows[-2]["cost_demo"]


def test_budget_of_a_target_return() -> None:
    """Any 100 episodes of CartPole reach a mean of 5."""
    rows = tiny.run(STELLARIS, JITTERY, budget=Budget(target_return=5.0, steps=50_000)).history
    assert rows[-1]["episodes"] >= WINDOW > rows[-2]["episodes"]


def test_history_streams() -> None:
    """Every row is handed out as soon as it is there, and is what the trace says."""
    seen: list[Any] = []
    result = tiny.run(STELLARIS, JITTERY, on_progress=seen.append)
    assert seen == list(result.history)
    assert [row["round"] for row in seen] == sorted(row["round"] for row in seen)
    episodes = result.trace.select("episode").value
    assert seen[-1]["episodes"] == len(episodes)
    assert seen[-1]["episode_return"] == pytest.approx(episodes[-WINDOW:].mean())


def test_staleness_is_what_the_versions_say() -> None:
    """With three learners, staleness above zero and never above the number of versions."""
    result = tiny.run(STELLARIS, JITTERY, budget=Budget(steps=12 * 32))
    staleness = result.trace.select("staleness").value
    assert 1 <= staleness.max() <= result.history[-1]["version"]


def test_round_based_actors_wait_for_the_round() -> None:
    """No actor starts between a round's first delivery and its last update."""
    system = Stellaris(tiny.PPO_CONFIG, learners=3, control=StalenessControl(pace=0))
    trace = tiny.run(system, JITTERY).trace
    starts = np.sort(trace.select("submitted", function="actor").time)
    assert len(np.unique(starts)) == len(starts) / tiny.WORKLOAD.actors
    updates = trace.select("published").time
    for start in np.unique(starts)[1:]:
        assert start in updates


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stellaris(learners=0), r"learners=0"),
        (lambda: Stellaris(rho=0.5), r"rho=0\.5"),
        (lambda: Stellaris(rho=math.nan), r"rho=nan"),
        (lambda: staleness_aware(4, decay=0.0), r"decay=0\.0"),
        (lambda: staleness_aware(4, decay=1.5), r"decay=1\.5"),
        (lambda: Constant(-1.0), r"Constant\(seconds=-1\.0\)"),
        (lambda: PPO(clip=-0.2), r"clip=-0\.2"),
        (
            lambda: tiny.run(STELLARIS, JITTERY, workload=Workload("CartPole-v9")),
            r"unknown environment 'CartPole-v9'.*CartPole-v1",
        ),
        (lambda: tiny.run(STELLARIS, JITTERY, prices=(), budget=Budget(cost=1.0)), r"budget\.cost=1\.0"),
        (lambda: training(seed=-1), r"seed=-1 is below 0"),
        (lambda: training(seed=2**31), r"seed=2147483648 is not below 2\*\*31"),
        (
            lambda: Stellaris(learners=4, aggregator=fully_asynchronous(capacity=1)),
            r"learners=4: the aggregator's queue holds only 1 gradients, so no more learners could run",
        ),
        (
            lambda: Stellaris(learners=2, aggregator=stale_synchronous(1, 4)),
            r"learners=2: the aggregator waits for the slowest of its 4 learners",
        ),
        (lambda: Stellaris(learners=2, aggregator=synchronous(1)), r"learners=2: the aggregator's queue holds only 1"),
        (lambda: Stellaris(learners=5, aggregator=softsync(2)), r"learners=5: the aggregator's queue holds only 4"),
    ],
)
def test_bad_input_is_refused_at_once(make: Any, message: str) -> None:
    """Each error names the argument and its value."""
    with pytest.raises(ValueError, match=message):
        make()


def training(**options: Any) -> Any:
    """One round, with what `tiny.run` does not hand on."""
    platform = SimulatedPlatform(tiny.deployment(), threads=1)
    return train(SYNCHRONOUS, tiny.WORKLOAD, platform=platform, budget=Budget(steps=32), **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stellaris("ppo"), r"algorithm='ppo' is not an Algorithm: it lacks optimizer, prepare, .*\. Pass PPO"),
        (lambda: Synchronous(PPO), r"algorithm=<class .*PPO'> is not an Algorithm: it is a class"),
        (lambda: Stellaris(PPO(clip=np.array(0.2))), r"algorithm=PPO\(.*\) cannot be hashed"),
        (lambda: Stellaris(learners=2.5), r"learners=2\.5 is not a whole number"),
        (lambda: Stellaris(aggregator="softsync"), r"aggregator='softsync' is not an Aggregator: use softsync\(2\)"),
        (lambda: Stellaris(aggregator=softsync), r"aggregator=<function softsync.* is not an Aggregator"),
        (
            lambda: training(checkpoints="folder"),
            r"checkpoints='folder' is not a Checkpoints: pass Checkpoints\('folder'\)",
        ),
        (lambda: training(prices=tiny.PRICES[0]), r"prices is a single sheet, 'demo': pass a sequence of sheets"),
        (lambda: training(seed=1.5), r"seed=1\.5 is not a whole number"),
        (lambda: PriceSheet("p", {"actor": 1.0}), r"price sheet 'p': 'actor' is priced by 1\.0: expected a Rate"),
        (lambda: PriceSheet("p", machines={"vm": Rate()}), r"'vm' is priced by Rate\(.*\): expected a Machine"),
        (lambda: Machine(1.0, runs="learner"), r"runs='learner' is one name: pass a sequence of names, \('learner',\)"),
    ],
)
def test_what_is_of_another_type_is_refused_at_once(
    make: Any, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By name, not from deep within; without the type checker that these tests run under."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=message):
        make()
    assert os.listdir(tmp_path) == []


def test_an_aggregator_of_fewer_learners() -> None:
    """It says which learner it does not know."""
    with pytest.raises(IndexError, match="learner=1 does not exist: the 1 learners"):
        Stellaris(learners=2, aggregator=stale_synchronous(1, 1))


class Nobody:
    """An aggregator that admits no learner."""

    def __init__(self) -> None:
        whole = staleness_aware(2, decay=1.0)
        self.init, self.push, self.ready, self.pop = whole.init, whole.push, whole.ready, whole.pop

    def admit(self, state: Any, learner: Any, clock: Any) -> Any:
        return False


@pytest.mark.parametrize("control", [StalenessControl(), StalenessControl(pace=1)])
def test_a_run_that_is_stuck(control: StalenessControl) -> None:
    """The run does not end as if it were done; nor do actors use its budget up, where nothing keeps them."""
    system = Stellaris(tiny.PPO_CONFIG, learners=2, aggregator=Nobody(), control=control)
    with pytest.raises(RuntimeError, match=r"deadlock at 0\.16 s: .*Nobody.* admits none of learners=2"):
        tiny.run(system, tiny.deployment(), budget=Budget(steps=10_000))


# ---- prices ---------------------------------------------------------------------------------------------------------

PRICED = Rate(per_second=1.0)


def priced(*sheets: PriceSheet) -> Any:
    """A run under some sheets, within a cost that all of them reach."""
    platform = SimulatedPlatform(tiny.deployment(), threads=1)
    return train(
        SYNCHRONOUS, tiny.WORKLOAD, platform=platform, budget=Budget(cost=0.02, seconds=30.0), prices=sheets
    ).history[-1]


@pytest.mark.parametrize(
    ("sheet", "unknown"),
    [
        (PriceSheet("p", {"learners": PRICED}), r"\['learners'\]"),
        (PriceSheet("p", machines={"vm": Machine(1.0, runs=("learners", "actors"))}), r"\['actors', 'learners'\]"),
        (PriceSheet("p", {"learners": PRICED}, {"vm": Machine(1.0)}), r"\['learners'\]"),
        (PriceSheet("p"), r"\[\]"),
    ],
)
def test_a_sheet_that_prices_nothing_of_this_platform(sheet: PriceSheet, unknown: str) -> None:
    """Under it a budget of cost would never end, or all would be idle."""
    message = rf"price sheet 'p' prices {unknown}: the platform has \['actor', 'learner', 'parameter'\]"
    with pytest.raises(ValueError, match=message):
        priced(tiny.PRICES[0], sheet)


@pytest.mark.parametrize(
    "sheet",
    [
        PriceSheet("p", {"actor": PRICED}),  # the others are free
        PriceSheet("p", machines={"vm": Machine(1.0)}),  # what it runs is not said
        PriceSheet("p", {"actor": PRICED}, {"vm": Machine(1.0, runs=("learner",))}),
        PriceSheet("p", dict.fromkeys(("actor", "learner", "parameter", "evaluator"), PRICED)),  # a shared sheet
    ],
)
def test_sheets_that_price_something(sheet: PriceSheet) -> None:
    """Without a word."""
    assert priced(sheet)["cost_p"] >= 0.02


def test_a_sheet_that_looks_like_a_slip() -> None:
    """It names what is not deployed, and leaves out what is."""
    message = (
        r"price sheet 'p' prices \['learners'\], which are not deployed, and not \['learner', 'parameter'\], which are"
    )
    with pytest.warns(UserWarning, match=message):
        priced(PriceSheet("p", {"actor": PRICED, "learners": PRICED}))


def test_two_sheets_of_one_name() -> None:
    """The second would replace the first, in the history, the bills and the budget."""
    with pytest.raises(ValueError, match="prices: 2 sheets have the name 'demo'"):
        priced(*tiny.PRICES, PriceSheet("demo", machines={"vm": Machine(1.0)}))


def test_a_function_that_is_not_deployed() -> None:
    """The error says which, and what there is."""
    functions = {"actor": FunctionSpec(Constant(0.1))}
    with pytest.raises(LookupError, match=r"function 'learner' is not deployed: the platform has \['actor'\]"):
        tiny.run(STELLARIS, functions)


class _Broken(Exception):
    """What the body below raises."""


@pytest.mark.parametrize("name", ["actor", "learner", "parameter"])
def test_a_body_that_raises_ends_the_run_and_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the function and the invocation and keeps the cause; the rows so far were handed out."""
    make = getattr(programs, name)
    calls = iter(range(10_000))

    def broken(*args: Any, **options: Any) -> programs.Function:
        program = make(*args, **options)

        def body(*args: Any) -> Any:
            if next(calls) == 20:
                raise _Broken("no luck")
            return program.body(*args)

        return programs.Function(body, init=program.init)

    monkeypatch.setattr(programs, name, broken)
    rows: list[Any] = []
    platform = SimulatedPlatform(JITTERY)
    with pytest.raises(FunctionError, match=rf"function '{name}', invocation \d+ .* failed .*no luck") as caught:
        train(
            STELLARIS,
            tiny.WORKLOAD,
            platform=platform,
            budget=Budget(steps=100_000),
            on_progress=rows.append,
        )
    assert isinstance(caught.value.__cause__, _Broken)
    assert rows
    assert len(platform.trace.select("failed").time) == 1
    with pytest.raises(RuntimeError, match="after close"):
        platform.invoke(name, lambda context: None)


@pytest.mark.parametrize("system", [STELLARIS, SYNCHRONOUS], ids=["stellaris", "synchronous"])
def test_a_non_finite_gradient_is_caught_where_it_arises(system: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the learner's invocation, the version and the loss."""
    publish = SimulatedPlatform.__init__

    def poisoned(self: SimulatedPlatform, *args: Any, **options: Any) -> None:
        publish(self, *args, **options)
        original = self.store.publish

        def poison(name: str, tree: Any) -> int:
            if self.store.newest(name) >= 1:
                import jax

                tree = PolicyVersion(jax.tree.map(lambda x: x * np.nan, tree.params), tree.normaliser)
            return original(name, tree)

        self.store.publish = poison  # type: ignore[method-assign]

    monkeypatch.setattr(SimulatedPlatform, "__init__", poisoned)
    with pytest.raises(FunctionError, match=r"function 'learner', invocation \d+.*non-finite.*version [23].*loss"):
        tiny.run(system, JITTERY, budget=Budget(steps=50_000))


def test_no_thread_is_left_behind() -> None:
    """The platform's threads end with the run, whether it ends well or badly."""
    before = threading.active_count()
    tiny.run(STELLARIS, JITTERY)
    with pytest.raises(LookupError):
        tiny.run(STELLARIS, {"actor": JITTERY["actor"]})
    assert threading.active_count() <= before


class Watched:
    """Environments that note whether they were closed, and what was running then."""

    def __init__(self, env: Any) -> None:
        self.env, self.spec, self.closed = env, env.spec, 0
        self.reset = env.reset
        self.step = env.step

    def close(self) -> None:
        """Once would do."""
        self.closed += 1
        self.env.close()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """All environments that are made during a test."""
    made: list[Watched] = []
    make = envs.make

    def note(*args: Any, **options: Any) -> Watched:
        made.append(Watched(make(*args, **options)))
        return made[-1]

    monkeypatch.setattr(envs, "make", note)
    return made


def test_environments_are_closed(watched: list[Watched], tmp_path: Path) -> None:
    """Those before a checkpoint when they restart, the last at the end, however it comes."""
    seen: list[int] = []
    tiny.run(
        SYNCHRONOUS,
        JITTERY,
        checkpoints=Checkpoints(tmp_path, every=1),
        on_progress=lambda row: seen.append(sum(not env.closed for env in watched)),
    )
    assert len(watched) == 1 + 4
    assert set(seen) == {1}
    with pytest.raises(LookupError):
        tiny.run(STELLARIS, {"actor": JITTERY["actor"]})
    with pytest.raises(KeyError):
        tiny.run(SYNCHRONOUS, JITTERY, on_progress=lambda row: {}["nothing"])
    assert len(watched) == 1 + 4 + 1  # none for a system that lacks a function
    assert [env.closed > 0 for env in watched] == [True] * len(watched)


class Spied(System):
    """A system whose runs can be looked at."""

    def __init__(self, system: Any) -> None:
        self.system = system
        self.functions = system.functions
        self.sessions: list[Session] = []

    def run(self, session: Session) -> None:
        """As the system does."""
        self.sessions.append(session)
        self.system.run(session)


@pytest.mark.parametrize("system", [STELLARIS, SYNCHRONOUS], ids=["stellaris", "synchronous"])
def test_what_a_run_holds_does_not_grow_with_it(system: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for its trace and its history: neither keys nor retries that are done with; and rows are billed once."""
    looked_at, held, sizes = 0, [], []
    rows = Trace.rows

    def counted(self: Trace, start: int = 0) -> Iterator[Any]:
        nonlocal looked_at
        for row in rows(self, start):
            looked_at += 1
            yield row

    monkeypatch.setattr(Trace, "rows", counted)
    monkeypatch.setattr(Trace, "invocations", lambda self: pytest.fail("a table of the whole trace"))
    spied = Spied(system)

    def look(row: Any) -> None:
        deliveries = spied.sessions[0]._deliveries
        held.append(len(deliveries.handled.above) + len(deliveries.retries))
        sizes.append(deliveries.handled.floor)

    faults = Faults(crash_during=0.1, lose=0.1, duplicate=0.1, notice_after=Exponential(0.3))
    functions = tiny.deployment(LogNormal(0.01, 0.5), Gamma(0.1, 1.0), LogNormal(0.02, 0.5), retry=Retry(limit=99))
    platform = SimulatedPlatform(functions, threads=1, faults=dict.fromkeys(functions, faults))
    result = train(
        spied,
        tiny.WORKLOAD,
        platform=platform,
        budget=Budget(steps=32 * 24),
        prices=tiny.PRICES,
        on_progress=look,
    )
    assert len(result.trace.select("crashed").time) > 5
    assert sizes[-1] > 70
    assert max(held) < 40  # some at once: those that are tried again hold the floor
    assert max(held[12:]) <= 2 * max(held[:12])
    assert looked_at <= (len(tiny.PRICES) + 1) * len(result.trace)  # the result's bills, and the history with its own


def test_learns_cartpole() -> None:
    """One real run: the return grows sixfold within 80 rounds of 512 steps, usually within 40."""
    workload = Workload("CartPole-v1", policy=ActorCritic(hidden=(64, 64)), actors=8, fragment=64)
    ppo = PPO(learning_rate=2e-3, epochs=8, minibatch_size=128)
    system = Stellaris(ppo, learners=4, aggregator=staleness_aware(4, decay=0.95))
    functions = tiny.deployment(LogNormal(0.001, 0.2), LogNormal(0.01, 0.2), Constant(0.005))
    budget = Budget(steps=80 * 512, target_return=150.0)
    rows = tiny.run(system, functions, workload=workload, budget=budget, threads=2).history
    early = next(row["episode_return"] for row in rows if row["episodes"] >= 50)
    assert early < 25
    assert rows[-1]["episode_return"] >= 150


def test_evaluation_changes_nothing_else() -> None:
    """Not the parameters, the time, the bills or any other column; it is of the newest version, every other round."""
    options = {"budget": Budget(steps=32 * 6)}
    plain = tiny.run(STELLARIS, JITTERY, **options)
    looked_at = tiny.run(STELLARIS, JITTERY, evaluation=Evaluation(every=2, episodes=3), **options)
    chex.assert_trees_all_equal(looked_at.policy, plain.policy)
    assert looked_at.bill == plain.bill
    rows = [{name: value for name, value in row.items() if name != "evaluation_return"} for row in looked_at.history]
    assert repr(rows) == repr([dict(row) for row in plain.history])
    rounds = [row["round"] for row in looked_at.history if "evaluation_return" in row]
    assert set(rounds) == {row["round"] for row in plain.history if row["round"] % 2 == 0}
    assert len(looked_at.trace.select("evaluated").value) == 3 * len(rounds)
