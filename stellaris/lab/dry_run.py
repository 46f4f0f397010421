"""Schedules from a dry run: a system's event loop runs on its platform, with function bodies that compute nothing."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris._core import checks
from stellaris.acting import envs
from stellaris.acting.envs import EnvSpec, as_jax
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import ActorState, Fragment
from stellaris.aggregation.gradient_queue import AggregatorState, Update
from stellaris.aggregation.protocol import Aggregator
from stellaris.aggregation.staleness_aware import staleness_aware
from stellaris.algorithms import Algorithm
from stellaris.lab.recorded import recorded
from stellaris.lab.schedule import Schedule
from stellaris.lab.shapes import shapes_of
from stellaris.runtime.contract import Platform
from stellaris.runtime.costs.price_sheets import PriceSheet, check_sheets
from stellaris.runtime.delays import Measured
from stellaris.runtime.functions import Context, Function
from stellaris.systems.batches import LearnerBatch
from stellaris.systems.central_learner import AsynchronousActors, Synchronous
from stellaris.systems.checkpointing import Checkpointing
from stellaris.systems.circular_replay import CircularReplay
from stellaris.systems.data_parallel import DataParallel, ShardGradient
from stellaris.systems.fragments import Fragments
from stellaris.systems.programs import Learned
from stellaris.systems.progress import Progress
from stellaris.systems.rollouts import Waiting
from stellaris.systems.rounds import Declared
from stellaris.systems.session import Keys, Session
from stellaris.systems.staleness_control import StalenessControl
from stellaris.systems.stellaris import Stellaris
from stellaris.systems.system import System
from stellaris.systems.workload import Budget, Workload, check_types
from stellaris.types import NDArray, Trajectory, Tree

#: The systems whose programs have a dry counterpart below.
_SYSTEMS = (Synchronous, DataParallel, AsynchronousActors, CircularReplay, Stellaris)


def dry_run(
    system: System,
    workload: Workload,
    *,
    platform: Platform,
    budget: Budget,
    prices: Sequence[PriceSheet] = (),
    seed: int = 0,
) -> Schedule:
    """Returns the schedule that a system follows on a deployment, without learning anything.

    The system's own event loop runs on the platform, with the delays, cold starts, faults and retries of `train`. Only
    the bodies of its functions compute nothing. The platform draws durations from its settings and seeds, never from
    results, so the schedule is that of `train` with the same arguments.

    Args:
      system: `Synchronous`, `DataParallel`, `AsynchronousActors`, `CircularReplay` or `Stellaris`.
      workload: a workload whose environment is written in JAX.
      platform: a fresh platform; it is closed at the end.
      budget: limits of steps or seconds.
      prices: price sheets; `costs` of the schedule is the bill up to each version, under each sheet.
      seed: seed of the run.

    Returns:
      The schedule. Its seconds are times of the platform's clock.

    Raises:
      LookupError: if a function that the system needs is not deployed.
      TypeError: if an argument has another type, the system is not one of these five, the environment is not written in
        JAX, or `prices` is a single sheet.
      ValueError: if the order of events depends on results, as with a target return, a scheduler, or a `Measured`
        compute time; or if the budget limits cost, the workload restarts its environments, or two price sheets have the
        same name.

    Example:
      >>> from stellaris import ActorCritic, FunctionSpec, SimulatedPlatform, Workload
      >>> from stellaris.lab import CartPole
      >>> from stellaris.runtime.delays import Constant
      >>> workload = Workload(CartPole(), ActorCritic(hidden=(8,)), actors=2, fragment=16)
      >>> functions = {"actor": FunctionSpec(Constant(0.01)), "learner": FunctionSpec(Constant(0.1))}
      >>> platform = SimulatedPlatform(functions)
      >>> schedule = dry_run(Synchronous(), workload, platform=platform, budget=Budget(seconds=3.0))
      >>> schedule.updates, schedule.seconds[:3].round(2).tolist()
      (2, [0.0, 1.16, 2.32])
    """
    check_types(workload, budget, None)
    as_jax(workload.environment)
    check_sheets(prices)
    run_dry(system, workload, platform=platform, budget=budget, seed=seed)
    held = 0
    if isinstance(system, Stellaris) and not math.isinf(system.rho):
        held = system.learners - 1
    return recorded(platform.trace, acts=system.acts, held=held, prices=prices, functions=platform.functions)


def run_dry(system: System, workload: Workload, *, platform: Platform, budget: Budget, seed: int) -> None:
    """Runs a system's event loop with bodies that compute nothing; leaves the trace in the platform, and closes it.

    The environment may be any; only its specification is used.
    """
    _check(system, workload, budget)
    checks.seed(seed=seed)
    with platform:
        for name in (system.acts, *system.functions):
            if name not in platform.functions:
                raise LookupError(f"function {name!r} is not deployed: the platform has {sorted(platform.functions)}")
            if isinstance(platform.functions[name].compute, Measured):
                raise ValueError(
                    f"the compute time of {name!r} is Measured, but a dry run computes nothing: pass a distribution"
                )
        policy, keys = workload.make_policy(_spec(workload)), Keys.of(seed)
        params = _on_host(jax.jit(Policy.init, static_argnums=0)(policy, keys.params))
        session = _DrySession(
            workload,
            platform,
            policy,
            _NoEnvironments(policy.spec),  # type: ignore[arg-type]
            acts=system.acts,
            rounds=Declared(),
            progress=Progress(
                workload, platform, policy, budget=budget, evaluation=None, prices=(), seed=seed, on_progress=None
            ),
            keys=keys,
            first_params=params,
            checkpointing=Checkpointing(None, False, {}, params),
            on_fragment=None,
        )
        if isinstance(system, Stellaris):
            own = system.aggregator or staleness_aware(system.learners, decay=0.9)
            system = dataclasses.replace(system, aggregator=_DryAggregator(own))
        session.bodies = _bodies(system)
        system.run(session)
        session.progress.report_rest(session.round)


def _check(system: System, workload: Workload, budget: Budget) -> None:
    if not isinstance(system, _SYSTEMS):
        raise TypeError(
            f"system={system!r}: expected one of {', '.join(known.__name__ for known in _SYSTEMS)}; "
            "train another system and pass its trace to lab.recorded"
        )
    if system.scheduler is not None:
        raise ValueError(f"scheduler={system.scheduler!r} may depend on returns, which a dry run lacks: leave it out")
    for name in ("target_return", "target_evaluation"):
        if getattr(budget, name) < math.inf:
            raise ValueError(
                f"{name}={getattr(budget, name)} depends on returns, which a dry run lacks: limit steps or seconds"
            )
    if budget.cost < math.inf:
        raise ValueError(f"budget.cost={budget.cost} is not supported in a dry run: limit steps or seconds instead")
    if workload.restart:
        raise ValueError("restart=True is not supported: episodes in the lab span fragments; set restart=False")


def _spec(workload: Workload) -> EnvSpec:
    """Returns the specification of a workload's environment."""
    env = envs.make(workload.environment, slots=1)
    env.close()
    return env.spec


@dataclass(frozen=True)
class _NoEnvironments:
    """The specification of environments that are never stepped."""

    spec: Any


class _DrySession(Session):
    """A session whose programs compute nothing; `bodies` holds the learners' bodies by program name."""

    bodies: Mapping[str, Callable[..., Any]]

    def program(self, name: str, program: Function) -> Function:
        """Returns a program that computes nothing and whose result has the same size."""
        if name.startswith("act"):
            body = functools.partial(_act, self.workload.steps_at_once, self.policy)
            # Each program gets a new `init` object, because containers tell programs apart by their `init`.
            return super().program(name, Function(body, init=functools.partial(_start), upload=program.upload))
        return super().program(name, Function(self.bodies[name], upload=program.upload))

    def fragments(
        self, control: StalenessControl, *, batch: int | None = None, act: Function | None = None
    ) -> Fragments:
        """Sets up the sampling of fragments, whose batches hold minibatch indices and no samples."""
        return _DryFragments(self, control, batch=batch, act=act)


def _start(slot: int, key: jax.Array) -> ActorState:
    """Returns the state of a new container; it numbers the start of its environment as `rollout.start` does."""
    return ActorState((), False, 0.0, 0, environment=int(jax.random.bits(key, dtype=np.uint32)))


def _act(length: int, policy: Policy, context: Context, version: Any, number: int) -> Fragment:
    del number
    state: ActorState = context.state
    context.state = state._replace(steps=state.steps + length)
    zeros, ones = _columns(length)
    trajectory = Trajectory(
        observation=(),
        action=zeros,
        reward=zeros,
        terminated=zeros,
        valid=ones,
        log_prob=zeros,
        value=_columns(length + 1)[0],
        version=np.full((length, 1), version.version, np.int32),
    )
    return Fragment(trajectory, policy.statistics(), (), context.slot, state.steps, state.environment)


@functools.cache
def _columns(length: int) -> tuple[NDArray, NDArray]:
    return np.zeros((length, 1), np.float32), np.ones((length, 1), bool)


def _gradient(context: Context, version: Any, held: Any, work: Any) -> Learned:
    return Learned((), version.version, {})


def _whole_batch(context: Context, version: Any, opt_state: Tree, data: Any) -> tuple[Tree, Tree, dict[str, Any]]:
    return version.value.params, _on_host(opt_state), {}


def _shard(context: Context, replica: Any, shard: Any) -> ShardGradient:
    return ShardGradient((), jnp.int32(0), {})


def _reduced(context: Context, held: Any) -> tuple[Tree, Tree, list[float]]:
    _, params, opt_state, divergences, _ = held.value
    return params, _on_host(opt_state), divergences


def _updated(context: Context, group: Any, params: Tree, opt_state: Tree) -> tuple[Tree, Tree]:
    return params, _on_host(opt_state)


def _on_host(tree: Tree) -> Tree:
    """Converts a tree to NumPy arrays: every transfer counts the bytes of its arrays, which is slow for JAX arrays."""
    host = all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(tree))
    return tree if host else jax.tree.map(np.asarray, tree)


def _bodies(system: System) -> Mapping[str, Callable[..., Any]]:
    """Returns the dry bodies of a system's learner programs, by the names that the system gives the programs."""
    match system:
        case Stellaris():
            return {"learn": _gradient, "update_policy": _updated}
        case DataParallel():
            return {"learn": _shard, "reduce": _reduced}
    return {"learn": _whole_batch}


@dataclass(eq=False)
class _DryBatch(LearnerBatch):
    """A batch without samples."""

    size: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of a real batch of the same shape."""
        return self.size

    def learn(self, indices: NDArray) -> int:
        """Counts a gradient as applied."""
        self.left -= 1
        return 0


class _DryFragments(Fragments):
    """Makes batches without samples, with as many gradients and bytes as real ones."""

    def batch(
        self,
        algorithm: Algorithm,
        fragments: Sequence[Waiting],
        target: PolicyVersion,
        *,
        target_version: int | None = None,
    ) -> LearnerBatch:
        """Makes a batch, and records it as `Fragments.batch` does."""
        session = self._session
        session.state.batches += 1
        session.record.batch(fragments, session.version if target_version is None else target_version)
        like = shapes_of(algorithm, session.policy, session.workload.fragment, len(fragments))
        return _DryBatch(
            session.state.batches,
            None,
            like.indices,
            session.policy.statistics(),
            np.zeros(like.items, np.int32),
            left=len(like.indices),
            rows=None,
            sample=None,
            size=like.nbytes,
        )


@dataclass(frozen=True)
class _DryAggregator:
    """An aggregator that decides as `own` does, but queues a scalar zero in place of each gradient."""

    own: Aggregator

    def init(self, gradient_like: Tree) -> AggregatorState:
        return self.own.init(np.float32(0))

    def push(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        return self.own.push(state, jnp.float32(0), version, learner=learner)

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> Any:
        return self.own.ready(state, clock, round)

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        return self.own.pop(state, clock, round)

    def admit(self, state: AggregatorState, learner: Any, clock: Any) -> Any:
        return self.own.admit(state, learner, clock)
