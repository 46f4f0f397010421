"""Settings from the command line: any field of a system, its workload, its deployment or its budget, by its name."""

import ast
import dataclasses
import difflib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import stellaris
from experiments.tasks import presets
from experiments.tasks.presets import Contender
from experiments.toolkit.shell import UsageError
from stellaris import acting, runtime, systems
from stellaris.runtime import FunctionSpec, delays
from stellaris.systems import Budget, System, Workload

#: From so many names on, a message does not list them.
_MANY = 30
#: The first words of the settings that are not fields of the system itself.
_WORKLOAD, _PLATFORM, _BUDGET = "workload", "platform", "budget"
_EXAMPLES = {
    _WORKLOAD: "workload.actors=8",
    _PLATFORM: "platform.learner.compute=Constant(0.1)",
    _BUDGET: "budget.seconds=60",
}


@dataclass(frozen=True)
class Setup:
    """A system on a workload, its deployment and its budget."""

    contender: Contender
    workload: Workload
    budget: Budget


def named(text: str) -> tuple[str, str]:
    """Splits `NAME=VALUE`.

    Raises:
      UsageError: if the text lacks an equals sign or a name.
    """
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UsageError(f"{text}: expected NAME=VALUE, such as algorithm.clip=0.1")
    return name, value


def swept(axes: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """Yields every combination of the values of axes, each `NAME=VALUE,VALUE,...`, as the texts of the values.

    Example:
      >>> [*swept(["learners=1,2", "platform.learner.compute=LogNormal(0.02, 1.0)"])][1]
      {'learners': '2', 'platform.learner.compute': 'LogNormal(0.02, 1.0)'}
    """
    pairs = [named(axis) for axis in axes]
    for chosen in itertools.product(*(_separated(values) for _, values in pairs)):
        yield dict(zip((name for name, _ in pairs), chosen, strict=True))


def _separated(values: str) -> list[str]:
    """Splits a text at the commas outside of parentheses."""
    return [ast.unparse(element) for element in _parsed(f"({values},)").elts]


def applied(setup: Setup, settings: Mapping[str, str]) -> Setup:
    """Returns a setup with settings changed, in any order.

    The deployment follows from the system: with more learners there are more learner functions, for instance.
    `platform` settings are applied to this deployment.

    Args:
      setup: the setup.
      settings: the texts of values by name, such as `algorithm.clip`, `workload.actors`, `platform.learner.compute`,
        `budget.seconds`, or a field of the system.

    Raises:
      UsageError: if a name or a value is unknown, or a value is refused; the message has the setting.
    """
    system: Any = setup.contender.system
    workload, budget, functions = setup.workload, setup.budget, {}
    for name, text in settings.items():
        first, *rest = name.split(".")
        if first in (_WORKLOAD, _PLATFORM, _BUDGET) and not rest:
            raise UsageError(f"{name}={text}: name a field of it, such as {_EXAMPLES[first]}")
        if first == _WORKLOAD:
            workload = _changed(workload, rest, text, name)
        elif first == _BUDGET:
            budget = _changed(budget, rest, text, name)
        elif first == _PLATFORM:
            functions[name] = text
        else:
            system = _changed(system, [first, *rest], text, name)
    contender = _deployed(setup.contender, system, workload)
    deployed: Mapping[str, FunctionSpec] = contender.functions
    for name, text in functions.items():
        deployed = _changed(deployed, name.split(".")[1:], text, name)
    return Setup(dataclasses.replace(contender, functions=deployed), workload, budget)


def _deployed(contender: Contender, system: System, workload: Workload) -> Contender:
    """Returns the contender with a system, deployed for it and for the workload's number of actors."""
    return presets.contender(
        contender.name, system, colour=contender.colour, line=contender.line, actors=workload.actors
    )


def _changed(value: Any, path: Sequence[str], text: str, name: str) -> Any:
    """Returns a value with the field at a path replaced by the value that a text names."""
    if not path:
        return value_of(text, name)
    first, *rest = path
    if isinstance(value, Mapping):
        if first not in value:
            raise UsageError(f"{name}: {first!r} is not deployed; choose one of {', '.join(value)}")
        return {**value, first: _changed(value[first], rest, text, name)}
    fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    if first not in fields:
        raise UsageError(f"{name}: {type(value).__name__} has no field {first!r}; {_suggestion(first, fields)}")
    try:
        return dataclasses.replace(value, **{first: _changed(getattr(value, first), rest, text, name)})
    except (TypeError, ValueError, LookupError) as error:
        raise UsageError(f"{name}={text}: {error}") from error


def _suggestion(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    if not known:
        return "it has no fields; give the whole value"
    return f"choose one of {', '.join(known)}" if len(known) < _MANY else "see the API reference"


# ---- values ----------------------------------------------------------------------------------------------------------


#: The modules whose public names a value may call.
_MODULES = (stellaris, systems, acting, runtime, delays)


def _public(name: str) -> Any:
    """Returns the public class, or function that makes an aggregator or an environment, of this name; else None."""
    if name.startswith("_"):
        return None
    found = (getattr(module, name, None) for module in _MODULES)
    return next((one for one in found if _makes_settings(one)), None)


def _makes_settings(one: Any) -> bool:
    """Whether a class or a function of the library makes values of settings, and does nothing else."""
    module = getattr(one, "__module__", None) or ""
    if isinstance(one, type):
        return module.startswith("stellaris.")
    return callable(one) and (module.startswith("stellaris.aggregation.") or one is acting.configure)


def value_of(text: str, name: str = "value") -> Any:
    """Returns the value that a text names: a literal, a word, or a call of a public name of the library.

    A word that is not a public name is a string. `inf` is infinity, `none`, `true` and `false` as in JSON.

    Args:
      text: the text.
      name: the name of the setting, for messages.

    Raises:
      UsageError: if the text is not such a value, or the called name refuses its arguments.

    Example:
      >>> value_of("0.1"), value_of("sequential"), value_of("(64, 64)"), value_of("LogNormal(0.02, 1.0)")
      (0.1, 'sequential', (64, 64), LogNormal(mean=0.02, cv=1.0))
    """
    try:
        return _evaluated(_parsed(text))
    except UsageError as error:
        raise UsageError(f"{name}={text}: {error}") from error
    except (TypeError, ValueError, LookupError) as error:
        raise UsageError(f"{name}={text}: {error}") from error


def _parsed(text: str) -> Any:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        raise UsageError(
            f"{text!r} is not a value: give a number, a word, a tuple, or a call such as Constant(0.1)"
        ) from None


_WORDS = {"inf": math.inf, "none": None, "true": True, "false": False}


def _evaluated(node: Any) -> Any:
    """Evaluates an expression of literals, words and calls; nothing else, so that a text cannot run other code."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=word) if word.lower() in _WORDS:
            return _WORDS[word.lower()]
        case ast.Name(id=word):
            return word
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluated(operand)
        case ast.Tuple(elts=elements):
            return tuple(map(_evaluated, elements))
        case ast.List(elts=elements):
            return [*map(_evaluated, elements)]
        case ast.Dict(keys=keys, values=values):
            return dict(zip(map(_evaluated, keys), map(_evaluated, values), strict=True))
        case ast.Call(func=ast.Name(id=called), args=arguments, keywords=keywords):
            function = _public(called)
            if function is None:
                known = [word for module in _MODULES for word in dir(module) if _public(word) is not None]
                raise UsageError(f"{called!r} is not a public name of the library; {_suggestion(called, known)}")
            options = {str(one.arg): _evaluated(one.value) for one in keywords}
            return function(*map(_evaluated, arguments), **options)
    raise UsageError(f"{ast.unparse(node)!r} is not a value: give a number, a word, a tuple, or a call")
