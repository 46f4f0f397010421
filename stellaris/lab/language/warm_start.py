"""First parameters that imitate solutions, as a language model is trained on texts before it learns from rewards."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from stellaris._core import checks
from stellaris.lab.language.tasks import PAD, Task
from stellaris.lab.language.transformer import Cache, Observation, Transformer
from stellaris.types import Scalar, Tree


@dataclass(frozen=True)
class WarmStart:
    """A transformer whose first parameters were trained on solutions of a task.

    `init` draws parameters, and takes `steps` steps of Adam on the mean cross-entropy of the tokens of the solutions to
    fresh prompts. Few steps leave a policy that is right now and then, which a reward can improve. Everything else is
    the transformer's.

    Args:
      network: the transformer.
      task: the task whose prompts and solutions are imitated; it may be an easier one with the same places.
      steps: number of steps.
      batch: number of solutions per step.
      learning_rate: of Adam.

    Raises:
      TypeError: if `network` is not a `Transformer`, `task` is not a `Task`, or a number is not whole.
      ValueError: if a setting is out of range.

    Example:
      >>> from stellaris.lab.language import Sorting
      >>> task = Sorting(most=2, base=10)
      >>> warm = WarmStart(Transformer.of(task, width=8, layers=1, heads=1), task, steps=2)
      >>> params = warm.init(jax.random.key(0))
      >>> logits, value = warm.apply(params, Observation(jnp.int32(3), jnp.array([3, 1, 11, PAD, PAD, PAD])))
      >>> logits.shape
      (11,)
    """

    network: Transformer
    task: Task
    steps: int = 200
    batch: int = 64
    learning_rate: Scalar = 3e-3

    def __post_init__(self) -> None:
        if not isinstance(self.network, Transformer):
            raise TypeError(f"network={self.network!r} is not a Transformer")
        if not isinstance(self.task, Task):
            raise TypeError(f"task={self.task!r} is not a Task: pass Sorting(...), Addition(...) or a subclass of Task")
        checks.whole(at_least=0, steps=self.steps)
        checks.whole(at_least=1, batch=self.batch)
        checks.positive(learning_rate=self.learning_rate)

    def init(self, key: jax.Array, observation: Tree = None) -> Tree:
        """Draws parameters, and trains them on solutions; the observation is not used."""
        del observation
        optimizer = optax.adam(self.learning_rate)
        first, drawn = jax.random.split(key)
        params = self.network.init(first)

        def step(carry: tuple[Tree, Tree], number: jax.Array) -> tuple[tuple[Tree, Tree], None]:
            params, state = carry
            keys = jax.random.split(jax.random.fold_in(drawn, number), self.batch)
            prompts = jax.vmap(self.task.draw)(keys)
            grads = jax.grad(self._loss)(params, prompts, jax.vmap(self.task.solution)(prompts))
            with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs standard promotion
                updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(self.steps))[0][0]

    def apply(self, params: Tree, observation: Observation) -> tuple[jax.Array, jax.Array]:
        """Returns the result of the transformer's `apply`."""
        return self.network.apply(params, observation)

    def recall(self, params: Tree, observation: Observation) -> Cache:
        """Returns the result of the transformer's `recall`."""
        return self.network.recall(params, observation)

    def resume(self, params: Tree, cache: Cache, observation: Observation) -> tuple[tuple[jax.Array, jax.Array], Cache]:
        """Returns the result of the transformer's `resume`."""
        return self.network.resume(params, cache, observation)

    def _loss(self, params: Tree, prompts: jax.Array, solutions: jax.Array) -> jax.Array:
        places = self.task.prompt_length + jnp.arange(self.task.answer_length)
        texts = jnp.concatenate([prompts, solutions], axis=1)
        logits, _ = self.network.apply(params, Observation(places[:, None], texts[None]))
        right: Any = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(solutions.T, 0))
        return jnp.mean(right, where=solutions.T != PAD)
