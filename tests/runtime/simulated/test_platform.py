"""The platform as a whole: retries, closing, and random runs that repeat bit for bit."""

import functools
import threading
from typing import NamedTuple

import numpy as np
import pytest

from stellaris.runtime import (
    Faults,
    Function,
    FunctionError,
    FunctionSpec,
    Retry,
    SimulatedPlatform,
    Transfer,
)
from stellaris.runtime.delays import Constant, Empirical, Exponential, Gamma, LogNormal, Mixture, Uniform
from stellaris.runtime.endings import ENDINGS
from tests.runtime.helpers import deploy, nothing, rows


def test_retry():
    def body(context, x, version):
        return context.attempt, x, version.value

    with deploy(2.0, timeout=1.0) as platform:
        platform.store.publish("p", "value")
        killed = platform.invoke("f", body, 7, platform.store.latest("p"), tag="mine", work=0.75)
        with pytest.raises(ValueError, match="invocation 0 is pending: retry only a call that failed"):
            platform.retry(killed)
        for attempt in (1, 2, 3):
            assert platform.next_completion() is killed
            assert (killed.attempt, killed.number, killed.status) == (attempt, attempt - 1, "timed_out")
            assert (killed.tag, killed.work, killed.submitted) == ("mine", 0.75, attempt - 1.0)
            if attempt < 3:
                killed = platform.retry(killed, limit=3)
        for limit in (3, 0):
            with pytest.raises(FunctionError, match=r"invocation 2 \(attempt 3\) timed out"):
                platform.retry(killed, limit=limit)
        assert platform.next_completion() is None
        killed.work = 0.5
        again = platform.retry(killed)  # five attempts unless said otherwise
        assert platform.next_completion() is again
        assert again.result() == (4, 7, "value")
        with pytest.raises(ValueError, match="invocation 3 is completed: retry only a call that failed"):
            platform.retry(again)
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        platform.retry(killed)


def test_close():
    platform = deploy(1.0, cold_start=0.5, max_concurrency=2)
    invocations = [platform.invoke("f", nothing, at=at) for at in (0.0, 0.0, 1.75, 9.0)]
    waiting = platform.invoke("f", nothing, at=1.8)
    invocations[1].work = 4.0
    while platform.next_completion(until=2.0):
        pass
    assert [i.status for i in invocations] == ["completed", "running", "running", "pending"]
    for _ in range(2):
        platform.close()
        assert [i.status for i in invocations] == ["completed", *["cancelled"] * 3]
        assert waiting.status == "cancelled"
        log = rows(platform)
        assert sorted(row[3] for row in log if row[1] == "cancelled") == [1, 2, 4]  # 3 was never submitted
        assert [row[0] for row in log if row[1] in ("cancelled", "container_ended")] == [2.0] * 5
    assert platform.next_completion() is None
    assert platform.now == 2.0
    with pytest.raises(FunctionError, match=r"invocation 2 \(attempt 1\) cancelled at 2 s"):
        invocations[2].result()
    with pytest.raises(RuntimeError, match=r"invoke\('f'\) after close\(\)"):
        platform.invoke("f", nothing)
    with pytest.raises(RuntimeError, match=r"prewarm\('f'\) after close\(\)"):
        platform.prewarm("f")
    assert platform.next_completion(until=3.0) is None
    assert rows(platform) == log  # no container was made that nothing would end


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_message_under_way_is_not_delivered_after_close(clock):
    platform = deploy(0.0, clock=clock, faults=Faults(lose=1.0, notice_after=Constant(100.0)))
    lost = platform.invoke("f", nothing)
    assert platform.next_completion(until=0.2) is None
    assert lost.status == "lost"
    platform.close()
    assert platform.next_completion() is None


def test_leaving_the_context_closes():
    platform = deploy(1.0)
    invocation = platform.invoke("f", nothing)
    with pytest.raises(ZeroDivisionError), platform:
        raise ZeroDivisionError
    assert invocation.status == "cancelled"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stellaris")]


class Run(NamedTuple):
    """What a random program left behind."""

    specs: dict
    rows: list  #: of the trace.
    outcomes: list  #: what the system was handed, in order.
    end: float  #: when the platform was closed.


def random_specs(rng) -> dict:
    """A deployment; durations on a grid, so that events tie, and others, so that they do not."""

    def delay():
        return [
            Constant(float(rng.choice([0.0, 0.25, 0.5, 1.0]))),
            Empirical((0.0, 0.5, 0.5, 2.0)),
            Mixture((Constant(0.5), Exponential(3.0)), (0.8, 0.2)),
            Exponential(0.7),
            LogNormal(1.0, 1.0),
            Gamma(0.5, 0.5),
            Uniform(0.0, 2.0),
        ][rng.choice(7, p=[0.3, 0.25, 0.15, 0.1, 0.1, 0.05, 0.05])]

    return {
        name: FunctionSpec(
            compute=delay(),
            cold_start=delay(),
            keep_alive=float(rng.choice([0.0, 0.5, 1.5, np.inf])),
            max_concurrency=limits[rng.integers(len(limits))],
            timeout=[None, None, 0.5, 1.5][rng.integers(4)],
            queueing=Constant(0.0) if rng.random() < 0.5 else delay(),
            transfer=None if rng.random() < 0.5 else Transfer(delay(), bandwidth=float(rng.choice([16.0, 1e3]))),
        )
        for name, limits in [("actor", (None, 1, 2, 4)), ("learner", (None, 1, 3)), ("parameter", (1,))]
    }


def random_functions(rng, batched: bool) -> dict:
    """Programs with state, references, and errors now and then."""

    def act(context, version, scale):
        context.state = (31 * context.state + context.number + version.version) % 1_000_003
        return context.state, context.slot, context.now, float(version.value.sum()) * scale

    def learn(context, version, held):
        if context.number % 5 == 3:
            raise ValueError(f"number {context.number}")
        return context.attempt, version.version, tuple(peer.version for peer in held)

    together = {
        "batched": lambda contexts, arguments: [act(c, *args) for c, args in zip(contexts, arguments, strict=True)],
        "max_batch": int(rng.integers(1, 6)),
    }
    return {
        "actor": Function(act, init=lambda slot, key: 1000 * slot, upload=7, **(together if batched else {})),
        "learner": Function(learn, upload=lambda version, held: version.value.nbytes * len(held)),
        "parameter": Function(lambda context, version: version.value + 1.0, upload=24),
    }


def random_run(seed: int, *, threads: int = 2, batched: bool = True) -> Run:
    """A small system that decides by its own generator and by what it is handed; the seed says everything else."""
    rng = np.random.default_rng(seed)
    specs = random_specs(rng)
    programs = random_functions(rng, batched)
    outcomes = []
    with SimulatedPlatform(specs, seed=seed, threads=threads, keep_versions=int(rng.integers(1, 4))) as platform:
        store = platform.store
        store.publish("policy", np.zeros(3))
        submitted = handed = 0

        def invoke():
            name = str(rng.choice(["actor", "actor", "learner", "parameter"]))
            own = [store.latest("policy"), store.lagged("policy", 2), store.at("policy", store.newest("policy"))]
            arguments = (own[rng.choice(3, p=[0.6, 0.2, 0.2])],)
            if name == "actor":
                arguments += (float(rng.random()),)
            elif name == "learner":
                arguments = (store.held("policy", slots=int(rng.integers(1, 4))), *arguments)[::-1]
            later = platform.now + float(rng.choice([0.25, 1.0, 2.5])) if rng.random() < 0.3 else None
            platform.invoke(name, programs[name], *arguments, at=later, work=float(rng.choice([0.0, 1.0, 1.0, 2.0])))

        for _ in range(int(rng.integers(3, 8))):
            invoke()
            submitted += 1
        end = int(rng.integers(20, 60))
        while handed < submitted and handed < end:
            done = platform.next_completion(until=platform.now + (0.5 if rng.random() < 0.2 else np.inf))
            if done is None:
                outcomes.append(("none", platform.now))
                continue
            handed += 1
            value = done.result() if done.status == "completed" else str(done.error)
            outcomes.append((done.number, done.function, done.status, done.attempt, platform.now, repr(value)))
            if done.status == "completed" and done.function == "parameter":
                store.publish("policy", value)
            if done.status == "timed_out" and done.attempt < 3:
                try:
                    platform.retry(done)
                    submitted += 1
                except LookupError:  # the fixed version it was given is kept no longer
                    outcomes.append(("gone", done.number))
            reaction = done.number + (value[0] if done.function == "actor" and done.status == "completed" else 0)
            for _ in range(reaction % 3 if submitted < 45 else 0):
                invoke()
                submitted += 1
    return Run(specs, rows(platform), outcomes, platform.now)


SEEDS = range(150)


first_run = functools.cache(random_run)


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_repeat(seed):
    """The whole trace and all that the system saw: run again, on other numbers of threads, and without batching."""
    first = first_run(seed)
    again = [random_run(seed)] if seed % 5 == 0 else []
    for other in (*again, random_run(seed, threads=1), random_run(seed, threads=3, batched=False)):
        assert other.rows == first.rows
        assert other.outcomes == first.outcomes


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants(seed):
    run = first_run(seed)
    submitted, acquired, started, ended = {}, {}, {}, {}
    live = {name: {} for name in run.specs}  # container: slot
    idle = {name: {} for name in run.specs}  # container: since when
    created, busy, version, last_end = set(), {}, -1, 0.0
    for now, event, function, number, container, value in run.rows:
        if event == "submitted":
            assert number not in submitted
            submitted[number] = now
        elif event == "container_created":
            slots = set(live[function].values())
            assert value == min(set(range(len(slots) + 1)) - slots)
            assert container not in live[function]
            live[function][container] = value
            created.add(container)
            limit = run.specs[function].max_concurrency
            assert limit is None or len(live[function]) <= limit
        elif event == "acquired":
            assert number not in acquired
            assert container in live[function]
            assert container not in busy
            assert now >= submitted[number]
            if value:
                assert container in created  # made for this invocation
                assert not idle[function]
            else:
                assert container == max(idle[function])
                assert now <= idle[function].pop(container) + run.specs[function].keep_alive
            created.discard(container)
            acquired[number], busy[container] = (now, container), number
        elif event == "started":
            assert number not in started
            assert (now >= acquired[number][0], container) == (True, acquired[number][1])
            started[number] = now
        elif event in ENDINGS:
            assert number not in ended
            ended[number] = event
            if event == "cancelled":
                assert now == run.end
                busy.pop(container, None)
                continue
            assert now >= max(started[number], last_end)  # time never goes back
            last_end = now
            assert busy.pop(container) == number
            limit = run.specs[function].timeout
            assert limit is None or now <= started[number] + limit
            assert event != "timed_out" or now == started[number] + limit
            if event != "timed_out":
                idle[function][container] = now
        elif event == "container_ended":
            assert container not in busy
            since = idle[function].pop(container, None)
            assert since is None or now in (since + run.specs[function].keep_alive, run.end)
            assert live[function].pop(container) == value
        elif event == "published":
            assert value == version + 1
            version = value
        elif event == "withdrawn":  # the platform closed before the call's instant
            assert number not in submitted
            assert now == run.end
        else:
            assert event in ("stored", "fetched")
    assert set(ended) == set(submitted)
    assert not any(live.values())


def test_retries_back_off():
    retry = Retry(limit=5, first=1.0, factor=2.0, maximum=3.0)
    with deploy(2.0, faults=Faults(crash_before=1.0), retry=retry) as platform:
        done = platform.invoke("f", lambda context: None)
        seen = []
        while True:
            assert platform.next_completion() is done
            seen.append((done.attempt, done.number, done.key, platform.now))
            try:
                done = platform.retry(done)
            except FunctionError as error:
                assert "(attempt 5) crashed" in str(error)  # noqa: PT017
                break
    assert seen == [(1, 0, 0, 0.0), (2, 1, 0, 1.0), (3, 2, 0, 3.0), (4, 3, 0, 6.0), (5, 4, 0, 9.0)]


def test_jitter():
    def waits(jitter, seed=0):
        retry = Retry(limit=99, first=2.0, factor=1.0, jitter=jitter)
        with deploy(2.0, faults=Faults(crash_before=1.0), retry=retry, seed=seed) as platform:
            done, times = platform.invoke("f", lambda context: None), [0.0]
            for _ in range(50):
                platform.next_completion()
                times.append(platform.now)
                done = platform.retry(done)
        return np.diff(times)[1:]

    assert waits(0.0).tolist() == [2.0] * 49
    half = waits(0.5)
    assert 1.0 <= half.min() < 1.1 < 1.9 < half.max() <= 2.0
    assert waits(1.0).min() < 0.2
    np.testing.assert_array_equal(waits(1.0, seed=3), waits(1.0, seed=3))
    assert waits(1.0, seed=3).tolist() != waits(1.0, seed=4).tolist()
