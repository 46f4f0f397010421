"""The containers of a function in a compiled program: which one an invocation gets, when it starts, and its bill.

The rules are the engine's, `stellaris.runtime.engine`. They are simple here, because all invocations of a round look
for a container at the same instant: none can reuse the container of another one of its round.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from stellaris.lab.rounds.draws import Draws, drawn
from stellaris.lab.statistics import wide
from stellaris.runtime.functions import FunctionSpec
from stellaris.types import Array

#: The number in an empty slot.
NONE = -1
#: Prewarmed containers become idle before containers of invocations that end at the same instant.
_FIRST = -(2**30)


class Pool(NamedTuple):
    """The containers of one function, one in each of its slots; times are float64 seconds since the run's start."""

    number: jax.Array  #: int32 `[C]`: the container's number; `NONE` without a container.
    created: jax.Array  #: `[C]`.
    idle_since: jax.Array  #: `[C]`: when it became or becomes idle.
    turn: jax.Array  #: int32 `[C]`: the order of containers that became idle at the same instant.
    made: jax.Array  #: int32: number of containers made so far.
    started: jax.Array  #: int32: number of invocations so far.
    busy: jax.Array  #: `[G]`: seconds of invocations, each rounded up to a multiple of a granularity.
    cold: jax.Array  #: `[G]`: seconds for which invocations waited for a new container, rounded alike.
    ended: jax.Array  #: seconds that containers lived which have expired.
    ahead: jax.Array  #: `[C]`: when each prewarmed container is ready; 0 for others.


class Calls(NamedTuple):
    """The invocations of a round, `[W]`, in the order of their submission; times are float64 seconds."""

    present: jax.Array  #: False for an unused place.
    slot: jax.Array  #: int32: the slot of the container; in an unused place the number of slots.
    started: jax.Array
    ended: jax.Array  #: infinite in an unused place.


@wide
def empty(slots: int, granularities: int) -> Pool:
    """Returns a pool without containers."""
    zeros, none = jnp.zeros(slots, jnp.float64), jnp.zeros(granularities, jnp.float64)
    zero = jnp.int32(0)
    return Pool(
        number=jnp.full(slots, NONE, jnp.int32),
        created=zeros,
        idle_since=zeros,
        turn=jnp.zeros(slots, jnp.int32),
        made=zero,
        started=zero,
        busy=none,
        cold=none,
        ended=jnp.float64(0),
        ahead=zeros,
    )


@wide
def prewarmed(draws: Draws, pool: Pool, count: jax.Array, total: jax.Array) -> Pool:
    """Makes the first `count` containers of a pool at the start of a run; they are numbered from `total` on."""
    place = jnp.arange(len(pool.number), dtype=jnp.int32)
    new = place < count
    ready = jnp.where(new, drawn(draws.cold_start, place) + drawn(draws.initialisation, place), 0.0)
    return pool._replace(
        number=jnp.where(new, total + place, NONE),
        idle_since=ready,
        turn=jnp.where(new, total + place + jnp.int32(_FIRST), 0),
        made=count.astype(jnp.int32),
        ahead=ready,
    )


@wide
def invoked(
    spec: FunctionSpec,
    granularities: Array,
    draws: Draws,
    pool: Pool,
    *,
    width: int,
    count: jax.Array,
    now: jax.Array,
    total: jax.Array,
    work: jax.Array | int,
    nbytes: jax.Array | int,
) -> tuple[Pool, Calls, jax.Array]:
    """Invokes a function several times at once.

    Args:
      spec: the function.
      granularities: units of billing, float64 `[G]`; 0 for no rounding.
      draws: its durations.
      pool: its containers.
      width: the largest number of invocations.
      count: the number of invocations.
      now: the time.
      total: the number of containers made so far, of all functions.
      work: the work of each invocation.
      nbytes: the bytes that each invocation transfers.

    Returns:
      The containers after the invocations have ended, the invocations, and the new number of containers.
    """
    slots = len(pool.number)
    place = jnp.arange(width, dtype=jnp.int32)
    present = place < count
    arrived = now + drawn(draws.queueing, pool.started)
    pool = _without_expired(spec, pool, arrived)
    kind, order = _order(spec, pool, arrived)
    order, kind = order[:width], kind[order[:width]]
    # A call gets an idle container; else it makes one; else, at the limit, it waits for one that is being made.
    new = present & (kind == _EMPTY)
    nth = jnp.cumsum(new, dtype=jnp.int32) - new.astype(jnp.int32)
    made = pool.made + nth
    acquired = jnp.where(kind == _MAKING, pool.idle_since[order], arrived)
    cold = jnp.where(new, drawn(draws.cold_start, made) + drawn(draws.initialisation, made), 0.0)
    started = jnp.where(present, acquired + cold, jnp.inf)
    # The platform draws the duration of an invocation when it starts.
    rank = jnp.argsort(jnp.argsort(started, stable=True), stable=True).astype(jnp.int32)
    nth_start = pool.started + rank
    transfer = jnp.float64(0)
    if spec.transfer is not None:
        transfer = drawn(draws.latency, nth_start) + jnp.asarray(nbytes, jnp.float64) / spec.transfer.bandwidth
    seconds = transfer + jnp.asarray(work, jnp.float64) * drawn(draws.compute, nth_start)
    ended = started + seconds
    where = jnp.where(present, order, slots).astype(jnp.int32)
    made_at = jnp.where(new, where, slots)
    spans = jnp.where(present, ended - started, 0.0), jnp.where(present, started - acquired, 0.0)
    after = pool._replace(
        number=pool.number.at[made_at].set(total + nth, mode="drop"),
        created=pool.created.at[made_at].set(arrived, mode="drop"),
        idle_since=pool.idle_since.at[where].set(ended, mode="drop"),
        turn=pool.turn.at[where].set(pool.started + place, mode="drop"),
        made=pool.made + jnp.sum(new, dtype=jnp.int32),
        started=pool.started + count.astype(jnp.int32),
        busy=pool.busy + jnp.sum(_rounded_up(spans[0], granularities), axis=1),
        cold=pool.cold + jnp.sum(_rounded_up(spans[1], granularities), axis=1),
    )
    return after, Calls(present, where, started, ended), total + jnp.sum(new, dtype=jnp.int32)


#: The state of a slot for an invocation: an idle container, room for a new one, or one that is still being made.
_IDLE, _EMPTY, _MAKING = 0, 1, 2


def _without_expired(spec: FunctionSpec, pool: Pool, now: jax.Array) -> Pool:
    """Ends the containers that were idle for too long; one that would expire at this very instant is still reused."""
    due = pool.idle_since + spec.keep_alive
    gone = (pool.number != NONE) & (due < now)
    return pool._replace(
        number=jnp.where(gone, NONE, pool.number),
        ended=pool.ended + jnp.sum(jnp.where(gone, due - pool.created, 0.0)),
    )


def _order(spec: FunctionSpec, pool: Pool, now: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns what each slot has, and the order in which invocations take the slots."""
    kind = jnp.where(pool.number == NONE, _EMPTY, jnp.where(pool.idle_since <= now, _IDLE, _MAKING))
    first: tuple[jax.Array, jax.Array]  # the first decides, the second breaks ties
    match spec.reuse:
        case "newest":
            first = -pool.number.astype(jnp.float64), pool.turn
        case "most_recent":
            first = -pool.idle_since, -pool.turn
        case "least_recent":
            first = pool.idle_since, pool.turn
    slot = jnp.arange(len(pool.number), dtype=jnp.float64)
    key = jnp.where(kind == _IDLE, first[0], jnp.where(kind == _EMPTY, slot, pool.idle_since))
    tie = jnp.where(kind == _IDLE, first[1], pool.number)
    return kind, jnp.lexsort((tie, key, kind))


def _rounded_up(spans: jax.Array, granularities: Array) -> jax.Array:
    """Rounds spans `[n]` up to multiples of each granularity, `[G, n]`, as the platform's bills do."""
    unit = jnp.asarray(granularities)[:, None]
    units = spans / jnp.where(unit > 0, unit, 1.0)
    whole = jnp.round(units)
    multiple = jnp.abs(units - whole) <= 1e-9 * (1 + units)
    return jnp.where(unit > 0, jnp.where(multiple, whole, jnp.ceil(units)) * unit, spans)


@wide
def lived(spec: FunctionSpec, pool: Pool, until: jax.Array) -> jax.Array:
    """Returns the seconds that the containers of a pool have lived, up to a time."""
    ends = jnp.minimum(until, pool.idle_since + spec.keep_alive)
    return pool.ended + jnp.sum(jnp.where(pool.number != NONE, ends - pool.created, 0.0))


@wide
def warmed(granularities: Array, pool: Pool, until: jax.Array) -> jax.Array:
    """Returns the seconds for which containers were made, `[G]`, up to a time: for invocations and ahead of them."""
    return pool.cold + jnp.sum(_rounded_up(jnp.minimum(pool.ahead, until), granularities), axis=1)
