"""Configurations as plain data: alike if they act alike, different where they differ, and JSON."""

import functools
import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import IMPALA, PPO, staleness_aware
from stellaris._core.describe import describe, differences, digest, methods
from stellaris.runtime import Deployment, Faults, FunctionSpec, delays
from stellaris.systems import Stellaris, Workload


@dataclass(frozen=True)
class _Inner:
    numbers: tuple[float, ...] = (1.0, math.inf)


@dataclass(frozen=True)
class _Outer:
    inner: _Inner = _Inner()
    cache: Any = field(default=None, repr=False, compare=False)


class _Plain:
    def __init__(self, x: int) -> None:
        self.x = x


class _Slots:
    __slots__ = ("x",)

    def __init__(self, x: int) -> None:
        self.x = x


class _Named:
    """Has a text of its own, which leaves out what it holds."""

    def __init__(self, x: int) -> None:
        self.x = x

    def __repr__(self) -> str:
        return "_Named()"

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.x


@dataclass(frozen=True)
class _Hidden:
    x: int = field(repr=False)


def _scaled(factor: float) -> Any:
    return lambda x: factor * x


def _member(members: frozenset[int]) -> Any:
    """A function that has a set among its constants, in the order of this one: which differs between processes."""

    def function(x: int) -> bool:
        return x in {0, 8}

    constants = [members if isinstance(constant, frozenset) else constant for constant in function.__code__.co_consts]
    function.__code__ = function.__code__.replace(co_consts=tuple(constants))
    return function


def _calls_what_is_not_there_yet() -> Any:
    def first() -> Any:
        return second()

    found = describe(first)

    def second() -> None:
        """Is defined after it was needed."""

    return found


@pytest.mark.parametrize(
    "value",
    [
        _Outer(),
        PPO(learning_rate=optax.linear_schedule(1e-3, 0.0, 100)),
        Deployment({"f": FunctionSpec(delays.Empirical(list(np.arange(1.0, 200.0))))}),
        {"seed": np.int32(3), "array": np.arange(3.0), "function": math.sqrt, "own": _scaled(2.0), "class": PPO},
        functools.partial(optax.adam, 1e-3),
        {"b", "a"},
    ],
)
def test_a_description_is_json_and_the_same_every_time(value: Any) -> None:
    described_twice = [json.dumps(describe(value), allow_nan=False) for _ in range(2)]
    assert described_twice[0] == described_twice[1]
    assert "0x" not in described_twice[0]


def _different(one: Any, other: Any) -> list[str]:
    # As a checkpoint is compared: one of the two has been in a file.
    return [name for name, _, _ in differences(describe(one), json.loads(json.dumps(describe(other))))]


def test_what_acts_alike_is_described_alike() -> None:
    schedules = [PPO(learning_rate=optax.linear_schedule(1e-3, 0.0, 100)) for _ in range(2)]
    assert _different(*schedules) == []
    assert _different(_Outer(cache=1), _Outer(cache=2)) == []  # what a class does not show of itself
    assert _different([1, 2], (1, 2)) == []
    assert _different(_scaled(2.0), _scaled(2.0)) == []
    one, other = frozenset((0, 8)), frozenset((8, 0))
    assert one == other
    assert repr(one) != repr(other)
    assert _different(_member(one), _member(other)) == []
    assert _calls_what_is_not_there_yet() == _calls_what_is_not_there_yet()
    used = _Named(1)
    assert used.twice == 2
    assert _different(used, _Named(1)) == []
    assert _different(np.float32(0.5), jnp.asarray(0.5)) == []
    path = Path("a", "b")
    before = describe(path)
    assert hash(path)
    assert path.parts
    assert describe(path) == before


@pytest.mark.parametrize(
    ("one", "other", "where"),
    [
        (
            PPO(learning_rate=optax.linear_schedule(1e-3, 0.0, 100)),
            PPO(learning_rate=optax.linear_schedule(1e-3, 0.0, 200)),
            ["learning_rate.closure.transition_steps"],
        ),
        (PPO(), IMPALA(), [""]),
        (_Outer(), _Outer(_Inner((1.0, 2.0))), ["inner.numbers[1]"]),
        ({"x": True}, {"x": 1}, ["x"]),
        (_scaled(2.0), _scaled(3.0), ["closure.factor"]),
        (lambda x: x + 1, lambda x: x + 2, ["code"]),
        (lambda: lambda: lambda x: x + 1, lambda: lambda: lambda x: x + 2, ["code"]),
        (jax.jit(_scaled(2.0)), jax.jit(_scaled(3.0)), ["closure.factor"]),
        (functools.partial(optax.adam, 1e-3), functools.partial(optax.adam, 1e-2), ["args[0]"]),
        (np.zeros(100), np.ones(100), ["sha256"]),
        (_Plain(1), _Plain(2), ["x"]),
        (_Slots(1), _Slots(2), ["x"]),
        (_Hidden(1), _Hidden(2), ["x"]),
        (_Named(1), _Named(2), ["x"]),
        (np.array([_Plain(1), None], object), np.array([_Plain(2), None], object), ["values[0].x"]),
        (np.arange(5000).astype(object), np.array([*range(4999), 0], object), ["values[4999]"]),
        (np.ones(2, np.float32), np.ones(2), ["dtype"]),
        (np.zeros((0, 2)), np.zeros((0, 3)), ["shape[1]"]),
        (jax.random.key(0), jax.random.key(1), ["data.values[1]"]),
        (np.random.default_rng(0), np.random.default_rng(0).spawn(1)[0], ["state.inc", "state.state"]),
    ],
)
def test_what_differs_is_named(one: Any, other: Any, where: list[str]) -> None:
    assert _different(one, other) == where


def test_a_nested_difference_has_the_name_of_the_whole() -> None:
    specs = {"f": FunctionSpec(delays.Constant(1.0))}
    other = {"f": replace(specs["f"], timeout=3.0)}
    assert list(differences(describe(specs), describe(other), "functions")) == [("functions.f.timeout", None, 3.0)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Deployment({"f": FunctionSpec(delays.Constant(1.0))}, faults={"f": Faults()}),
        lambda: Stellaris(PPO(clip=0.1), aggregator=staleness_aware(4, decay=0.9)),
        lambda: Workload("CartPole-v1", actors=3),
    ],
)
def test_configurations_are_values(make: Any) -> None:
    one, other = make(), make()
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)


def test_what_differs_has_another_digest() -> None:
    one = Faults(at={3: ("lose",), 4: ("duplicate",)})
    assert digest(one) == digest(Faults(at={4: ("duplicate",), 3: ("lose",)}))
    assert digest(one) != digest(Faults(at={3: ("lose",)}))


def test_what_holds_itself_ends() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert describe(loop) == ["(itself)"]


def _gain(x):
    return 2.0 * x


_BIAS = 1.0


def _static(body):
    class Own:
        act = staticmethod(body)

    return Own()


def _property(body):
    class Own:
        act = property(body)

    return Own()


def _cached(body):
    class Own:
        act = functools.cached_property(body)

    return Own()


def _compiled(body):
    class Own:
        act = functools.partial(jax.jit, static_argnums=())(body)

    return Own()


def _constant(body):
    class Own:
        size = body(1.0)

    return Own()


def _default(body):
    class Own:
        def act(self, size=body(1.0)):  # noqa: B008
            return size

    return Own()


@pytest.mark.parametrize("make", [_static, _property, _cached, _compiled, _constant, _default])
def test_the_code_of_a_class_is_all_of_it(make):
    """Not only that of plain methods: an edit of anything that a class holds is seen."""
    first, same, other = (make(body) for body in (lambda x: 2.0 * x, lambda x: 2.0 * x, lambda x: 3.0 * x))
    assert methods(first) == methods(same) != methods(other)


def _task(body):
    class Task:
        def reward(self, x):
            return body(x)

    return Task()


_HOLDS = {
    "a field": lambda one: _Hidden(one),
    "an attribute": lambda one: _Named(one),
    "an item": lambda one: {"a": [one]},
    "an argument": lambda one: functools.partial(print, one),
    "a captured value": lambda one: lambda: one,
    "its class": lambda one: _Hidden(type(one)),
    "a method": lambda one: _Hidden(one.reward),
}


@pytest.mark.parametrize("holds", _HOLDS)
def test_the_code_of_what_a_value_holds_belongs_to_it(holds):
    first, same, other = (_task(body) for body in (lambda x: 2.0 * x, lambda x: 2.0 * x, lambda x: 3.0 * x))
    if holds == "its class":  # whose code does not capture the function, as that of an object does
        type(other).extra = 1.0
    first, same, other = (methods(_HOLDS[holds](one)) for one in (first, same, other))
    assert first == same != other


def test_the_code_of_classes_with_one_name():
    double, triple, last = (_task(body) for body in (lambda x: 2.0 * x, lambda x: 3.0 * x, lambda x: 4.0 * x))
    assert methods([double, last]) != methods([triple, last])


def test_the_code_of_a_named_function_in_a_field():
    """Its description is its name alone."""
    first, same, other = ({}, {}, {})
    for written, rate in ((first, 1e-3), (same, 1e-3), (other, 1e-1)):
        exec(f"def rate(step):\n    return {rate}", written)
    first, same, other = (PPO(learning_rate=written["rate"]) for written in (first, same, other))
    assert describe(first) == describe(other)
    assert methods(first) == methods(same) != methods(other)


class _Helped:
    def act(self, x):
        return [_gain(y) + _BIAS for y in (x,)]


def test_the_code_of_a_class_includes_its_helpers(monkeypatch):
    """The functions and constants of the module that methods name, also in nested functions."""
    before = methods(_Helped())
    for name, edited in (("_gain", lambda x: 3.0 * x), ("_BIAS", 2.0)):
        with monkeypatch.context() as patch:
            patch.setitem(globals(), name, edited)
            assert methods(_Helped()) != before
        assert methods(_Helped()) == before
