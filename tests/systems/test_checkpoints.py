"""Checkpoints: a run that was broken off and resumed is the run that was not; none is ever left unreadable."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import softsync
from stellaris.acting import ActorCritic
from stellaris.runtime import (
    CheckpointError,
    Checkpoints,
    Faults,
    Function,
    FunctionError,
    FunctionSpec,
    Machine,
    Node,
    PriceSheet,
    Retry,
    SimulatedPlatform,
    StoreFaults,
    saved,
)
from stellaris.runtime.delays import Exponential, Gamma, LogNormal
from stellaris.systems import Budget, Result, Stellaris, Synchronous, System, Workload, train
from stellaris.types import Versioned
from tests.systems import tiny

DEPLOYMENT = tiny.deployment(
    LogNormal(0.01, 0.5), Gamma(0.1, 1.0), LogNormal(0.02, 0.5), cold_start=LogNormal(0.3, 0.5), retry=Retry(limit=99)
)
FAULTS = Faults(crash_during=0.1, lose=0.1, duplicate=0.1, notice_after=Exponential(0.3), lifetime=Exponential(5.0))
SYSTEMS: dict[str, System] = {
    "stellaris": Stellaris(tiny.PPO_CONFIG, learners=3),
    "softsync": Stellaris(tiny.PPO_CONFIG, learners=3, aggregator=softsync(2), round_based=True),
    "synchronous": Synchronous(tiny.PPO_CONFIG),
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
    """A run on a faulty platform, saved every other round."""
    made = {"functions": DEPLOYMENT, "threads": 1, "faults": dict.fromkeys(DEPLOYMENT, FAULTS)} | dict(platform)
    folder_of = None if folder is None else Checkpoints(folder, every=every)
    options = {"prices": tiny.PRICES} | options
    return train(system, workload, platform=SimulatedPlatform(**made), budget=budget, checkpoints=folder_of, **options)


def assert_same(one: Result, other: Result) -> None:
    """History, parameters, trace and bills, bit for bit."""
    assert repr(one.history) == repr(other.history)
    for a, b in zip(jax.tree.leaves(one.policy), jax.tree.leaves(other.policy), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert list(one.trace.rows()) == list(other.trace.rows())
    assert one.bill == other.bill


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


def test_a_damaged_checkpoint_costs_a_few_rounds(tmp_path: Path) -> None:
    """The run goes on from the one before, and ends as the unbroken one does; what is saved next is the newest."""
    whole = run(SYSTEMS["stellaris"], tmp_path / "whole")
    run(SYSTEMS["stellaris"], tmp_path / "broken", budget=Budget(steps=32 * 6 + 16))
    state = tmp_path / "broken" / "3" / "state.json"
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"broken/2 is the newest .* 3 is damaged: its hashes do not fit state\.json"):
        assert_same(run(SYSTEMS["stellaris"], tmp_path / "broken", resume=True), whole)
    assert Checkpoints(tmp_path / "broken").newest() == 5


def test_a_folder_of_damaged_ones_is_not_begun_anew(tmp_path: Path) -> None:
    """There is a run; somebody must decide what to do about it."""
    run(SYSTEMS["synchronous"], tmp_path, budget=Budget(steps=32 * 3))
    (tmp_path / "1" / "SHA256SUMS").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint that can be loaded: 1 is damaged"):
        run(SYSTEMS["synchronous"], tmp_path, resume=True)
    with pytest.raises(ValueError, match=r"holds a run already"):
        run(SYSTEMS["synchronous"], tmp_path)


def test_a_folder_that_cannot_be_written_to_is_found_before_the_run(tmp_path: Path) -> None:
    """Not at the first checkpoint."""
    with pytest.raises(CheckpointError, match="cannot be written"):
        run(SYSTEMS["synchronous"], Path("/proc/nowhere"), on_progress=lambda row: pytest.fail("it has begun"))


def test_environments_restart(tmp_path: Path) -> None:
    """So a run with checkpoints is another one than without, from the first checkpoint on."""
    plain, saved = run(SYSTEMS["stellaris"], None), run(SYSTEMS["stellaris"], tmp_path)
    assert repr(plain.history[:2]) == repr(saved.history[:2])
    assert repr(plain.history) != repr(saved.history)


def test_resume_without_a_checkpoint_begins(tmp_path: Path) -> None:
    """One command serves to begin and to go on."""
    assert_same(run(SYSTEMS["synchronous"], tmp_path / "a", resume=True), run(SYSTEMS["synchronous"], tmp_path / "b"))


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    """It takes a word to go on with it."""
    run(SYSTEMS["synchronous"], tmp_path, budget=Budget(steps=32 * 3))
    with pytest.raises(ValueError, match=r"holds a run already: pass resume=True"):
        run(SYSTEMS["synchronous"], tmp_path)


def test_another_run_is_refused(tmp_path: Path) -> None:
    """Another workload or seed: the error names what differs."""
    run(SYSTEMS["synchronous"], tmp_path, budget=Budget(steps=32 * 3))
    with pytest.raises(CheckpointError, match=r"seed: this run has 1, but .* holds a run of 0"):
        run(SYSTEMS["synchronous"], tmp_path, resume=True, seed=1)
    with pytest.raises(CheckpointError, match=r"workload\.actors: this run has 3, but .* a run of 2"):
        run(
            SYSTEMS["synchronous"],
            tmp_path,
            resume=True,
            workload=Workload("CartPole-v1", policy=ActorCritic(hidden=(8,)), actors=3, fragment=16),
        )


@pytest.mark.parametrize(
    "other",
    [
        {"functions": tiny.deployment()},
        {"faults": {}},
        {"keep_versions": 5},
        {"store_capacity": 1e9},
        {"max_concurrency": 50},
        {"store_faults": StoreFaults(slow_factor=2.0)},
        {"nodes": (Node("one", memory=100.0, vcpus=100.0),)},
        {"seed": 9},
    ],
    ids=str,
)
def test_another_deployment_is_refused(other: dict[str, Any], tmp_path: Path) -> None:
    """What costs time or goes wrong is as it was, or the error names what differs."""
    run(SYSTEMS["synchronous"], tmp_path, budget=Budget(steps=32 * 3))
    with pytest.raises(CheckpointError, match=rf"{next(iter(other))}[\w.\[\]]*: the platform has"):
        run(SYSTEMS["synchronous"], tmp_path, resume=True, platform=other)


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (Stellaris(tiny.PPO_CONFIG, learners=3, rho=2.0), r"system\.rho: this run has 2\.0"),
        (Stellaris(tiny.PPO_CONFIG, learners=2), r"system\.learners: this run has 2"),
        (Stellaris(tiny.PPO_CONFIG, learners=3, round_based=True), r"system\.round_based: this run has True"),
        (Stellaris(tiny.PPO_CONFIG, learners=3, aggregator=softsync(3)), r"system\.aggregator[^:]*: this run has .*"),
        (Stellaris(replace(tiny.PPO_CONFIG, clip=0.3), learners=3), r"system\.algorithm\.clip: this run has 0\.3"),
        (
            Stellaris(replace(tiny.PPO_CONFIG, max_gradient_norm=None), learners=3),
            r"algorithm\.max_gradient_norm: this run has None",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_system_is_refused(other: System, name: str, tmp_path: Path) -> None:
    """To the field: otherwise the run that goes on would be a mixture of both."""
    run(SYSTEMS["stellaris"], tmp_path, budget=Budget(steps=32 * 3))
    with pytest.raises(CheckpointError, match=rf"{name}, but .* holds a run of"):
        run(other, tmp_path, resume=True)


@pytest.mark.parametrize("sheets", [(), tiny.PRICES[:1], tiny.PRICES[::-1], (*tiny.PRICES, DEAR)])
def test_other_prices_are_refused(sheets: tuple[PriceSheet, ...], tmp_path: Path) -> None:
    """Dropped, in another order, or added: the rows before the checkpoint are of the prices then."""
    run(SYSTEMS["synchronous"], tmp_path, budget=Budget(steps=32 * 3))
    with pytest.raises(CheckpointError, match=r"prices\S*: this run has .*, but .* holds a run of "):
        run(SYSTEMS["synchronous"], tmp_path, resume=True, prices=sheets)


# ---- a platform alone -----------------------------------------------------------------------------------------------


def double(context: Any, version: Versioned, x: Any) -> Any:
    """A body that can be imported."""
    context.state = (context.state or 0) + 1
    return context.state, version.version, 2 * x["value"][:600] + version.value


def platform(**options: Any) -> SimulatedPlatform:
    """One function that starts cold."""
    return SimulatedPlatform({"f": FunctionSpec(Exponential(1.0), cold_start=Exponential(0.5))}, threads=1, **options)


def finish(of: SimulatedPlatform) -> list[Any]:
    """All that is left, and when."""
    return [(d.number, of.now, d.cold, repr(d.result())) for d in iter(of.next_completion, None)]


@pytest.mark.parametrize("until", [0.0, 0.4, 1.0, 2.5, 30.0])
def test_pending_invocations_are_saved(until: float, tmp_path: Path) -> None:
    """What waits, starts and runs goes on with the same arguments, versions, containers and draws."""

    def begin() -> SimulatedPlatform:
        p = platform()
        p.store.publish("p", np.full(600, 1.0))
        shared = {"value": jnp.arange(2000)}
        for i in range(12):
            p.invoke("f", double, p.store.latest("p"), shared, at=0.25 * i)
        p.next_completion(until=until)
        p.store.publish("p", np.full(600, 2.0))
        return p

    saved, given = Checkpoints(tmp_path), {"double": double}
    with begin() as p:
        saved.save(0, p, None, externals=given)
        expected, rows = finish(p), list(p.trace.rows())
    with platform() as q:
        assert saved.load(q, externals=given) is None
        assert finish(q) == expected
        assert list(q.trace.rows()) == rows


def test_state_of_every_kind(tmp_path: Path) -> None:
    """Arrays of any type and size, keys, what is shared, and objects; to the last bit."""
    big = np.random.default_rng(0).standard_normal(5000)
    state = {
        "host": big,
        "same": big,
        "integers": np.arange(9000),
        "flags": np.arange(5000) % 3 == 0,
        "empty": np.zeros((0, 3), np.float32),
        "device": jnp.arange(3000.0),
        "small": jnp.array(1, jnp.int8),
        "key": jax.random.split(jax.random.key(3), 2000),
        "strings": ["a", None, (1, {"b": 2.5})],
    }
    with platform() as p:
        Checkpoints(tmp_path).save(3, p, state)
    with platform() as q:
        loaded = Checkpoints(tmp_path).load(q)
    for name in ("host", "integers", "flags", "empty", "device", "small"):
        assert type(loaded[name]) is type(state[name])
        assert loaded[name].dtype == state[name].dtype  # type: ignore[attr-defined]
        np.testing.assert_array_equal(loaded[name], state[name])  # type: ignore[arg-type]
    assert loaded["host"] is loaded["same"]
    loaded["host"][0] = 7.0  # what could be written to still can
    np.testing.assert_array_equal(jax.random.key_data(loaded["key"]), jax.random.key_data(state["key"]))  # type: ignore[arg-type]
    assert loaded["strings"] == state["strings"]


def test_programs_are_given_again(tmp_path: Path) -> None:
    """By name, whole or what they are made of; one that is not is named before anything is written."""

    def closure(context: Any) -> int:
        return context.number

    program = Function(closure)
    with platform() as p:
        p.invoke("f", program)
        message = r"pending\[0\]\.program\.body: \S+test_programs_are_given_again\.<locals>\.closure is code, which is"
        with pytest.raises(CheckpointError, match=message):
            Checkpoints(tmp_path).save(0, p, None)
        with pytest.raises(CheckpointError, match=r"state: \S+<locals>\.<lambda> is code, which is not saved"):
            Checkpoints(tmp_path).save(0, p, lambda: None, externals={"program": program})
        assert Checkpoints(tmp_path).newest() is None
        Checkpoints(tmp_path).save(0, p, None, externals={"program": program})
        Checkpoints(tmp_path).save(1, p, None, externals={"closure": closure})
    for given in ({}, {"program": program}, {"closed": closure}):
        with platform() as q, pytest.raises(CheckpointError, match=r"tmp.*/1 cannot be loaded: .*lacks 'closure'"):
            Checkpoints(tmp_path).load(q, externals=given)
    with platform() as q:
        Checkpoints(tmp_path).load(q, externals={"closure": closure})
        assert q.next_completion().result() == 0  # type: ignore[union-attr]


@dataclass
class Mine:
    """A class that nobody registered."""

    x: int = 0


@saved
@dataclass
class Ours:
    """A class that somebody did."""

    x: int = 0


def remember(context: Any, own: Any) -> Any:
    """A body whose container keeps what it is given."""
    context.state = own
    return own


def test_what_users_bring_is_registered(tmp_path: Path) -> None:
    """A container's state, a tag, an argument or a result of a class of their own: named where it is, or saved."""
    given = {"remember": remember}
    for place, own in (
        (r"state\.mine", lambda p: {"mine": Mine()}),
        (r"state", lambda p: p.invoke("f", remember, 1, tag=Mine()).tag),
        (r"platform\.life\.departures\.pending\[1\]\.tag", lambda p: p.invoke("f", remember, 1, tag=Mine()) and None),
        (r"platform\.life\.departures\.pending\[1\]\.args\[0\]", lambda p: p.invoke("f", remember, Mine()) and None),
        (r"platform\.life\.pools\.f\.live\[1\]\.state", lambda p: [p.invoke("f", remember, Mine()), finish(p)][2:]),
    ):
        with platform() as p:
            p.invoke("f", remember, 0)
            state = own(p)
            with pytest.raises(CheckpointError, match=rf"^{place}: a \S+\.Mine cannot be saved: .*register its class"):
                Checkpoints(tmp_path / "mine").save(0, p, state, externals=given)
    with platform() as p:
        p.invoke("f", remember, Ours(1), tag=Ours(2))
        p.next_completion()
        p.invoke("f", remember, Ours(3), tag=Ours(4))
        Checkpoints(tmp_path / "ours").save(0, p, Ours(5), externals=given)
    with platform() as q:
        assert Checkpoints(tmp_path / "ours").load(q, externals=given) == Ours(5)
        done = q.next_completion()
        assert done is not None
        assert (done.result(), done.tag, done.cold) == (Ours(3), Ours(4), False)


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    """An open file, a wall clock, nothing at all: said so; what was saved before stays."""
    saved = Checkpoints(tmp_path, keep=1)
    with platform() as p:
        with pytest.raises(CheckpointError, match="holds no checkpoint"):
            saved.load(p)
        saved.save(0, p, "good")
        with (
            open(__file__) as file,
            pytest.raises(CheckpointError, match=r"state: a _io\.TextIOWrapper cannot be saved"),
        ):
            saved.save(1, p, file)
        with (
            platform(seed=1) as other,
            pytest.raises(CheckpointError, match=r"seed: the platform has 1, the .* 0"),
        ):
            saved.load(other)
        assert saved.load(p) == "good"
    with platform(clock="wall") as real:
        with pytest.raises(CheckpointError, match="clock='wall'"):
            saved.save(2, real, None)
        with pytest.raises(CheckpointError, match="clock: the platform has wall, the checkpoint virtual"):
            saved.load(real)


def test_a_body_that_failed_is_saved_as_failed(tmp_path: Path) -> None:
    """The error comes when the invocation would have ended."""
    for body, why in ((int, "ValueError: invalid literal"), (json.loads, "SavedError: JSONDecodeError: Expecting")):
        folder = Checkpoints(tmp_path / body.__name__)
        program = Function(lambda context, text, body=body: body(text))  # type: ignore[misc]
        with platform() as p:
            call = p.invoke("f", program, "no number")
            p.next_completion(until=1.0)
            assert call.status == "running"
            folder.save(0, p, None, externals={"body": program})
        with platform() as q:
            folder.load(q, externals={"body": program})
            done = q.next_completion()
            assert done is not None
            assert done.status == "failed"
            with pytest.raises(FunctionError, match=why):
                done.result()


# ---- kill -9 --------------------------------------------------------------------------------------------------------

CHILD = """
import sys
from pathlib import Path
import tests.systems.test_checkpoints as t

print("ready", flush=True)
t.run(
    t.SYSTEMS["synchronous"],
    Path(sys.argv[1]),
    every=1,
    resume=True,
    on_progress=lambda row: print(row["round"], flush=True),
)
"""


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Twenty times, each time resumed: every checkpoint can be read, and the end is the unbroken run's."""
    whole = run(SYSTEMS["synchronous"], tmp_path / "whole", every=1)
    folder, moments = tmp_path / "killed", np.random.default_rng(0).uniform(0.0, 1.2, size=20)
    reached, kills = [], 0
    for moment in moments:
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(moment)
        child.send_signal(signal.SIGKILL)
        seen = [int(float(line)) for line in child.communicate()[0].split()]
        kills += child.returncode == -signal.SIGKILL
        newest = Checkpoints(folder).newest() if os.path.exists(folder) else None
        # At most the round under way is lost, and what was saved of it may just not have been reported.
        assert (newest or 0) >= max(seen, default=0) - 1
        reached.append(newest or 0)
        if newest is not None:
            assert_readable(folder)
    assert reached == sorted(reached)
    assert kills >= 10
    assert_same(run(SYSTEMS["synchronous"], folder, every=1, resume=True), whole)


def assert_readable(folder: Path) -> None:
    """The newest checkpoint can be loaded into a platform."""
    result = run(SYSTEMS["synchronous"], folder, budget=Budget(steps=1), every=100, resume=True)
    assert len(result.history) >= 1
