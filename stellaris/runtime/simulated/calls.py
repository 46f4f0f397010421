"""A call on the simulated platform: an invocation, its container, and what a body sees of both."""

from dataclasses import dataclass, field
from typing import Any

import jax

from stellaris.runtime.functions import Function, Invocation
from stellaris.runtime.simulated.course import Course
from stellaris.runtime.simulated.placement import NOWHERE, Place
from stellaris.saved import saved


@saved
@dataclass(eq=False, slots=True)
class Container:
    """A warm place to run: it owns a slot and, from its first body on, a state."""

    number: int
    function: str
    slot: int
    program: Function | None  #: whose `init` made, or will make, its state; None while it is anybody's.
    place: Place = NOWHERE
    provisioned: bool = False
    state: Any = None
    initialised: bool = False
    idle_since: float | None = None
    expiring: bool = False  #: whether an event is due that looks whether it has been idle for too long.
    alive: bool = True
    occupied: bool = False  #: whether a killed body still runs in its slot, which nobody else may have until it ends.
    call: "Call | None" = None  #: that has it.


@saved
@dataclass(eq=False, slots=True)
class Call(Invocation):
    """An invocation, and what the platform needs to know of it besides."""

    program: Function
    args: tuple[Any, ...] | None  #: let go of once it has ended, unless it may be tried again.
    work: float
    nbytes: int  #: of the arguments that are passed by value.
    pool: Any = field(repr=False)  #: its function's containers, a `containers.Pool`.
    course: Course | None  #: None if it meets no fault, and repeats nothing.
    arrived: bool = field(default=False, init=False)  #: whether the instant has come at which it was submitted.
    container: Container | None = field(default=None, init=False)
    resolved: tuple[Any, ...] | None = field(default=None, init=False)
    task: Any = field(default=None, init=False)  #: see `bodies`.


@dataclass(eq=False, slots=True)
class BodyContext:
    """What a body knows of where it runs: the contract's `Context`."""

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
