"""The gradient queue of the aggregators: a ring of static capacity, as pure functions over its state.

Each gradient is one row: its leaves, flattened and concatenated. A push then writes one array in place. With many
small leaves, writing one array per leaf would take most of the time.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from stellaris._core import checks
from stellaris._core.sharding import beside, replicated
from stellaris.types import JaxArray, Tree, alike, at_least_float32

#: Rows start at multiples of this many elements, for aligned vector loads.
ALIGNMENT = 64


@jax.tree_util.register_static
@dataclass(frozen=True, eq=False)
class Layout:
    """The places of a gradient's leaves in a row. It is static: part of a state's tree structure, not a leaf."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]

    # The identity is compared first, because JAX compares layouts in every call of a compiled function, and usually
    # both are the same object.
    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._parts == other._parts)

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _parts(self) -> tuple[Any, ...]:
        return self.structure, self.shapes, self.dtypes

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self._parts)

    @staticmethod
    def of(gradient: Tree) -> "Layout":
        """The layout of gradients like this one."""
        leaves, structure = jax.tree.flatten(gradient)
        return Layout(structure, tuple(map(jnp.shape, leaves)), tuple(np.dtype(jnp.result_type(x)) for x in leaves))

    @property
    def dtype(self) -> Any:
        """The narrowest dtype that holds every leaf without loss."""
        with jax.numpy_dtype_promotion("standard"):
            return jnp.result_type(*self.dtypes) if self.dtypes else jnp.float32

    @property
    def offsets(self) -> tuple[int, ...]:
        """The start of each leaf, and the end of the last."""
        return tuple(np.cumsum([0, *map(math.prod, self.shapes)]).tolist())

    def tree(self, rows: jax.Array) -> Tree:
        """Converts rows `[..., P]` to a gradient tree with the rows' leading axes."""
        lead, bounds = rows.shape[:-1], zip(self.offsets, self.offsets[1:], strict=False)
        parts = [rows[..., begin:end] for begin, end in bounds]
        leaves = zip(parts, self.shapes, self.dtypes, strict=True)
        return jax.tree.unflatten(self.structure, [x.reshape(*lead, *shape).astype(d) for x, shape, d in leaves])


class AggregatorState(NamedTuple):
    """A queue of gradients, oldest first from `head`, and the memory of its aggregator.

    Example:
      >>> state = push(empty(jnp.zeros(3), 4, memory=()), jnp.ones(3), version=7)
      >>> state.capacity, int(state.count), state.version.tolist()
      (4, 1, [7, 0, 0, 0])
    """

    rows: Float[JaxArray, "capacity P"]  #: a ring of gradients, each one row of `layout`.
    layout: Layout
    version: Int[JaxArray, "capacity"]  #: version on which each gradient was computed.
    head: Int[JaxArray, ""]  #: the slot of the oldest gradient.
    count: Int[JaxArray, ""]  # type: ignore[assignment]  #: queued gradients.
    overflow: Bool[JaxArray, ""]  #: whether a push into a full queue ever lost a gradient.
    memory: Tree  #: values that the aggregator remembers, such as each learner's number of pushes.

    @property
    def capacity(self) -> int:
        """The number of gradients that the queue can hold."""
        return self.version.shape[-1]


class Update(NamedTuple):
    """A group of gradients, ready for `apply_update`.

    `combine="mean"`: `gradient = sum(w g) / sum(w)` and `scale = sum(w) / n`, a scalar: one optimizer step.
    `combine="sequential"`: gradients and scales are stacked `[capacity, ...]`, oldest first and zero beyond `count`:
    one optimizer step for each gradient.

    Example:
      >>> update = Update(jnp.array([2.0]), scale=jnp.array(0.5), count=jnp.int32(1), staleness=jnp.array([8, -1]))
      >>> print(update.gradient * update.scale)
      [1.]
    """

    gradient: Tree
    scale: Float[JaxArray, "*n"]  #: factor on the optimizer's step, not on the gradient.
    count: Int[JaxArray, ""]  # type: ignore[assignment]  #: gradients in the group.
    staleness: Int[JaxArray, "capacity"]  #: of each gradient, oldest first, at least 0; -1 beyond `count`.
    dropped: Int[JaxArray, ""] | int = 0  #: gradients removed from the queue without being applied.


def capacity_for(group_size: int, capacity: int | None) -> int:
    """The capacity of a queue whose gradients are taken in groups: `capacity`, or by default twice the group size.

    Raises:
      ValueError: unless both are positive whole numbers, and a group fits.
    """
    checks.counts(group_size=group_size)
    capacity = 2 * group_size if capacity is None else capacity
    checks.counts(capacity=capacity)
    if capacity < group_size:
        raise ValueError(
            f"capacity={capacity} is below group_size={group_size}: the queue could never hold a whole group; raise "
            "the capacity"
        )
    return capacity


def empty(like: Tree, capacity: int, memory: Tree) -> AggregatorState:
    """Returns an empty queue for gradients of this structure.

    Args:
      like: a tree of float arrays with the gradients' structure, shapes and dtypes; its values do not matter.
      capacity: gradients that the queue can hold.
      memory: the aggregator's initial memory, any tree of arrays; `()` for none.

    Returns:
      A state whose `rows` are `[capacity, P]` with `P` the number of the gradient's elements, rounded up to a
      multiple of 64.

    Raises:
      TypeError: if a leaf holds integers.
    """
    checks.floats(**{f"gradient_like{name}": leaf for name, leaf in _named(like)})
    layout = Layout.of(like)
    length = -(-layout.offsets[-1] // ALIGNMENT) * ALIGNMENT
    return AggregatorState(
        rows=beside(jnp.zeros((capacity, length), layout.dtype), jax.tree.leaves(like)),
        layout=layout,
        version=jnp.zeros(capacity, jnp.int32),
        head=jnp.int32(0),
        count=jnp.int32(0),
        overflow=jnp.bool_(False),
        memory=memory,
    )


def push(state: AggregatorState, gradient: Tree, version: Any) -> AggregatorState:
    """Appends a gradient. If the queue is full, the gradient is lost, `overflow` is set, and nothing else changes.

    Args:
      state: the queue.
      gradient: a tree with the structure and shapes given to `empty`; it is cast to the queue's dtype.
      version: the version on which the gradient was computed, an integer scalar, at least 0.

    Returns:
      The queue with the gradient as its newest.

    Raises:
      TypeError: if the version is not a whole number, or the state is no queue.
      ValueError: if the version is negative or beyond int32, or the gradient differs in structure or shape from that
        given to `empty`.
    """
    _check_state(state)
    _check_like(gradient, state.layout)
    checks.whole_int32(version=version)
    checks.not_negative(version=version)
    after: AggregatorState = _appended(state, gradient, version)
    return after


def queued(state: AggregatorState) -> Bool[JaxArray, "capacity"]:
    """Whether each slot of the ring is in use.

    Args:
      state: the queue.

    Returns:
      `[capacity]` in the order of `state.rows` and `state.version`.
    """
    return (jnp.arange(state.capacity) - state.head) % state.capacity < state.count


def staleness(state: AggregatorState, clock: Any) -> Int[JaxArray, "capacity"]:
    """The staleness of the queued gradients, oldest first.

    Args:
      state: the queue.
      clock: the newest version, an integer scalar.

    Returns:
      int32 `[capacity]`; entries beyond `state.count` are meaningless.

    Raises:
      TypeError: if the clock is not a whole number.
      ValueError: if the clock is beyond int32.
    """
    checks.whole_int32(clock=clock)
    return jnp.asarray(clock - jnp.asarray(state.version)[_order(state)], jnp.int32)


def without(state: AggregatorState, n: Any) -> AggregatorState:
    """Drops the oldest gradients.

    Args:
      state: the queue.
      n: gradients to drop, an integer scalar; if fewer are queued, all of them.

    Returns:
      The queue with the remaining gradients in order.
    """
    n = jnp.minimum(state.count, n).astype(jnp.int32)
    left = state.count - n
    # An empty queue restarts at slot 0, which is likely still in the processor's cache.
    head = jnp.where(left > 0, (state.head + n) % state.capacity, 0)
    return state._replace(head=head, count=left)


def take(
    state: AggregatorState, n: Any, clock: Any, weigh: Callable[[jax.Array], jax.Array], combine: str
) -> tuple[Update, AggregatorState]:
    """Takes the oldest gradients out of the queue, weighted by staleness.

    Args:
      state: the queue.
      n: gradients to take, an integer scalar; if fewer are queued, all of them.
      clock: the newest version, an integer scalar.
      weigh: `(staleness [capacity] int32) -> weight [capacity]` floats, such as `staleness_weight`. Entries beyond the
        group have staleness -1; their weights are ignored.
      combine: `"mean"` for one weighted mean, `"sequential"` for the gradients one by one; see `Update`.

    Returns:
      The update, and the queue with the remaining gradients in order.

    Raises:
      TypeError: if the clock is not a whole number.
      ValueError: if the clock is beyond int32, or `combine` is unknown.
    """
    _check_state(state)
    checks.whole_int32(clock=clock)
    if combine not in ("mean", "sequential"):
        raise ValueError(f"combine={combine!r} is neither 'mean' nor 'sequential'")
    n, ages = _oldest(state, n, clock)
    # `weigh` is called outside of this module's `jit`, because it may capture traced numbers of the caller.
    weight = weigh(ages)
    gradient, scale, state = _taken(state, n, weight, combine)
    return Update(gradient, scale, n, ages), state


# ---- computation, behind `jit`: compiled once for each size, and inlined within a caller's `jit` ---------------------


def _written(rows: jax.Array, part: jax.Array, slot: jax.Array, begin: int) -> jax.Array:
    """Writes a part of a row, from a column on; a write beyond the ring is dropped.

    A single write reads the old part, to keep it beyond the ring, and is done in place. Vectorised, that read would
    make XLA copy the whole ring, so there a scatter drops the write, which takes two to three times as long on a CPU.
    """

    def scatter(rows: jax.Array, part: jax.Array, slot: jax.Array) -> jax.Array:
        return rows.at[slot, begin : begin + len(part)].set(part, mode="drop")

    @jax.custom_batching.custom_vmap
    def in_place(rows: jax.Array, part: jax.Array, slot: jax.Array) -> jax.Array:
        at = slot, jnp.int32(begin)
        old = jax.lax.dynamic_slice(rows, at, (1, len(part)))
        return jax.lax.dynamic_update_slice(rows, jnp.where(slot < len(rows), part, old), at)

    @in_place.def_vmap
    def _(size: int, batched: Any, *arguments: Any) -> tuple[jax.Array, bool]:
        return jax.vmap(scatter, tuple(0 if of else None for of in batched), axis_size=size)(*arguments), True

    @jax.custom_jvp
    def write(rows: jax.Array, part: jax.Array, slot: jax.Array) -> jax.Array:
        written: jax.Array = in_place(rows, part, slot)
        return written

    # JAX cannot transpose `in_place`; the tangents are written as the rows are.
    @write.defjvp
    def _(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
        changes, change, _ = tangents
        return write(*primals), scatter(changes, change, primals[2])

    found: jax.Array = write(rows, part, slot)
    return found


@functools.partial(jax.jit, inline=True)
def _appended(state: AggregatorState, gradient: Tree, version: Any) -> AggregatorState:
    layout, rows = state.layout, state.rows
    free = state.count < state.capacity
    slot = jnp.where(free, (state.head + state.count) % state.capacity, state.capacity)
    for leaf, begin in zip(jax.tree.leaves(gradient), layout.offsets, strict=False):
        rows = _written(rows, jnp.ravel(replicated(jnp.asarray(leaf, rows.dtype))), slot, begin)
    return state._replace(
        rows=rows,
        version=state.version.at[slot].set(jnp.asarray(version, jnp.int32), mode="drop"),
        count=state.count + free.astype(jnp.int32),
        overflow=state.overflow | ~free,
    )


@functools.partial(jax.jit, inline=True)
def _oldest(state: AggregatorState, n: Any, clock: Any) -> tuple[jax.Array, jax.Array]:
    """The number of gradients to take, and their staleness, oldest first; -1 beyond them."""
    n = jnp.minimum(state.count, n).astype(jnp.int32)
    # A version above the clock counts as fresh. Its negative staleness would look like an empty slot's.
    return n, jnp.where(jnp.arange(state.capacity) < n, jnp.maximum(staleness(state, clock), 0), -1)


@functools.partial(jax.jit, inline=True, static_argnums=3)
def _taken(state: AggregatorState, n: Any, weight: Any, combine: str) -> tuple[Tree, jax.Array, AggregatorState]:
    """The gradients, their scale, and the queue without them."""
    layout, weight = state.layout, jnp.where(jnp.arange(state.capacity) < n, weight, 0.0)
    if combine == "mean":
        gradient = layout.tree(_mean(state.rows, _order(state), weight, n))
        scale = jnp.sum(weight) / jnp.maximum(n, 1).astype(weight.dtype)
    else:
        gradient = jax.tree.map(lambda leaf: _stacked(leaf, _order(state), n), layout.tree(state.rows))
        scale = weight
    return gradient, scale, without(state, n)


def _order(state: AggregatorState) -> jax.Array:
    """The slots of the ring, beginning with the slot of the oldest gradient."""
    return (state.head + jnp.arange(state.capacity)) % state.capacity


def _mean(rows: jax.Array, order: jax.Array, weight: jax.Array, n: jax.Array) -> jax.Array:
    """`sum(w g) / sum(w)`, in float32 at least; zero, like the scale, if every weight has underflowed."""
    # The loop is over the taken gradients only, so other slots cost nothing and may hold NaN.
    total = jnp.sum(weight)
    wide = at_least_float32(rows.dtype)
    share = (weight / jnp.where(total > 0, total, 1.0)).astype(wide)
    rows, order, share, n = alike((rows, order, share, n))

    def add(i: jax.Array, sums: jax.Array) -> jax.Array:
        added: jax.Array = sums + share[i] * rows[order[i]].astype(wide)
        return added

    sums: jax.Array = jax.lax.fori_loop(0, n, add, jnp.zeros_like(rows[0], wide))
    return sums


def _stacked(rows: jax.Array, order: jax.Array, n: jax.Array) -> jax.Array:
    """The taken rows of a leaf, `[capacity, ...]`, in order; zero beyond them."""
    # A gather per leaf and not a loop over the rows: if the caller keeps only the first rows, XLA makes no others.
    taken = (jnp.arange(len(order)) < n).reshape(-1, *[1] * (rows.ndim - 1))
    return jnp.where(taken, rows[order], jnp.zeros((), rows.dtype))


def _named(tree: Tree) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _check_state(state: object) -> None:
    if not isinstance(state, AggregatorState):
        kind = type(state).__name__
        raise TypeError(f"state is a {kind}: expected what init or push returned, or the second value of pop")


def _check_like(gradient: Tree, layout: Layout) -> None:
    like = jax.tree.unflatten(layout.structure, layout.dtypes)
    checks.same_structure(like, "gradient_like", gradient=gradient)
    for (name, leaf), shape in zip(_named(gradient), layout.shapes, strict=True):
        if jnp.shape(leaf) != shape:
            raise ValueError(f"gradient{name} has shape {jnp.shape(leaf)}: expected {shape}")
