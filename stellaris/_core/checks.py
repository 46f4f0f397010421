"""Argument checks, which also run under tracing. Errors name the argument, its value and the remedy.

None stands for an omitted array and passes `floats` and `same_shape`; `given` drops omitted numbers. A traced number,
such as a setting that `vmap` sweeps, passes every check, because tracing hides its value.
"""

import math
import numbers
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.types import Array, Tree


def floats(**arrays: Array | None) -> None:
    """Raises a TypeError unless every array holds floating-point numbers."""
    for name, array in arrays.items():
        if array is None:
            continue
        _array(name, array)
        if not jnp.issubdtype(jnp.result_type(array), jnp.floating):
            raise TypeError(
                f"{name} has dtype {jnp.result_type(array)}: expected floating point; pass {name}.astype(float)"
            )


def array(**arrays: Any) -> None:
    """Raises a TypeError unless every argument is an array of numbers or a number."""
    for name, x in arrays.items():
        _array(name, x)


def integers(**arrays: Array) -> None:
    """Raises a TypeError unless every array holds whole numbers."""
    for name, array in arrays.items():
        _array(name, array, names="; number its values: numpy.unique(..., return_inverse=True)[1]")
        if not jnp.issubdtype(jnp.result_type(array), jnp.integer):
            raise TypeError(f"{name} has dtype {jnp.result_type(array)}: expected integers")


def int32(**arrays: Any) -> None:
    """Raises a ValueError unless every integer fits into int32: JAX would silently wrap a larger one.

    Traced integers are not checked, because their values are unknown.
    """
    for name, array in arrays.items():
        dtype = getattr(array, "dtype", np.dtype(int))
        if isinstance(array, jax.core.Tracer) or not np.issubdtype(dtype, np.integer) or np.can_cast(dtype, np.int32):
            continue
        # On the host: a JAX array compares in its own type, in which -2**31 may be positive, and `jit` would trace it.
        host = np.asarray(array)
        beyond = [int(x) for x in (np.max(host, initial=0), np.min(host, initial=0)) if not -(2**31) <= x < 2**31]
        if beyond:
            raise ValueError(f"{name}={beyond[0]} does not fit into int32: pass a number in [-2**31, 2**31)")


def whole_int32(**numbers: Any) -> None:
    """Raises a TypeError unless every number, such as a version, is whole; a ValueError if one exceeds int32."""
    for name, number in numbers.items():
        _array(name, number)
        if not jnp.issubdtype(jnp.result_type(number), jnp.integer):
            raise TypeError(f"{name}={number} has dtype {jnp.result_type(number)}: expected a whole number")
    int32(**numbers)


def mapping(kind: type, example: str, **one: Any) -> None:
    """Raises a TypeError unless an argument is a mapping to values of a kind; the error shows the example."""
    for argument, given in one.items():
        if not isinstance(given, Mapping):
            raise TypeError(f"{argument}={given!r}: expected a mapping, such as {{'name': {example}}}")
        for name, value in given.items():
            if not isinstance(value, kind):
                raise TypeError(f"{argument}={{{name!r}: {value!r}}}: expected {example}")


def same_shape(first: Array, of: str, **arrays: Array | None) -> None:
    """Raises a ValueError unless every array has the shape of `first`, the argument named `of`."""
    _same(first, of, given(**arrays), _way)


def same_leaf(first: Array, of: str, **leaves: Array) -> None:
    """As `same_shape`, for leaves of trees of parameters, which must not be broadcast."""
    _same(first, of, leaves, lambda *_: "")


def _same(first: Array, of: str, arrays: Mapping[str, Array], way: Callable[..., str]) -> None:
    for name, array in arrays.items():
        _array(name, array)
        if (shape := jnp.shape(array)) != (expected := jnp.shape(first)):
            raise ValueError(f"{name} has shape {shape}: expected {of}'s {expected}{way(shape, expected)}")


def _way(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Returns the end of an error: how an array of one shape probably becomes one of the other, if a way is known.

    Example:
      >>> [_way(shape, (4, 3)) for shape in ((), (4, 1), (4,), (3, 4), (5,))]
      ['; broadcast it', '; broadcast it', '; broadcast it along a new last axis', '; transpose it', '']
    """
    aligned = (1,) * (len(expected) - len(shape)) + shape
    if len(aligned) == len(expected) and all(n in (1, m) for n, m in zip(aligned, expected, strict=True)):
        return "; broadcast it"
    if shape == expected[:-1]:
        return "; broadcast it along a new last axis"
    return "; transpose it" if shape == expected[::-1] else ""


def mask(array: Array | None, like: Array) -> jax.Array:
    """Converts a mask of any dtype to bools: 0 is False. None gives a mask of `like`'s shape, True everywhere."""
    return jnp.ones(jnp.shape(like), bool) if array is None else jnp.asarray(array, bool)


def _array(name: str, array: Any, names: str = "") -> None:
    """Raises a TypeError unless `array` is an array of numbers or a number; `names` is the remedy for strings."""
    if isinstance(array, np.ndarray | np.generic) and array.dtype.kind in "OSTU":
        raise TypeError(f"{name} has dtype {array.dtype}: expected numbers{names}")
    if not isinstance(array, jax.Array | np.ndarray | np.generic | numbers.Real):
        kind = type(array)
        remedy = "; wrap the function: stellaris.torch.differentiable" if kind.__module__ == "torch" else ""
        remedy = names if isinstance(array, list | tuple) and {*map(type, array)} == {str} else remedy
        raise TypeError(f"{name} is a {kind.__name__}: expected an array{remedy}")


def same_structure(first: Tree, of: str, **trees: Tree) -> None:
    """Raises a ValueError unless every tree has the structure of `first`, the argument named `of`."""
    expected: Any = jax.tree.structure(first)
    for name, tree in trees.items():
        structure: Any = jax.tree.structure(tree)
        if structure != expected:
            raise ValueError(f"{name} has structure {structure}: expected {of}'s {expected}")


def given(**settings: Any) -> dict[str, Any]:
    """Drops the settings that are None."""
    return {name: x for name, x in settings.items() if x is not None}


def known(**settings: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names and values of the settings that are not traced, as numbers on the host.

    Raises:
      TypeError: if a setting is not a single number.
    """
    for name, x in settings.items():
        if not isinstance(x, jax.Array | np.ndarray | np.generic | numbers.Real):
            raise TypeError(f"{name}={x!r} is not a number")
        setting: Any = x
        if np.ndim(setting) > 0:
            raise TypeError(f"{name} has shape {np.shape(setting)}: expected one number")
        if not isinstance(x, jax.core.Tracer):
            # JAX arrays become NumPy numbers, because within a `jit` JAX traces even a comparison of two constants, and
            # Python cannot branch on a traced result.
            yield name, np.asarray(x)[()] if isinstance(x, jax.Array) else x


def single(**settings: Any) -> None:
    """Raises a TypeError unless every setting is a single number."""
    for _ in known(**settings):
        pass


def plain(x: Any) -> Any:
    """Converts a number to a Python number, so that settings compare and hash by value; keeps a traced number."""
    concrete = isinstance(x, jax.Array | np.ndarray | np.generic) and not isinstance(x, jax.core.Tracer)
    return x.item() if concrete else x


def per_sample(first: Array, of: str, check: Callable[..., None], **settings: Any) -> None:
    """Raises unless every setting is a number that passes `check`, or floats with the shape of `first`, named `of`."""
    for name, setting in settings.items():
        if isinstance(setting, tuple | list):
            raise TypeError(f"{name} is a {type(setting).__name__}: expected a number or an array")
        if setting is None or jnp.ndim(setting) == 0:
            check(**{name: setting})
        else:
            floats(**{name: setting})
            same_shape(first, of, **{name: setting})


def positive(**settings: Any) -> None:
    """Raises a ValueError unless every number is above zero."""
    for name, number in known(**settings):
        if not number > 0:
            raise ValueError(f"{name}={number} is not positive")


def not_negative(**settings: Any) -> None:
    """Raises a ValueError unless every number is at least zero."""
    for name, number in known(**settings):
        if not number >= 0:
            raise ValueError(f"{name}={number} is negative or NaN: pass a number of at least 0")


def finite(**settings: Any) -> None:
    """Raises a ValueError unless every number is finite."""
    for name, number in known(**settings):
        if not math.isfinite(number):
            raise ValueError(f"{name}={number} is not finite")


def between_zero_and_one(**settings: Any) -> None:
    """Raises a ValueError unless every number lies in [0, 1]."""
    for name, number in known(**settings):
        if not 0.0 <= number <= 1.0:
            raise ValueError(f"{name}={number} lies outside [0, 1]")


def ordered(**two: Any) -> None:
    """Raises a ValueError if two bounds are known numbers in the wrong order; arrays of bounds are not checked."""
    if all(jnp.shape(bound) == () for bound in two.values()):
        several = dict(known(**two))
        (low, least), (high, most) = two.items()
        if len(several) == 2 and several[low] > several[high]:
            raise ValueError(f"{low}={least} is above {high}={most}: pass {low} <= {high}")


def whole(*, at_least: int, **settings: Any) -> None:
    """Raises a TypeError unless every number is an integer, and a ValueError unless it is at least `at_least`."""
    for name, number in settings.items():
        try:
            operator.index(number)
        except TypeError:
            raise TypeError(f"{name}={number!r} is not a whole number: pass an int") from None
        if number < at_least:
            raise ValueError(f"{name}={number} is below {at_least}")


def counts(**numbers: Any) -> None:
    """Raises a ValueError unless every number is whole and at least 1."""
    for name, number in numbers.items():
        if not isinstance(number, int | np.integer) or number < 1:
            raise ValueError(f"{name}={number!r} is not a positive whole number")


def key(**keys: Any) -> None:
    """Raises a TypeError unless every argument is one key of `jax.random`, typed or raw, traced or not."""
    for name, one in keys.items():
        dtype = getattr(one, "dtype", None)
        typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
        if not typed and dtype != np.uint32:
            raise TypeError(f"{name}={one!r} is not a key: pass jax.random.key(0), for example")
        if jnp.ndim(one) != (0 if typed else 1):
            raise TypeError(f"{name} has shape {jnp.shape(one)}: pass one key, such as {name}[0]")


def seed(**seeds: Any) -> None:
    """Raises unless every seed is an integer in [0, 2**31), the range that all underlying libraries accept."""
    whole(at_least=0, **seeds)
    for name, number in seeds.items():
        if number >= 2**31:
            raise ValueError(f"{name}={number} is not below 2**31: pass a seed in [0, 2**31)")
