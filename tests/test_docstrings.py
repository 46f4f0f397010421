"""Every public name of the pure layer is documented in the same sections, and its parameters by name."""

import inspect
import re
from pathlib import Path

import pytest

import stellaris
import stellaris.algorithms

ROOT = Path(stellaris.__file__).parent
#: The modules of the pure layer: every public name of theirs is exported from `stellaris`.
MODULES = {
    f"stellaris.{name}"
    for name in ("advantages", "losses", "reductions", "returns", "distributions", "diagnostics", "pacing")
}
MODULES |= {
    f"stellaris.{room}.{path.stem}"
    for room in ("corrections", "aggregation")
    for path in (ROOT / room).glob("*.py")
    if path.stem != "__init__"
}

#: The algorithms' functions, which are not exported at the top.
LEARNING = {"gradient": stellaris.algorithms.gradient, "update": stellaris.algorithms.update}
PUBLIC = {
    name: value
    for name, value in ({name: getattr(stellaris, name) for name in stellaris.__all__} | LEARNING).items()
    if (module := getattr(value, "__module__", "")) in MODULES or module.startswith("stellaris.algorithms.")
}
FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)}
METHODS = {
    f"{name}.{method}": function
    for name, value in PUBLIC.items()
    if inspect.isclass(value)
    for method, function in vars(value).items()
    if inspect.isfunction(function) and not method.startswith("_")
}


def sections(function):
    """The docstring's sections by name, each with its lines, less the indentation that they share."""
    parts = re.split(r"^(\w+):\n", inspect.getdoc(function) or "", flags=re.MULTILINE)
    return {name: inspect.cleandoc("\n" + text) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def documented(function):
    """The parameters that `Args` names, in order."""
    return re.findall(r"^\*{0,2}(\w+): \S", sections(function)["Args"], flags=re.MULTILINE)


def test_every_module_exports_a_name():
    """No module of the layer goes unseen."""
    assert {value.__module__ for value in PUBLIC.values()} >= MODULES
    assert len(FUNCTIONS) >= 25
    assert {"gae", "vtrace", "PPO", "LagReport", "Update", "Categorical", "gradient"} <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_example(name):
    """An example that doctest runs."""
    assert re.search(r"^>>> ", sections(PUBLIC[name]).get("Example", ""), flags=re.MULTILINE)


@pytest.mark.parametrize("section", ["Args", "Returns", "Raises", "Source"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sections(name, section):
    """What goes in, what comes out, what goes wrong and whose idea it was: none of them empty."""
    assert sections(FUNCTIONS[name]).get(section, "").strip()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_are_documented(name):
    """Each one, in the signature's order, and none that there is not."""
    assert documented(FUNCTIONS[name]) == list(inspect.signature(FUNCTIONS[name]).parameters)


@pytest.mark.parametrize("name", [name for name in METHODS if "Args" in sections(METHODS[name])])
def test_parameters_of_methods_are_documented(name):
    """The same of methods that document any."""
    assert documented(METHODS[name]) == list(inspect.signature(METHODS[name]).parameters)[1:]
