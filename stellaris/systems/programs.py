"""The programs that systems run as functions: act, learn one gradient, learn a whole round, update the policy."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris.acting.envs import VectorEnv
from stellaris.acting.normalisation import Statistics
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import Actors, Fragment, fragment_bytes, start
from stellaris.aggregation import apply_update
from stellaris.algorithms import PPO, gradient
from stellaris.algorithms.batch import Batch, take
from stellaris.algorithms.gradients import all_finite
from stellaris.gradient_queue import Update
from stellaris.runtime.functions import Context, Function
from stellaris.runtime.references import size
from stellaris.types import NDArray, Tree, Versioned, concatenate

#: Programs are made once for what they are made of, so that a second run compiles nothing.
_once = functools.lru_cache(maxsize=64)


class NonFiniteGradientError(FloatingPointError):
    """A gradient with a NaN or an infinity, caught where it was computed."""


class Learned(NamedTuple):
    """One gradient, as a learner function returns it."""

    gradient: Tree
    version: int  #: of the parameters it was computed on.
    metrics: dict[str, float]


@dataclass(eq=False)
class Data:
    """A batch on the device, and what has been learned from it."""

    batch: Batch
    indices: NDArray  #: `[gradients, m]` int32: its minibatches, in plain PPO's order.
    statistics: Statistics  #: of its observations.
    pending: NDArray  #: `[N]` bool: transitions that no applied gradient has seen yet.
    left: int  #: gradients that are still to be applied.

    @property
    def nbytes(self) -> int:
        """What a learner of the whole batch fetches."""
        return size(self.batch)

    def learn(self, indices: NDArray) -> int:
        """Notes that a gradient of these samples was applied; returns how many transitions it was first to see."""
        inside = indices[indices < len(self.pending)]
        fresh = int(self.pending[inside].sum())
        self.pending[inside] = False
        self.left -= 1
        return fresh


@dataclass(frozen=True, eq=False)
class Work:
    """One gradient to be computed: a minibatch of a batch."""

    data: Data
    indices: NDArray  #: `[m]` int32.

    @property
    def nbytes(self) -> int:
        """What a learner of this minibatch fetches: its share of the batch."""
        return self.data.nbytes * len(self.indices) // len(self.data.pending)


@dataclass(frozen=True, eq=False)
class Group:
    """Gradients that the parameter function applies together."""

    update: Update  #: what `pop` made of them.
    nbytes: int  #: what the function fetches: each of the gradients, however they are combined.

    @staticmethod
    def of(update: Update, params: Tree) -> "Group":
        """The group whose gradients `pop` took from the queue."""
        return Group(update, int(update.count) * size(params))


def actor(policy: Policy, env: VectorEnv, length: int) -> Function:
    """The actor function: `(Versioned) -> Fragment`. Its container keeps the environment's state."""
    actors = Actors(policy, env, length)

    def batched(contexts: Sequence[Context], arguments: Sequence[tuple[Any, ...]]) -> list[Fragment]:
        versions = [version for (version,) in arguments]
        slots = [context.slot for context in contexts]
        states = [context.state for context in contexts]
        fragments, states = actors.rollout(versions, slots, states, [context.key for context in contexts])
        for context, state in zip(contexts, states, strict=True):
            context.state = state
        return fragments

    def body(context: Context, version: Versioned) -> Fragment:
        return batched([context], [(version,)])[0]

    nbytes = fragment_bytes(policy, length)
    return Function(body, init=lambda slot, key: start(env, slot), batched=batched, upload=nbytes)


@_once
def learner(algorithm: PPO, policy: Policy, rho: float) -> Function:
    """The learner function: `(Versioned, held, Work) -> Learned`, one gradient on one minibatch."""

    @jax.jit
    def compute(
        version: PolicyVersion, peers: tuple[PolicyVersion, ...], batch: Batch, indices: jax.Array
    ) -> tuple[Tree, dict[str, jax.Array]]:
        def apply(held: PolicyVersion, observation: Any) -> tuple[Any, jax.Array]:
            return policy.apply(held._replace(normaliser=jax.lax.stop_gradient(held.normaliser)), observation)

        grads, metrics = gradient(algorithm, apply, version, take(batch, indices), peers, rho=rho)
        return grads.params, metrics

    def body(context: Context, version: Versioned, held: Sequence[Versioned], work: Work) -> Learned:
        # Under an infinite rho the cap never binds: the other policies need not be looked at.
        peers = () if math.isinf(rho) else tuple(peer.value for peer in held[1:])
        grads, device_metrics = compute(version.value, peers, work.data.batch, work.indices)
        metrics = _on_host(device_metrics, version)
        if not metrics.pop("finite"):
            raise NonFiniteGradientError(
                f"non-finite gradient in invocation {context.number} on version {version.version}: loss={metrics}"
            )
        return Learned(grads, version.version, metrics)

    # A gradient is of the parameters' size; what is reported beside it does not count.
    return Function(body, upload=lambda version, held, work: size(version.value.params))


def _on_host(metrics: Mapping[str, jax.Array], version: Versioned) -> dict[str, float]:
    """A learner's metrics as numbers, with the lag of its data behind the version it learned on."""
    numbers = {name: float(value) for name, value in jax.device_get(metrics).items()}
    mean, oldest = numbers.pop("version_mean"), numbers.pop("version_oldest")
    return numbers | {"data_lag_mean": version.version - mean, "data_lag_max": version.version - oldest}


@_once
def whole_round(algorithm: PPO, policy: Policy) -> Function:
    """The synchronous learner: `(Versioned, optimizer state, Data) -> (params, optimizer state, metrics)`."""

    @jax.jit
    def compute(
        version: PolicyVersion, opt_state: Tree, batch: Batch, indices: jax.Array
    ) -> tuple[Tree, Tree, dict[str, jax.Array]]:
        def apply(params: Tree, observation: Any) -> tuple[Any, jax.Array]:
            return policy.apply(version._replace(params=params), observation)

        params, opt_state, metrics = algorithm.update(apply, version.params, opt_state, batch, indices)
        return params, opt_state, metrics | {"finite": all_finite(params)}

    def body(context: Context, version: Versioned, opt_state: Tree, data: Data) -> tuple[Tree, Tree, dict[str, float]]:
        params, opt_state, device_metrics = compute(version.value, opt_state, data.batch, data.indices)
        metrics = _on_host(device_metrics, version)
        if not metrics.pop("finite"):
            raise NonFiniteGradientError(
                f"non-finite gradient in invocation {context.number} on version {version.version}: {metrics}"
            )
        return params, opt_state, metrics

    return Function(body, upload=lambda version, opt_state, data: size((version.value.params, opt_state)))


@_once
def parameter(algorithm: PPO) -> Function:
    """The parameter function: `(Group, params, optimizer state) -> (params, optimizer state)`."""
    optimizer = algorithm.optimizer()
    compute = jax.jit(lambda update, params, opt_state: apply_update(optimizer, update, params, opt_state))

    def body(context: Context, group: Group, params: Tree, opt_state: Tree) -> tuple[Tree, Tree]:
        del context
        params, opt_state = compute(group.update, params, opt_state)
        return params, opt_state

    return Function(body, upload=lambda group, params, opt_state: size((params, opt_state)))


class Batches:
    """Makes batches of fragments.

    Args:
      algorithm: whose advantages, minibatches and epochs.
      key: of the shuffles; each batch has its own.
      made: how many there have been.
    """

    def __init__(self, algorithm: PPO, key: jax.Array, made: int = 0) -> None:
        self._algorithm, self._key, self._made = algorithm, key, made
        self._prepare, self._shuffle = _batching(algorithm)
        self._ahead: tuple[int, jax.Array] | None = None

    def __reduce__(self) -> Any:
        return Batches, (self._algorithm, self._key, self._made)

    def make(self, fragments: Sequence[Fragment]) -> Data:
        """The batch of some fragments."""
        batch = self._prepare(concatenate([fragment.trajectory for fragment in fragments]))
        # A copy: what a device array shows as NumPy is not to be written to.
        pending = np.array(batch.valid)
        indices = self._indices(len(pending))
        statistics = functools.reduce(Statistics.merge, (fragment.statistics for fragment in fragments))
        return Data(batch, indices, statistics, pending, left=len(indices))

    def _indices(self, size: int) -> NDArray:
        """This batch's minibatches; the next batch's are shuffled in the meantime, which takes longer than the rest."""
        ahead = self._ahead
        now = ahead[1] if ahead and ahead[0] == size else self._shuffle(self._key, self._made, size)
        self._made += 1
        self._ahead = size, self._shuffle(self._key, self._made, size)
        return np.asarray(now)


@_once
def _batching(algorithm: PPO) -> tuple[Callable[..., Batch], Callable[..., jax.Array]]:
    def shuffle(key: jax.Array, number: Any, size: int) -> jax.Array:
        return algorithm.minibatches(jax.random.fold_in(key, number), size)

    return jax.jit(algorithm.prepare), jax.jit(shuffle, static_argnums=2)
