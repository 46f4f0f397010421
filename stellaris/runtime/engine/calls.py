"""A call on the simulated platform: an invocation, its container, and the context that its body gets."""

from dataclasses import dataclass, field
from typing import Any

import jax

from stellaris.runtime.engine.course import Course
from stellaris.runtime.engine.placement import NOWHERE, Place
from stellaris.runtime.functions import Function, Invocation
from stellaris.runtime.state.registry import register_value


@register_value
@dataclass(eq=False, slots=True)
class Container:
    """A warm place to run: it has a slot and, from its first body on, a state."""

    number: int
    function: str
    slot: int
    program: Function | None  #: whose `init` makes its state; None as long as no program has used it.
    place: Place = NOWHERE
    provisioned: bool = False
    state: Any = None
    initialised: bool = False
    idle_since: float | None = None
    expiring: bool = False  #: whether there is an event to check how long it has been idle.
    alive: bool = True
    occupied: bool = False  #: whether a killed body still runs in its slot, which must then not be given away.
    starting: bool = False  #: whether it is really being made, elsewhere; nobody knows how long that takes.
    awaited: bool = False  #: whether its drawn cold start is over, and the real one is waited for.
    handle: Any = None  #: where it really is: whoever runs the bodies knows what this is.
    call: "Call | None" = None  #: the call that it runs.


@register_value
@dataclass(eq=False, slots=True)
class Call(Invocation):
    """An invocation, and what else the platform needs to know of it."""

    program: Function
    args: tuple[Any, ...] | None  #: None once it has ended and will not be tried again, to free memory.
    work: float
    nbytes: int  #: of the arguments that are passed by value.
    pool: Any = field(repr=False)  #: its function's containers, a `containers.Pool`.
    course: Course | None  #: None if it meets no fault and repeats no recorded call.
    arrived: bool = field(default=False, init=False)  #: whether the instant has come for which it was submitted.
    container: Container | None = field(default=None, init=False)
    resolved: tuple[Any, ...] | None = field(default=None, init=False)
    task: Any = field(default=None, init=False)  #: see `bodies`.


@dataclass(eq=False, slots=True)
class BodyContext:
    """The `functions.Context` that a body gets."""

    container: Container
    root_key: jax.Array
    number: int
    attempt: int
    now: float

    @property
    def slot(self) -> int:
        """The container's slot."""
        return self.container.slot

    @property
    def state(self) -> Any:
        """The container's state."""
        return self.container.state

    @state.setter
    def state(self, state: Any) -> None:
        self.container.state = state

    @property
    def key(self) -> jax.Array:
        """This invocation's own random key."""
        return jax.random.fold_in(self.root_key, self.number)
