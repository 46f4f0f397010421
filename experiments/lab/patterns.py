"""Patterns of lag with a given mean, for the command and the studies."""

from collections.abc import Mapping
from typing import Literal

from stellaris.lab import Constant, Maximum, Mixed, Sawtooth
from stellaris.lab.imposed import Lag

#: Patterns of lag.
Kind = Literal["constant", "sawtooth", "maximum", "mixed"]


def pattern(kind: Kind, mean: int, actors: int, seed: int = 0) -> Lag | Mixed:
    """Returns the ages of successive batches, with a pattern and a mean; mixed ages are spread over the actors.

    Example:
      >>> pattern("mixed", 2, actors=3).ages_of(1, actors=3).tolist()
      [[0, 2, 4]]
      >>> [float(pattern(kind, 2, 16).ages(1000).mean().round()) for kind in ("constant", "sawtooth", "maximum")]
      [2.0, 2.0, 2.0]
    """
    if kind == "mixed":
        return Mixed([Constant(round(2 * mean * actor / (actors - 1))) for actor in range(actors)])
    return alike(kind, mean, seed)


def alike(kind: Kind, mean: int, seed: int = 0) -> Lag:
    """Returns ages that all actors have, or all gradients; not for mixed ages."""
    several: Mapping[Kind, Lag] = {
        "constant": Constant(mean),
        "sawtooth": Sawtooth(2 * mean + 1),
        "maximum": Maximum(2 * mean, seed),
    }
    return several[kind]
