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
    expiring: bool = False  #: whether an event is scheduled that checks how long the container has been idle.
    alive: bool = True
    occupied: bool = False  #: whether a killed body still runs in its slot, which is not reused before the body ends.
    starting: bool = False  #: whether the body runner is still making it, which takes real time.
    awaited: bool = False  #: whether its drawn cold start is over while it is still `starting`.
    handle: Any = None  #: data of the body runner, such as a reference to a process.
    call: "Call | None" = None  #: the call that has the container.


@register_value
@dataclass(eq=False, slots=True)
class Call(Invocation):
    """An invocation, with the fields that only the platform uses."""

    program: Function
    args: tuple[Any, ...] | None  #: None once the call has ended and cannot be retried, to free memory.
    work: float
    nbytes: int  #: bytes of the arguments that are passed by value.
    pool: Any = field(repr=False)  #: the function's `containers.Pool`; Any, because that module imports this one.
    course: Course | None  #: None if the call meets no fault and repeats no recorded call.
    arrived: bool = field(default=False, init=False)  #: whether the trace has its submission yet.
    container: Container | None = field(default=None, init=False)
    resolved: tuple[Any, ...] = field(default=(), init=False)  #: the resolved arguments, from start to end.
    task: Any = field(default=None, init=False)  #: data of the body runner; None until the body is started.
    returned: float = field(default=0.0, init=False)  #: on the wall clock: when the body returned.


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
        """The random key of this invocation."""
        # The key depends on the number alone: not on the container, nor on the order in which bodies really run.
        return jax.random.fold_in(self.root_key, self.number)
