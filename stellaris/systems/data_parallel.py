"""Synchronous data-parallel learners, as MSRL and PAR-RL: a shard of every minibatch each, and an all-reduce."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stellaris._core import checks
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.algorithms import PPO, Algorithm, gradient
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.runtime.functions import Context, Function
from stellaris.runtime.references import size
from stellaris.runtime.state.registry import register_value
from stellaris.scheduling.scheduler import Scheduler, check_scheduler
from stellaris.systems import programs
from stellaris.systems.batches import LearnerBatch
from stellaris.systems.central_learner import IN_STEP
from stellaris.systems.session import Session
from stellaris.types import NDArray, Tree


@dataclass(frozen=True)
class DataParallel:
    """Synchronous actors, and synchronous learners that each take a part of every minibatch.

    All actors sample. Then, for each minibatch: each learner computes the gradient on its shard; once the last is done,
    an all-reduce averages the gradients, weighted by the shards' transitions, and every learner takes the same step.
    So the parameters are those of one learner on the whole minibatch, up to rounding.

    It needs the functions `actor`, `learner` and `all_reduce` on its platform. An all-reduce computes for as many
    units of work as bytes cross each link: `2 (N - 1) / N` times those of a gradient, as a ring does it.

    Args:
      algorithm: whose loss, minibatches and epochs. Each minibatch is divided evenly.
      learners: how many.
      scheduler: how many actors sample in each round; by default all of them.

    Raises:
      TypeError: if the algorithm or the scheduler is none, or `learners` is not whole.
      ValueError: if `learners` is below 1, or, in a run, does not divide a minibatch.

    Source:
      The slides of Stellaris (SC 2024) name MSRL (Zhu et al. 2023) and PAR-RL. The cost of a ring all-reduce is that of
      Patarasuk & Yuan 2009.
    """

    functions: ClassVar[tuple[str, ...]] = ("actor", "learner", "all_reduce")
    serverless: ClassVar[tuple[str, ...]] = ()

    algorithm: Algorithm = PPO()
    learners: int = 4
    scheduler: Scheduler | None = None

    def __post_init__(self) -> None:
        check_algorithm(self.algorithm)
        if self.scheduler is not None:
            check_scheduler(self.scheduler)
        checks.whole(at_least=1, learners=self.learners)

    def run(self, session: Session) -> None:
        """The event loop."""
        platform, n = session.platform, self.learners
        learn = session.program("learn", _shard_learner(self.algorithm, session.policy))
        reduce = session.program("reduce", _all_reduce(self.algorithm))
        crossing = 2 * (n - 1) / n * size(session.first_params)

        def first() -> _Loop:
            session.publish(session.first_params)
            return _Loop(
                params=session.first_params,
                opt_state=self.algorithm.optimizer().init(session.first_params),
                normalised=session.versioned(session.first_params),
            )

        def compute_gradients(loop: _Loop) -> None:
            """Has every learner compute the gradient on its shard of the next minibatch."""
            assert loop.data is not None
            replica = _Held((session.version, loop.normalised._replace(params=loop.params)))
            minibatch = loop.data.indices[loop.applied]
            for learner, indices in enumerate(np.split(minibatch, n)):
                shard = _Shard(loop.data, indices, fetched=loop.data.nbytes // n if loop.applied == 0 else 0)
                platform.invoke("learner", learn, replica, shard, tag=learner)

        loop = session.begin(first)
        while session.next_round(self.scheduler, loop):
            session.sample(IN_STEP)
            if loop.data is None and (data := session.next_batch(self.algorithm, loop.params, IN_STEP)):
                self._check(data)
                loop.data = data
                loop.normalised = session.versioned(loop.params)
                compute_gradients(loop)
                session.round_over()
            if (done := session.next_completion(loop)) is None:
                break
            match done.function:
                case "actor":
                    session.deliver(done)
                case "learner":
                    loop.shards[done.tag] = done.result()
                    session.record.metrics(done, loop.shards[done.tag].metrics)
                    if len(loop.shards) == n:
                        shards = [loop.shards[learner] for learner in range(n)]  # in the order of the learners
                        platform.invoke(
                            "all_reduce", reduce, _Held((shards, loop.params, loop.opt_state)), work=crossing
                        )
                        loop.shards = {}
                case "all_reduce":
                    assert loop.data is not None
                    loop.params, loop.opt_state = done.result()
                    minibatch = loop.data.indices[loop.applied]
                    session.record.applied(done.number, staleness=0, steps=loop.data.learn(minibatch))
                    loop.applied += 1
                    if loop.data.left:
                        compute_gradients(loop)
                    else:
                        session.learned_from(loop.data)
                        session.publish(loop.params)
                        loop.data = None
                        loop.applied = 0
        session.unused(batches=[loop.data] if loop.data else [])

    def _check(self, data: LearnerBatch) -> None:
        items = data.indices.shape[1]
        if items % self.learners:
            raise ValueError(
                f"learners={self.learners} do not divide a minibatch of {items}: choose a minibatch_size that they do"
            )


@register_value
@dataclass
class _Loop:
    """Where the event loop stands between two events: what a checkpoint saves of it."""

    params: Tree
    opt_state: Tree
    normalised: PolicyVersion  #: that the batch was sampled with; its parameters are replaced as they are learned.
    data: LearnerBatch | None = None  #: what is learned from.
    applied: int = 0  #: gradients of it that were.
    shards: dict[int, "_Gradient"] = field(default_factory=dict)  #: of the next one, by learner.


@register_value
@dataclass(frozen=True, eq=False)
class _Held:
    """What the learners hold already, each of them: nothing is fetched."""

    value: Any
    nbytes: int = 0


@register_value
@dataclass(frozen=True, eq=False)
class _Shard:
    """A learner's part of a minibatch."""

    data: LearnerBatch
    indices: NDArray  #: `[m / N]` int32.
    fetched: int  #: bytes: a learner fetches its part of a batch once.

    @property
    def nbytes(self) -> int:
        """What the learner fetches."""
        return self.fetched


class _Gradient(NamedTuple):
    """What a learner computes on its shard."""

    gradient: Tree
    transitions: jax.Array  #: of the shard: its weight.
    metrics: dict[str, Any]  #: what the loss reports, on the host.


def _shard_learner(algorithm: Algorithm, policy: Policy) -> Function:
    """The learner function: `(_Held, _Shard) -> _Gradient`. Its gradient travels by the all-reduce."""

    def body(context: Context, replica: _Held, shard: _Shard) -> _Gradient:
        number, version = replica.value
        grads, transitions, metrics = _shard_gradient(
            version, np.int32(number), shard.data.batch, shard.indices, algorithm=algorithm, policy=policy
        )
        return _Gradient(grads, transitions, programs.on_host(metrics, context, number))

    return Function(body, upload=0)


@functools.partial(jax.jit, static_argnames=("algorithm", "policy"))
def _shard_gradient(
    version: PolicyVersion, number: Any, batch: Any, indices: Any, *, algorithm: Algorithm, policy: Policy
) -> tuple[Tree, jax.Array, dict[str, Any]]:
    def apply(params: Tree, observation: Any) -> tuple[Any, jax.Array]:
        return policy.apply(version._replace(params=params), observation)

    shard = algorithm.select(batch, indices)
    grads, metrics = gradient(algorithm, apply, version.params, shard, rho=math.inf, version=number)
    return grads, jnp.sum(shard.valid), metrics


def _all_reduce(algorithm: Algorithm) -> Function:
    """The all-reduce, and the step that every learner takes: `(_Held) -> (params, optimizer state)`."""

    def body(context: Context, held: _Held) -> tuple[Tree, Tree]:
        del context
        shards, params, opt_state = held.value
        gradients = [shard.gradient for shard in shards]
        after: tuple[Tree, Tree] = _stepped(
            gradients, [shard.transitions for shard in shards], params, opt_state, algorithm=algorithm
        )
        return after

    return Function(body, upload=0)


@functools.partial(jax.jit, static_argnames="algorithm")
def _stepped(
    gradients: Sequence[Tree], transitions: Sequence[Any], params: Tree, opt_state: Tree, *, algorithm: Algorithm
) -> tuple[Tree, Tree]:
    share = jnp.stack([*transitions]) / jnp.maximum(sum(transitions), 1)
    mean = jax.tree.map(lambda *leaves: jnp.tensordot(share, jnp.stack(leaves), axes=1), *gradients)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam is not strict about types
        updates, opt_state = algorithm.optimizer().update(mean, opt_state, params)
    return optax.apply_updates(params, updates), opt_state
