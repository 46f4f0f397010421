"""Errors for values that cannot be sent to another process, because a part of them cannot be pickled."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any


def refused(value: Any, what: str, error: Exception, dumps: Callable[[Any], bytes]) -> TypeError:
    """Returns the error for a value that cannot be pickled; the error names the innermost part at fault.

    Args:
      value: the value.
      what: a name of the value.
      error: the error of pickling it.
      dumps: the function that pickles values.
    """
    where, culprit = _culprit(value, "", dumps)
    return TypeError(
        f"{what} cannot be sent to another process: {where or 'it'} is {culprit!r:.100} ({error}): have the body or "
        "`init` make it in the container instead"
    )


def _culprit(value: Any, where: str, dumps: Callable[[Any], bytes], depth: int = 8) -> tuple[str, Any]:
    """Finds the innermost part of a value that cannot be pickled; returns the path to it, and the part."""
    # The search ends after `depth` levels, because parts may refer to one another in a circle.
    for name, part in _parts(value) if depth else ():
        try:
            dumps(part)
        except Exception:
            return _culprit(part, f"{where}.{name}" if where else name, dumps, depth - 1)
    return where, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parts of a value by name; for a function, the variables that it refers to."""
    if isinstance(value, functools.partial):
        value = {"func": value.func, "args": value.args, "keywords": value.keywords}
    if inspect.ismethod(value):
        yield "self", value.__self__
    elif inspect.isfunction(value):
        yield from _variables(value)
    elif isinstance(value, Mapping):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(i), part) for i, part in enumerate(value))
    else:
        yield from getattr(value, "__dict__", {}).items()


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the variables that a function refers to, if they have a value."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell: the variable is assigned later
            yield name, cell.cell_contents
    yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
