"""Synchronous data-parallel learners, as in MSRL and PAR-RL: each computes the gradient on its shard."""

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
from stellaris.algorithms import PPO, Algorithm, adaptive_penalty, gradient
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.diagnostics import LagReport
from stellaris.runtime.functions import Context, Function
from stellaris.runtime.references import size
from stellaris.runtime.state.registry import register_value
from stellaris.scheduling.scheduler import Scheduler, check_scheduler
from stellaris.systems import programs
from stellaris.systems.batches import LearnerBatch
from stellaris.systems.central_learner import IN_STEP
from stellaris.systems.session import Session
from stellaris.systems.system import System
from stellaris.types import NDArray, Tree


@dataclass(frozen=True)
class DataParallel(System):
    """Synchronous actors, and synchronous learners that split every minibatch among them.

    All actors sample. Then, for each minibatch, each learner computes the gradient on its shard. When the last learner
    is done, an all-reduce averages the gradients, weighted by the shards' transitions, and every learner takes the same
    step. A single learner on the whole minibatch would get the same parameters, up to rounding.

    The platform must deploy `actor`, `learner` and `all_reduce`. The all-reduce is invoked with `work` = bytes per
    link: a ring sends `2 (N - 1) / N` times the bytes of a gradient over each link.

    Args:
      algorithm: the algorithm, whose loss, minibatches and epochs are used. Each minibatch is divided evenly.
      learners: the number of learners, N.
      scheduler: decides how many actors sample in each round; by default all of them.

    Raises:
      TypeError: if the algorithm or the scheduler has the wrong type, or `learners` is not whole.
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
        """Runs the event loop."""
        platform, n = session.platform, self.learners
        fragments = session.fragments(IN_STEP)
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
            """Invokes every learner on its shard of the next minibatch."""
            assert loop.data is not None
            # Parameters are passed by value and not as a reference to the newest version: no version is published
            # within a batch, so the newest version has the parameters from before the batch.
            options = adaptive_penalty.options(loop.opt_state)
            replica = _Held((session.version, loop.normalised._replace(params=loop.params), options))
            minibatch = loop.data.indices[loop.applied]
            for learner, indices in enumerate(np.split(minibatch, n)):
                # A learner fetches its share of the batch with its first shard, and keeps it.
                shard = _Shard(loop.data, indices, nbytes=loop.data.nbytes // n if loop.applied == 0 else 0)
                platform.invoke("learner", learn, replica, shard, tag=learner)

        loop = session.begin(first)
        while session.next_round(loop):
            fragments.sample()
            if loop.data is None and (data := fragments.next_batch(self.algorithm, loop.params)):
                self._check(data)
                loop.data = data
                loop.normalised = session.versioned(loop.params)  # stays the same for all gradients of the batch
                compute_gradients(loop)
                session.round_over()
            if (done := session.next_completion(loop)) is None:
                break
            match done.function:
                case "actor":
                    fragments.deliver(done)
                case "learner":
                    loop.shards[done.tag] = done.result()
                    if len(loop.shards) == n:  # the barrier: all learners wait for the slowest
                        # Shards are summed in order of learners and not of arrival, so that rounding is reproducible.
                        shards = [loop.shards[learner] for learner in range(n)]
                        session.record.metrics(done, _combined(shards))
                        assert loop.data is not None
                        last = loop.data.left == 1
                        held = _Held((shards, loop.params, loop.opt_state, loop.divergences, last))
                        step = platform.invoke("all_reduce", reduce, held, work=crossing)
                        session.record.learns(step, loop.data.number)
                        loop.shards = {}
                case "all_reduce":
                    assert loop.data is not None
                    loop.params, loop.opt_state, loop.divergences = done.result()
                    minibatch = loop.data.indices[loop.applied]
                    steps = loop.data.learn(minibatch)
                    session.record.applied(done.number, staleness=0, steps=steps, function=done.function)
                    loop.applied += 1
                    # A version is published once per batch, because actors wait for the whole batch in any case.
                    if loop.data.left:
                        compute_gradients(loop)
                    else:
                        # The batch's observations are counted before publishing: the new version normalises by them.
                        session.learned_from(loop.data)
                        session.publish(loop.params)
                        loop.data = None
                        loop.applied = 0
                        loop.divergences = []
        session.unused(batches=[loop.data] if loop.data else [])

    def _check(self, data: LearnerBatch) -> None:
        # This is checked only in the run, because the size of a minibatch may depend on the sampled fragments.
        items = data.indices.shape[1]
        if items % self.learners:
            raise ValueError(
                f"learners={self.learners} do not divide a minibatch of {items} items: choose a minibatch_size that is "
                f"a multiple of {self.learners}"
            )


@register_value
@dataclass
class _Loop:
    """The state of the event loop between two events."""

    params: Tree
    opt_state: Tree
    normalised: PolicyVersion  #: has the normaliser for the whole batch; its parameters are outdated.
    data: LearnerBatch | None = None  #: the batch that is learned from.
    applied: int = 0  #: number of the batch's gradients that were applied.
    #: Gradients of the next minibatch's shards, by learner.
    shards: dict[int, "ShardGradient"] = field(default_factory=dict)
    #: Mean KL divergence from the behaviour policy on each of the batch's minibatches, for an adaptive penalty.
    divergences: list[float] = field(default_factory=list)


@register_value
@dataclass(frozen=True, eq=False)
class _Held:
    """A value that its receiver already holds, so that no bytes are fetched."""

    value: Any
    nbytes: int = 0


@register_value
@dataclass(frozen=True, eq=False)
class _Shard:
    """A learner's share of a minibatch."""

    data: LearnerBatch
    indices: NDArray  #: `[m / N]` int32.
    nbytes: int  #: bytes that the learner fetches: its share of the batch for the first minibatch, then 0.


class ShardGradient(NamedTuple):
    """The gradient on one shard."""

    gradient: Tree
    transitions: jax.Array  #: number of the shard's transitions, its weight in the mean.
    metrics: dict[str, Any]  #: metrics of the loss, on the host.


def _shard_learner(algorithm: Algorithm, policy: Policy) -> Function:
    """Returns the learner function, `(_Held, _Shard) -> ShardGradient`."""

    def body(context: Context, replica: _Held, shard: _Shard) -> ShardGradient:
        number, version, options = replica.value
        grads, transitions, metrics = _shard_gradient(
            version, np.int32(number), shard.data.batch, shard.indices, options, algorithm=algorithm, policy=policy
        )
        return ShardGradient(grads, transitions, programs.on_host(metrics, context, number))

    return Function(body, upload=0)  # the all-reduce transfers the gradient


@functools.partial(jax.jit, static_argnames=("algorithm", "policy"))
def _shard_gradient(
    version: PolicyVersion,
    number: Any,
    batch: Any,
    indices: Any,
    options: dict[str, Any],
    *,
    algorithm: Algorithm,
    policy: Policy,
) -> tuple[Tree, jax.Array, dict[str, Any]]:
    def apply(params: Tree, observation: Any) -> tuple[Any, jax.Array]:
        return policy.apply(version._replace(params=params), observation)

    shard = algorithm.select(batch, indices)
    # All learners have the same parameters, so the global cap on importance ratios would never bind: rho is infinite.
    grads, metrics = gradient(algorithm, apply, version.params, shard, rho=math.inf, version=number, **options)
    return grads, jnp.sum(shard.valid), metrics


def _combined(shards: Sequence[ShardGradient]) -> dict[str, Any]:
    """Returns the metrics of a whole minibatch: means over transitions, maxima, and sums of `LagReport`s."""
    # The metrics of a shard without transitions, such as one of padding alone, describe no data.
    metrics = [shard.metrics for shard in shards if shard.transitions > 0]
    combined: dict[str, Any] = {}
    for name, first in metrics[0].items() if metrics else ():
        values = [one[name] for one in metrics]
        if isinstance(first, LagReport):
            combined[name] = jax.tree.map(lambda *sums: np.sum(sums, axis=0), *values)
        elif np.ndim(first):
            combined[name] = first  # the record refuses it by name
        else:
            combined[name] = max(values) if name.endswith("_max") else _mean(shards, name)
    return combined


def _mean(shards: Sequence[ShardGradient], metric: str) -> float:
    """Returns a metric's mean over the transitions of a whole minibatch."""
    weights = np.array([float(shard.transitions) for shard in shards])
    return float(weights @ [float(shard.metrics[metric]) for shard in shards] / max(weights.sum(), 1.0))


def _all_reduce(algorithm: Algorithm) -> Function:
    """Returns the all-reduce with the step that every learner takes.

    Its signature is `(_Held) -> (params, optimizer state, divergences)`. After a batch's last minibatch it adapts the
    weight of the KL penalty, as `stellaris.algorithms.update` does, if the algorithm asks for it.
    """

    def body(context: Context, held: _Held) -> tuple[Tree, Tree, list[float]]:
        del context
        shards, params, opt_state, divergences, last = held.value
        gradients = [shard.gradient for shard in shards]
        params, opt_state = _stepped(
            gradients, [shard.transitions for shard in shards], params, opt_state, algorithm=algorithm
        )
        if adaptive_penalty.options(opt_state):
            divergences = [*divergences, _mean(shards, "kl")]
            if last:
                opt_state = adaptive_penalty.adapted(opt_state, {"kl": sum(divergences) / len(divergences)})
        return params, opt_state, divergences

    return Function(body, upload=0)


@functools.partial(jax.jit, static_argnames="algorithm")
def _stepped(
    gradients: Sequence[Tree], transitions: Sequence[Any], params: Tree, opt_state: Tree, *, algorithm: Algorithm
) -> tuple[Tree, Tree]:
    # Each gradient is weighted by the number of its shard's transitions, which may differ between shards. The mean is
    # then the gradient on the whole minibatch.
    # The sum is at least 1, so that the mean gradient of a minibatch without transitions is 0 and not NaN.
    share = jnp.stack([*transitions]) / jnp.maximum(sum(transitions), 1)
    mean = jax.tree.map(lambda *leaves: jnp.tensordot(share, jnp.stack(leaves), axes=1), *gradients)
    with jax.numpy_dtype_promotion("standard"):  # Adam's state mixes dtypes
        updates, opt_state = algorithm.optimizer().update(mean, opt_state, params)
    return optax.apply_updates(params, updates), opt_state
