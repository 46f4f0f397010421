"""The `Aggregator` protocol: when queued gradients are applied, which of them, and with which weights."""

import dataclasses
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from stellaris._core import checks
from stellaris.aggregation import gradient_queue
from stellaris.aggregation.gradient_queue import AggregatorState, Update
from stellaris.types import Tree

T = TypeVar("T")


@runtime_checkable
class Aggregator(Protocol):
    """Decides when queued gradients are applied, which of them, and with which weights.

    Its methods are five pure functions over a state that holds the queue. All can be jitted; the capacity is static.
    The argument `clock` is the newest version of the parameters, and `round` is the number of batches that have been
    made, as for `staleness_threshold`. Only thresholds that decay read it; in a loop without batches it is the number
    of gradients divided by the number of learners.

    The library's functions that make aggregators, such as `staleness_aware`, return frozen dataclasses with the
    settings as fields, so that `dataclasses.replace` changes a setting. They print as the call that makes them.
    Aggregators with equal settings are equal and have equal hashes, so an aggregator can be a static argument of
    `jax.jit`. They are also trees, whose leaves are the numbers that `vmap` can sweep; with traced numbers they can be
    neither compared nor hashed.

    Any object with these methods is an aggregator. Build it on `stellaris.aggregation.gradient_queue`, and make it a
    frozen dataclass, so that it has equality and a hash. If it waits for every learner, give it an attribute
    `learners`, the number of learners: a system with fewer learners then refuses it, instead of waiting forever.

    Example:
      >>> import jax.numpy as jnp
      >>> from dataclasses import dataclass
      >>> from stellaris import staleness_weight
      >>> from stellaris.aggregation import gradient_queue
      >>> @dataclass(frozen=True)
      ... class Pairs:
      ...     capacity: int
      ...
      ...     def init(self, gradient_like):
      ...         return gradient_queue.empty(gradient_like, self.capacity, memory=())
      ...
      ...     def push(self, state, gradient, version, *, learner=0):
      ...         return gradient_queue.push(state, gradient, version)
      ...
      ...     def ready(self, state, clock, round):
      ...         return state.count >= 2
      ...
      ...     def pop(self, state, clock, round):
      ...         return gradient_queue.take(state, 2, clock, staleness_weight, "mean")
      ...
      ...     def admit(self, state, learner, clock):
      ...         return True
      >>> aggregator = Pairs(capacity=4)
      >>> isinstance(aggregator, Aggregator)
      True
      >>> state = aggregator.init(jnp.zeros(1))
      >>> for gradient in (1.0, 4.0):
      ...     state = aggregator.push(state, jnp.array([gradient]), version=3)
      >>> update, state = aggregator.pop(state, clock=3, round=0)
      >>> print(update.gradient)
      [2.5]
    """

    def init(self, gradient_like: Tree) -> AggregatorState:
        """Returns an empty queue for gradients of this structure."""

    def push(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        """Appends the gradient that a learner computed on this version of the parameters.

        A push beyond capacity loses the gradient and sets `state.overflow`; nothing else changes.
        """

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> Any:
        """Whether to apply gradients now, a bool scalar; False on an empty queue."""

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        """Takes the gradients to apply out of the queue."""

    def admit(self, state: AggregatorState, learner: Any, clock: Any) -> Any:
        """Whether this learner may start another gradient, a bool scalar."""


class Queueing(Aggregator):
    """The methods that most of the library's aggregators share; a frozen dataclass inherits them."""

    maker: ClassVar[str]  #: name of the public function that makes the aggregator.
    capacity: Any

    def init(self, gradient_like: Tree) -> AggregatorState:
        return gradient_queue.empty(gradient_like, self.capacity, memory=())

    def push(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        del learner
        return gradient_queue.push(state, gradient, version)

    def admit(self, state: AggregatorState, learner: Any, clock: Any) -> Any:
        # The bool is NumPy's, because `jax.vmap` refuses to return a Python bool.
        return np.True_

    def _plain(self, *names: str) -> None:
        """Converts checked settings to Python numbers, so that the aggregator has a hash."""
        for name in names:
            object.__setattr__(self, name, checks.plain(getattr(self, name)))

    def __repr__(self) -> str:
        fields = dataclasses.fields(cast(Any, self))
        return f"{self.maker}({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in fields)})"


def checked_tree(cls: type[T]) -> type[T]:
    """Registers a frozen dataclass as a tree of its fields, except those whose metadata say that they are static.

    Unlike `jax.tree_util.register_dataclass` it does not check the settings of a tree that JAX makes, whose leaves
    may be stacked arrays, axes or placeholders: `__post_init__` is for makers and `dataclasses.replace` alone.
    """
    fields = dataclasses.fields(cast(Any, cls))
    static = [field.name for field in fields if field.metadata.get("static")]
    leaves = [field.name for field in fields if field.name not in static]

    def flatten(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(tree, name) for name in leaves], tuple(getattr(tree, name) for name in static)

    def flatten_with_keys(tree: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children, settings = flatten(tree)
        keys = [jax.tree_util.GetAttrKey(name) for name in leaves]
        return list(zip(keys, children, strict=True)), settings

    def unflatten(settings: Any, children: Any) -> T:
        made = object.__new__(cls)
        for name, value in [*zip(static, settings, strict=True), *zip(leaves, children, strict=True)]:
            object.__setattr__(made, name, value)
        return made

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def unweighted(staleness: jax.Array) -> jax.Array:
    """Weighs every gradient by 1."""
    return jnp.ones_like(staleness, float)
