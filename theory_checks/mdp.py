"""Finite Markov decision processes: exact values and occupancies by linear solves, without sampling."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from theory_checks.check import Instance


class MDP(NamedTuple):
    """A finite discounted process."""

    transition: Float[jax.Array, "S A S"]
    reward: Float[jax.Array, "S A"]
    start: Float[jax.Array, " S"]
    discount: Any


class Values(NamedTuple):
    """The value functions of a policy."""

    value: Float[jax.Array, " S"]
    advantage: Float[jax.Array, "S A"]
    occupancy: Float[jax.Array, " S"]  #: the normalised discounted state distribution, sums to 1.
    performance: Float[jax.Array, ""]  #: `J = E[sum_t discount^t r_t]` from the start distribution.


def evaluate(mdp: MDP, policy: Float[jax.Array, "S A"]) -> Values:
    """Computes value, advantage, occupancy and performance of a policy."""
    chain = jnp.einsum("sa,sat->st", policy, mdp.transition)
    resolvent = inverse(jnp.eye(len(mdp.start)) - mdp.discount * chain)
    value = resolvent @ (policy * mdp.reward).sum(1)
    advantage = mdp.reward + mdp.discount * mdp.transition @ value - value[:, None]
    return Values(value, advantage, (1 - mdp.discount) * mdp.start @ resolvent, mdp.start @ value)


@jax.custom_jvp
def inverse(matrix: Float[jax.Array, "n n"]) -> Float[jax.Array, "n n"]:
    """Inverts a small matrix, by elimination without pivoting.

    `I - discount * P` with a substochastic `P` does not need pivoting. (`jnp.linalg.inv` under `vmap` calls LAPACK for
    one matrix at a time, and was seen to hang with two threads.)

    Example:
      >>> inverse(jnp.array([[2.0, 0.0], [1.0, 1.0]])).tolist()
      [[0.5, 0.0], [-0.5, 1.0]]
    """
    size = len(matrix)
    rows = jnp.concatenate([matrix, jnp.eye(size, dtype=matrix.dtype)], axis=1)

    def eliminate(i: jax.Array, rows: jax.Array) -> jax.Array:
        pivot = rows[i] / rows[i, i]
        return (rows - rows[:, i][:, None] * pivot).at[i].set(pivot)

    reduced: jax.Array = jax.lax.fori_loop(0, size, eliminate, rows)
    return reduced[:, size:]


@inverse.defjvp
def _inverse_tangent(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    here = inverse(*primals)
    return here, -here @ tangents[0] @ here


def draw(
    key: jax.Array,
    states: int,
    actions: int,
    *,
    policies: int,
    sharpness: Any,
    discounts: tuple[float, float],
    ratios: tuple[float, float] = (1.01, 10.0),
) -> Instance:
    """Draws a random process with policies, as unconstrained numbers that an adversary can change.

    Args:
      key: the key of the draw.
      states: the number of states.
      actions: the number of actions.
      policies: the number of policies.
      sharpness: the spread of the logits: 1 is dense, 8 nearly deterministic.
      discounts: the range of the discount; `1 / (1 - discount)` is log-uniform.
      ratios: the range of the truncation level, which is log-uniform.

    Returns:
      The instance; the adversary cannot change its `discount` and `rho`.
    """
    for_logits, for_levels = jax.random.split(key)
    shapes = {
        "transition": (states, actions, states),
        "reward": (states, actions),
        "start": (states,),
        "policy": (policies, states, actions),
    }
    # One call draws all numbers, because the generator is slow to compile.
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    numbers = jnp.split(jax.random.normal(for_logits, (ends[-1],)), ends[:-1])
    free = {name: x.reshape(shape) for (name, shape), x in zip(shapes.items(), numbers, strict=True)}
    horizon, level, *spread = jax.random.uniform(for_levels, (2 + policies,))
    low, high = (-math.log1p(-d) for d in discounts)
    factors: dict[str, Any] = {"transition": sharpness, "reward": 2.0, "start": sharpness}
    factors["policy"] = sharpness * jnp.stack(spread)[:, None, None]
    fixed = {
        "discount": 1 - jnp.exp(-(low + (high - low) * horizon)),
        "rho": ratios[0] * (ratios[1] / ratios[0]) ** level,
    }
    return Instance({name: factors[name] * x for name, x in free.items()}, fixed)


def process(instance: Instance) -> MDP:
    """Returns the process of an instance; rewards lie in (-1, 1)."""
    free, fixed = instance
    return MDP(
        jax.nn.softmax(free["transition"]), jnp.tanh(free["reward"]), jax.nn.softmax(free["start"]), fixed["discount"]
    )


def policies(instance: Instance) -> Float[jax.Array, "V S A"]:
    """Returns the policies of an instance."""
    return jax.nn.softmax(instance.free["policy"])


def within(policy: Float[jax.Array, "S A"], other: Float[jax.Array, "S A"], rho: Any) -> Float[jax.Array, "S A"]:
    """Moves a policy towards another, state by state, until its ratio to the other is at most `rho` everywhere.

    Example:
      >>> within(jnp.array([[1.0, 0.0]]), jnp.array([[0.5, 0.5]]), 1.5).tolist()
      [[0.75, 0.25]]
    """
    most = jnp.max(policy / other, axis=-1, keepdims=True)
    beyond = most > rho
    part = jnp.where(beyond, (rho - 1) / (jnp.where(beyond, most, 2.0) - 1), 1.0)
    return jnp.maximum(other + part * (policy - other), 0.0)
