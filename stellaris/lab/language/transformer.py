"""A small causal transformer with a key-value cache, as pure functions of its parameters."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.lab.language.tasks import PAD, Task
from stellaris.types import Array, JaxArray, Tree

#: Base of the wavelengths of the rotary positions.
_WAVELENGTH = 10_000.0
#: A score that the softmax turns into zero. It is finite, because padding attends to nothing and must not be NaN.
_NEVER = -1e9


class Observation(NamedTuple):
    """A text so far, and the place of the next token.

    The batch axes of both arrays broadcast: a text `[1, N, L]` and places `[T, N]` are `T` places of each of `N` texts,
    which one forward pass serves.
    """

    position: Int[Array, "*batch"]  #: the place of the next token; places before it hold the text, or `PAD`.
    text: Int[Array, "*batch L"]


class Cache(NamedTuple):
    """The keys and values of a text's tokens, by layer: `[..., L, heads, size]`."""

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]


@dataclass(frozen=True)
class Transformer:
    """Causal attention over a text, with layers normalised before their inputs and rotary positions.

    `apply` computes the next token's logits from the whole text. `recall` and `resume` compute the same from a cache,
    one token at a time. Padding to the left has no influence, because attention ignores it and positions count only by
    their differences.

    Args:
      symbols: number of different tokens.
      outputs: number of different tokens that it may write; they come first.
      width: number of features of a token.
      layers: number of layers.
      heads: number of attention heads; an even number of features belongs to each.
      hidden: features between the two matrices of a feed-forward layer, as a multiple of the width.

    Raises:
      TypeError: if a number is not whole.
      ValueError: if a number is below 1, or `width` is not a multiple of `2 * heads`.

    Source:
      Vaswani et al. 2017, Attention Is All You Need; Xiong et al. 2020, On Layer Normalization in the Transformer
      Architecture; Su et al. 2021, RoFormer; Zhang & Sennrich 2019, Root Mean Square Layer Normalization.

    Example:
      >>> model = Transformer(symbols=12, outputs=11, width=16, layers=1, heads=2)
      >>> text = Observation(position=jnp.int32(3), text=jnp.array([7, 2, 11, PAD, PAD]))
      >>> params = model.init(jax.random.key(0), text)
      >>> logits, value = model.apply(params, text)
      >>> logits.shape, value.shape
      ((11,), ())
      >>> (cached, _), cache = model.resume(params, model.recall(params, text), text)
      >>> bool(jnp.allclose(logits, cached, atol=1e-6))
      True
    """

    symbols: int
    outputs: int
    width: int = 32
    layers: int = 2
    heads: int = 4
    hidden: int = 4

    def __post_init__(self) -> None:
        for name in ("symbols", "outputs", "width", "layers", "heads", "hidden"):
            checks.whole(at_least=1, **{name: getattr(self, name)})
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width={self.width} is not a multiple of 2 * heads = {2 * self.heads}: choose a multiple, so that "
                "rotary positions can turn pairs of features"
            )

    @classmethod
    def of(cls, task: Task, **sizes: int) -> "Transformer":
        """Makes the transformer for a task's tokens; `sizes` are `width`, `layers`, `heads` and `hidden`."""
        return cls(symbols=task.symbols, outputs=task.answer_symbols, **sizes)

    def init(self, key: jax.Array, observation: Tree = None) -> Tree:
        """Draws parameters; the observation is not used."""
        del observation
        width, layers = self.width, self.layers
        embed, head, *keys = jax.random.split(key, 2 + 4 * layers)

        def matrix(key: jax.Array, rows: int, columns: int, gain: float = 1.0) -> jax.Array:
            return gain / math.sqrt(rows) * jax.random.normal(key, (rows, columns), float)

        deep = 1.0 / math.sqrt(2.0 * layers)  # so that the sum over all layers has the size of one
        ones = jnp.ones(width, float)
        return {
            "embed": jax.random.normal(embed, (self.symbols, width), float),
            "layers": [
                {
                    "attend": matrix(keys[4 * i], width, 3 * width),
                    "join": matrix(keys[4 * i + 1], width, width, deep),
                    "expand": matrix(keys[4 * i + 2], width, self.hidden * width),
                    "contract": matrix(keys[4 * i + 3], self.hidden * width, width, deep),
                    "scales": jnp.stack([ones, ones]),
                }
                for i in range(layers)
            ],
            "scale": ones,
            # The first policy is nearly uniform, and the first values are 0.
            "head": matrix(head, width, self.outputs, 0.1),
            "value": jnp.zeros(width, float),
        }

    def apply(
        self, params: Tree, observation: Observation
    ) -> tuple[Float[JaxArray, "*batch outputs"], Float[JaxArray, "*batch"]]:
        """The logits and the value at each place, in one pass over each text.

        Args:
          params: the parameters.
          observation: texts and places, whose batch axes broadcast.

        Returns:
          Logits `[..., outputs]` of the token at `position`, and values `[...]`.
        """
        hidden, _ = self._forward(params, observation.text)
        last = jnp.asarray(observation.position)[..., None, None] - 1  # the token before the place predicts the place
        return self._read(params, jnp.take_along_axis(hidden, last, axis=-2)[..., 0, :])

    def recall(self, params: Tree, observation: Observation) -> Cache:
        """Computes the cache of a text in one pass."""
        return self._forward(params, observation.text)[1]

    def resume(
        self, params: Tree, cache: Cache, observation: Observation
    ) -> tuple[tuple[Float[JaxArray, "*batch outputs"], Float[JaxArray, "*batch"]], Cache]:
        """The logits and the value at one place of each text, from the cache of the tokens before.

        Args:
          params: the parameters.
          cache: has the keys and values of all tokens but the last, `position - 1`. They may come from other
            parameters, which an earlier part of the text was written with.
          observation: texts `[..., L]` and places `[...]` with the same batch axes.

        Returns:
          The result of `apply`, and the cache with the last token.
        """
        text, row = jnp.asarray(observation.text), jnp.asarray(observation.position) - 1
        places = jnp.arange(text.shape[-1])
        here = places == row[..., None]
        visible = (places <= row[..., None]) & (text != PAD)
        token = jnp.take_along_axis(text, row[..., None], axis=-1)
        turn = _turns(row[..., None], self.width // self.heads)
        x = self._embedded(params, token)  # [..., 1, width]
        kept: list[tuple[jax.Array, jax.Array]] = []
        for layer, old_keys, old_values in zip(params["layers"], cache.keys, cache.values, strict=True):
            query, key, value = self._projected(layer, x, turn)
            keys = jnp.where(here[..., None, None], key, old_keys)
            values = jnp.where(here[..., None, None], value, old_values)
            kept.append((keys, values))
            x = self._layer(layer, x, query, keys, values, visible[..., None, :])
        return self._read(params, x[..., 0, :]), _cache(kept)

    def _forward(self, params: Tree, text: Array) -> tuple[jax.Array, Cache]:
        """The features of every token `[..., L, width]`, and the cache."""
        text = jnp.asarray(text)
        places = jnp.arange(text.shape[-1])
        visible = (places <= places[:, None]) & (text != PAD)[..., None, :]
        turn = _turns(places, self.width // self.heads)
        x = self._embedded(params, text)
        kept: list[tuple[jax.Array, jax.Array]] = []
        for layer in params["layers"]:
            query, key, value = self._projected(layer, x, turn)
            kept.append((key, value))
            x = self._layer(layer, x, query, key, value, visible)
        return x, _cache(kept)

    def _embedded(self, params: Tree, tokens: jax.Array) -> jax.Array:
        # A product, because the gradient of an indexed read is slow on a CPU. Padding becomes zeros.
        embedded: jax.Array = jax.nn.one_hot(tokens, self.symbols, dtype=params["embed"].dtype) @ params["embed"]
        return embedded

    def _projected(self, layer: Tree, x: jax.Array, turn: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        """Queries, keys and values `[..., t, heads, size]`."""
        together = _normalised(x, layer["scales"][0]) @ layer["attend"]
        query, key, value = jnp.split(together.reshape(*x.shape[:-1], self.heads, -1), 3, axis=-1)
        return _rotated(query, turn), _rotated(key, turn), value

    def _layer(
        self, layer: Tree, x: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array
    ) -> jax.Array:
        scores = jnp.einsum("...qhs,...khs->...hqk", query, key) / math.sqrt(query.shape[-1])
        share = jax.nn.softmax(jnp.where(visible[..., None, :, :], scores, _NEVER))
        read = jnp.einsum("...hqk,...khs->...qhs", share, value)
        x = x + read.reshape(x.shape) @ layer["join"]
        fed: jax.Array = jax.nn.gelu(_normalised(x, layer["scales"][1]) @ layer["expand"]) @ layer["contract"]
        return x + fed

    def _read(self, params: Tree, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = _normalised(x, params["scale"])
        return x @ params["head"], x @ params["value"]


def _cache(layers: list[tuple[jax.Array, jax.Array]]) -> Cache:
    keys, values = zip(*layers, strict=True)
    return Cache(keys, values)


def _normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + 1e-6) * scale


def _turns(places: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the angle by which each pair of features turns at each place, `[..., 1, size / 2]`."""
    speed = _WAVELENGTH ** (-np.arange(size // 2) / (size // 2))
    angle = places[..., None, None] * jnp.asarray(speed, float)
    return jnp.cos(angle), jnp.sin(angle)


def _rotated(x: jax.Array, turn: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Turns pairs of features `[..., heads, size]`, so that products of queries and keys depend on distances alone."""
    cosine, sine = turn
    one, other = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([one * cosine - other * sine, one * sine + other * cosine], axis=-1)
