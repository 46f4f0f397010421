"""Trains several models on the same batches of one table, with selection and updates in one compiled loop."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.figures.gear.models import Context, Model
from stellaris.acting.normalisation import Normaliser
from stellaris.replay import Table, Window, check, gather, random_steps, select
from stellaris.types import Tree

#: The divisor of returns, as in Decision Transformer (Chen et al. 2021) for Hopper.
RETURN_SCALE = 1000.0


@dataclass(frozen=True)
class Learning:
    """Settings of learning, equal for all models."""

    updates: int
    batch: int = 64  #: windows per batch.
    context: int = 10  #: steps per window: half of Decision Transformer's, to run on two cores.
    learning_rate: float = 1e-3  #: the peak, reached after a twentieth of the updates; then a cosine decays it to 0.
    weight_decay: float = 1e-4
    max_gradient_norm: float = 1.0

    def optimizer(self) -> optax.GradientTransformation:
        """Makes AdamW with warm-up, cosine decay and gradient clipping."""
        warmup = self.updates // 20
        rate = optax.warmup_cosine_decay_schedule(0.0, self.learning_rate, warmup, self.updates)
        decay = optax.adamw(rate, weight_decay=self.weight_decay)
        return optax.chain(optax.clip_by_global_norm(self.max_gradient_norm), decay)


class Learner(NamedTuple):
    """The state of a model's learning."""

    params: Tree
    optimizer: Tree


def normaliser(table: Table) -> Normaliser:
    """Returns the normaliser that gives all steps of the table zero mean and unit variance."""
    observation, length = np.asarray(table.columns["observation"]), np.asarray(table.length)
    steps = observation[np.arange(observation.shape[1]) < length[:, None]]
    mean, deviation = steps.mean(0, dtype=np.float64), steps.std(0, dtype=np.float64)
    return Normaliser(np.float32(mean), np.float32(1 / (deviation + 1e-6)))


def draw(table: Table, key: jax.Array, learning: Learning) -> tuple[Context, jax.Array]:
    """Draws a batch of steps, each with the steps before it.

    Args:
      table: the table, whose weights are the trajectories' lengths, so that every step has the same probability.
      key: the key of the draws.
      learning: the settings, which give the batch's sizes.

    Returns:
      The context, in which observations are not normalised, and the selection's `faults`.
    """
    chosen, within = jax.random.split(key)
    selection = select(table, chosen, learning.batch, by="weight")
    step = random_steps(table, selection, within)
    first = 1 - learning.context

    def history(column: str, return_to_go: float | None = None) -> Window:
        return Window(column, learning.context, offset=first, pad="head", return_to_go=return_to_go)

    windows = {
        "observation": history("observation"),
        "action": history("action"),
        "return_to_go": history("reward", 1.0),
    }
    batch = gather(table, selection, windows, step=step)
    context = Context(
        return_to_go=batch.values["return_to_go"] / RETURN_SCALE,
        observation=batch.values["observation"],
        action=batch.values["action"],
        step=jnp.maximum(step[:, None] + first + jnp.arange(learning.context), 0),
        mask=batch.mask["return_to_go"],
    )
    return context, selection.faults


def begin(models: Mapping[str, Model], context: Context, key: jax.Array, learning: Learning) -> dict[str, Learner]:
    """Initialises each model; the context gives the shapes of the models' inputs."""
    learners = {}
    for i, (name, model) in enumerate(models.items()):
        params = jax.jit(model.init)(jax.random.fold_in(key, i), context)
        learners[name] = Learner(params, learning.optimizer().init(params))
    return learners


def learn(
    models: Mapping[str, Model],
    learners: Mapping[str, Learner],
    table: Table,
    normalise: Normaliser,
    key: jax.Array,
    learning: Learning,
    *,
    first: int,
    updates: int,
) -> tuple[dict[str, Learner], dict[str, Any]]:
    """Updates each model on the same batches.

    Args:
      models: the models by name.
      learners: the states of the models, by name.
      table: the table from which batches are drawn.
      normalise: the normaliser of observations.
      key: the key of all batches.
      learning: the settings.
      first: the number of the first update.
      updates: the number of updates.

    Returns:
      The learners after the updates, and each model's mean loss over them.

    Raises:
      ValueError: if the table has nothing to draw.
    """
    learned, losses, faults = _learn(
        dict(learners), table, normalise, key, np.int32(first), tuple(models.items()), learning, updates
    )
    check(_Faults(faults))
    return learned, {name: float(loss) for name, loss in losses.items()}


class _Faults(NamedTuple):
    faults: jax.Array


@functools.partial(jax.jit, static_argnums=(5, 6, 7), donate_argnums=0)
def _learn(
    learners: dict[str, Learner],
    table: Table,
    normalise: Normaliser,
    key: jax.Array,
    first: Any,
    models: tuple[tuple[str, Model], ...],
    learning: Learning,
    updates: int,
) -> tuple[dict[str, Learner], dict[str, jax.Array], jax.Array]:
    optimizer = learning.optimizer()

    def one(learners: dict[str, Learner], number: jax.Array) -> tuple[dict[str, Learner], Any]:
        context, faults = draw(table, jax.random.fold_in(key, number), learning)
        context = context._replace(observation=normalise(context.observation))
        learned, losses = {}, {}
        for name, model in models:
            params, state = learners[name]
            losses[name], gradient = jax.value_and_grad(_loss)(params, model, context)
            change, state = optimizer.update(gradient, state, params)
            learned[name] = Learner(optax.apply_updates(params, change), state)
        return learned, (losses, faults)

    learned, (losses, faults) = jax.lax.scan(one, learners, first + jnp.arange(updates))
    return learned, jax.tree.map(jnp.mean, losses), faults.max()


def _loss(params: Tree, model: Model, context: Context) -> jax.Array:
    """Returns the mean negative log-likelihood of the actions, over the steps in the mask."""
    predicted: Any = model.apply(params, context)
    missed = -predicted.log_prob(context.action)
    return jnp.sum(missed * context.mask) / jnp.maximum(jnp.sum(context.mask), 1)
