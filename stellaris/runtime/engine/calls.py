"""The engine's records: a call, its container, and the context that its body gets."""

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
    """A place where bodies run one at a time: it has a slot and, from its first body on, a state."""

    number: int
    function: str
    slot: int
    program: Function | None  #: the program whose `init` makes its state; None until a program has used it.
    place: Place = NOWHERE
    provisioned: bool = False
    state: Any = None
    initialised: bool = False
    idle_since: float | None = None
    expiring: bool = False  #: whether an event is scheduled that checks how long it has been idle.
    alive: bool = True
    occupied: bool = False  #: whether a killed body still runs in its slot, which must not be reused before it ends.
    starting: bool = False  #: whether the body runner is still making it, which takes an unknown time.
    awaited: bool = False  #: whether its drawn cold start is over while it is still `starting`.
    handle: Any = None  #: the body runner's own, such as a reference to a process.
    call: "Call | None" = None  #: the call that has it.


@register_value
@dataclass(eq=False, slots=True)
class Call(Invocation):
    """An invocation with the platform's own fields."""

    program: Function
    args: tuple[Any, ...] | None  #: None once it has ended and cannot be retried, to free memory.
    work: float
    nbytes: int  #: of the arguments that are passed by value.
    pool: Any = field(repr=False)  #: its function's `containers.Pool`; Any, because that module imports this one.
    course: Course | None  #: None if it meets no fault and repeats no recorded call.
    arrived: bool = field(default=False, init=False)  #: whether its submission is in the trace, at its instant.
    container: Container | None = field(default=None, init=False)
    resolved: tuple[Any, ...] = field(default=(), init=False)  #: its arguments from its start to its end.
    task: Any = field(default=None, init=False)  #: the body runner's own; None until its body is started.


@dataclass(eq=False, slots=True)
class BodyContext:
    """The `functions.Context` of one call's body."""

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
        # The number alone counts: the key depends neither on the container nor on the order in which bodies really run.
        return jax.random.fold_in(self.root_key, self.number)
