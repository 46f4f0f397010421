"""Checks theorems: draws instances, compares both sides of the claims, and lets an adversary search for the worst case.

A claim states `left <= right` (or, as an equality, `left = right`) for every instance. It is tested on random instances
or on all instances. Then an adversary looks for worse ones by gradient ascent on `left / right`; it starts from the
worst of these instances, and from the first.

`kappa` is the largest ratio `left / right` found. A bound that holds has a kappa of at most 1: with a kappa of 0.8, the
right side times 0.8 would still be a bound on all these instances. For an equality, kappa is 1 plus the largest
relative gap. A control is a false claim that the check must refute: a check that cannot fail shows nothing.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stellaris.types import NDArray, Tree

#: Relative error of either side that does not yet violate a claim.
ROUNDING = 1e-9
#: A ratio's denominator is at least this many times the tolerance, so that the ratio is not mostly rounding error.
_CLEAR = 1e3
#: Instances evaluated in one call.
_CHUNK = 2_000
#: The adversary starts from this many of a family's worst instances, and from as many of its first instances.
_STARTS = 8
#: The length of the adversary's first step.
_STEP = 0.1


class Instance(NamedTuple):
    """One case of a theorem."""

    free: Tree  #: unconstrained arrays of floats that the adversary may change.
    fixed: Tree = ()  #: everything else.


class Sides(NamedTuple):
    """Both sides of a claim: scalars, or arrays of one shape if the claim compares several numbers."""

    left: Any
    right: Any
    tolerance: Any = 0.0  #: absolute error of the left side by rounding or sampling.


@dataclass(frozen=True)
class Claim:
    """A statement about every instance.

    Args:
      name: the claim's name in the table.
      statement: the inequality or equality.
      control: whether the claim is false and must break.
      equality: whether the claim states that the sides are equal.
    """

    name: str
    statement: str
    control: bool = False
    equality: bool = False


@dataclass(frozen=True, eq=False)
class Family:
    """Instances of one kind.

    Args:
      draw: the function `(key, index, **settings) -> instance`, whose instances all have the same shapes.
      count: the number of instances if `draw` enumerates them by `index`, so that all are checked; None if it draws
        them at random.
      settings: numbers or arrays that distinguish families of the same `draw`, which is compiled once; or a function
        that returns them when they are needed.
    """

    draw: Callable[..., Instance]
    count: int | None = None
    settings: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = field(default_factory=dict)

    def __call__(self, key: jax.Array, indices: NDArray) -> Instance:
        """Draws the instances `[indices, ...]`."""
        settings = self.settings() if callable(self.settings) else self.settings
        return _drawer(self.draw)(key, indices, dict(settings))


@dataclass(frozen=True, eq=False)
class Theorem:
    """Claims that share their instances.

    Args:
      name: the theorem's name in tables and replays.
      claims: the statements.
      families: the instances by kind.
      sides: the function that returns both sides of the claims for one instance, by the claim's name.
      at_most: the maximum number of instances, for a theorem whose instances take more than a few microseconds each.
      compiled: whether JAX can trace `draw` and `sides`; otherwise instances run one at a time, without an adversary.
      steps: the number of the adversary's steps; 0 turns it off.
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
    searched: bool  #: whether the violation is not at the instance but where the adversary's search from it ended.
    left: float
    right: float

    @property
    def label(self) -> str:
        """The label for `--replay`."""
        where = f"{self.theorem}/{self.family}/{self.index}"
        return f"{where}/{self.claim}" if self.searched else where


class Outcome(NamedTuple):
    """The result of checking a claim."""

    claim: Claim
    instances: int
    violations: int  #: number of the random instances that violate the claim.
    searched: int  #: number of further instances, at which the adversary ended.
    found: int  #: number of the adversary's instances that violate the claim.
    slack: float  #: the smallest `right - left` of a random instance.
    tightness: float  #: the median of `left / right`.
    kappa: float  #: the largest `left / right`, including the adversary's instances.
    witnesses: tuple[Witness, ...]

    @property
    def as_expected(self) -> bool:
        """Whether a bound holds, or a control breaks."""
        return (self.violations + self.found > 0) == self.claim.control


class Looks(NamedTuple):
    """The evaluation of every claim on one instance, in the claims' order: `[claims]`.

    If a claim compares several pairs of numbers, `left`, `right` and `ratio` are from the worst pair.
    """

    left: Any
    right: Any
    ratio: Any  # left / right; for an equality, 1 + |left - right| / right
    slack: Any  # the smallest right - left; for an equality, -|left - right|
    broken: Any  # whether any pair violates the claim


def verify(
    theorem: Theorem, *, seed: int = 0, instances: int = 10_000, multiplier: float | Mapping[str, float] = 1.0
) -> list[Outcome]:
    """Checks a theorem's claims on random instances and on the adversary's.

    Args:
      theorem: the theorem to check.
      seed: the seed of the instances.
      instances: the number of drawn instances, over all families.
      multiplier: the factor on the right sides, by claim or for all claims. It tests the check: with a right side that
        is made too small, the claim must break.

    Returns:
      One outcome per claim.
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
    """Recomputes one instance, or the instance that the adversary reached from it for a claim.

    Args:
      theorem: the theorem of the instance.
      family: the name of the instance's family.
      index: the index of the instance in its family.
      claim: the claim that the adversary attacked, or None for the instance as drawn.
      seed: the seed of the draw.

    Returns:
      The instance and both sides of every claim.

    Raises:
      LookupError: if the theorem lacks this family, instance or claim, or a claim is given and it lacks an adversary.
    """
    if family not in theorem.families:
        raise LookupError(f"family {family!r}: unknown; {theorem.name} has {sorted(theorem.families)}")
    names = [c.name for c in theorem.claims]
    if claim is not None and claim not in names:
        raise LookupError(f"claim {claim!r}: unknown; {theorem.name} has {names}")
    if claim is not None and not (theorem.compiled and theorem.steps):
        raise LookupError(f"claim {claim!r}: {theorem.name} runs without an adversary; leave the claim out")
    count = theorem.families[family].count
    if count is not None and index >= count:
        raise LookupError(f"number {index}: {family!r} has the numbers 0 to {count - 1}")
    key = jax.random.fold_in(jax.random.key(seed), list(theorem.families).index(family))
    if not theorem.compiled:
        instance = theorem.families[family].draw(key_of(key, index), index)
    else:
        instance = jax.tree.map(lambda x: x[0], theorem.families[family](key, np.array([index])))
    if claim is not None:
        # The instance is repeated until there are as many starts as in `verify`: only the same program on arrays of
        # the same shapes gives bit for bit the same result.
        lanes = (2 * _STARTS, len(names))
        starts = jax.tree.map(lambda x: jnp.broadcast_to(x, lanes + x.shape), instance)
        instance = jax.tree.map(lambda x: x[0, names.index(claim)], _climb(theorem, starts))
    return instance, theorem.sides(instance)


def draws(family: Family, seed: int, count: int) -> Instance:
    """Draws the first instances of a family, `[count, ...]`."""
    return family(jax.random.key(seed), np.arange(count))


def look(theorem: Theorem, instances: Instance) -> Looks:
    """Evaluates every claim on instances `[n, ...]`; returns the evaluations as `Looks` of `[n, claims]`."""
    looks: Looks = jax.tree.map(np.asarray, _looker(theorem)(instances, np.ones(len(theorem.claims))))
    return looks


def worst(theorem: Theorem, starts: Instance) -> NDArray:
    """Returns the largest `left / right` that the adversary finds from each instance `[n, ...]`: `[n, claims]`."""
    claims = len(theorem.claims)
    lanes = jax.tree.map(lambda x: jnp.broadcast_to(x[:, None], (len(x), claims, *x.shape[1:])), starts)
    return np.asarray(_ends(theorem)(_climb(theorem, lanes), np.ones(claims)).ratio)


def key_of(key: jax.Array, index: Any) -> jax.Array:
    """Returns the key of an instance, which does not depend on the number of instances."""
    return jax.random.fold_in(key, index)


def _multipliers(theorem: Theorem, multiplier: float | Mapping[str, float]) -> NDArray:
    if isinstance(multiplier, Mapping):
        return np.array([multiplier.get(claim.name, 1.0) for claim in theorem.claims])
    return np.full(len(theorem.claims), float(multiplier))


def _look(theorem: Theorem, instance: Instance, planted: Any) -> Looks:
    """Evaluates every claim on one instance, at the worst pair of numbers."""
    looks: Looks = _compare(theorem.claims, theorem.sides(instance), planted)
    return looks


@functools.partial(jax.jit, static_argnums=0)
def _compare(claims: tuple[Claim, ...], sides: Mapping[str, Sides], planted: Any) -> Looks:
    rows = []
    for i, claim in enumerate(claims):
        left, right, tolerance = jnp.broadcast_arrays(*(jnp.asarray(side, float) for side in sides[claim.name]))
        # If the right side is not far above the tolerance, the ratio is mostly rounding error. Its denominator is
        # therefore bounded from below.
        floor = jnp.maximum(right, jnp.maximum(_CLEAR * tolerance, 1e-300))
        margin = tolerance + ROUNDING * (abs(left) + abs(planted[i] * right))
        if claim.equality:
            gap, slack, ratio = abs(left - planted[i] * right), -abs(left - right), 1 + abs(left - right) / floor
        else:
            gap, slack, ratio = left - planted[i] * right, right - left, left / floor
        # NaN breaks a bound, and does not break a control.
        broken = (gap > margin) if claim.control else ~(gap <= margin)
        score = jnp.where(broken, jnp.nan_to_num(ratio, nan=jnp.inf), jnp.nan_to_num(ratio, nan=-jnp.inf))
        worst = jnp.argmax(jnp.where(broken | ~jnp.any(broken), score, -jnp.inf).reshape(-1))
        left, right, ratio = (x.reshape(-1)[worst] for x in (left, right, ratio))
        rows.append(Looks(left, right, ratio, jnp.min(slack), jnp.any(broken)))
    return Looks(*(jnp.stack(column) for column in zip(*rows, strict=True)))


@functools.cache
def _drawer(draw: Callable[..., Instance]) -> Callable[..., Instance]:
    """Returns the compiled function `(key, indices, settings) -> instances [indices, ...]`."""

    def one(key: jax.Array, index: jax.Array, settings: dict[str, Any]) -> Instance:
        return draw(key_of(key, index), index, **settings)

    return jax.jit(jax.vmap(one, in_axes=(None, 0, None)))


@functools.cache
def _looker(theorem: Theorem) -> Callable[..., Looks]:
    """Returns the compiled function `(instances [n, ...], multipliers) -> Looks of [n, claims]`."""
    return jax.jit(jax.vmap(functools.partial(_look, theorem), in_axes=(0, None)))


def _look_at_all(theorem: Theorem, family: str, key: jax.Array, count: int, planted: NDArray) -> tuple[Looks, Tree]:
    """Evaluates a family's claims `[count, claims]`; returns also the instances `[count, ...]` if JAX drew them."""
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
    """Returns the indices of the adversary's starts `[starts, claims]`: each claim's worst instances, and the first."""
    ratio = np.where(np.isfinite(looks.ratio), looks.ratio, np.inf)
    worst = np.argsort(-ratio, axis=0, kind="stable")[:_STARTS]
    first = np.broadcast_to(np.arange(_STARTS)[:, None] % count, (_STARTS, ratio.shape[1]))
    worst = worst[np.arange(_STARTS) % len(worst)]
    return np.concatenate([worst, first])


@functools.cache
def _climber(theorem: Theorem) -> Callable[..., Tree]:
    """Returns `(instances [starts, claims, ...]) -> free [starts, claims, ...]`, which finds the largest ratios."""
    optimizer = optax.adam(optax.cosine_decay_schedule(_STEP, theorem.steps))
    even = jnp.ones(len(theorem.claims))

    def climb(instance: Instance, claim: jax.Array) -> Tree:
        def loss(free: Tree) -> jax.Array:
            ratio: jax.Array = _look(theorem, Instance(free, instance.fixed), even).ratio
            return -ratio[claim]

        def step(carry: Any, _: Any) -> tuple[Any, None]:
            free, state, best, lowest = carry
            value, slope = jax.value_and_grad(loss)(free)
            value = jnp.where(jnp.isnan(value), -jnp.inf, value)  # NaN breaks a bound: it counts as the largest ratio
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
    """Returns a compiled function that evaluates each claim, at the instances that were searched for this claim.

    Its signature is `(instances [starts, claims, ...], multipliers) -> Looks of [starts, claims]`.
    """

    def one(claim: jax.Array, instance: Instance, planted: jax.Array) -> Looks:
        return Looks(*(x[claim] for x in _look(theorem, instance, planted)))

    over_claims = jax.vmap(one, in_axes=(0, 0, None))
    claims = jnp.arange(len(theorem.claims))
    return jax.jit(lambda ends, planted: jax.vmap(over_claims, in_axes=(None, 0, None))(claims, ends, planted))


def _climb(theorem: Theorem, starts: Instance) -> Instance:
    """Returns the instances that the adversary reaches from these, each for its claim: `[starts, claims, ...]`."""
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
