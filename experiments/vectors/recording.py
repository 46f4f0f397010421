"""Values and gradients of the reference vectors, in float64."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.vectors.entries import Entry
from stellaris.types import NDArray


@dataclass(frozen=True)
class Case:
    """One call of a function. Arrays are NumPy's: float64, int32 or bool."""

    about: str
    inputs: Mapping[str, NDArray]  #: by argument; settings that are infinite are among them.
    settings: Mapping[str, Any]  #: the other arguments: numbers, strings, bools and None.
    outputs: Mapping[str, NDArray]  #: by name; the only output of a function is `result`.
    cotangents: Mapping[str, NDArray]  #: for each output of floats, the weights of the sum that is differentiated.
    gradients: Mapping[str, NDArray]  #: of that sum with respect to each input of floats, by argument.


def cases(entry: Entry) -> Iterator[Case]:
    """Yields all cases of a function."""
    return (record(entry, *call) for call in entry.calls())


def record(entry: Entry, about: str, arrays: Mapping[str, NDArray], settings: Mapping[str, Any]) -> Case:
    """Calls a function, and differentiates it with respect to all inputs of floats.

    Raises:
      ValueError: if a value or a gradient is NaN.
    """
    differentiated = {name: x for name, x in arrays.items() if x.dtype == np.float64 and entry.differentiable}
    others = {name: x for name, x in arrays.items() if name not in differentiated}

    def run(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        outputs = _named(entry.function(**inputs, **others, **settings))
        floats = {name: x for name, x in outputs.items() if jnp.issubdtype(jnp.result_type(x), jnp.floating)}
        return floats, {name: x for name, x in outputs.items() if name not in floats}

    with jax.enable_x64(True):
        floats, pull, rest = jax.vjp(run, jax.tree.map(jnp.asarray, differentiated), has_aux=True)
        cotangents = {name: _cotangent(x.shape) for name, x in floats.items()} if differentiated else {}
        gradients = pull(jax.tree.map(jnp.asarray, cotangents))[0] if differentiated else {}
    infinite = {name: np.asarray(x) for name, x in settings.items() if isinstance(x, float) and math.isinf(x)}
    case = Case(
        about,
        {**arrays, **infinite},
        {name: x for name, x in settings.items() if name not in infinite},
        jax.tree.map(np.asarray, floats | rest),
        cotangents,
        jax.tree.map(np.asarray, gradients),
    )
    for name, x in (*case.outputs.items(), *case.gradients.items()):
        if np.isnan(x).any():
            raise ValueError(f"{entry.function}, {about}, {settings}: {name} is NaN")
    return case


def _named(found: Any) -> dict[str, Any]:
    """The outputs by name: the fields and properties of a named tuple, or one `result`."""
    if isinstance(found, tuple) and hasattr(found, "_asdict"):
        properties = [name for name, x in vars(type(found)).items() if isinstance(x, property)]
        return {**found._asdict(), **{name: getattr(found, name) for name in properties}}
    return found if isinstance(found, dict) else {"result": found}


def _cotangent(shape: tuple[int, ...]) -> NDArray:
    """Weights from 1 to 2, all different, so that a gradient in the wrong place shows."""
    return np.linspace(1.0, 2.0, math.prod(shape)).round(3).reshape(shape)
