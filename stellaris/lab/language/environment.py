"""A task in text as an environment: a prompt, and answers to it, one token per step."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris._core import checks
from stellaris.acting.jax_env import Transition
from stellaris.acting.vector import EnvSpec, array
from stellaris.lab.language.tasks import PAD, Task
from stellaris.lab.language.transformer import Observation
from stellaris.types import Tree


class Writing(NamedTuple):
    """The state of an answer that is being written."""

    text: jax.Array  #: int32 `[L]`: the prompt and the answer so far.
    written: jax.Array  #: int32: number of tokens of the answer.
    ended: jax.Array  #: bool: whether the answer has ended.
    step: jax.Array  #: int32: number of steps since the prompt was posed.


@dataclass(frozen=True)
class Answering:
    """A prompt is answered several times in a row; an action is a token, and an observation is the text so far.

    An episode is one prompt with `group` answers. Each answer has a window of `answer_length + 1` steps. Steps after
    the answer's end change nothing, so the window's last step shows the whole answer. Each answer is independent of the
    earlier ones, which are not in its text. An answer's reward, at its last token, is the task's reward divided by
    `group`, so that the return of an episode is the mean reward of its answers.

    The step after an episode's end poses the next prompt, as in all environments here. It is the last step of the last
    answer's window, so an episode with it has `steps` steps. With fragments of so many steps each fragment is a group.

    Args:
      task: the task.
      group: number of answers to a prompt.

    Raises:
      TypeError: if `task` is not a `Task`, or `group` is not whole.
      ValueError: if `group` is below 1.

    Example:
      >>> from stellaris.lab.language import Sorting
      >>> env = Answering(Sorting(most=2, base=10), group=1)
      >>> state, observation = env.reset(jax.random.key(0))
      >>> state = state._replace(text=jnp.array([3, 1, 11, PAD, PAD, PAD]))
      >>> rewards = []
      >>> for token in (1, 3, 10):  # 10 is the end
      ...     state, observation, reward, terminated, truncated = env.step(state, jnp.int32(token), jax.random.key(0))
      ...     rewards.append(float(reward))
      >>> observation.text.tolist(), rewards, bool(terminated), env.steps
      ([3, 1, 11, 1, 3, 10], [0.0, 0.0, 1.0], True, 4)
    """

    task: Task
    group: int = 8

    def __post_init__(self) -> None:
        if not isinstance(self.task, Task):
            raise TypeError(f"task={self.task!r} is not a Task: pass Sorting(...), Addition(...) or a subclass of Task")
        checks.whole(at_least=1, group=self.group)

    @property
    def steps(self) -> int:
        """The number of steps of an episode, with the step that poses the next prompt."""
        return self.group * (self.task.answer_length + 1)

    @property
    def spec(self) -> EnvSpec:
        """The specification: observations are texts, and actions are the tokens of answers."""
        position: Any = array((), np.int32)
        text: Any = array((self.task.length,), np.int32)
        observation = Observation(position, text)
        return EnvSpec(type(self.task).__name__, observation, actions=self.task.answer_symbols, discrete=True)

    def reset(self, key: jax.Array) -> tuple[Tree, Tree]:
        """Poses a prompt."""
        blank = jnp.full(self.task.answer_length, PAD, jnp.int32)
        text = jnp.concatenate([self.task.draw(key).astype(jnp.int32), blank])
        state = Writing(text, jnp.int32(0), jnp.bool_(False), jnp.int32(0))
        return state, self._observed(state)

    def step(self, state: Writing, action: jax.Array, key: jax.Array) -> Transition:
        """Writes a token, unless the answer has ended; begins the next answer at the end of the window."""
        del key  # only prompts are random
        task, begin = self.task, self.task.prompt_length
        place = jnp.arange(task.length)
        writes = ~state.ended
        text = jnp.where(writes & (place == begin + state.written), action.astype(jnp.int32), state.text)
        written = state.written + writes
        ended = state.ended | (action == task.end) | (written == task.answer_length)
        reward = jnp.where(writes & ended, task.reward(text[:begin], text[begin:]) / self.group, 0.0)
        step = state.step + 1
        again = step % (task.answer_length + 1) == 0
        after = Writing(
            text=jnp.where(again & (place >= begin), PAD, text),
            written=jnp.where(again, 0, written),
            ended=ended & ~again,
            step=step,
        )
        terminated = step == self.steps - 1
        return Transition(after, self._observed(after), reward.astype(jnp.float32), terminated, jnp.bool_(False))

    def _observed(self, state: Writing) -> Observation:
        return Observation(self.task.prompt_length + state.written, state.text)
