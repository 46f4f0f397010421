"""Checkpoints: a run that was broken off and resumed is the run that was not; none is ever left unreadable."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import pytest

from stellaris import IMPACT, fully_asynchronous, softsync, synchronous
from stellaris.acting import ActorCritic, EnvSpec, Policy
from stellaris.runtime import (
    CheckpointError,
    Checkpoints,
    Faults,
    Machine,
    Node,
    PriceSheet,
    Retry,
    SimulatedPlatform,
    StoreFaults,
)
from stellaris.runtime.delays import Constant, Exponential, Gamma, LogNormal
from stellaris.scheduling import Adapt
from stellaris.systems import (
    AsynchronousActors,
    Budget,
    CentralInference,
    CircularReplay,
    DataParallel,
    Evaluation,
    MinionsRL,
    Result,
    StalenessControl,
    Stellaris,
    Synchronous,
    System,
    Workload,
    train,
)
from stellaris.systems.history import Row
from tests.systems import tiny
from tests.systems.rounds import Drawing

DEPLOYMENT = tiny.deployment(
    LogNormal(0.01, 0.5), Gamma(0.1, 1.0), LogNormal(0.02, 0.5), cold_start=LogNormal(0.3, 0.5), retry=Retry(limit=99)
)
FAULTS = Faults(crash_during=0.1, lose=0.1, duplicate=0.1, notice_after=Exponential(0.3), lifetime=Exponential(5.0))
SLOW_LEARNER = tiny.deployment(LogNormal(0.01, 0.5), Gamma(1.0, 1.0), LogNormal(0.02, 0.5))
SYSTEMS: dict[str, System] = {
    "stellaris": Stellaris(tiny.PPO_CONFIG, learners=3),
    "softsync": Stellaris(tiny.PPO_CONFIG, learners=3, aggregator=softsync(2), control=StalenessControl(pace=0)),
    # The weight of the penalty is in the optimizer's state, and differs from batch to batch.
    "synchronous": Synchronous(replace(tiny.PPO_CONFIG, kl_coefficient=0.2, kl_target=0.01)),
}
OTHERS = {
    "inference": replace(DEPLOYMENT["parameter"], compute=LogNormal(0.002, 0.5)),
    "all_reduce": replace(DEPLOYMENT["parameter"], compute=Constant(1e-6)),
}
WHOLE = Budget(steps=32 * 9)
DEAR = PriceSheet("dear", machines={"machine": Machine(1.0)})


def run(
    system: System,
    folder: Path | None,
    *,
    workload: Workload = tiny.WORKLOAD,
    platform: Mapping[str, Any] = MappingProxyType({}),
    budget: Budget = WHOLE,
    every: int = 2,
    **options: Any,
) -> Result:
    made = {"functions": DEPLOYMENT, "threads": 1, "faults": dict.fromkeys(DEPLOYMENT, FAULTS)} | dict(platform)
    folder_of = None if folder is None else Checkpoints(folder, every=every)
    options = {"prices": tiny.PRICES} | options
    return train(system, workload, platform=SimulatedPlatform(**made), budget=budget, checkpoints=folder_of, **options)


def assert_same(one: Result, other: Result) -> None:
    assert repr(one.history) == repr(other.history)
    for a, b in zip(jax.tree.leaves(one.policy), jax.tree.leaves(other.policy), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert list(one.trace.rows()) == list(other.trace.rows())
    assert one.bill == other.bill


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_resumed_run_is_the_unbroken_one(name: str, tmp_path: Path) -> None:
    """Broken off twice, between checkpoints; with cold starts, stale gradients, crashes and lost messages."""
    whole = run(SYSTEMS[name], tmp_path / "whole")
    run(SYSTEMS[name], tmp_path / "broken", budget=Budget(steps=32 * 3 + 16))
    run(SYSTEMS[name], tmp_path / "broken", budget=Budget(steps=32 * 7), resume=True)
    seen: list[Any] = []
    rest = run(SYSTEMS[name], tmp_path / "broken", resume=True, on_progress=seen.append)
    assert_same(rest, whole)
    assert len(whole.trace.select("checkpoint").time) == 4
    assert 0 < len(seen) < len(whole.history)  # it was not run from the start
    assert seen == list(whole.history[-len(seen) :])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "actors"),
    [
        (AsynchronousActors(tiny.PPO_CONFIG), {}),
        (CircularReplay(IMPACT(epochs=1, minibatch_size=8), passes=2), {}),
        (DataParallel(tiny.PPO_CONFIG, learners=2), {}),
        (CentralInference(tiny.PPO_CONFIG), {}),
        (Stellaris(tiny.PPO_CONFIG, learners=3, control=StalenessControl(pace=3, discard=6)), {"refresh": 4}),
        (Stellaris(tiny.PPO_CONFIG, learners=3, aggregator=fully_asynchronous(capacity=3, drop_from=1)), {}),
        (MinionsRL(tiny.PPO_CONFIG, Adapt(target=25.0), prewarm=True), {"actors": 4}),
        (MinionsRL(tiny.PPO_CONFIG, Drawing()), {"actors": 4, "refresh": 4}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_architecture_is_resumed(system: System, actors: dict[str, Any], tmp_path: Path) -> None:
    """Likewise, once; where each step is an invocation, faults are fewer."""
    rare = Faults(crash_during=0.01, lose=0.01, duplicate=0.05, notice_after=Exponential(0.3))
    faults = rare if isinstance(system, CentralInference) else FAULTS
    deployed = DEPLOYMENT | OTHERS
    options: dict[str, Any] = {
        "platform": {"functions": deployed, "faults": dict.fromkeys(deployed, faults)},
        "workload": replace(tiny.WORKLOAD, **actors),
    }
    longer = Budget(steps=32 * 16)  # where pieces of fragments are lost, rounds take more steps
    whole = run(system, tmp_path / "whole", budget=longer, **options)
    run(system, tmp_path / "broken", budget=Budget(steps=32 * 9), **options)
    assert_same(run(system, tmp_path / "broken", budget=longer, resume=True, **options), whole)
    assert len(whole.trace.select("checkpoint").time) >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "system",
    [
        # Fragments are discarded when a batch is made, and others may be sampled in their place.
        Stellaris(tiny.PPO_CONFIG, learners=3, control=StalenessControl(pace=2, window=2)),
        CircularReplay(IMPACT(epochs=1, minibatch_size=8), buffer=1, passes=2, control=StalenessControl(pace=2)),
        # Every update admits all learners at once, while the fragments of several batches wait.
        Stellaris(replace(tiny.PPO_CONFIG, epochs=1, minibatch_size=32), 3, synchronous(3), control=StalenessControl()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_resumed_run_begins_with_the_next_event(system: System, tmp_path: Path) -> None:
    """Broken off after each of its checkpoints: what the last event led to had been done before it was saved."""
    options: dict[str, Any] = {"platform": {"functions": SLOW_LEARNER, "faults": {}}, "every": 1}
    options["budget"] = Budget(steps=32 * 40, seconds=4.0)
    whole = run(system, tmp_path / "whole", **options)

    for saved in range(1, len(whole.history) - 1):

        def interrupt(row: Row, after: int = saved) -> None:
            if row["round"] > after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(system, tmp_path / str(saved), on_progress=interrupt, **options)
        assert Checkpoints(tmp_path / str(saved)).newest() == saved
        assert_same(run(system, tmp_path / str(saved), resume=True, **options), whole)


@pytest.mark.slow
def test_a_resumed_run_ends_by_the_same_evaluation(tmp_path: Path) -> None:
    """Also if the checkpoint is of the round that ended it: nothing is left to do then."""
    system, options = MinionsRL(tiny.PPO_CONFIG, Drawing()), {"evaluation": Evaluation(every=2, episodes=4)}
    limits = Budget(steps=32 * 16, target_evaluation=21.0)
    whole = run(system, tmp_path / "whole", budget=limits, **options)
    assert whole.history[-1]["evaluation_return"] >= 21.0
    assert 32 * 5 < whole.history[-1]["steps"] < limits.steps
    run(system, tmp_path / "broken", budget=Budget(steps=32 * 5), **options)
    for _ in range(2):
        assert_same(run(system, tmp_path / "broken", budget=limits, resume=True, **options), whole)


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_a_few_rounds(tmp_path: Path) -> None:
    """The run goes on from the one before, and ends as the unbroken one does; what is saved next is the newest."""
    whole = run(SYSTEMS["stellaris"], tmp_path / "whole")
    run(SYSTEMS["stellaris"], tmp_path / "broken", budget=Budget(steps=32 * 6 + 16))
    state = tmp_path / "broken" / "3" / "state.json"
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.warns(
        UserWarning, match=r"broken/2 is the newest .* 3 is damaged: its hashes do not match state\.json"
    ):
        assert_same(run(SYSTEMS["stellaris"], tmp_path / "broken", resume=True), whole)
    assert Checkpoints(tmp_path / "broken").newest() == 5


@pytest.mark.slow
def test_a_folder_of_damaged_ones_is_not_begun_anew(tmp_path: Path) -> None:
    run(SYSTEMS["synchronous"], tmp_path, budget=Budget(steps=32 * 3))
    (tmp_path / "1" / "SHA256SUMS").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint that can be loaded: 1 is damaged"):
        run(SYSTEMS["synchronous"], tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"holds a run already"):
        run(SYSTEMS["synchronous"], tmp_path)


def test_a_folder_that_cannot_be_written_to_is_found_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        run(SYSTEMS["synchronous"], Path("/proc/nowhere"), on_progress=lambda row: pytest.fail("it has begun"))


def test_environments_restart(tmp_path: Path) -> None:
    """A run with checkpoints differs from one without, from the first checkpoint on; `resume` may begin a run."""
    plain, saved = run(SYSTEMS["stellaris"], None), run(SYSTEMS["stellaris"], tmp_path, resume=True)
    assert repr(plain.history[:2]) == repr(saved.history[:2])
    assert repr(plain.history) != repr(saved.history)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By the system's name, the folder of a run that was broken off."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("synchronous", "stellaris")}
    for name, folder in folders.items():
        run(SYSTEMS[name], folder, budget=Budget(steps=32 * 3))
    return folders


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 1}, r"seed: this run has 1, but .* holds a run with 0"),
        ({"workload": replace(tiny.WORKLOAD, actors=3)}, r"workload\.actors: this run has 3, but .* a run with 2"),
        *(
            ({"prices": sheets}, r"prices\S*: this run has .*, but .* holds a run with ")
            for sheets in ((), tiny.PRICES[:1], tiny.PRICES[::-1], (*tiny.PRICES, DEAR))
        ),
        *(
            ({"platform": {name: value}}, rf"{name}[\w.\[\]]*: the platform has")
            for name, value in {
                "functions": tiny.deployment(),
                "faults": {},
                "keep_versions": 5,
                "store_capacity": 1e9,
                "max_concurrency": 50,
                "store_faults": StoreFaults(slow_factor=2.0),
                "nodes": (Node("one", memory=100.0, vcpus=100.0),),
                "seed": 9,
            }.items()
        ),
    ],
    ids=str,
)
def test_another_run_is_refused(other: dict[str, Any], message: str, begun: dict[str, Path]) -> None:
    """The error names the field that differs: seed, workload, prices, or what costs time or fails."""
    with pytest.raises(CheckpointError, match=message):
        run(SYSTEMS["synchronous"], begun["synchronous"], resume=True, **other)
    with pytest.raises(ValueError, match=r"holds a run already: pass resume=True"):
        run(SYSTEMS["synchronous"], begun["synchronous"])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rho": 2.0}, r"system\.rho: this run has 2\.0"),
        ({"learners": 2}, r"system\.learners: this run has 2"),
        ({"control": StalenessControl(pace=0)}, r"system\.control\.pace: this run has 0"),
        ({"aggregator": softsync(3)}, r"system\.aggregator[^:]*: this run has .*"),
        ({"algorithm": replace(tiny.PPO_CONFIG, clip=0.3)}, r"system\.algorithm\.clip: this run has 0\.3"),
        (
            {"algorithm": replace(tiny.PPO_CONFIG, max_gradient_norm=None)},
            r"algorithm\.max_gradient_norm: this run has None",
        ),
    ],
    ids=str,
)
def test_another_system_is_refused(change: dict[str, Any], name: str, begun: dict[str, Path]) -> None:
    """The error names the setting: otherwise the run that goes on would be a mixture of both."""
    system = Stellaris(**({"algorithm": tiny.PPO_CONFIG, "learners": 3} | change))
    with pytest.raises(CheckpointError, match=rf"{name}, but .* holds a run with"):
        run(system, begun["stellaris"], resume=True)


def narrow(spec: EnvSpec) -> Policy:
    return ActorCritic(hidden=(4,))(spec)


def wide(spec: EnvSpec) -> Policy:
    return ActorCritic(hidden=(8,))(spec)


def scaled(spec: EnvSpec) -> Policy:
    return replace(narrow(spec), scaling_discount=0.9)


def test_another_policy_of_the_same_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an edit of the function that makes the policy, which the workload holds by its name."""
    for policy in (narrow, wide, scaled):
        monkeypatch.setattr(policy, "__qualname__", "policy")
    run(SYSTEMS["synchronous"], tmp_path, workload=replace(tiny.WORKLOAD, policy=narrow), budget=Budget(steps=32 * 3))
    for policy, name in (
        (wide, r"network\.hidden\[0\]: this run has 8"),
        (scaled, "scaling_discount: this run has 0.9"),
    ):
        with pytest.raises(CheckpointError, match=rf"^workload\.policy\(spec\)\.{name}, but .* holds a run with"):
            run(SYSTEMS["synchronous"], tmp_path, workload=replace(tiny.WORKLOAD, policy=policy), resume=True)
    run(SYSTEMS["synchronous"], tmp_path, workload=replace(tiny.WORKLOAD, policy=narrow), resume=True)


def go_on(folder: Path, reports: Connection) -> None:
    """A process of its own that runs, or goes on with the run in a folder, and reports every round."""
    reports.send("ready")
    run(SYSTEMS["synchronous"], folder, every=1, resume=True, on_progress=lambda row: reports.send(row["round"]))


def received(reports: Connection) -> list[Any]:
    """What a process that has ended had reported; the last of it may be cut off."""
    seen = []
    with contextlib.suppress(EOFError, OSError):
        while True:
            seen.append(reports.recv())
    return seen


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Twenty times, each time resumed: every checkpoint can be read, and the end is the unbroken run's."""
    whole = run(SYSTEMS["synchronous"], tmp_path / "whole", every=1)
    folder, moments = tmp_path / "killed", np.random.default_rng(0).uniform(0.0, 1.2, size=20)
    reached, kills = [], 0
    # A server that has imported everything, and started nothing yet, forks each of them.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    for moment in moments:
        ours, theirs = processes.Pipe(duplex=False)
        child = processes.Process(target=go_on, args=(folder, theirs))
        child.start()
        theirs.close()
        assert ours.recv() == "ready"
        time.sleep(moment)
        child.kill()
        child.join()
        seen = received(ours)
        ours.close()
        kills += child.exitcode == -signal.SIGKILL
        newest = Checkpoints(folder).newest() if os.path.exists(folder) else None
        # At most the round under way is lost, and what was saved of it may just not have been reported.
        assert (newest or 0) >= max(seen, default=0) - 1
        reached.append(newest or 0)
        if newest is not None:
            rest = run(SYSTEMS["synchronous"], folder, budget=Budget(steps=1), every=100, resume=True)
            assert len(rest.history) >= 1
    assert reached == sorted(reached)
    assert kills >= 10
    assert_same(run(SYSTEMS["synchronous"], folder, every=1, resume=True), whole)
