"""Gradients that wait to be applied: their values in the aggregator's queue, and their tasks on the host."""

import contextlib
import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.aggregation.gradient_queue import AggregatorState, Update
from stellaris.aggregation.protocol import Aggregator
from stellaris.runtime.state.registry import register_value
from stellaris.systems.batches import GradientTask
from stellaris.systems.programs import Learned
from stellaris.types import Tree


class Computed(NamedTuple):
    """A gradient that was computed."""

    invocation: int  #: the number of the learner's invocation.
    task: GradientTask


class Popped(NamedTuple):
    """The gradients that leave the queue together."""

    update: Update  #: the update for the parameter function.
    dropped: list[Computed]  #: gradients that are too stale to be applied.
    applied: list[tuple[Computed, int]]  #: gradients to be applied, with the staleness of each, oldest first.


@register_value
@dataclass
class PendingGradients:
    """The queue of an aggregator, with the task of each gradient in it.

    The aggregator's queue is on the device and holds only arrays; the tasks are on the host. Both change together here,
    so that the i-th oldest task always belongs to the i-th oldest gradient.
    """

    queue: AggregatorState
    computed: deque[Computed] = field(default_factory=deque)  #: computed gradients, oldest first, as in the queue.

    def __len__(self) -> int:
        return len(self.computed)

    def __iter__(self) -> Iterator[Computed]:
        return iter(self.computed)

    @property
    def capacity(self) -> int:
        """The number of gradients that the queue can hold."""
        return self.queue.capacity

    def push(self, aggregator: Aggregator, learned: Learned, computed: Computed, learner: int) -> None:
        """Appends a gradient that a learner has computed."""
        self.queue = _push(aggregator, self.queue, learned.gradient, learned.version, learner)
        self.computed.append(computed)

    def ready(self, aggregator: Aggregator, clock: int, round: int) -> bool:
        """Returns whether the aggregator would apply gradients now, in this round, with `clock` the newest version."""
        return bool(_ready(aggregator, self.queue, clock, round))

    def pop(self, aggregator: Aggregator, clock: int, round: int) -> Popped:
        """Removes and returns the gradients that the aggregator applies now, and the stale gradients that it drops."""
        # The queue of many learners is mostly empty. Few rooms are possible, because each has its own program.
        room = 16
        while room < len(self):
            room *= 2
        update, self.queue, numbers = _pop(aggregator, min(room, self.capacity), self.queue, clock, round)
        # `_pop` returns all its numbers in one array, because the host waits for the device at every transfer.
        dropped, count, *staleness = np.asarray(numbers).tolist()
        return Popped(
            update,
            [self.computed.popleft() for _ in range(dropped)],
            [(self.computed.popleft(), versions) for versions in staleness[:count]],
        )


#: JAX's errors for an unknown value where Python or NumPy needs a known one.
_UNKNOWN = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@contextlib.contextmanager
def _traced(aggregator: Aggregator, method: str) -> Iterator[None]:
    """Replaces JAX's error for a Python branch on an unknown value by one that names the aggregator's method."""
    try:
        yield
    except _UNKNOWN as error:
        raise TypeError(
            f"aggregator={aggregator!r}: `{method}` is compiled, so Python cannot know the numbers in it: write "
            "jnp.where instead of `if`, and & and | instead of `and` and `or`"
        ) from error


# The functions below are compiled once for equal aggregators. The queue is donated, so that it is updated in place: it
# is the largest object that changes with every gradient.


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _push(aggregator: Aggregator, queue: AggregatorState, gradient: Tree, version: Any, learner: Any) -> Any:
    with _traced(aggregator, "push"):
        return aggregator.push(queue, gradient, version, learner=learner)


@functools.partial(jax.jit, static_argnums=0)
def _ready(aggregator: Aggregator, queue: AggregatorState, clock: Any, round: Any) -> Any:
    with _traced(aggregator, "ready"):
        return aggregator.ready(queue, clock, round)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _pop(
    aggregator: Aggregator, room: int, queue: AggregatorState, clock: Any, round: Any
) -> tuple[Update, AggregatorState, jax.Array]:
    with _traced(aggregator, "pop"):
        update, queue = aggregator.pop(queue, clock, round)
    if jnp.ndim(update.scale):
        # A sequential update is as large as the queue, but only these rows are made: to write all of a queue of 64
        # learners would take several times as long as a gradient.
        rows = update.gradient, update.scale, update.staleness
        gradient, scale, staleness = jax.tree.map(lambda x: x[:room], rows)
        update = update._replace(gradient=gradient, scale=scale, staleness=staleness)
    numbers = [jnp.ravel(jnp.asarray(x, jnp.int32)) for x in (update.dropped, update.count, update.staleness)]
    return update, queue, jnp.concatenate(numbers)
