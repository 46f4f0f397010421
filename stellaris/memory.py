"""Sequences for policies with memory, such as a GRU or an LSTM, and the loop that runs a step over them.

A memory is the state that such a policy carries from one step to the next: any tree of arrays. At an episode's start it
is the policy's initial memory. A fragment of a trajectory may begin within an episode, so it records the memory before
its first step, `Trajectory.memory`; later memories follow from it and from the observations.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from stellaris.types import Array, Trajectory, Tree


class Sequences(NamedTuple):
    """Observations in order, and the memory with which a policy begins them.

    Example:
      >>> sequences = Sequences(jnp.ones((3, 2, 5)), jnp.zeros((3, 2), bool), memory=jnp.zeros((1, 2, 8)))
      >>> sequences.before_the_last.observation.shape
      (2, 2, 5)
    """

    observation: Tree  #: `[T, B, *obs]`, an array or a tree of arrays.
    reset: (
        Array  #: `[T, B]` bool: whether an observation is the first of its episode; the memory is then the initial one.
    )
    memory: Tree  #: `[1, B, ...]`: the memory before the first step.

    @staticmethod
    def of(trajectory: Trajectory) -> "Sequences":
        """Returns the `T + 1` observations of a trajectory that has a memory.

        An observation that follows a step which only reset the environment is the first of its episode. The first
        observation of the trajectory is never marked: its memory is that of the trajectory, whatever came before.
        """
        return Sequences.following(trajectory.observation, trajectory.valid, trajectory.memory)

    @staticmethod
    def following(observation: Tree, valid: Array, memory: Tree) -> "Sequences":
        """Returns the sequences of `T + 1` observations `[T + 1, B, *obs]`, as `of` does.

        Args:
          observation: the observations.
          valid: `[T, B]`, False for a step that only reset the environment.
          memory: `[1, B, ...]`, the memory before the first step.
        """
        started = ~jnp.asarray(valid, bool)
        return Sequences(observation, jnp.concatenate([jnp.zeros_like(started[:1]), started]), memory)

    @property
    def before_the_last(self) -> "Sequences":
        """The same sequences without their last observation."""
        return Sequences(jax.tree.map(lambda x: x[:-1], self.observation), self.reset[:-1], self.memory)


def unroll(
    step: Callable[[Tree, Tree], tuple[Tree, Tree]],
    memory: Tree,
    inputs: Tree,
    reset: Bool[Array, "T B"],
    *,
    initial: Tree,
) -> tuple[Tree, Tree]:
    """Runs a step over sequences; where an episode starts, the step gets the initial memory.

    `m_t, y_t = step(initial if reset_t else m_(t-1), x_t)`. Gradients flow through time within an episode, and not
    across a reset.

    Args:
      step: `(memory [B, ...], input [B, ...]) -> (memory [B, ...], output [B, ...])`.
      memory: `[B, ...]`, the memory before the first step.
      inputs: `[T, B, ...]`, any tree.
      reset: whether the episode starts at this step.
      initial: the initial memory of one environment, `[...]`.

    Returns:
      The memory after the last step `[B, ...]`, and the outputs `[T, B, ...]`.

    Raises:
      TypeError: if the step's memory has another structure, shape or dtype than the memory that it was given.

    Example:
      >>> def count(memory, x):
      ...     return memory + x, memory + x
      >>> reset = jnp.array([[False], [False], [True], [False]])
      >>> memory, outputs = unroll(count, jnp.array([5.0]), jnp.ones((4, 1)), reset, initial=jnp.float32(0))
      >>> outputs[:, 0].tolist(), memory.tolist()
      ([6.0, 7.0, 1.0, 2.0], [2.0])
    """

    def masked(memory: Tree, row: tuple[Tree, jax.Array]) -> tuple[Tree, Tree]:
        x, fresh = row
        after, output = step(begun(memory, fresh, initial=initial), x)
        check_memory(after, memory)
        return after, output

    memory = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), memory)
    after: tuple[Tree, Tree] = jax.lax.scan(masked, memory, (inputs, jnp.asarray(reset, bool)))
    return after


def begun(memory: Tree, fresh: Any, *, initial: Tree) -> Tree:
    """Replaces the memory `[B, ...]` by the initial memory `[...]` of one environment where `fresh`, `[B]`, is True."""

    def choose(x: jax.Array, first: jax.Array) -> jax.Array:
        mask = jnp.reshape(fresh, (*jnp.shape(fresh), *[1] * (jnp.ndim(x) - jnp.ndim(fresh))))
        return jnp.where(mask, jnp.asarray(first, x.dtype), x)

    return jax.tree.map(choose, memory, initial)


def check_memory(after: Tree, before: Tree) -> None:
    """Checks that a step has returned a memory like the one that it was given.

    Raises:
      TypeError: if the structures, or the shapes or dtypes of an array, differ.
    """
    like, found = (jax.tree.map(lambda x: f"{jnp.result_type(x)}{[*jnp.shape(x)]}", tree) for tree in (before, after))
    if like != found:
        raise TypeError(f"the memory after a step is {found}: expected {like}, as before the step and at the start")
