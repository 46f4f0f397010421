"""Classes that may be saved: the fields and attributes that each declares, and the classes that are refused."""

import dataclasses
import enum
import sys
from typing import NamedTuple

import jax.numpy as jnp
import optax
import pytest

from stellaris.aggregation.gradient_queue import AggregatorState
from stellaris.runtime.state.registry import fields_of, register_part, register_value, value_class

HERE = __name__


@register_value
@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A dataclass with slots, and a field that its constructor does not take."""

    x: int
    cached: int = dataclasses.field(default=0, init=False)


@register_value
class Slotted:
    """A class with slots."""

    __slots__ = ("a", "b")


class Unregistered(NamedTuple):
    """A named tuple that nobody registered."""

    x: int


def test_only_the_class_itself_is_registered() -> None:
    class Sub(Point):
        """Not registered."""

    assert (fields_of(Point), fields_of(Slotted), fields_of(Sub)) == (("x", "cached"), ("a", "b"), None)
    assert value_class(f"{HERE}.Point") is Point
    renamed = register_value(dataclasses.make_dataclass("Point", ["z"], namespace={"__module__": HERE}))
    assert (fields_of(Point), fields_of(renamed)) == (None, ("z",))
    assert fields_of(register_value(Point)) == ("x", "cached")


class Plain:
    """A class whose instances can have any attributes."""


class Loose(NamedTuple("Loose", [("x", int)])):
    """A named tuple that can have more attributes, because it does not declare `__slots__ = ()`."""


@dataclasses.dataclass
class Listing(list):  # type: ignore[type-arg]
    """A class with content other than its fields."""

    x: int = 0


@pytest.mark.parametrize("cls", [Plain, Loose, Listing, int, dict, enum.Enum("Colour", ["RED"])])
def test_classes_with_unknown_fields_are_refused(cls) -> None:
    with pytest.raises(TypeError, match=r"make it a dataclass|content apart from its fields"):
        register_value(cls)


def test_named_tuples_of_libraries() -> None:
    state = optax.adam(1e-3).init(jnp.zeros(2))[0]
    assert fields_of(type(state)) == ("count", "mu", "nu")
    assert value_class("optax._src.transform.ScaleByAdamState") is type(state)
    assert value_class("stellaris.aggregation.gradient_queue.AggregatorState") is AggregatorState


@pytest.mark.parametrize(
    "name",
    [
        *("os.system", "builtins.eval", "subprocess.Popen", "collections.deque", "", ".", "optax", "stellaris."),
        "optax.adam",  # a function
        "optax._src.base.np",  # a module
        "optax.ScaleByAdamState",  # another name of it
        "optax._src.transform.jax.tree.map",
        "stellaris.algorithms.ppo.PPO",  # a dataclass that nobody registered
        "stellaris.nowhere.Thing",
        f"{HERE}.Unregistered",  # a named tuple of another package
    ],
)
def test_other_names_name_no_class(name: str) -> None:
    assert value_class(name) is None


def test_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is not imported stays so, and the `__getattr__` of a lazy one is not called."""
    monkeypatch.delitem(sys.modules, "stellaris.diagnostics", raising=False)
    assert value_class("stellaris.diagnostics.LagReport") is None
    assert "stellaris.diagnostics" not in sys.modules
    lazy = type(sys)("optax.lazy")
    lazy.__getattr__ = lambda name: pytest.fail("it was called")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "optax.lazy", lazy)
    assert value_class("optax.lazy.State") is None


def test_declarations_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match=r"Slotted: name \['b', 'c'\] both in __slots__ and in register_part"):
        register_part("a", rebuilt=("c",))(Slotted)
    with pytest.raises(TypeError, match=r"lacks the method 'jump'"):
        register_part("count", steps=("jump",))(Plain)
