"""The programs that systems run as functions: act, compute a gradient, learn from a whole batch, update the policy."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris.acting.envs import VectorEnv
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import Actors, Fragment, fragment_bytes, start
from stellaris.aggregation.apply import apply_update
from stellaris.aggregation.gradient_queue import Update
from stellaris.algorithms import Algorithm, gradient, update
from stellaris.runtime.functions import Context, Function
from stellaris.runtime.references import size
from stellaris.runtime.state.registry import register_value
from stellaris.systems.batches import GradientTask, LearnerBatch
from stellaris.types import Tree, Versioned


@register_value
class NonFiniteGradientError(FloatingPointError):
    """Raised by a learner's function if the gradient that it computed has a NaN or an infinity."""


class Learned(NamedTuple):
    """The result of a learner function: one gradient."""

    gradient: Tree
    version: int  #: the version of the parameters on which the gradient was computed.
    metrics: dict[str, Any]  #: metrics of the loss, on the host.


@register_value
@dataclass(frozen=True, eq=False)
class Group:
    """Gradients that the parameter function applies together."""

    update: Update  #: the update that the aggregator's `pop` returned.
    nbytes: int  #: bytes that the function fetches: all gradients', even if they were combined on the device.

    @staticmethod
    def of(update: Update, count: int, params: Tree) -> "Group":
        """Returns the group of an update of `count` gradients."""
        return Group(update, count * size(params))


def actor(policy: Policy, env: VectorEnv, length: int, key: jax.Array, *, restart: bool = False) -> Function:
    """Returns the actor function, `(Versioned, number) -> Fragment`; the number selects the noise of its actions.

    Args:
      policy: the policy whose versions act.
      env: the environments, with a slot for every container.
      length: number of steps of a fragment.
      key: random key of all noise. The noise of an invocation follows from the key and the invocation's number, so it
        does not depend on other invocations.
      restart: whether every fragment starts a new episode. Otherwise the container keeps the environment, and the next
        fragment continues in it.
    """
    actors = Actors(policy, env, length)

    def batched(contexts: Sequence[Context], arguments: Sequence[tuple[Any, ...]]) -> list[Fragment]:
        versions, numbers = zip(*arguments, strict=True)
        slots = [context.slot for context in contexts]
        # A restart resets the environment here and not in `init`, because a container serves many fragments.
        states = [start(env, context.slot) if restart else context.state for context in contexts]
        # The numbers are padded to a power of two, so that few shapes are compiled.
        padded = np.resize(np.array(numbers, np.uint32), 1 << (len(numbers) - 1).bit_length())
        fragments, states = actors.rollout(versions, slots, states, _keys(key, padded))
        for context, state in zip(contexts, states, strict=True):
            context.state = state
        return fragments

    def body(context: Context, version: Versioned, number: int) -> Fragment:
        return batched([context], [(version, number)])[0]

    nbytes = fragment_bytes(policy, length)  # known before the result, because it determines the call's duration
    init = None if restart else lambda slot, key: start(env, slot, key)
    return Function(body, init=init, batched=batched, upload=nbytes)


def for_one_actor(act: Function) -> Function:
    """Returns a copy of an actor program that has separate containers; calls of all copies still run as one batch."""
    assert act.init is not None
    # The platform gives programs with different `init` separate containers; the shared `batched` lets all copies run in
    # one call.
    return replace(act, init=functools.partial(act.init))


@jax.jit
def _keys(key: jax.Array, numbers: Any) -> jax.Array:
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)


def learner(algorithm: Algorithm, policy: Policy, rho: float) -> Function:
    """Returns the learner function, `(Versioned, held, GradientTask) -> Learned`: one gradient on one minibatch."""

    def body(context: Context, version: Versioned, held: Sequence[Versioned], work: GradientTask) -> Learned:
        # With an infinite rho the cap never binds, so the other learners' policies are not needed.
        peers = () if math.isinf(rho) else _peers(held)
        number = np.int32(version.version)
        grads, device_metrics = _gradient(
            version.value, number, peers, work.data.batch, work.indices, algorithm=algorithm, policy=policy, rho=rho
        )
        return Learned(grads, version.version, on_host(device_metrics, context, version.version))

    # A gradient has the size of the parameters; the metrics are not counted.
    return Function(body, upload=lambda version, held, work: size(version.value.params))


def _peers(held: Sequence[Versioned]) -> tuple[PolicyVersion, ...]:
    """Returns the other learners' policies, each once; the own policy, which is the first, fills one of few lengths.

    Many learners hold few distinct versions. A pass through the network for each learner would take most of the time of
    a gradient of 64 learners, and a program for each number of versions would take long to compile.
    """
    own = held[0]
    others = [peer.value for peer in held[1:] if peer.version != own.version]
    length = 4
    while length < len(others):
        length *= 2
    length = min(length, len(held) - 1)
    return (*others, *[own.value] * (length - len(others)))


@functools.partial(jax.jit, static_argnames=("algorithm", "policy", "rho"))
def _gradient(
    version: PolicyVersion,
    number: Any,
    peers: tuple[PolicyVersion, ...],
    batch: Any,
    indices: Any,
    *,
    algorithm: Algorithm,
    policy: Policy,
    rho: float,
) -> tuple[Tree, dict[str, Any]]:
    def apply(held: PolicyVersion, observation: Any) -> tuple[Any, jax.Array]:
        # The normaliser is data: no gradient flows into it.
        return policy.apply(held._replace(normaliser=jax.lax.stop_gradient(held.normaliser)), observation)

    minibatch = algorithm.select(batch, indices)
    grads, metrics = gradient(algorithm, apply, version, minibatch, peers, rho=rho, version=number)
    return grads.params, metrics


def whole_batch(algorithm: Algorithm, policy: Policy) -> Function:
    """Returns the learner of whole batches, which computes and applies the gradients of a batch one after the other.

    Its signature is `(Versioned, optimizer state, LearnerBatch) -> (params, optimizer state, metrics)`.
    """

    def body(
        context: Context, version: Versioned, opt_state: Tree, data: LearnerBatch
    ) -> tuple[Tree, Tree, dict[str, Any]]:
        number = np.int32(version.version)
        indices, count = data.indices, None
        if data.rows is not None:  # `count` is data and not a shape, so that batches of one width share a program
            indices, count = np.pad(indices, ((0, data.rows - len(indices)), (0, 0))), np.int32(len(indices))
        params, opt_state, device_metrics = _learned(
            version.value, number, opt_state, data.batch, indices, count, algorithm=algorithm, policy=policy
        )
        return params, opt_state, on_host(device_metrics, context, version.version)

    # Parameters and optimizer state are sent back, because the next batch may be learned in another container.
    return Function(body, upload=lambda version, opt_state, data: size((version.value.params, opt_state)))


@functools.partial(jax.jit, static_argnames=("algorithm", "policy"))
def _learned(
    version: PolicyVersion,
    number: Any,
    opt_state: Tree,
    batch: Any,
    indices: Any,
    count: Any,
    *,
    algorithm: Algorithm,
    policy: Policy,
) -> tuple[Tree, Tree, dict[str, Any]]:
    def apply(params: Tree, observation: Any) -> tuple[Any, jax.Array]:
        # The normaliser is not an argument of the loss, so no gradient flows into it.
        return policy.apply(version._replace(params=params), observation)

    return update(algorithm, apply, version.params, opt_state, batch, indices, count=count, version=number)


def parameter(algorithm: Algorithm) -> Function:
    """Returns the parameter function, `(Group, params, optimizer state) -> (params, optimizer state)`."""

    def body(context: Context, group: Group, params: Tree, opt_state: Tree) -> tuple[Tree, Tree]:
        del context
        after: tuple[Tree, Tree] = _applied(group.update, params, opt_state, algorithm=algorithm)
        return after

    return Function(body, upload=lambda group, params, opt_state: size((params, opt_state)))


@functools.partial(jax.jit, static_argnames="algorithm")
def _applied(update: Update, params: Tree, opt_state: Tree, *, algorithm: Algorithm) -> tuple[Tree, Tree]:
    return apply_update(algorithm.optimizer(), update, params, opt_state)


def on_host(metrics: Mapping[str, Any], context: Context, version: int) -> dict[str, Any]:
    """Returns a learner's metrics as NumPy arrays on the host.

    Raises:
      NonFiniteGradientError: if the gradient is not finite; the error names the invocation, version and metrics.
    """
    # `np.asarray` is used, because `jax.device_get` takes six times as long for many small arrays.
    on_host: dict[str, Any] = jax.tree.map(np.asarray, dict(metrics))
    if not on_host.pop("finite"):
        numbers = {name: float(value) for name, value in on_host.items() if np.ndim(value) == 0}
        raise NonFiniteGradientError(
            f"non-finite gradient in invocation {context.number} on version {version}: lower the learning rate, or "
            f"check rewards and observations for NaN; the metrics are {numbers}"
        )
    return on_host
