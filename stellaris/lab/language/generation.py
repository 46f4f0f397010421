"""Generation of answers in one compiled scan, in segments if the parameters change, and their log-probabilities."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from stellaris._core import checks
from stellaris.acting.policies import CachingNetwork
from stellaris.lab.language.tasks import PAD, Task
from stellaris.lab.language.transformer import Observation
from stellaris.types import Array, JaxArray, Tree


class Texts(NamedTuple):
    """`N` prompts with their answers, which may be unfinished."""

    text: Int[Array, "N L"]  #: the prompt and the answer so far; `PAD` at places without a token.
    written: Int[Array, "N"]  #: number of tokens of the answer, with its end.
    ended: Bool[Array, "N"]  #: whether the answer has ended, or its places are full.
    log_prob: Float[Array, "N A"]  #: of each token under the parameters that wrote it; 0 at places without a token.
    version: Int[Array, "N A"]  #: of these parameters; -1 at places without a token.


@dataclass(frozen=True)
class TextPolicy:
    """A network that answers a task's prompts, as compiled functions of its parameters.

    Args:
      task: the task.
      network: a `Transformer`, perhaps within a `WarmStart`.

    Raises:
      TypeError: if `task` is not a `Task`, or the network lacks a method.

    Example:
      >>> from stellaris.lab.language import Sorting, Transformer
      >>> task = Sorting(most=3, base=10)
      >>> policy = TextPolicy(task, Transformer.of(task, width=8, layers=1, heads=1))
      >>> params = policy.network.init(jax.random.key(0), None)
      >>> prompts = policy.prompts(jax.random.key(1), 5)
      >>> older = policy.generate(params, prompts, jax.random.key(2), tokens=2)
      >>> texts = policy.generate(params, older, jax.random.key(3), version=1)
      >>> texts.version[0].tolist()
      [0, 0, 1, 1]
      >>> bool(jnp.allclose(policy.log_probs(params, texts.text), texts.log_prob, atol=1e-5))
      True
      >>> policy.rewards(texts.text).shape
      (5,)
    """

    task: Task
    network: CachingNetwork

    def __post_init__(self) -> None:
        if not isinstance(self.task, Task):
            raise TypeError(f"task={self.task!r} is not a Task: pass Sorting(...), Addition(...) or a subclass of Task")
        if not isinstance(self.network, CachingNetwork):
            raise TypeError(f"network={self.network!r} lacks init, apply, recall or resume: pass a Transformer")

    @functools.partial(jax.jit, static_argnames=("self", "n"))
    def prompts(self, key: jax.Array, n: int) -> Int[JaxArray, "n P"]:
        """Draws n prompts."""
        return jax.vmap(self.task.draw)(jax.random.split(key, n))

    @functools.partial(jax.jit, static_argnames=("self", "tokens", "greedy"))
    def generate(
        self,
        params: Tree,
        prompts: Int[Array, "N P"] | Texts,
        key: jax.Array,
        *,
        tokens: int | None = None,
        version: Int[Array, ""] | int = 0,
        greedy: bool = False,
    ) -> Texts:
        """Writes answers, or continues them with other parameters; one scan over tokens, with a cache.

        To change the parameters in mid-sequence, write a segment of `tokens` tokens, and pass the result to the next
        call. That call computes the cache anew with its own parameters, so that every log-probability is that of the
        whole text so far under the parameters that wrote the token.

        Args:
          params: the network's parameters.
          prompts: int32 `[N, prompt_length]`; or the result of an earlier call.
          key: key of the samples.
          tokens: the most tokens to write now; by default until all answers end.
          version: number of the parameters, which is recorded with each token.
          greedy: whether to take the most probable token instead of a sample.

        Raises:
          ValueError: if the prompts have another length than the task's, or `tokens` is below 1.
        """
        texts = prompts if isinstance(prompts, Texts) else self._begun(prompts)
        checks.whole(at_least=1, **checks.given(tokens=tokens))
        begin, length = self.task.prompt_length, self.task.answer_length
        count = length if tokens is None else min(tokens, length)
        cache = self.network.recall(params, Observation(begin + texts.written, texts.text))

        def step(carry: tuple[Texts, Any], key: jax.Array) -> tuple[tuple[Texts, Any], None]:
            texts, cache = carry
            # The place of an answer that fills its places is not used, but must exist.
            place = jnp.minimum(begin + texts.written, self.task.length - 1)
            (logits, _), cache = self.network.resume(params, cache, Observation(place, texts.text))
            token = jnp.argmax(logits, axis=-1) if greedy else jax.random.categorical(key, logits)
            return (self._with(texts, token.astype(jnp.int32), jax.nn.log_softmax(logits), version), cache), None

        return jax.lax.scan(step, (texts, cache), jax.random.split(key, count))[0][0]

    @functools.partial(jax.jit, static_argnames="self")
    def log_probs(self, params: Tree, text: Int[Array, "N L"]) -> Float[JaxArray, "N A"]:
        """The log-probability of each token of the answers, in one pass over whole texts; 0 after an answer's end.

        Raises:
          ValueError: if a text is shorter or longer than the task's.
        """
        self._check(text)
        answer = jnp.asarray(text)[:, self.task.prompt_length :]
        places = self.task.prompt_length + jnp.arange(self.task.answer_length)
        logits, _ = self.network.apply(params, Observation(places[:, None], jnp.asarray(text)[None]))
        token = jnp.maximum(answer, 0)[..., None]
        chosen = jnp.take_along_axis(jax.nn.log_softmax(jnp.moveaxis(logits, 0, 1)), token, axis=-1)
        return jnp.where(answer == PAD, 0.0, chosen[..., 0])

    @functools.partial(jax.jit, static_argnames="self")
    def rewards(self, text: Int[Array, "N L"]) -> Float[JaxArray, "N"]:
        """The task's rewards of answers, `[N]`.

        Raises:
          ValueError: if a text is shorter or longer than the task's.
        """
        return jax.vmap(self.task.reward)(*self._split(text))

    @functools.partial(jax.jit, static_argnames=("self", "n"))
    def accuracy(self, params: Tree, key: jax.Array, n: int = 1000) -> Float[JaxArray, ""]:
        """The share of exact answers among greedy answers to n fresh prompts.

        Raises:
          ValueError: if n is below 1.
        """
        checks.whole(at_least=1, n=n)
        drawn, unused = jax.random.split(key)
        texts = self.generate(params, self.prompts(drawn, n), unused, greedy=True)
        return jnp.mean(jax.vmap(self.task.exact)(*self._split(texts.text)))

    def _split(self, text: Array) -> list[jax.Array]:
        self._check(text)
        return jnp.split(jnp.asarray(text), [self.task.prompt_length], axis=1)

    def _check(self, text: Array) -> None:
        if jnp.ndim(text) != 2 or jnp.shape(text)[1] != self.task.length:
            raise ValueError(f"text has the shape {jnp.shape(text)}: expected [N, {self.task.length}]")

    def _begun(self, prompts: Array) -> Texts:
        prompts, length = jnp.asarray(prompts, jnp.int32), self.task.answer_length
        if prompts.ndim != 2 or prompts.shape[1] != self.task.prompt_length:
            raise ValueError(f"prompts have the shape {prompts.shape}: expected [N, {self.task.prompt_length}]")
        n = len(prompts)
        blank = jnp.full((n, length), PAD, jnp.int32)
        nothing = jnp.zeros((n, length), float)
        return Texts(jnp.append(prompts, blank, axis=1), jnp.zeros(n, jnp.int32), jnp.zeros(n, bool), nothing, blank)

    def _with(self, texts: Texts, token: jax.Array, log_probs: jax.Array, version: Any) -> Texts:
        """The texts with one more token each, unless they have ended."""
        length = self.task.answer_length
        here = ~texts.ended[:, None] & (jnp.arange(length) == texts.written[:, None])
        log_prob = jnp.take_along_axis(log_probs, token[:, None], axis=-1)
        answer = jnp.where(here, token[:, None], texts.text[:, self.task.prompt_length :])
        written = texts.written + ~texts.ended
        return Texts(
            text=jnp.append(texts.text[:, : self.task.prompt_length], answer, axis=1),
            written=written,
            ended=texts.ended | (token == self.task.end) | (written == length),
            log_prob=jnp.where(here, log_prob, texts.log_prob),
            version=jnp.where(here, jnp.asarray(version, jnp.int32), texts.version),
        )
