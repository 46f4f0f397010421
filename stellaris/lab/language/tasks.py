"""Tasks in text whose answers a rule can check: sorting, and addition with carries.

A text is a row of int32 tokens. The digits of base `b` are the tokens 0 to `b - 1`, the end of an answer is the token
`b`, and the prompt's other symbols follow. `PAD` marks places without a token: to the left of a prompt and to the
right of an answer, so that all prompts end, and all answers begin, at the same place.
"""

import abc
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.types import Array, JaxArray

#: Marks the places of a text without a token.
PAD = -1


class Task(abc.ABC):
    """Prompts, their solutions, and the rewards of answers. Make it a frozen dataclass: equal tasks share programs."""

    base: int
    graded: bool

    @property
    @abc.abstractmethod
    def prompt_length(self) -> int:
        """The number of places of a prompt."""

    @property
    @abc.abstractmethod
    def answer_length(self) -> int:
        """The number of places of an answer, including its end."""

    @property
    @abc.abstractmethod
    def symbols(self) -> int:
        """The number of different tokens."""

    @abc.abstractmethod
    def draw(self, key: jax.Array) -> Int[JaxArray, "P"]:
        """Draws a prompt."""

    @abc.abstractmethod
    def solution(self, prompt: Int[Array, "P"]) -> Int[JaxArray, "A"]:
        """The right answer to a prompt, with its end."""

    @property
    def end(self) -> int:
        """The token that ends an answer."""
        return self.base

    @property
    def answer_symbols(self) -> int:
        """The number of different tokens of an answer: the digits and the end."""
        return self.base + 1

    @property
    def length(self) -> int:
        """The number of places of a prompt and its answer."""
        return self.prompt_length + self.answer_length

    def exact(self, prompt: Int[Array, "P"], answer: Int[Array, "A"]) -> jax.Array:
        """Whether an answer is right in all its tokens, including the end; a bool."""
        return jnp.all(jnp.asarray(answer) == self.solution(prompt))

    def reward(self, prompt: Int[Array, "P"], answer: Int[Array, "A"]) -> Float[JaxArray, ""]:
        """The reward of an answer, in [0, 1].

        If the task is graded, it is the share of places, in the longer of answer and solution, that hold the right
        token. Otherwise it is 1 for an exact answer and 0 for any other.

        Args:
          prompt: int32 `[prompt_length]`.
          answer: int32 `[answer_length]`, `PAD` after its end.
        """
        solution, answer = self.solution(prompt), jnp.asarray(answer)
        if not self.graded:
            return jnp.all(answer == solution).astype(jnp.float32)
        right = jnp.sum((answer == solution) & (solution != PAD))
        longer = jnp.maximum(jnp.sum(answer != PAD), jnp.sum(solution != PAD))
        return right.astype(jnp.float32) / longer.astype(jnp.float32)


@dataclass(frozen=True)
class Sorting(Task):
    """Write the digits of a list in increasing order: `3 1 3 =` is answered by `1 3 3` and the end.

    The length `n` of a list has the probability `n^-tail / sum_m m^-tail`, a power law cut off at `most`, so that most
    answers are short and a few take most of the tokens. Digits are drawn uniformly and may recur.

    Args:
      most: the largest number of digits of a list.
      base: number of different digits.
      tail: exponent of the power law; 0 for uniform lengths.
      graded: whether an answer that is partly right has a reward; see `reward`.

    Raises:
      TypeError: if a number is not whole.
      ValueError: if `most` is below 1, `base` is below 2, or `tail` is negative.

    Example:
      >>> task = Sorting(most=4, base=10)
      >>> prompt = jnp.array([PAD, 3, 1, 3, 11])  # 11 is the sign "="
      >>> task.solution(prompt).tolist()  # 10 is the end
      [1, 3, 3, 10, -1]
      >>> wrong = jnp.array([1, 3, 10, PAD, PAD])
      >>> float(task.reward(prompt, wrong)), bool(task.exact(prompt, wrong))  # two of four places
      (0.5, False)
    """

    most: int = 6
    base: int = 5
    tail: float = 1.0
    graded: bool = True

    def __post_init__(self) -> None:
        _check(self.most, self.base, self.tail)

    @property
    def prompt_length(self) -> int:
        """The longest list, and the sign that ends a prompt."""
        return self.most + 1

    @property
    def answer_length(self) -> int:
        """The longest list, and the end."""
        return self.most + 1

    @property
    def symbols(self) -> int:
        """Digits, the end, and the sign that ends a prompt."""
        return self.base + 2

    def draw(self, key: jax.Array) -> Int[JaxArray, "P"]:
        """Draws the length of a list, and its digits."""
        of_length, of_digits = jax.random.split(key)
        length = _heavy_tailed(of_length, self.most, self.tail)
        digits = jax.random.randint(of_digits, (self.most,), 0, self.base, jnp.int32)
        there = jnp.arange(self.most) >= self.most - length
        return jnp.append(jnp.where(there, digits, PAD), jnp.int32(self.base + 1))

    def solution(self, prompt: Int[Array, "P"]) -> Int[JaxArray, "A"]:
        """The digits in order, and the end."""
        digits = jnp.asarray(prompt, jnp.int32)[:-1]
        # The end is larger than every digit, so padding that counts as the end sorts to the right.
        ordered = jnp.append(jnp.sort(jnp.where(digits == PAD, self.end, digits)), self.end)
        return jnp.where(jnp.arange(self.answer_length) <= jnp.sum(digits != PAD), ordered, PAD)


@dataclass(frozen=True)
class Addition(Task):
    """Add two numbers: `5 7 + 6 6 =` is answered by `3 2 1` and the end, the digits of 123 from the lowest.

    From the lowest digit each carry depends on the digits written already, without looking ahead. The numbers of digits
    of both summands are drawn independently from the power law of `Sorting`; among the numbers of that many digits all
    are equally likely.

    Args:
      most: the largest number of digits of a summand.
      base: number of different digits.
      tail: exponent of the power law; 0 for uniform lengths.
      graded: whether an answer that is partly right has a reward; see `reward`.

    Raises:
      TypeError: if a number is not whole.
      ValueError: if `most` is below 1, `base` is below 2, or `tail` is negative.

    Source:
      Lee et al. 2023, Teaching Arithmetic to Small Transformers, for answers from the lowest digit.

    Example:
      >>> task = Addition(most=2, base=10)
      >>> prompt = jnp.array([5, 7, 12, 6, 6, 11])  # 12 is "+", 11 is "="
      >>> task.solution(prompt).tolist()  # 57 + 66 = 123
      [3, 2, 1, 10]
    """

    most: int = 2
    base: int = 4
    tail: float = 1.0
    graded: bool = True

    def __post_init__(self) -> None:
        _check(self.most, self.base, self.tail)

    @property
    def prompt_length(self) -> int:
        """Two summands, the sign between them, and the sign that ends a prompt."""
        return 2 * self.most + 2

    @property
    def answer_length(self) -> int:
        """The longest sum, and the end."""
        return self.most + 2

    @property
    def symbols(self) -> int:
        """Digits, the end, and two signs."""
        return self.base + 3

    def draw(self, key: jax.Array) -> Int[JaxArray, "P"]:
        """Draws the numbers of digits, and the digits."""
        keys = jax.random.split(key, 4)
        (first, n), (second, m) = (self._summand(*jax.random.split(one)) for one in keys[:2])
        # Seen from the sign that ends the prompt: m digits from the lowest, the sign between, n digits from the lowest.
        place = self.prompt_length - 2 - jnp.arange(self.prompt_length)
        of_second = jnp.take(second, place, mode="clip")
        of_first = jnp.take(first, place - m - 1, mode="clip")
        prompt = jnp.where(place < m, of_second, jnp.where(place == m, self.base + 2, of_first))
        return jnp.where(place < 0, self.base + 1, jnp.where(place > m + n, PAD, prompt))

    def solution(self, prompt: Int[Array, "P"]) -> Int[JaxArray, "A"]:
        """The digits of the sum from the lowest, and the end."""
        backwards = jnp.flip(jnp.asarray(prompt, jnp.int32)[:-1])
        m = jnp.argmax(backwards == self.base + 2)
        n = jnp.sum(backwards != PAD) - m - 1
        place = jnp.arange(self.most + 1)
        second = jnp.where(place < m, jnp.take(backwards, place, mode="clip"), 0)
        first = jnp.where(place < n, jnp.take(backwards, place + m + 1, mode="clip"), 0)

        def add(carry: jax.Array, digits: jax.Array) -> tuple[jax.Array, jax.Array]:
            total = carry + digits
            return total // self.base, total % self.base

        _, digits = jax.lax.scan(add, jnp.int32(0), first + second)
        longer = jnp.maximum(m, n)
        count = longer + (digits[longer] > 0)  # a carry out of the longer summand's highest digit
        places = jnp.arange(self.answer_length)
        written = jnp.append(digits, self.end)
        return jnp.where(places < count, written, jnp.where(places == count, self.end, PAD))

    def _summand(self, of_length: jax.Array, of_digits: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draws a number: its digits from the lowest, `[most]`, and how many there are."""
        length = _heavy_tailed(of_length, self.most, self.tail)
        place = jnp.arange(self.most)
        # The highest digit is not 0, unless it is the only one.
        least = ((place == length - 1) & (length > 1)).astype(jnp.int32)
        return jax.random.randint(of_digits, (self.most,), least, self.base, jnp.int32), length


def _heavy_tailed(key: jax.Array, most: int, tail: float) -> jax.Array:
    """Draws a whole number from 1 to `most`, where n has the weight `n^-tail`."""
    weights = np.arange(1, most + 1) ** -float(tail)
    bounds = jnp.asarray(np.cumsum(weights)[:-1] / np.sum(weights), jnp.float32)
    return 1 + jnp.sum(jax.random.uniform(key, dtype=jnp.float32) >= bounds, dtype=jnp.int32)


def _check(most: int, base: int, tail: float) -> None:
    checks.whole(at_least=1, most=most)
    checks.whole(at_least=2, base=base)
    checks.not_negative(tail=tail)
    checks.finite(tail=tail)
