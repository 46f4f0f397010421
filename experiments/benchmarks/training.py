"""Measures the overhead of the systems and the platform over the necessary work.

Both sides of every ratio are measured alternately and compared by medians: imports in new processes, the rest in this
process.
"""

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import psutil

from experiments.benchmarks.measuring import Comparison
from experiments.tasks import testbed
from stellaris import PPO, staleness_aware
from stellaris.acting import envs
from stellaris.acting.policies import ActorCritic, PolicyVersion
from stellaris.acting.rollout import Actors, start
from stellaris.algorithms import update as learn
from stellaris.algorithms.batch import take
from stellaris.runtime import SimulatedPlatform
from stellaris.systems import Budget, Result, Stellaris, Synchronous, System, Workload, train
from stellaris.systems.batches import LearnerBatch, batch_of
from stellaris.types import Versioned

DESCRIPTION = "overhead of the systems, the platform and the import over the work itself"

ENVIRONMENT, ACTORS, FRAGMENT, LEARNERS, THREADS = "Hopper-v4", 16, 256, 4, 2
STEPS = ACTORS * FRAGMENT
ALGORITHM = PPO(epochs=10, minibatch_size=512)
#: Timed rounds of a system in one measurement, warm-up rounds before them, and the number of measurements.
ROUNDS, WARM_UP, REPEATS = 20, 5, 3


def measure(say: Callable[[str], None]) -> Iterator[Comparison]:
    """Runs every comparison, and calls `say` with the progress."""
    say("synchronous rounds, and their serial limit ...")
    yield _synchronous()
    say("Stellaris, and a plain loop of the same work ...")
    yield from _stellaris()
    say("imports ...")
    yield _imports()


def _synchronous() -> Comparison:
    limit_parts = _SerialLimit()
    rounds, limits = [], []
    for _ in range(REPEATS):
        limits.append(limit_parts.measure())
        rounds.append(statistics.median(_round_times(Synchronous(ALGORITHM), testbed.reserved(actors=ACTORS))[0]))
    limit, own = STEPS / statistics.median(limits), STEPS / statistics.median(rounds)
    return Comparison(
        "synchronous system, steps/s, against the serial limit", f"{own:,.0f}", f"{limit:,.0f}", own / limit, ">= 0.80"
    )


def _stellaris() -> Iterator[Comparison]:
    # Free-running actors on the default testbed and small groups of gradients put the highest load on the platform.
    aggregator = staleness_aware(LEARNERS, decay=0.9)
    system = Stellaris(ALGORITHM, learners=LEARNERS, aggregator=aggregator)
    deployment = testbed.serverless(actors=ACTORS, learners=LEARNERS)
    ours, plain = [], []
    memory: list[int] = []
    loop = _PlainLoop()
    for _ in range(REPEATS):
        times, result, memory = _round_times(system, deployment)
        ours.append(sum(times))
        rows = result.history
        gradients = rows[-1]["gradients"] - rows[WARM_UP]["gradients"]
        updates = rows[-1]["version"] - rows[WARM_UP]["version"]
        plain.append(loop.measure(len(times), int(gradients), int(updates)))
    own, other = statistics.median(ours), statistics.median(plain)
    yield Comparison(
        f"Stellaris, {ROUNDS} rounds, against a plain loop", f"{own:.2f} s", f"{other:.2f} s", own / other, "<= 1.30"
    )
    early, late = memory[len(memory) // 10], memory[-1]
    yield Comparison(
        "resident memory at the end, against after the first tenth",
        f"{late / 2**20:,.0f} MiB",
        f"{early / 2**20:,.0f} MiB",
        late / early,
        "flat",
    )


def _imports() -> Comparison:
    ours: list[float] = []
    base: list[float] = []
    for i in range(8):
        for times, code in ((ours, "from stellaris import ppo_loss"), (base, "import jax, optax, jaxtyping")):
            began = time.perf_counter()
            # Ctrl-C does not interrupt a process in a new session.
            subprocess.run([sys.executable, "-c", code], check=True, start_new_session=True)
            if i:  # not the first import, which reads the disk
                times.append(time.perf_counter() - began)
    own, other = statistics.median(ours), statistics.median(base)
    return Comparison(
        "from stellaris import ppo_loss, against import jax, optax, jaxtyping",
        f"{own:.2f} s",
        f"{other:.2f} s",
        own / other,
        "<= 1.05",
    )


def _round_times(system: System, deployment: Any) -> tuple[list[float], Result, list[int]]:
    """Returns the wall seconds of the rounds after the warm-up, the run's result, and the memory after each round."""
    gc.collect()
    stamps, memory = [], []
    process = psutil.Process()

    def stamp(row: Any) -> None:
        del row
        stamps.append(time.perf_counter())
        memory.append(process.memory_info().rss)

    result = train(
        system,
        Workload(ENVIRONMENT, actors=ACTORS, fragment=FRAGMENT),
        platform=SimulatedPlatform(deployment, threads=THREADS),
        budget=Budget(steps=(WARM_UP + ROUNDS + 1) * STEPS),
        prices=testbed.reserved_prices(actors=ACTORS),
        threads=THREADS,
        on_progress=stamp,
    )
    return np.diff(stamps[WARM_UP : WARM_UP + ROUNDS + 1]).tolist(), result, memory[WARM_UP:]


class _Work:
    """The parts of a round, without a platform."""

    def __init__(self) -> None:
        self.env = envs.make(ENVIRONMENT, slots=ACTORS, threads=THREADS)
        self.policy = ActorCritic()(self.env.spec)
        params = self.policy.init(jax.random.key(0))
        self.version = PolicyVersion(params, self.policy.statistics().normaliser())
        self.opt_state = ALGORITHM.optimizer().init(params)
        self.actors = Actors(self.policy, self.env, FRAGMENT)
        self.states = [start(self.env, slot) for slot in range(ACTORS)]
        self.keys = jax.random.split(jax.random.key(1), ACTORS)
        self.batches = 0  # batches made so far

    def rollout(self) -> Any:
        versions = [Versioned(0, self.version)] * ACTORS
        fragments, self.states = self.actors.rollout(versions, range(ACTORS), self.states, self.keys)
        return fragments

    def batch(self) -> LearnerBatch:
        """Samples a rollout and returns its batch, prepared and shuffled as in the systems."""
        self.batches += 1
        key = jax.random.fold_in(jax.random.key(2), self.batches)
        return batch_of(self.rollout(), algorithm=ALGORITHM, policy=self.policy, target=self.version, key=key)


class _SerialLimit(_Work):
    """Times a round without any overlap: environment steps with given actions, then inference calls, then updates."""

    def __init__(self) -> None:
        super().__init__()
        spec = self.env.spec
        rng = np.random.default_rng(0)
        self.slots = np.arange(ACTORS, dtype=np.int32)
        self.actions = rng.uniform(-1, 1, (FRAGMENT, ACTORS, spec.actions))
        self.observations = rng.standard_normal((FRAGMENT, ACTORS, *spec.observation_shape))
        self.noise = rng.standard_normal((FRAGMENT, ACTORS, spec.actions)).astype(np.float32)
        policy, version = self.policy, self.version
        self.data = self.batch()

        @jax.jit
        def update(params: Any, opt_state: Any, batch: Any, indices: Any) -> Any:
            def apply(params: Any, observation: Any) -> Any:
                return policy.apply(version._replace(params=params), observation)

            return learn(ALGORITHM, apply, params, opt_state, batch, indices)

        self.act = jax.jit(policy.act)
        self.value = jax.jit(lambda version, observation: policy.apply(version, observation)[1])
        self.update = update
        self.measure()

    def measure(self) -> float:
        """Returns the seconds of one round, the median of ten."""
        return statistics.median(self._once() for _ in range(10))

    def _once(self) -> float:
        began = time.perf_counter()
        for action in self.actions:
            self.env.step(self.slots, action)
        for observation, noise in zip(self.observations, self.noise, strict=True):
            for output in self.act(self.version, observation, noise):
                np.asarray(output)
        np.asarray(self.value(self.version, self.observations))
        arguments = (self.version.params, self.opt_state, self.data.batch, self.data.indices)
        jax.block_until_ready(self.update(*arguments))  # type: ignore[no-untyped-call]
        return time.perf_counter() - began


class _PlainLoop(_Work):
    """Times a plain loop of the steps, the gradients with the ratio cap, and the updates of a run of Stellaris."""

    def __init__(self) -> None:
        super().__init__()
        policy, version, optimizer = self.policy, self.version, ALGORITHM.optimizer()

        @jax.jit
        def gradient(params: Any, peers: Any, batch: Any, indices: Any) -> Any:
            minibatch = take(batch, indices)

            def loss(params: Any) -> Any:
                own = version._replace(params=params)
                others = tuple(version._replace(params=peer) for peer in peers)
                return ALGORITHM.loss(policy.apply, own, minibatch, others)

            return jax.grad(loss, has_aux=True)(params)

        @jax.jit
        def update(gradient: Any, params: Any, opt_state: Any) -> Any:
            updates, opt_state = optimizer.update(gradient, opt_state, params)
            return optax.apply_updates(params, updates), opt_state

        self.gradient, self.update = gradient, update
        self.measure(1, 8, 8)

    def measure(self, rounds: int, gradients: int, updates: int) -> float:
        """Returns the seconds of the given numbers of rounds, gradients and updates."""
        began = time.perf_counter()
        params, opt_state, done, applied = self.version.params, self.opt_state, 0, 0
        peers = (jax.tree.map(jnp.copy, params),) * (LEARNERS - 1)
        for i in range(rounds):
            data = self.batch()
            due = gradients * (i + 1) // rounds
            while done < due:
                g, _ = self.gradient(params, peers, data.batch, data.indices[done % len(data.indices)])
                done += 1
                if applied < updates * done // gradients:
                    params, opt_state = self.update(g, params, opt_state)
                    applied += 1
        jax.block_until_ready((params, opt_state))  # type: ignore[no-untyped-call]
        return time.perf_counter() - began
