"""Classes that may be saved: what each declares, and what is refused at once."""

import dataclasses
import enum
import sys
from typing import NamedTuple

import jax.numpy as jnp
import optax
import pytest

from stellaris.aggregation.gradient_queue import AggregatorState
from stellaris.runtime.state import registry as module
from stellaris.runtime.state.registry import (
    error_class,
    fields_of,
    part_of,
    parts_within,
    register_part,
    register_value,
    undeclared,
    value_class,
)

HERE = __name__


@register_value
class Pair(NamedTuple):
    """A named tuple."""

    x: int
    y: int


@register_value
@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A dataclass with slots, and a field that its constructor does not take."""

    x: int
    cached: int = dataclasses.field(default=0, init=False)


@register_value
class Slotted:
    """Neither, but of known attributes."""

    __slots__ = ("a", "b")


@register_value
class OwnError(ValueError):
    """An exception."""


@pytest.mark.parametrize(
    ("cls", "names"),
    [(Pair, ("x", "y")), (Point, ("x", "cached")), (Slotted, ("a", "b")), (OwnError, ("args",))],
)
def test_registered_classes(cls, names) -> None:
    """Are found by their full names, and their fields are known."""
    assert fields_of(cls) == names
    assert value_class(f"{HERE}.{cls.__name__}") is cls


def test_only_the_class_itself() -> None:
    """A subclass, an older one of its name, or one of another name is another."""

    class Sub(Point):
        """Not registered."""

    assert fields_of(Sub) is None
    before = Point
    renamed = register_value(dataclasses.make_dataclass("Point", ["z"], namespace={"__module__": HERE}))
    assert fields_of(before) is None
    assert fields_of(renamed) == ("z",)
    assert fields_of(register_value(before)) == ("x", "cached")


class Plain:
    """Can have any attributes."""


class Loose(NamedTuple("Loose", [("x", int)])):
    """A named tuple that can have more attributes, because it does not say `__slots__ = ()`."""


@dataclasses.dataclass
class Listing(list):  # type: ignore[type-arg]
    """More than its fields."""

    x: int = 0


@pytest.mark.parametrize("cls", [Plain, Loose, Listing, int, dict, enum.Enum("Colour", ["RED"])])
def test_classes_of_unknown_fields_are_refused(cls) -> None:
    """When they are registered, with what to do."""
    with pytest.raises(TypeError, match=r"make it a dataclass|more than its fields"):
        register_value(cls)


def test_what_is_no_class_is_refused(unchecked: None) -> None:
    """An instance, for one."""
    with pytest.raises(TypeError, match=r"expected a class"):
        register_value(Pair(1, 2))


def test_named_tuples_of_libraries() -> None:
    """Those of stellaris and optax are known, wherever they are defined; nothing else of theirs is."""
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
        "stellaris.envs.EnvPoolEnv",
        "stellaris.nowhere.Thing",
        "jax.ShapeDtypeStruct",
    ],
)
def test_other_names_are_of_no_class(name: str) -> None:
    """Whatever they name elsewhere."""
    assert value_class(name) is None


def test_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that nobody has imported is not, and a lazy one's `__getattr__` is not asked."""
    monkeypatch.delitem(sys.modules, "stellaris.diagnostics", raising=False)
    assert value_class("stellaris.diagnostics.LagReport") is None
    assert "stellaris.diagnostics" not in sys.modules
    lazy = type(sys)("optax.lazy")
    lazy.__getattr__ = lambda name: pytest.fail("it was asked")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "optax.lazy", lazy)
    assert value_class("optax.lazy.State") is None


def test_exceptions() -> None:
    """Python's own, and registered ones; not what only ends the interpreter."""
    assert error_class("builtins.KeyError") is KeyError
    assert error_class(f"{HERE}.OwnError") is OwnError
    for name in (
        "builtins.SystemExit",
        "builtins.eval",
        "builtins.int",
        "json.decoder.JSONDecodeError",
        f"{HERE}.Pair",
    ):
        assert error_class(name) is None


@register_part("count", rebuilt=("limit", "inner", "named"), steps=("step",))
class Whole:
    """A part with parts."""

    def __init__(self) -> None:
        self.count = 0
        self.limit = 3
        self.inner = Inner()
        self.named = {"a": Inner(), "b": self.inner, "c": 4}

    def step(self) -> None:
        """May be referred to."""


@register_part("x")
class Inner:
    """A part of a part."""

    __slots__ = ("x",)


def test_parts_are_found_within_what_is_rebuilt() -> None:
    """Each once, by the way that leads to it."""
    whole = Whole()
    assert parts_within({"w": whole}) == {"w": whole, "w.inner": whole.inner, "w.named.a": whole.named["a"]}
    assert part_of(Whole).steps == ("step",)  # type: ignore[union-attr]
    with pytest.raises(TypeError, match=r"w is a builtins\.int, which does not say what its state is"):
        parts_within({"w": 3})


def test_declarations_that_do_not_fit() -> None:
    """Are refused at once, where the class says what attributes it has."""
    with pytest.raises(TypeError, match=r"test_saved\.Slotted: \['b', 'c'\] in its __slots__ or here alone"):
        register_part("a", rebuilt=("c",))(Slotted)
    with pytest.raises(TypeError, match=r"has no method 'jump'"):
        register_part("count", steps=("jump",))(Whole)


def test_attributes_beside_the_fields() -> None:
    """Are named, unless they are computed from these."""
    whole = Whole()
    assert undeclared(whole, ("count", "limit", "inner")) == ["named"]
    assert undeclared(Slotted(), ()) == []


def test_the_libraries_are_known() -> None:
    """A list of two."""
    assert module.NAMED_TUPLES_OF == ("optax", "stellaris")
