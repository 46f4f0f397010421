"""Measures the simulated platform's overhead: invocations per second, gradients, rollouts, long traces, wall time."""

import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil

from experiments.benchmarks.measuring import Comparison
from stellaris import PPO
from stellaris.acting import envs
from stellaris.acting.normalisation import Normaliser
from stellaris.acting.policies import ActorCritic, Policy, PolicyVersion
from stellaris.algorithms import gradient
from stellaris.algorithms.batch import Batch, take
from stellaris.runtime import Function, FunctionSpec, SimulatedPlatform, Trace
from stellaris.runtime.delays import Constant, Exponential, LogNormal, Uniform
from stellaris.systems import programs
from stellaris.types import Tree

DESCRIPTION = "overhead of the simulated platform over the work itself"

#: Workloads: arrivals per second, mean service time and keep-alive in seconds. Tests compare our results on these
#: workloads with SimFaaS's.
WORKLOADS = ((0.9, 1.991, 600.0), (0.9, 1.991, 10.0), (5.0, 2.0, 5.0))
REQUESTS, REPEATS, SUBMITTED_AT_ONCE = 50_000, 5, 100
LEARNERS, SAMPLES, TOGETHER = 1000, 64, 20
ACTORS, FRAGMENT = 16, 256
LONG = 1_000_000
ENVIRONMENT = "Hopper-v4"


def measure(say: Callable[[str], None]) -> Iterator[Comparison]:
    """Runs every comparison, and calls `say` with the progress."""
    say("no-op invocations, and SimFaaS ...")
    for workload in WORKLOADS:
        yield _against_simfaas(*workload, body=lambda: no_op, what="one function")
    yield _against_simfaas(*WORKLOADS[0], body=lambda: no_op, what="all submitted up front", at_once=REQUESTS)
    yield _against_simfaas(*WORKLOADS[0], body=lambda: lambda context: None, what="a new lambda with each")
    say("from 10 to 10,000 concurrent functions ...")
    yield _concurrency()
    say(f"{LEARNERS:,} concurrent learners, and plain loops ...")
    yield _learners()
    say(f"{ACTORS} actors on as many versions ...")
    yield _actors()
    say(f"a trace of {LONG:,} invocations ...")
    yield from _long_trace()
    say("the wall clock, and virtual time ...")
    yield from _wall_clock()


def no_op(context: Any) -> None:
    """A body that does nothing."""


# ---- bare invocations -------------------------------------------------------------------------------------------


def _against_simfaas(
    rate: float,
    service: float,
    expiry: float,
    *,
    body: Callable[[], Callable[..., None]],
    what: str,
    at_once: int = SUBMITTED_AT_ONCE,
) -> Comparison:
    ours, theirs = [], []
    for seed in range(REPEATS):
        ours.append(_open_loop(rate, service, expiry, seed, body, at_once))
        theirs.append(_simfaas(rate, service, expiry))
    own, other = statistics.median(ours), statistics.median(theirs)
    return Comparison(
        f"invocations/s, arrivals {rate}/s of {service} s, kept {expiry:g} s, {what}, against SimFaaS",
        f"{own:,.0f}",
        f"{other:,.0f}",
        own / other,
        ">= 1.00",
    )


def _open_loop(
    rate: float, service: float, expiry: float, seed: int, body: Callable[[], Callable[..., None]], at_once: int
) -> float:
    """Returns requests per real second, for Poisson arrivals of the no-op `body()`, submitted `at_once` at a time."""
    arrivals = np.random.default_rng(seed).exponential(1 / rate, REQUESTS).cumsum().tolist()
    gc.collect()
    began = time.perf_counter()
    spec = FunctionSpec(compute=Exponential(service), cold_start=Exponential(0.3), keep_alive=expiry)
    with SimulatedPlatform({"f": spec}, seed=seed) as platform:
        for i in range(0, REQUESTS, at_once):
            some = arrivals[i : i + at_once]
            for instant in some:
                platform.invoke("f", body(), at=instant)
            while platform.next_completion(until=some[-1]):
                pass
        while platform.next_completion():
            pass
    return REQUESTS / (time.perf_counter() - began)


def _simfaas(rate: float, service: float, expiry: float) -> float:
    gc.collect()
    began = time.perf_counter()
    simulator = simfaas(rate, service, expiry, requests=REQUESTS)
    return float(simulator.total_req_count / (time.perf_counter() - began))


def simfaas(rate: float, service: float, expiry: float, *, requests: int) -> Any:
    """Runs SimFaaS' simulator, which draws from NumPy's global generator, over `requests` Poisson arrivals."""
    from simfaas.ServerlessSimulator import ServerlessSimulator
    from simfaas.SimProcess import ExpSimProcess

    process = ExpSimProcess(rate=1 / service)
    simulator = ServerlessSimulator(
        arrival_process=ExpSimProcess(rate=rate),
        warm_service_process=process,
        cold_service_process=process,
        expiration_threshold=expiry,
        max_time=requests / rate,
    )
    simulator.generate_trace(debug_print=False, progress=False)
    return simulator


def _concurrency() -> Comparison:
    seconds: dict[int, list[float]] = {10: [], 100: [], 1000: [], 10_000: []}
    for seed in range(REPEATS):
        for concurrent, times in seconds.items():
            times.append(_closed_loop(concurrent, REQUESTS, seed))
    each = {n: statistics.median(times) for n, times in seconds.items()}
    return Comparison(
        "seconds per invocation, 10,000 at once, against 10",
        f"{each[10_000] * 1e6:.1f} us",
        f"{each[10] * 1e6:.1f} us",
        each[10_000] / each[10],
        "<= 2.00",
    )


def _closed_loop(concurrent: int, invocations: int, seed: int) -> float:
    """Returns seconds per invocation, while a new invocation follows every completion."""
    gc.collect()
    with _kept_busy(concurrent, seed) as platform:
        _follow(platform, concurrent)  # until all containers are warm
        began = time.perf_counter()
        _follow(platform, invocations)
        return (time.perf_counter() - began) / invocations


def _kept_busy(concurrent: int, seed: int = 0) -> SimulatedPlatform:
    """Returns a platform with `concurrent` pending no-ops."""
    spec = FunctionSpec(compute=LogNormal(1.0, 0.5), cold_start=LogNormal(0.3, 0.1), keep_alive=600.0)
    platform = SimulatedPlatform({"f": spec}, seed=seed)
    for _ in range(concurrent):
        platform.invoke("f", no_op)
    return platform


def _follow(platform: SimulatedPlatform, invocations: int) -> None:
    for _ in range(invocations):
        platform.next_completion()
        platform.invoke("f", no_op)


# ---- real work --------------------------------------------------------------------------------------------------


def _learners() -> Comparison:
    spec = envs.make(ENVIRONMENT, slots=1).spec
    policy, length = ActorCritic()(spec), spec.observation_shape[0]
    normaliser = Normaliser(np.zeros(length, np.float32), np.ones(length, np.float32))
    params = policy.init(jax.random.key(0))
    batch = _batch(policy, PolicyVersion(params, normaliser), length)
    indices = np.random.default_rng(0).permuted(np.arange(LEARNERS * SAMPLES)).reshape(LEARNERS, SAMPLES)

    def apply(params: Tree, observation: Any) -> tuple[Any, jax.Array]:
        return policy.apply(PolicyVersion(params, normaliser), observation)

    def grads(params: Tree, minibatch: Any) -> Tree:
        return gradient(PPO(), apply, params, take(batch, minibatch))[0]

    one, many = jax.jit(grads), jax.jit(jax.vmap(grads, in_axes=(None, 0)))

    def plain() -> None:
        jax.block_until_ready([one(params, row) for row in indices])  # type: ignore[no-untyped-call]

    def together() -> None:
        jax.block_until_ready([many(params, group) for group in np.split(indices, LEARNERS // TOGETHER)])  # type: ignore[no-untyped-call]

    # Unstack the gradients inside the compiled function, because slicing them afterwards would cost one dispatch each.
    apart = jax.jit(lambda params, rows: _unstacked(many(params, rows)))

    def body(context: Any, row: Any) -> Tree:
        return one(params, row)

    def batched(contexts: Sequence[Any], arguments: Sequence[tuple[Any, ...]]) -> list[Tree]:
        rows = np.stack([row for (row,) in arguments])
        gradients: list[Tree] = apart(params, np.resize(rows, (TOGETHER, SAMPLES)))
        return gradients[: len(rows)]

    learn = Function(body, batched=batched, max_batch=TOGETHER)

    def platform() -> None:
        # Durations are so long that the last learner starts before the first one ends: all run at once.
        deployment = FunctionSpec(compute=LogNormal(10.0, 0.1), cold_start=LogNormal(1.5, 0.1), keep_alive=600.0)
        with SimulatedPlatform({"learner": deployment}) as simulated:
            for row in indices:
                simulated.invoke("learner", learn, row)
            results = []
            while (done := simulated.next_completion()) is not None:
                results.append(done.result())
        jax.block_until_ready(results)  # type: ignore[no-untyped-call]

    sides = {"platform": platform, "plain loop": plain, f"loop over {TOGETHER} at a time": together}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side()  # compiles
    for _ in range(REPEATS):
        for name, side in sides.items():
            began = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    own = medians.pop("platform")
    fastest = min(medians, key=lambda name: medians[name])
    return Comparison(
        f"{LEARNERS:,} gradients of {SAMPLES} by as many functions, against the {fastest}",
        f"{own:.2f} s",
        f"{medians[fastest]:.2f} s",
        own / medians[fastest],
        "<= 1.30",
    )


def _unstacked(tree: Tree) -> list[Tree]:
    """Returns the trees whose stack is `tree`."""
    leaves, structure = jax.tree.flatten(tree)
    return [jax.tree.unflatten(structure, [leaf[i] for leaf in leaves]) for i in range(TOGETHER)]


def _batch(policy: Policy, version: PolicyVersion, length: int) -> Batch:
    """Returns random samples, with actions and values from the policy."""
    rng, n = np.random.default_rng(0), LEARNERS * SAMPLES
    observation = rng.standard_normal((n, length)).astype(np.float32)
    value = policy.apply(version, observation)[1]
    action, log_prob = policy.act(version, observation, policy.noise(jax.random.key(1), n))
    numbers = rng.standard_normal((2, n)).astype(np.float32)
    columns = {
        "observation": observation,
        "action": np.asarray(action),
        "log_prob": np.asarray(log_prob),
        "value": np.asarray(value),
        "advantage": numbers[0],
        "target": numbers[1],
        "valid": np.ones(n, bool),
        "version": np.zeros(n, np.int32),
    }
    return Batch(**{name: jax.numpy.asarray(columns[name]) for name in Batch._fields})


def _actors() -> Comparison:
    env = envs.make(ENVIRONMENT, slots=ACTORS)
    policy = ActorCritic()(env.spec)
    batched = programs.actor(policy, env, FRAGMENT, jax.random.key(0))
    separate = Function(batched.body, init=batched.init)
    length = env.spec.observation_shape[0]
    normaliser = Normaliser(np.zeros(length, np.float32), np.ones(length, np.float32))
    spec = FunctionSpec(compute=Uniform(0.9, 1.1), max_concurrency=ACTORS)

    def rounds(act: Function, count: int) -> float:
        with SimulatedPlatform({"actor": spec}, keep_versions=ACTORS) as platform:
            for number in range(ACTORS):
                platform.store.publish("policy", PolicyVersion(policy.init(jax.random.key(number)), normaliser))
            for number in range(ACTORS):  # the first invocation of an actor resets its environment
                platform.invoke("actor", act, platform.store.at("policy", 0), number)
            while (done := platform.next_completion()) is not None:
                done.result()
            began = time.perf_counter()
            for _ in range(count):
                for number in range(ACTORS):
                    platform.invoke("actor", act, platform.store.at("policy", number), number)
                while (done := platform.next_completion()) is not None:
                    done.result()
        return count * ACTORS * FRAGMENT / (time.perf_counter() - began)

    ours, apart = [], []
    for _ in range(REPEATS):
        ours.append(rounds(batched, 3))
        apart.append(rounds(separate, 1))
    own, other = statistics.median(ours), statistics.median(apart)
    return Comparison(
        f"steps/s of {ACTORS} actors on as many versions, against separate bodies",
        f"{own:,.0f}",
        f"{other:,.0f}",
        own / other,
        ">= 2.50",
    )


# ---- long traces, and real time -----------------------------------------------------------------------------------


def _long_trace() -> Iterator[Comparison]:
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    trace = _trace_of(LONG)
    gc.collect()
    held = (process.memory_info().rss - before) / 2**20
    yield Comparison(
        f"memory of a trace of {LONG:,} invocations, {len(trace):,} rows, against 400 MB",
        f"{held:,.0f} MiB",
        f"{400e6 / 2**20:,.0f} MiB",
        held / (400e6 / 2**20),
        "<= 1.00",
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        trace.to_chrome(Path(folder) / "trace.json")
        seconds = time.perf_counter() - began
        size = (Path(folder) / "trace.json").stat().st_size
    yield Comparison(
        f"its export to Perfetto, {size / 1e6:,.0f} MB, against 30 s",
        f"{seconds:.1f} s",
        "30 s",
        seconds / 30,
        "<= 1.00",
    )


def _trace_of(invocations: int) -> Trace:
    with _kept_busy(100) as platform:
        _follow(platform, invocations - 100)
        while platform.next_completion():
            pass
        platform.trace.settle()
    return platform.trace


def _wall_clock() -> Iterator[Comparison]:
    """Compares a small scenario on the wall clock with its simulation: invocations should end in the same order."""
    runs = {clock: _scenario(clock) for clock in ("virtual", "wall")}
    (virtual_end, virtual), (wall_end, wall) = runs["virtual"], runs["wall"]
    yield Comparison(
        "total time on the wall clock, against virtual time",
        f"{wall_end:.2f} s",
        f"{virtual_end:.2f} s",
        wall_end / virtual_end,
        "0.95 to 1.05",
    )
    apart = [
        (a, b)
        for (a, t), (b, u) in itertools.pairwise(virtual)
        if u - t > 0.05  # invocations that end within 50 ms of each other may swap
    ]
    places = {number: place for place, (number, _) in enumerate(wall)}
    kept = sum(places[a] < places[b] for a, b in apart)
    yield Comparison(
        "pairs more than 50 ms apart that end in the same order", f"{kept}", f"{len(apart)}", kept / len(apart), "1.00"
    )


def _scenario(clock: str) -> tuple[float, Sequence[tuple[int, float]]]:
    functions = {
        "actor": FunctionSpec(compute=LogNormal(0.3, 0.5), cold_start=LogNormal(0.2, 0.3), max_concurrency=3),
        "learner": FunctionSpec(compute=Exponential(0.4), cold_start=Constant(0.5), timeout=1.0, keep_alive=0.5),
    }
    with SimulatedPlatform(functions, clock=clock, seed=3, threads=8) as platform:
        for i in range(24):
            platform.invoke("actor" if i % 3 else "learner", no_op, at=0.15 * i + 0.5)
        ends = []
        while (done := platform.next_completion()) is not None:
            ends.append((done.number, done.finished or 0.0))
        return platform.now, ends
