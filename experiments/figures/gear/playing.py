"""Evaluates a model in many episodes at once, each with a target return."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments.figures.gear.learning import RETURN_SCALE
from experiments.figures.gear.models import Context, Model
from stellaris.acting import envs
from stellaris.acting.normalisation import Normaliser
from stellaris.types import NDArray, Tree


class Memory:
    """The last steps of each episode, as a model sees them.

    Args:
      asked: `[n]` the target return of each episode.
      context: the number of steps to keep.
      observation: the size of an observation.
      actions: the number of dimensions of an action.
    """

    def __init__(self, asked: NDArray, *, context: int, observation: int, actions: int) -> None:
        n = len(asked)
        self._to_go = np.array(asked, np.float64)  # the target return minus the rewards so far
        self._now = 0
        self._context = Context(
            return_to_go=np.zeros((n, context), np.float32),
            observation=np.zeros((n, context, observation), np.float32),
            action=np.zeros((n, context, actions), np.float32),
            step=np.zeros((n, context), np.int32),
            mask=np.zeros((n, context), bool),
        )

    def observe(self, observation: NDArray) -> Context:
        """Appends observations `[n, obs]` and returns the context for the next action."""
        for column in self._context:
            column[:, :-1] = column[:, 1:]
        self._context.return_to_go[:, -1] = self._to_go / RETURN_SCALE
        self._context.observation[:, -1] = observation
        self._context.action[:, -1] = 0.0
        self._context.step[:, -1] = self._now
        self._context.mask[:, -1] = True
        return self._context

    def act(self, action: NDArray, reward: NDArray) -> None:
        """Records actions `[n, actions]`, and subtracts their rewards `[n]` from the returns to go."""
        self._context.action[:, -1] = action
        self._to_go -= reward
        self._now += 1


def play(
    model: Model,
    params: Tree,
    normalise: Normaliser,
    environment: str,
    asked: Sequence[float],
    *,
    context: int,
    longest: int,
    seed: int,
    threads: int,
    sampled: bool = True,
) -> NDArray:
    """Plays whole episodes.

    Args:
      model: the model to evaluate.
      params: the parameters of the model.
      normalise: the normaliser of observations.
      environment: the environment's name.
      asked: `[n]` the target return of each episode.
      context: the number of steps that the model sees.
      longest: the number of steps after which an episode is cut off.
      seed: the seed of environments and actions.
      threads: the number of threads that step the environments.
      sampled: whether actions are sampled, as in the data and in `acting.evaluate`; otherwise they are means.

    Returns:
      The episodes' returns `[n]`.
    """
    n = len(asked)
    env = envs.make(environment, slots=n, seed=seed, threads=threads)
    try:
        observation = np.array(env.reset(np.arange(n)))
        actions = env.spec.actions
        memory = Memory(np.asarray(asked), context=context, observation=observation.shape[1], actions=actions)
        random = np.random.default_rng(seed)
        returns, running, width = np.zeros(n), np.arange(n), n
        for _ in range(longest):
            seen = memory.observe(np.asarray(normalise(observation)))
            while width // 2 >= len(running):  # halve the batch as episodes end, so that few shapes are compiled
                width //= 2
            rows = np.resize(running, width)
            action, reward = np.zeros((n, actions), np.float32), np.zeros(n)
            noise = (sampled * random.normal(size=action.shape)).astype(np.float32)
            action[rows] = _act(model, params, Context(*(column[rows] for column in seen)), noise[rows])
            step = env.step(running, action[running])
            observation[running], reward[running] = step.observation, step.reward
            returns += reward
            memory.act(action, reward)
            running = running[~(step.terminated | step.truncated)]
            if not len(running):
                break
    finally:
        env.close()
    return returns


@functools.partial(jax.jit, static_argnums=0)
def _act(model: Model, params: Tree, context: Context, noise: NDArray) -> jax.Array:
    """Returns the newest step's actions `[k, actions]`."""
    distribution: Any = model.apply(params, context)
    newest = jax.tree.map(lambda column: column[:, -1], distribution)
    sampled: jax.Array = newest.sample(noise)
    return sampled
