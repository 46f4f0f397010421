"""Policies with memory in every system: what actors carry is what learners recompute, and what a resumed run has."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import chex
import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import IMPACT, IMPALA, PPO, ActorCritic, Policy
from stellaris.acting import EnvSpec, EquinoxMemory, FlaxMemory, PolicyVersion, load_policy, save_policy
from stellaris.acting.evaluation import evaluate
from stellaris.acting.rollout import Fragment
from stellaris.algorithms import Algorithm
from stellaris.lab import CartPole, Constant, Rounds, TMaze, dry_run, imposed, recorded, sweep
from stellaris.memory import Sequences
from stellaris.runtime import Checkpoints, Faults, FunctionSpec, RayPlatform, Retry, SimulatedPlatform, Transfer
from stellaris.runtime.delays import Constant as Seconds
from stellaris.runtime.delays import Exponential, Gamma, LogNormal, Measured
from stellaris.scheduling.rules import Fixed
from stellaris.systems import (
    AsynchronousActors,
    Budget,
    CentralInference,
    CircularReplay,
    DataParallel,
    Evaluation,
    MinionsRL,
    Stellaris,
    Synchronous,
    System,
    Workload,
    batch_of,
    train,
)


@dataclass(frozen=True)
class Elman:
    """A simple recurrent network of bare arrays, whose memory is far from zero even at an episode's start."""

    actions: int
    width: int = 6
    spare: int = 0  #: numbers in the memory that are never used.

    def initial_memory(self) -> Any:
        return {"state": jnp.full(self.width, 0.5), "spare": jnp.zeros(self.spare)}

    def init(self, key: jax.Array, observation: Any, memory: Any) -> Any:
        shapes = {"in": observation.shape[-1], "again": self.width}
        keys = iter(jax.random.split(key, 3))
        params = {name: jax.random.normal(next(keys), (rows, self.width)) for name, rows in shapes.items()}
        return params | {"out": jax.random.normal(next(keys), (self.width, self.actions + 1))}

    def apply(self, params: Any, observation: Any, memory: Any) -> tuple[Any, Any, Any]:
        state = jnp.tanh(observation @ params["in"] + memory["state"] @ params["again"])
        output = state @ params["out"]
        return output[:, :-1], output[:, -1], memory | {"state": state}


@dataclass(frozen=True)
class Recall:
    """Solves the maze by hand: goes on to the junction, and turns as the remembered cue said."""

    def initial_memory(self) -> Any:
        return jnp.float32(0)

    def init(self, key: jax.Array, observation: Any, memory: Any) -> Any:
        return {"bias": jnp.zeros(())}

    def apply(self, params: Any, observation: Any, memory: Any) -> tuple[Any, Any, Any]:
        cue, junction = observation[:, 0], observation[:, 1]
        memory = jnp.where(cue != 0, cue, memory)
        logits = jnp.stack([1 - 2 * junction, -memory * junction, memory * junction], axis=-1)
        return 1000.0 * logits + params["bias"], jnp.zeros_like(cue), memory


def elman(spec: EnvSpec) -> Policy:
    return Policy(spec, Elman(spec.actions), normalise=False)


def recall(spec: EnvSpec) -> Policy:
    return Policy(spec, Recall(), normalise=False)


MAZE = TMaze(length=2, time_limit=7)
WORKLOAD = Workload(MAZE, elman, actors=2, fragment=16)
ALGORITHMS: dict[str, Algorithm] = {
    "PPO": PPO(learning_rate=1e-2, epochs=2, minibatch_size=16),
    "IMPALA": IMPALA(learning_rate=1e-2, epochs=2, minibatch_size=1),
    "IMPACT": IMPACT(learning_rate=1e-2, epochs=1, minibatch_size=16),
}
PPO_CONFIG = ALGORITHMS["PPO"]
WIRE = Transfer(Seconds(0.0), 1e6)
#: A deployment in which everything that can delay, repeat or lose an invocation does so.
FAULTS = Faults(crash_during=0.1, lose=0.1, duplicate=0.1, notice_after=Exponential(0.3), lifetime=Exponential(5.0))


def deployment(system: System, faults: bool = False) -> SimulatedPlatform:
    delays = {"actor": LogNormal(0.01, 0.5), "learner": Gamma(0.1, 1.0), "parameter": LogNormal(0.02, 0.5)}
    delays |= {"inference": LogNormal(0.002, 0.5), "all_reduce": Seconds(1e-6)}
    functions = {name: FunctionSpec(delays[name], retry=Retry(limit=99)) for name in system.functions}
    return SimulatedPlatform(functions, faults=dict.fromkeys(functions, FAULTS) if faults else {})


def run(system: System, workload: Workload = WORKLOAD, *, rounds: int = 5, faults: bool = False, **options: Any) -> Any:
    budget = Budget(steps=rounds * workload.actors * workload.fragment)
    return train(system, workload, platform=deployment(system, faults), budget=budget, **options)


def sampled(workload: Workload = WORKLOAD, **options: Any) -> tuple[Any, list[Fragment]]:
    fragments: list[Fragment] = []
    result = run(Synchronous(PPO_CONFIG), workload, on_fragment=fragments.append, **options)
    return result, fragments


class TestFragments:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ALGORITHMS)
    def test_a_learner_recomputes_what_the_actors_did(self, name: str) -> None:
        """On the version that acted, every ratio is 1 and every value is the actor's, after many fragments."""
        # With a learning rate of 0 all fragments are of the same policy.
        algorithm = replace(ALGORITHMS[name], learning_rate=1e-30)
        policy = WORKLOAD.make_policy(MAZE.spec)
        frozen: list[Fragment] = []
        result = run(Synchronous(algorithm), on_fragment=frozen.append)
        last = frozen[-2:]
        assert any(np.any(one.trajectory.memory["state"] != 0.5) for one in last)  # a fragment begins within an episode
        assert not all(one.trajectory.valid.all() for one in last)
        data = batch_of(last, algorithm=algorithm, policy=policy, target=result.policy, key=jax.random.key(0))
        _, metrics = algorithm.loss(policy.apply, result.policy, data.batch)
        assert abs(float(metrics["kl"])) < 1e-9
        forgotten = [
            one._replace(
                trajectory=one.trajectory._replace(memory=one.trajectory.memory | {"state": np.full((1, 1, 6), -0.9)})
            )
            for one in last
        ]
        data = batch_of(forgotten, algorithm=algorithm, policy=policy, target=result.policy, key=jax.random.key(0))
        assert float(algorithm.loss(policy.apply, result.policy, data.batch)[1]["kl"]) > 1e-4

    @pytest.mark.slow
    def test_each_fragment_starts_with_the_memory_after_the_one_before(self) -> None:
        """Recomputed over all the steps of an environment at once, from its very start, under a frozen policy."""
        fragments: list[Fragment] = []
        result = run(Synchronous(replace(PPO_CONFIG, learning_rate=1e-30)), on_fragment=fragments.append)  # type: ignore[type-var]
        policy = WORKLOAD.make_policy(MAZE.spec)
        for slot in {fragment.slot for fragment in fragments}:
            own = [fragment.trajectory for fragment in fragments if fragment.slot == slot]
            assert len(own) > 2
            valid = np.concatenate([one.valid for one in own])
            observation = np.concatenate([one.observation[:-1] for one in own] + [own[-1].observation[-1:]])
            whole = Sequences.following(observation, valid, jax.tree.map(np.asarray, policy.initial_memory(1, 1)))
            _, value = policy.apply(result.policy, whole)
            expected = np.concatenate([one.value[:-1] for one in own] + [own[-1].value[-1:]])
            np.testing.assert_allclose(value, expected, atol=1e-5)
            np.testing.assert_array_equal(own[0].memory["state"], 0.5)

    @pytest.mark.slow
    def test_a_fragment_that_restarts_begins_with_the_initial_memory(self) -> None:
        _, fragments = sampled(replace(WORKLOAD, restart=True), rounds=3)
        assert all(np.all(one.trajectory.memory["state"] == 0.5) for one in fragments)

    @pytest.mark.slow
    def test_minibatches_are_of_whole_sequences(self) -> None:
        _, fragments = sampled(rounds=2)
        policy = WORKLOAD.make_policy(MAZE.spec)
        version = PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser())
        for name, algorithm in ALGORITHMS.items():
            many = [*fragments[:2], *fragments[:2]]
            data = batch_of(many, algorithm=algorithm, policy=policy, target=version, key=jax.random.key(1))
            assert data.indices.max() == 3, name
            assert data.unseen.tolist() == [int(one.trajectory.valid.sum()) for one in many]
            minibatch: Any = algorithm.select(data.batch, data.indices[0])
            assert minibatch.valid.shape == (16, 1)
            assert data.sample.observation.shape == (17, 4, 2)

    @pytest.mark.slow
    def test_the_target_of_impact_runs_over_the_same_sequences(self) -> None:
        _, fragments = sampled(rounds=3)
        policy = WORKLOAD.make_policy(MAZE.spec)
        target = PolicyVersion(policy.init(jax.random.key(5)), policy.statistics().normaliser())
        last = fragments[-2:]
        data = batch_of(last, algorithm=ALGORITHMS["IMPACT"], policy=policy, target=target, key=jax.random.key(0))
        for column, fragment in enumerate(last):
            trajectory = fragment.trajectory
            log_probs, values = _by_hand(target.params, trajectory)
            expected = np.where(trajectory.valid[:, 0], log_probs - trajectory.log_prob[:, 0], 0.0)
            np.testing.assert_allclose(data.batch.target_log_ratio[:, column], expected, atol=1e-5)
            np.testing.assert_allclose(data.batch.samples.value[:, column], values[:-1], atol=1e-5)

    @pytest.mark.slow
    def test_impala_learns_from_the_carried_memory(self) -> None:
        """With traces of length one, a value's target is the next value, weighted by the ratio: all by a plain loop."""
        _, fragments = sampled(rounds=3)
        policy = WORKLOAD.make_policy(MAZE.spec)
        params = policy.init(jax.random.key(5))
        version = PolicyVersion(params, policy.statistics().normaliser())
        trajectory = fragments[-1].trajectory
        valid = trajectory.valid[:, 0]
        assert valid[-1]  # otherwise the last value would not matter
        log_probs, values = _by_hand(params, trajectory)
        ratio = np.exp(log_probs - trajectory.log_prob[:, 0])
        following = trajectory.reward[:, 0] + 0.9 * ~trajectory.terminated[:, 0] * values[1:]
        expected = np.mean((ratio * (following - values[:-1]))[valid] ** 2)
        impala = IMPALA(lambda_=0.0, rho_clip=1e9, discount=0.9)
        metrics = impala.loss(policy.apply, version, trajectory)[1]
        np.testing.assert_allclose(metrics["value_loss"], expected, rtol=1e-4)


def _by_hand(params: Any, trajectory: Any) -> tuple[Any, Any]:
    """Log-probabilities and values of the Elman network, by a plain loop over the steps of one environment."""
    state, log_probs, values = trajectory.memory["state"][0, 0], [], []
    for t in range(len(trajectory.value)):
        if t and not trajectory.valid[t - 1, 0]:
            state = np.full(6, 0.5)
        state = np.tanh(trajectory.observation[t, 0] @ params["in"] + state @ params["again"])
        output = state @ params["out"]
        values.append(output[-1])
        if t < len(trajectory.action):
            logits = output[:-1]
            log_probs.append(logits[trajectory.action[t, 0]] - np.log(np.sum(np.exp(logits))))
    return np.array(log_probs), np.array(values)


class TestSystems:
    SYSTEMS: ClassVar[dict[str, Callable[[Any], System]]] = {
        "asynchronous actors": AsynchronousActors,
        "impact": lambda algorithm: CircularReplay(algorithm, passes=2),
        "minionsrl": lambda algorithm: MinionsRL(algorithm, Fixed(1)),  # a batch of one fragment, padded to two
        "stellaris": lambda algorithm: Stellaris(algorithm, learners=2),
    }

    @pytest.mark.slow
    @pytest.mark.parametrize("system", SYSTEMS)
    def test_every_system_learns_over_sequences(self, system: str) -> None:
        algorithm = ALGORITHMS[{"asynchronous actors": "IMPALA", "impact": "IMPACT"}.get(system, "PPO")]
        result = run(self.SYSTEMS[system](algorithm), rounds=4)
        assert result.history[-1]["gradients"] > 4
        assert np.isfinite(result.history[-1]["loss"])
        before = WORKLOAD.make_policy(MAZE.spec).init(jax.random.key(0))
        assert not np.allclose(before["again"], result.policy.params["again"])

    @pytest.mark.slow
    def test_data_parallel_learners_split_sequences(self) -> None:
        algorithm = PPO(learning_rate=1e-2, epochs=2, minibatch_size=32)  # two sequences, one for each learner
        split, central = run(DataParallel(algorithm, learners=2)), run(Synchronous(algorithm))
        chex.assert_trees_all_close(split.policy, central.policy, rtol=1e-4, atol=1e-5)

    @pytest.mark.slow
    def test_central_inference_samples_what_local_inference_does(self) -> None:
        delays = {"actor": Seconds(0.01), "inference": Seconds(0.002), "learner": Seconds(0.1)}
        functions = {name: FunctionSpec(delay, reuse="least_recent") for name, delay in delays.items()}
        central, local = (
            train(system, WORKLOAD, platform=SimulatedPlatform(functions), budget=Budget(steps=5 * 32))
            for system in (CentralInference(PPO_CONFIG), Synchronous(PPO_CONFIG))
        )
        assert len(local.trace.select("episode").value) > 10
        for event in ("sampled", "episode", "episode_length", "reset"):
            np.testing.assert_allclose(central.trace.select(event).value, local.trace.select(event).value, rtol=1e-5)
        chex.assert_trees_all_close(central.policy, local.policy, rtol=1e-4, atol=1e-5)

    @pytest.mark.slow
    def test_central_inference_loses_a_memory_with_its_environment(self) -> None:
        """A fragment's memory is what its policy computes from the environment's start, whatever was lost before."""
        fragments: list[Fragment] = []
        algorithm = replace(PPO_CONFIG, learning_rate=1e-30)  # type: ignore[type-var]
        result = run(CentralInference(algorithm), rounds=12, faults=True, on_fragment=fragments.append)
        assert len({fragment.environment for fragment in fragments}) > 2
        policy = WORKLOAD.make_policy(MAZE.spec)
        begun = 0
        for fragment in fragments:
            trajectory = fragment.trajectory
            _, value = policy.apply(result.policy, Sequences.of(trajectory))
            np.testing.assert_allclose(trajectory.value, value, atol=1e-5)
            log_probs, _ = _by_hand(result.policy.params, trajectory)
            np.testing.assert_allclose(trajectory.log_prob[:, 0], log_probs, atol=1e-5)
            if fragment.first == 0:
                begun += 1
                assert np.all(trajectory.memory["state"] == 0.5)
        assert begun

    @pytest.mark.slow
    def test_memories_are_not_sent_to_the_central_machine(self) -> None:
        """Where nothing but bytes costs time, a memory that is a thousand numbers larger takes as long."""
        took = []
        for spare in (0, 1000):
            workload = replace(WORKLOAD, policy=lambda spec, spare=spare: Policy(spec, Elman(3, 6, spare), False))
            system = CentralInference(PPO_CONFIG)
            functions = {name: FunctionSpec(Seconds(0.0), transfer=WIRE) for name in system.functions}
            result = train(system, workload, platform=SimulatedPlatform(functions), budget=Budget(steps=64))
            table = result.trace.invocations()
            took.append((table.ended - table.started)[table.function == table.names.index("inference")][:10])
        np.testing.assert_allclose(*took)
        assert took[0].min() > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*precision lowered")
@pytest.mark.parametrize(
    ("system", "policy"),
    [(Stellaris(PPO_CONFIG, learners=1), FlaxMemory(nn.GRUCell, 8)), (CentralInference(PPO_CONFIG), elman)],
    ids=["stellaris", "central inference"],
)
def test_on_a_cluster(ray_on_this_machine: None, system: System, policy: Any) -> None:
    """Memories pass between processes: fragments continue with the memory after the one before."""
    functions = {name: FunctionSpec(Measured(), max_concurrency=1) for name in system.functions}
    workload = replace(WORKLOAD, actors=1, fragment=16, policy=policy)
    fragments: list[Fragment] = []
    result = train(
        system, workload, platform=RayPlatform(functions), budget=Budget(steps=4 * 16), on_fragment=fragments.append
    )
    assert result.history[-1]["gradients"] > 0
    states = [jax.tree.leaves(fragment.trajectory.memory)[-1] for fragment in fragments]
    assert len({state.tobytes() for state in states}) > 1


class TestAroundARun:
    @pytest.mark.slow
    def test_evaluation_carries_the_memory(self) -> None:
        policy = recall(MAZE.spec)
        version = PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser())
        played = evaluate(policy, version, TMaze(length=30), episodes=8, seed=0)
        assert [(one.episode_return, one.length) for one in played] == [(1.0, 31)] * 8

    @pytest.mark.slow
    def test_evaluations_of_a_run_carry_the_memory(self) -> None:
        result = run(
            Synchronous(replace(PPO_CONFIG, learning_rate=1e-30)),  # type: ignore[type-var]
            replace(WORKLOAD, policy=recall, environment=TMaze(length=5)),
            rounds=2,
            evaluation=Evaluation(every=1, episodes=5),
        )
        assert result.history[-1]["evaluation_return"] == result.history[-1]["episode_return"] == 1.0

    @pytest.mark.slow
    @pytest.mark.parametrize("factory", [FlaxMemory(nn.GRUCell, 8), EquinoxMemory(eqx.nn.LSTMCell, 8)])
    def test_a_saved_policy_plays_as_before(self, factory: Any, tmp_path: Path) -> None:
        policy = factory(MAZE.spec)
        version = PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser())
        save_policy(tmp_path / "policy.safetensors", version)
        loaded = load_policy(tmp_path / "policy.safetensors", policy).version
        chex.assert_trees_all_equal(version, loaded)
        assert evaluate(policy, loaded, MAZE, episodes=4, seed=1) == evaluate(policy, version, MAZE, episodes=4, seed=1)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("system", "policy"),
        [
            (Stellaris(PPO_CONFIG, learners=3), elman),
            (Stellaris(PPO_CONFIG, learners=2), EquinoxMemory(eqx.nn.LSTMCell, 8, ())),
            (Synchronous(PPO_CONFIG), FlaxMemory(nn.OptimizedLSTMCell, 8, ())),
            (AsynchronousActors(ALGORITHMS["IMPALA"]), elman),
            (CircularReplay(ALGORITHMS["IMPACT"], passes=2), elman),
            (CentralInference(PPO_CONFIG), elman),
        ],
    )
    def test_a_resumed_run_is_the_unbroken_one(self, system: System, policy: Any, tmp_path: Path) -> None:
        workload = replace(WORKLOAD, policy=policy)

        def part(folder: str, rounds: int, resume: bool = False) -> Any:
            folder_of = Checkpoints(tmp_path / folder, every=2)
            return run(system, workload, rounds=rounds, faults=True, checkpoints=folder_of, resume=resume)

        whole = part("whole", 8)
        part("broken", 5)
        rest = part("broken", 8, resume=True)
        assert repr(rest.history) == repr(whole.history)
        assert list(rest.trace.rows()) == list(whole.trace.rows())
        for one, other in zip(jax.tree.leaves(rest.policy), jax.tree.leaves(whole.policy), strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


class TestTheLab:
    WORKLOAD = Workload(CartPole(), elman, actors=2, fragment=16)

    def test_a_sweep_refuses_a_memory(self) -> None:
        with pytest.raises(TypeError, match=r"policy of CartPole: its network, Elman, has a memory.*stellaris\.train"):
            sweep(self.WORKLOAD, PPO_CONFIG, imposed(3, actors=2, data=Constant(0)), seeds=1)

    def test_compiled_rounds_refuse_a_memory(self) -> None:
        functions = {"actor": FunctionSpec(Seconds(0.01)), "learner": FunctionSpec(Seconds(0.1))}
        with pytest.raises(TypeError, match="Elman, has a memory"):
            Rounds(self.WORKLOAD, PPO(), functions, budget=Budget(steps=64), most=4)

    @pytest.mark.slow
    def test_a_dry_run_knows_the_bytes_of_sequences(self) -> None:
        """Fragments and batches with a memory take as long on a slow wire as in a run that learns."""
        functions = {name: FunctionSpec(Seconds(0.01), transfer=WIRE) for name in ("actor", "learner")}
        system, budget = Synchronous(PPO_CONFIG), Budget(steps=4 * 32)
        real = train(system, WORKLOAD, platform=SimulatedPlatform(functions), budget=budget)
        schedule = dry_run(system, WORKLOAD, platform=SimulatedPlatform(functions), budget=budget)
        seconds = recorded(real.trace, acts="actor").seconds
        assert len(seconds) > 3
        np.testing.assert_allclose(schedule.seconds, seconds)


def _solved(system: System, policy: Any, steps: int) -> float:
    workload = Workload(TMaze(length=8), policy, actors=8, fragment=64)
    functions = {name: FunctionSpec(Seconds(0.01)) for name in system.functions}
    budget = Budget(steps=steps, target_return=0.95)
    result = train(system, workload, platform=SimulatedPlatform(functions), budget=budget)
    return float(result.history[-1]["episode_return"])


GRU = FlaxMemory(nn.GRUCell, 32, hidden=(32,))
LEARNS = PPO(learning_rate=3e-3, epochs=4, minibatch_size=128, entropy_coefficient=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "policy"),
    [
        (Synchronous(LEARNS), GRU),
        (Synchronous(LEARNS), EquinoxMemory(eqx.nn.LSTMCell, 32, hidden=(32,))),
        (
            AsynchronousActors(
                IMPALA(learning_rate=3e-3, epsilon=1e-5, minibatch_size=1, epochs=2, max_gradient_norm=0.5)
            ),
            GRU,
        ),
        (CircularReplay(IMPACT(learning_rate=3e-3, epochs=1, minibatch_size=128, entropy_coefficient=0.01)), GRU),
        (Stellaris(LEARNS, learners=2), GRU),
    ],
    ids=["synchronous", "equinox", "impala", "impact", "stellaris"],
)
def test_the_maze_is_solved(system: System, policy: Any) -> None:
    assert _solved(system, policy, steps=90_000) > 0.9


@pytest.mark.slow
def test_the_maze_is_not_solved_without_a_memory() -> None:
    assert _solved(Synchronous(LEARNS), ActorCritic(hidden=(32,)), steps=40_000) < 0.65
