"""Every public name of the pure layer is documented in the same sections, and its parameters by name."""

import inspect
import re

import pytest

import stellaris
import stellaris.algorithms

LAYERS = (
    "returns truncation losses log_ratios behaviour_weights trust_regions effective_samples pacing staleness "
    "thresholds gradient_queue aggregation synchronisation updates compensation diagnostics algorithms distributions"
)
PURE = re.compile(rf"stellaris\.({'|'.join(LAYERS.split())})(\.\w+)*")

#: Of the algorithms' functions those that are not exported at the top.
LEARNING = {"gradient": stellaris.algorithms.gradient, "update": stellaris.algorithms.update}
PUBLIC = {
    name: value
    for name, value in (vars(stellaris) | LEARNING).items()
    if PURE.fullmatch(getattr(value, "__module__", ""))
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


def test_the_whole_layer_is_looked_at():
    """One name of every module, so that none goes by unseen."""
    assert {PURE.fullmatch(value.__module__)[1] for value in PUBLIC.values()} == set(LAYERS.split())
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


def test_classes_of_algorithms_name_their_source():
    """Papers, so that their constants can be looked up."""
    assert all("Source" in sections(stellaris.__dict__[name]) for name in ("PPO", "IMPALA", "IMPACT"))
