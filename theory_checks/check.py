"""What a check is: instances of a theorem, both sides of its claims, and an adversary that looks for the worst case.

A claim says `left <= right` (or, as an equality, `left = right`) for every instance. It is tested on random instances,
or on all of them, and then on those that gradient ascent on `left / right` finds, starting from the worst.

`kappa` is the largest ratio `left / right` that was met. A bound that holds has a kappa of at most 1: with a kappa of
0.8, the right side could be multiplied by 0.8, and would still have held. For an equality, kappa is 1 plus the largest
relative gap. A control is a claim that is false, and must be found to be: a check that cannot fail shows nothing.
"""

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stellaris.types import NDArray, Tree

#: Both sides may be wrong by this much, relatively, before a claim is called violated.
ROUNDING = 1e-9
#: A right side this many times its tolerance is clear of it.
_CLEAR = 1e3
#: Instances that are looked at in one call.
_CHUNK = 2_000
#: Where the adversary starts: from the worst instances of a family, and from its first.
_STARTS = 8
#: The length of the adversary's first step.
_STEP = 0.1


class Instance(NamedTuple):
    """One case of a theorem."""

    free: Tree  #: arrays of floats, without constraints, that the adversary may move.
    fixed: Tree = ()  #: all else.


class Sides(NamedTuple):
    """Both sides of a claim: scalars, or arrays of one shape if the claim is made of several numbers."""

    left: Any
    right: Any
    tolerance: Any = 0.0  #: what rounding, or sampling, may add to the left, absolutely.


@dataclass(frozen=True)
class Claim:
    """What is said of every instance.

    Args:
      name: in the table.
      statement: the inequality.
      control: whether it is false and has to break.
      equality: whether the sides are equal.
    """

    name: str
    statement: str
    control: bool = False
    equality: bool = False


@dataclass(frozen=True, eq=False)
class Family:
    """Instances of one kind.

    Args:
      draw: `(key, index, **settings) -> instance`, all of the same shapes.
      count: how many there are, if all of them are looked at: `draw` then counts them by `index`.
      settings: numbers or arrays by which families of one `draw`, which is compiled once, differ; or a function that
        makes them when they are needed.
    """

    draw: Callable[..., Instance]
    count: int | None = None
    settings: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)

    def __call__(self, key: jax.Array, indices: NDArray) -> Instance:
        """The instances `[indices, ...]`."""
        settings = self.settings() if callable(self.settings) else self.settings
        return _drawer(self.draw)(key, indices, dict(settings))


@dataclass(frozen=True, eq=False)
class Theorem:
    """Claims that share their instances.

    Args:
      name: in replays.
      claims: what is said.
      families: instances, by kind.
      sides: of one instance, by the claim's name.
      at_most: instances, where one costs more than a few microseconds.
      compiled: whether JAX can trace `draw` and `sides`; others run one instance at a time, and have no adversary.
      steps: of the adversary; 0 for none.
    """

    name: str
    claims: tuple[Claim, ...]
    families: Mapping[str, Family]
    sides: Callable[[Instance], Mapping[str, Sides]]
    at_most: int | None = None
    compiled: bool = True
    steps: int = 300


@dataclass(frozen=True)
class Witness:
    """An instance that violates a claim."""

    theorem: str
    family: str
    index: int
    claim: str
    searched: bool  #: whether it is where the adversary got from that instance.
    left: float
    right: float

    @property
    def label(self) -> str:
        """As `--replay` takes it."""
        where = f"{self.theorem}/{self.family}/{self.index}"
        return f"{where}/{self.claim}" if self.searched else where


class Outcome(NamedTuple):
    """What became of a claim."""

    claim: Claim
    instances: int
    violations: int  #: among them.
    searched: int  #: further instances, that the adversary ended at.
    found: int  #: violations among these.
    slack: float  #: the smallest `right - left` of a random instance.
    tightness: float  #: the median of `left / right`.
    kappa: float  #: the largest `left / right`, the adversary's finds included.
    witnesses: tuple[Witness, ...]

    @property
    def as_it_should(self) -> bool:
        """A bound holds; a control breaks."""
        return (self.violations + self.found > 0) == self.claim.control


class Looks(NamedTuple):
    """The worst element of every claim of one instance, in the claims' order: `[claims]`."""

    left: Any
    right: Any
    ratio: Any  # left / right; for an equality, 1 + |left - right| / right
    slack: Any  # right - left; for an equality, -|left - right|
    broken: Any


def verify(
    theorem: Theorem, *, seed: int = 0, instances: int = 10_000, multiplier: float | Mapping[str, float] = 1.0
) -> list[Outcome]:
    """Looks at a theorem's claims over random instances and the adversary's.

    Args:
      theorem: to look at.
      seed: of the instances.
      instances: how many, over all families, of those that are drawn.
      multiplier: of the right sides, by the claim's name or of all: a check that works finds a claim broken whose right
        side was made too small.

    Returns:
      An outcome for every claim.
    """
    key = jax.random.key(seed)
    planted = _multipliers(theorem, multiplier)
    share = -(-min(instances, theorem.at_most or instances) // len(theorem.families))
    looks, found, witnesses = [], [], []
    for number, (name, family) in enumerate(theorem.families.items()):
        family_key = jax.random.fold_in(key, number)
        count = family.count or share
        here, drawn = _look_at_all(theorem, name, family_key, count, planted)
        looks.append(here)
        witnesses += _witnesses(theorem, name, here, np.arange(count)[:, None], searched=False)
        if theorem.compiled and theorem.steps:
            starts = _starts(here, count)
            ends = _climb(theorem, jax.tree.map(operator.itemgetter(starts), drawn))
            best = jax.tree.map(np.asarray, _ends(theorem)(ends, planted))
            found.append(best)
            witnesses += _witnesses(theorem, name, best, starts, searched=True)
    seen = Looks(*(np.concatenate(column) for column in zip(*looks, strict=True)))
    outcomes = []
    for i, claim in enumerate(theorem.claims):
        ratio = seen.ratio[:, i]
        searched = [part.ratio[:, i] for part in found]
        mine = tuple(w for w in witnesses if w.claim == claim.name)
        outcomes.append(
            Outcome(
                claim,
                instances=len(ratio),
                violations=sum(not witness.searched for witness in mine),
                searched=sum(map(len, searched)),
                found=sum(witness.searched for witness in mine),
                slack=float(seen.slack[:, i].min()),
                tightness=float(np.median(ratio)),
                kappa=float(np.concatenate([ratio, *searched]).max()),
                witnesses=mine,
            )
        )
    return outcomes


def replay(
    theorem: Theorem, family: str, index: int, claim: str | None = None, *, seed: int = 0
) -> tuple[Instance, Mapping[str, Sides]]:
    """One instance again, or where the adversary got from it for a claim.

    Args:
      theorem: that it belongs to.
      family: the instance's.
      index: the instance's.
      claim: whose adversary is to move it; None for the instance as it was drawn.
      seed: that it was drawn with.

    Returns:
      The instance and both sides of every claim.

    Raises:
      LookupError: if the theorem has no such family, instance or claim, or no adversary.
    """
    if family not in theorem.families:
        raise LookupError(f"family {family!r}: {theorem.name} has {sorted(theorem.families)}")
    names = [c.name for c in theorem.claims]
    if claim is not None and claim not in names:
        raise LookupError(f"claim {claim!r}: {theorem.name} has {names}")
    if claim is not None and not (theorem.compiled and theorem.steps):
        raise LookupError(f"claim {claim!r}: {theorem.name} has no adversary that could have moved the instance")
    if index >= (theorem.families[family].count or math.inf):
        raise LookupError(f"number {index}: {family!r} has {theorem.families[family].count} instances")
    key = jax.random.fold_in(jax.random.key(seed), list(theorem.families).index(family))
    if not theorem.compiled:
        instance = theorem.families[family].draw(key_of(key, index), index)
    else:
        instance = jax.tree.map(lambda x: x[0], theorem.families[family](key, np.array([index])))
    if claim is not None:
        # As many copies as there were starts, so that it is the same program on the same numbers.
        lanes = (2 * _STARTS, len(names))
        starts = jax.tree.map(lambda x: jnp.broadcast_to(x, lanes + x.shape), instance)
        instance = jax.tree.map(lambda x: x[0, names.index(claim)], _climb(theorem, starts))
    return instance, theorem.sides(instance)


def draws(family: Family, seed: int, count: int) -> Instance:
    """The first instances of a family, `[count, ...]`."""
    return family(jax.random.key(seed), np.arange(count))


def look(theorem: Theorem, instances: Instance) -> Looks:
    """Every claim of some instances `[n, ...]`: `[n, claims]`."""
    looks: Looks = jax.tree.map(np.asarray, _looker(theorem)(instances, np.ones(len(theorem.claims))))
    return looks


def worst(theorem: Theorem, starts: Instance) -> NDArray:
    """The largest `left / right` that the adversary finds from each of some instances `[n, ...]`: `[n, claims]`."""
    claims = len(theorem.claims)
    lanes = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (len(x), claims, *x.shape[1:])), starts)
    return np.asarray(_ends(theorem)(_climb(theorem, lanes), np.ones(claims)).ratio)


def key_of(key: jax.Array, index: Any) -> jax.Array:
    """The key of an instance, however many there are."""
    return jax.random.fold_in(key, index)


def _multipliers(theorem: Theorem, multiplier: float | Mapping[str, float]) -> NDArray:
    if isinstance(multiplier, Mapping):
        return np.array([multiplier.get(claim.name, 1.0) for claim in theorem.claims])
    return np.full(len(theorem.claims), float(multiplier))


def _look(theorem: Theorem, instance: Instance, planted: Any) -> Looks:
    """Every claim of one instance, by its worst element."""
    looks: Looks = _compare(theorem.claims, theorem.sides(instance), planted)
    return looks


@functools.partial(jax.jit, static_argnums=0)
def _compare(claims: tuple[Claim, ...], sides: Mapping[str, Sides], planted: Any) -> Looks:
    rows = []
    for i, claim in enumerate(claims):
        left, right, tolerance = jnp.broadcast_arrays(*(jnp.asarray(side, float) for side in sides[claim.name]))
        # Where the right side is not far above what rounding adds, a ratio says nothing.
        floor = jnp.maximum(right, jnp.maximum(_CLEAR * tolerance, 1e-300))
        margin = tolerance + ROUNDING * (abs(left) + abs(planted[i] * right))
        if claim.equality:
            gap, slack, ratio = abs(left - planted[i] * right), -abs(left - right), 1 + abs(left - right) / floor
        else:
            gap, slack, ratio = left - planted[i] * right, right - left, left / floor
        # What is no number breaks a bound, and does not break a control.
        broken = (gap > margin) if claim.control else ~(gap <= margin)
        score = jnp.where(broken, jnp.nan_to_num(ratio, nan=jnp.inf), jnp.nan_to_num(ratio, nan=-jnp.inf))
        worst = jnp.argmax(jnp.where(broken | ~jnp.any(broken), score, -jnp.inf).reshape(-1))
        left, right, ratio = (x.reshape(-1)[worst] for x in (left, right, ratio))
        rows.append(Looks(left, right, ratio, jnp.min(slack), jnp.any(broken)))
    return Looks(*(jnp.stack(column) for column in zip(*rows, strict=True)))


@functools.cache
def _drawer(draw: Callable[..., Instance]) -> Callable[..., Instance]:
    """`(key, indices, settings) -> instances [indices, ...]`."""

    def one(key: jax.Array, index: jax.Array, settings: dict[str, Any]) -> Instance:
        return draw(key_of(key, index), index, **settings)

    return jax.jit(jax.vmap(one, in_axes=(None, 0, None)))


@functools.cache
def _looker(theorem: Theorem) -> Callable[..., Looks]:
    """`(instances [n, ...], multipliers) -> looks [n, claims]`."""
    return jax.jit(jax.vmap(functools.partial(_look, theorem), in_axes=(0, None)))


def _look_at_all(theorem: Theorem, family: str, key: jax.Array, count: int, planted: NDArray) -> tuple[Looks, Tree]:
    """What is seen `[count, claims]`, and the instances `[count, ...]` if JAX drew them."""
    of_family = theorem.families[family]
    if not theorem.compiled:
        rows = [_look(theorem, of_family.draw(key_of(key, i), i), planted) for i in range(count)]
        return Looks(*(np.stack([row[i] for row in rows]) for i in range(len(Looks._fields)))), None
    chunk, parts = min(_CHUNK, count), []
    for first in range(0, count, chunk):
        indices = np.minimum(np.arange(first, first + chunk), count - 1)
        drawn = of_family(key, indices)
        parts.append(jax.tree.map(np.asarray, (_looker(theorem)(drawn, planted), drawn)))
    whole: tuple[Looks, Tree] = jax.tree.map(lambda *x: np.concatenate(x)[:count], *parts)
    return whole


def _starts(looks: Looks, count: int) -> NDArray:
    """The indices that the adversary starts from `[starts, claims]`: each claim's worst, and the first."""
    ratio = np.where(np.isfinite(looks.ratio), looks.ratio, np.inf)
    worst = np.argsort(-ratio, axis=0, kind="stable")[:_STARTS]
    first = np.broadcast_to(np.arange(_STARTS)[:, None] % count, (_STARTS, ratio.shape[1]))
    worst = worst[np.arange(_STARTS) % len(worst)]
    return np.concatenate([worst, first])


@functools.cache
def _climber(theorem: Theorem) -> Callable[..., Tree]:
    """`(instances [starts, claims, ...]) -> free [starts, claims, ...]`: the best that was met on every way."""
    optimizer = optax.adam(optax.cosine_decay_schedule(_STEP, theorem.steps))
    even = jnp.ones(len(theorem.claims))

    def climb(instance: Instance, claim: jax.Array) -> Tree:
        def loss(free: Tree) -> jax.Array:
            ratio: jax.Array = _look(theorem, Instance(free, instance.fixed), even).ratio
            return -ratio[claim]

        def step(carry: Any, _: Any) -> tuple[Any, None]:
            free, state, best, lowest = carry
            value, slope = jax.value_and_grad(loss)(free)
            value = jnp.where(jnp.isnan(value), -jnp.inf, value)  # there is no worse
            better = value < lowest
            best = jax.tree.map(lambda old, new: jnp.where(better, new, old), best, free)
            slope = jax.tree.map(lambda g: jnp.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0), slope)
            updates, state = optimizer.update(slope, state)
            return (optax.apply_updates(free, updates), state, best, jnp.minimum(value, lowest)), None

        free = instance.free
        (_, _, best, _), _ = jax.lax.scan(step, (free, optimizer.init(free), free, jnp.inf), None, length=theorem.steps)
        return best

    claims = jnp.arange(len(theorem.claims))
    return jax.jit(lambda instances: jax.vmap(jax.vmap(climb), in_axes=(0, None))(instances, claims))


@functools.cache
def _ends(theorem: Theorem) -> Callable[..., Looks]:
    """`(instances [starts, claims, ...], multipliers) -> looks [starts, claims]`: each claim at its own instance."""

    def one(claim: jax.Array, instance: Instance, planted: jax.Array) -> Looks:
        return Looks(*(x[claim] for x in _look(theorem, instance, planted)))

    over_claims = jax.vmap(one, in_axes=(0, 0, None))
    claims = jnp.arange(len(theorem.claims))
    return jax.jit(lambda ends, planted: jax.vmap(over_claims, in_axes=(None, 0, None))(claims, ends, planted))


def _climb(theorem: Theorem, starts: Instance) -> Instance:
    """Where the adversary gets from these instances, each for its claim: `[starts, claims, ...]`."""
    return Instance(_climber(theorem)(starts), starts.fixed)


def _witnesses(theorem: Theorem, family: str, looks: Looks, indices: NDArray, searched: bool) -> list[Witness]:
    indices = np.broadcast_to(indices, looks.broken.shape)
    return [
        Witness(
            theorem=theorem.name,
            family=family,
            index=int(indices[row, i]),
            claim=theorem.claims[i].name,
            searched=searched,
            left=float(looks.left[row, i]),
            right=float(looks.right[row, i]),
        )
        for row, i in np.argwhere(looks.broken)
    ]
