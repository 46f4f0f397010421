"""Stale synchronous parallel: the regret of descent on views that are up to s clocks old.

Ho et al. 2013 (More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server), Theorem 1. Each of P
workers adds one update per clock. The *reference order* has the workers of clock 0, then those of clock 1, and so on:
the update of worker p at clock c has number t = c P + p + 1, and T counts the updates of all workers. Losses f_t are
convex with subgradients of norm at most L, each evaluated at v_t, its worker's *view*: a copy of the parameters that
may lack updates with lower numbers, and may hold updates with higher numbers ("early"):

    u_t = -eta_t g_t,  g_t in df_t(v_t),  eta_t = sigma / sqrt(t),  sigma = F / (L sqrt(2 (s+1) P))
    x_1 the start,  x_{t+1} = x_t + u_t                                 the reference iterates, which no worker need see
    F^2 >= D_t = |x_t - x*|^2 / 2  for *every* t                        the premise

    R = sum_t f_t(v_t) - f_t(x*) <= c F L sqrt(2 (s+1) P T)

with c = 4 as published, and here also with smaller c. **Derivation.** By convexity f_t(v_t) - f_t(x*) <= <g_t, v_t -
x*>, which is <g_t, x_t - x*> + <g_t, v_t - x_t>.

1. eta_t <g_t, x_t - x*> = D_t - D_{t+1} + eta_t^2 |g_t|^2 / 2. Divided by eta_t and summed, the D_t give at most
   F^2 / eta_T = F^2 sqrt(T) / sigma, since 1 / eta_t only grows, and the rest L^2 sum_t eta_t / 2 <= L^2 sigma sqrt(T).
2. v_t differs from x_t by updates that v_t misses and by extra updates with later numbers: <g_t, v_t - x_t> is at most
   the sum of L^2 eta_i over these updates. If each update is missing from or extra in at most M views, the total is at
   most M L^2 sum_i eta_i <= 2 M L^2 sigma sqrt(T).

With this sigma, c = 1 + (1 + 2 M) / (2 (s+1) P). It remains to bound M. Take an update of clock k, and another worker:

* Views of arbitrary content: the worker may lack the update at clocks k+1 .. k+s, and hold it early at k-s .. k-1; at
  clock k it does one of the two, depending on the order of the workers. M <= (2s+1) (P-1), and c <= 3 - 2/P +
  1 / (2 (s+1) P).
* Views that forget nothing: a worker that held the update early keeps it and so never lacks it, and a worker that
  lacks it has not held it before. M <= (s+1) (P-1), and **c = 2 - 1/P + 1 / (2 (s+1) P)**, below 2.
* Updates made in the reference order: views hold no update early. M is the same.

(Updates with numbers beyond T would also count if views held them: here all workers stop after a whole number of
clocks.)

The result also holds if a view holds fractions of updates: a fraction w in [0, 1] deviates by w or 1 - w, and for
fractions that only grow, s w + s (1 - w) + max(w, 1 - w) <= s + 1. It also holds with projection: an effective update
u_t = Proj(x_t - eta_t g_t) - x_t is not longer than eta_t |g_t| and does not end farther from x*.

**The two kinds of instances.** *Projected*: updates in the reference order, views that lack any part of the other
workers' updates of clocks c-s .. c, iterates that are kept in a ball whose reach bounds F. *Asynchronous*: unprojected
runs of workers of different speeds, as the library's `stale_synchronous` admits them. F is doubled, at most three
times, until the resulting run meets the premise. A run that still does not meet it is left out (its left side is 0).
This happens in one run in fifty with linear losses: there F only scales the path.

**A finished update counts at once.** A worker admitted at clock c+s may deliver its update of clock c+s before another
worker starts clock c, whose view then holds s+1 early updates of the first; and with s = 0 the workers of one clock
lack each other's updates. A count of M = 2 s (P-1) misses one of these clocks: it is too small with s = 0, where it
would be 0, and for views of arbitrary content with any s. The bound (s+1) (P-1) is attained.

**The premise is necessary.** If F bounds only the start's distance and nothing is projected, losses that pull first one
way and then the other drive x_t far beyond F, and the regret beyond every such bound. This is the control.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from stellaris import stale_synchronous
from theory_checks.check import Claim, Family, Instance, Sides, Theorem

#: Number of updates over all workers, a multiple of 2, 3 and 4, the numbers of workers.
_UPDATES = 24
#: Number of updates in the control, whose iterates need time to diverge.
_MANY = 100
_DIMENSIONS = 2
#: Radius of a ball that no iterate leaves.
_EVERYWHERE = 1e9
#: The values of F that are tried, in multiples of the smallest F that the starting point allows.
_DOUBLINGS = 2.0 ** np.arange(4)


class Losses(NamedTuple):
    """`f_t(x) = phi(a_t . x - b_t)`, with `phi` linear, absolute, hinge or Huber, of slopes in [-1, 1]."""

    direction: Float[jax.Array, "T d"]  #: a_t
    offset: Float[jax.Array, " T"]  #: b_t
    kind: Any  #: the kind of phi: 0 linear, 1 absolute, 2 hinge, 3 Huber
    width: Any  #: half-width of the parabola in Huber's phi

    def value(self, x: Float[jax.Array, "T d"]) -> Float[jax.Array, " T"]:
        """Returns `f_t(x_t)` for every t."""
        z = (self.direction * x).sum(1) - self.offset
        size = abs(z)
        huber = jnp.where(size < self.width, z**2 / (2 * self.width), size - self.width / 2)
        return jnp.stack([z, size, jnp.maximum(z, 0.0), huber])[self.kind]


class Schedule(NamedTuple):
    """The content of views: rows and columns are updates in order of their start."""

    number: Int[jax.Array, " T"]  #: the update's number in the reference order, from 1.
    seen: Float[jax.Array, "T T"]  #: `[t, i]`: how much of update i the view of update t contains.

    @property
    def before(self) -> Bool[jax.Array, "T T"]:
        """Whether an update (column) comes before another (row) in the reference order."""
        return self.number < self.number[:, None]


class Run(NamedTuple):
    """The views and iterates of a run."""

    views: Float[jax.Array, "T d"]
    iterates: Float[jax.Array, "T d"]  #: the reference iterates before each update.


def descend(losses: Losses, schedule: Schedule, sigma: Any, radius: Any) -> Run:
    """Descends from the origin with steps `sigma / sqrt(t)`; keeps the reference iterates in a ball."""
    before = schedule.before.astype(float)

    def start(updates: jax.Array, row: Any) -> tuple[jax.Array, jax.Array]:
        i, a, b, step, seen, earlier = row
        view, iterate = seen @ updates, earlier @ updates
        z = a @ view - b
        slope = jnp.stack([1.0, jnp.sign(z), (z > 0).astype(float), jnp.clip(z / losses.width, -1, 1)])[losses.kind]
        there = radius * _in_unit_ball((iterate - step * slope * a) / radius)
        return updates.at[i].set(there - iterate), view

    steps = sigma / jnp.sqrt(schedule.number)
    rows = (jnp.arange(len(steps)), losses.direction, losses.offset, steps, schedule.seen, before)
    updates, views = jax.lax.scan(start, jnp.zeros_like(losses.direction), rows)
    return Run(views, before @ updates)


def projected(instance: Instance) -> Mapping[str, Sides]:
    """Returns the regret in a ball, with views that lack parts of recent updates, and its bounds."""
    radius = instance.fixed["radius"]
    losses, star = _losses(instance, radius)
    reach = (radius + jnp.sqrt(star @ star)) / jnp.sqrt(2.0)
    return _bounds(_in_order(instance), losses, star, reach, radius, instance.fixed)


def astray(instance: Instance) -> Mapping[str, Sides]:
    """Returns the sides of `projected` without a ball, and with an F that bounds only the start's distance."""
    losses, star = _losses(instance, instance.fixed["radius"])
    reach = jnp.sqrt(star @ star / 2)
    sides = _bounds(_in_order(instance), losses, star, reach, _EVERYWHERE, instance.fixed)
    return {"F from the start alone": sides["c = 4"]}


def asynchronous(instance: Instance) -> Mapping[str, Sides]:
    """Returns the regret of an admitted run with the first F that meets the premise, and the deviations of views."""
    fixed = instance.fixed
    losses, star = _losses(instance, fixed["radius"])
    schedule = Schedule(fixed["number"], fixed["seen"].astype(float))
    reaches = jnp.sqrt(star @ star / 2) * _DOUBLINGS
    runs = jax.vmap(lambda reach: descend(losses, schedule, _sigma(reach, fixed), _EVERYWHERE))(reaches)
    farthest = ((runs.iterates - star) ** 2).sum(2).max(1) / 2
    met = farthest <= reaches**2 * (1 + 1e-12)
    first = jnp.argmax(met)
    regret = (losses.value(runs.views[first]) - losses.value(star)).sum()
    sides = _constants(jnp.where(met[first], regret, 0.0), reaches[first], len(schedule.number), fixed)
    views = abs(schedule.seen - schedule.before).sum(0).max()
    others = fixed["workers"] - 1
    return {
        **sides,
        "views": Sides(views, (fixed["bound"] + 1) * others),
        # Both sides are integers: the tolerance only keeps the ratio finite if s = 0.
        "2 s (P-1) views": Sides(views, 2 * fixed["bound"] * others, 1e-3),
    }


def picture(path: Path, seed: int) -> None:
    """Draws regret over T, with and without a ball, for losses that pull away from x* up to a turn and then towards it.

    There are two workers, views lack as much as they may, and the worst turn is taken for every T. Nothing is random.
    """
    del seed
    from experiments.toolkit.plots import figure

    workers, updates, bounds = 2, 400, (0, 1, 3)
    turns = np.unique(np.geomspace(1, updates, 60).astype(int))
    with jax.enable_x64(True):
        balls = np.array([1.0, _EVERYWHERE])
        worst = np.asarray(_worst_turns(updates, workers, np.array(bounds), turns, balls))
    last = 1 / (2 * workers)
    constants = {"c = 4": 4.0, "3 - 2/P + ..": 3 - 2 / workers + last, "2 - 1/P + ..": 2 - 1 / workers + last}
    styles = zip(bounds, ("#D55E00", "#0072B2", "#009E73"), ("-", "--", ":"), strict=True)
    with figure(path, f"iterates kept in a ball, which gives F (P = {workers})", columns=2) as (inside, outside):
        for row, (bound, color, line) in enumerate(styles):
            for axes, needed in zip((inside, outside), worst[:, row], strict=True):
                time = np.arange(1, updates + 1)
                axes.plot(time, needed, color=color, linestyle=line, linewidth=1.6, label=f"s = {bound}")
        for axes in (inside, outside):
            for name, c in constants.items():
                axes.axhline(c, color="black", linewidth=0.8)
                axes.annotate(name, (1.1, c), (0, 2), textcoords="offset points", fontsize=8)
            axes.set(xscale="log", xlim=(1, updates), ylim=(0, 8), xlabel="updates of all workers, T")
        inside.set_ylabel("regret / (F L sqrt(2 (s+1) P T))")
        outside.set_title("no ball, F from the start alone", loc="left", fontsize=10)
        inside.legend(loc="upper right")


@functools.partial(jax.jit, static_argnums=(0, 1))
def _worst_turns(updates: int, workers: int, bounds: jax.Array, turns: jax.Array, radii: jax.Array) -> jax.Array:
    """Returns the regret over `F L sqrt(2 (s+1) P T)` at the worst turn `[radii, bounds, T]`; L and |x*| are 1."""
    time = jnp.arange(updates)
    star = jnp.ones(1)

    def needed(radius: jax.Array, bound: jax.Array, turn: jax.Array) -> jax.Array:
        fixed = {"bound": bound, "workers": workers, "lipschitz": 1.0}
        schedule = _in_order(Instance({"lacking": jnp.full((updates, updates), jnp.inf)}, fixed))
        pull = jnp.where(time < turn, 1.0, -1.0)[:, None]
        losses = Losses(pull, jnp.zeros(updates), 0, 1.0)
        reach = jnp.where(radius < _EVERYWHERE, 1 + radius, 1.0) / jnp.sqrt(2.0)
        views = descend(losses, schedule, _sigma(reach, fixed), radius).views
        regret = jnp.cumsum(losses.value(views) - losses.value(star))
        return regret / (reach * jnp.sqrt(2.0 * (bound + 1) * workers * (time + 1)))

    over_turns = jax.vmap(needed, in_axes=(None, None, 0))
    over_bounds = jax.vmap(over_turns, in_axes=(None, 0, None))
    worst: jax.Array = jax.vmap(over_bounds, in_axes=(0, None, None))(radii, bounds, turns).max(2)
    return worst


def admitted(key: jax.Array, bound: int, workers: int, clocks: int) -> Schedule:
    """Returns the schedule of workers with random speeds, for `clocks` clocks each, admitted by `stale_synchronous`.

    The view of an update holds the updates that were delivered before that update started.
    """
    aggregator = stale_synchronous(bound, workers, capacity=1)
    updates = workers * clocks
    noise = jax.random.gumbel(key, (2 * updates + 1, workers))
    speed = 1.5 * noise[-1]  # logarithms; the next event is drawn from the possible ones in proportion to the speeds

    def event(carry: Any, noise: jax.Array) -> tuple[Any, Any]:
        state, started, delivered = carry
        working = started > delivered
        may = jax.vmap(aggregator.admit, in_axes=(None, 0, None))(state, jnp.arange(workers), 0)
        possible = working | (may & (started < clocks))
        worker = jnp.argmax(jnp.where(possible, speed + noise, -jnp.inf))
        ends = working[worker]
        _, after = aggregator.pop(aggregator.push(state, jnp.zeros(1), 0, learner=worker), 0, 0)
        state = jax.tree.map(lambda new, old: jnp.where(ends, new, old), after, state)
        now = started.at[worker].add(~ends), delivered.at[worker].add(ends)
        return (state, *now), (ends, worker, started[worker], delivered)

    none = jnp.zeros(workers, jnp.int32)
    empty = aggregator.init(jnp.zeros(1))
    _, (ends, worker, clock, delivered) = jax.lax.scan(event, (empty, none, none), noise[:-1])
    starts = jnp.argsort(ends, stable=True)[:updates]
    worker, clock, delivered = worker[starts], clock[starts], delivered[starts]
    return Schedule(clock * workers + worker + 1, clock < delivered[:, worker])


def _in_order(instance: Instance) -> Schedule:
    """Returns updates in the reference order; views lack parts of the other workers' updates of clocks c-s .. c."""
    lacking = jax.nn.sigmoid(instance.free["lacking"])
    index = jnp.arange(len(lacking))
    clock, worker = index // instance.fixed["workers"], index % instance.fixed["workers"]
    others = worker != worker[:, None]
    recent = clock >= clock[:, None] - instance.fixed["bound"]
    schedule = Schedule(index + 1, lacking)
    return schedule._replace(seen=schedule.before * (1 - lacking * (others & recent)))


def _losses(instance: Instance, radius: Any) -> tuple[Losses, jax.Array]:
    """Returns losses with subgradients within `lipschitz`, and x* within `radius` of the origin."""
    lipschitz, free = instance.fixed["lipschitz"], instance.free
    star = radius * _in_unit_ball(free["star"])
    direction = lipschitz * _in_unit_ball(free["direction"])
    offset = direction @ star + lipschitz * radius * free["offset"]
    return Losses(direction, offset, instance.fixed["kind"], lipschitz * radius / 10), star


def _in_unit_ball(x: Float[jax.Array, "*n d"]) -> Float[jax.Array, "*n d"]:
    length = jnp.sqrt(jnp.maximum((x**2).sum(-1, keepdims=True), 1.0))
    return x / length


def _sigma(reach: Any, fixed: Any) -> Any:
    return reach / (fixed["lipschitz"] * jnp.sqrt(2.0 * (fixed["bound"] + 1) * fixed["workers"]))


def _bounds(
    schedule: Schedule, losses: Losses, star: jax.Array, reach: Any, radius: Any, fixed: Any
) -> Mapping[str, Sides]:
    run = descend(losses, schedule, _sigma(reach, fixed), radius)
    regret = (losses.value(run.views) - losses.value(star)).sum()
    return _constants(regret, reach, len(schedule.number), fixed)


def _constants(regret: Any, reach: Any, updates: int, fixed: Any) -> dict[str, Sides]:
    """Returns the regret against `c F L sqrt(2 (s+1) P T)`, by constant c."""
    workers, ages = fixed["workers"], fixed["bound"] + 1
    unit = reach * fixed["lipschitz"] * jnp.sqrt(2.0 * ages * workers * updates)
    last = 1 / (2 * ages * workers)
    constants = {"c = 4": 4.0, "c = 3 - 2/P + ..": 3 - 2 / workers + last, "c = 2 - 1/P + ..": 2 - 1 / workers + last}
    return {name: Sides(regret, c * unit, 1e-12 * unit) for name, c in constants.items()}


def _draw(key: jax.Array, updates: int) -> Instance:
    """Draws losses that pull from the origin to x* and back, with random strength, period and noise."""
    numbers = jax.random.uniform(key, (updates + 1, _DIMENSIONS + 1 + updates), minval=-1.0)
    direction, offset, lacking = jnp.split(numbers[:-1], (_DIMENSIONS, _DIMENSIONS + 1), axis=1)
    star, rest = numbers[-1, :_DIMENSIONS], numbers[-1, _DIMENSIONS:]
    size, steepness, strength, period, phase, kind, workers, bound = rest[:8]
    angle = jnp.pi * ((3 + period) * jnp.arange(updates) / updates + phase)
    towards = star / jnp.sqrt(star @ star)
    free = {
        "star": 2 * star,
        "direction": direction - (1 + strength) * jnp.cos(angle)[:, None] * towards,
        "offset": 0.5 * offset[:, 0],
        "lacking": 8 * lacking + 4,
    }
    fixed = {
        "radius": jnp.exp(2 * size),
        "lipschitz": jnp.exp(2 * steepness),
        "kind": _one_of(4, kind),
        "workers": 2 + _one_of(3, workers),
        "bound": _one_of(4, bound),
    }
    return Instance(free, fixed)


def _one_of(choices: int, uniform: jax.Array) -> jax.Array:
    """Maps a number in [-1, 1) to an integer from 0 to `choices - 1`."""
    return (choices * (1 + uniform) / 2).astype(int)


def _in_ball(key: jax.Array, index: jax.Array) -> Instance:
    return _draw(key, _UPDATES)


def _misleading(key: jax.Array, index: jax.Array) -> Instance:
    """Draws linear losses that first pull away from x*, and then towards it; up to three workers, s = 0."""
    free, fixed = _draw(key, _MANY)
    turn = (0.3 + 0.1 * free["offset"][0]) * _MANY
    pull = jnp.where(jnp.arange(_MANY) < turn, 1.0, -1.0)[:, None] * free["star"]
    pull = pull / jnp.sqrt(free["star"] @ free["star"]) + 0.2 * free["direction"]
    simple = {"kind": jnp.array(0), "bound": jnp.array(0), "workers": fixed["workers"] - 1}
    return Instance({**free, "direction": pull}, {**fixed, **simple})


def _of_system(bound: int, workers: int) -> Family:
    """Returns the family of asynchronous runs with one bound and number of workers."""

    def draw(key: jax.Array, index: jax.Array) -> Instance:
        free, fixed = _draw(key, _UPDATES)
        number, seen = admitted(jax.random.fold_in(key, 1), bound, workers, _UPDATES // workers)
        del free["lacking"]
        system = {"bound": jnp.array(bound), "workers": jnp.array(workers)}
        return Instance(free, {**fixed, **system, "number": number, "seen": seen})

    return Family(draw)


_REGRET = (
    Claim("c = 4", "R <= 4 F L sqrt(2 (s+1) P T)"),
    Claim("c = 3 - 2/P + ..", "R <= (3 - 2/P + 1/(2(s+1)P)) F L sqrt(2 (s+1) P T)"),
    Claim("c = 2 - 1/P + ..", "R <= (2 - 1/P + 1/(2(s+1)P)) F L sqrt(2 (s+1) P T)"),
)
THEOREMS = (
    Theorem("ssp, projected", claims=_REGRET, families={"all": Family(_in_ball)}, sides=projected),
    Theorem(
        "ssp, asynchronous",
        claims=(
            *_REGRET,
            Claim("views", "views that an update is missing from or extra in <= (s+1) (P-1)"),
            Claim("2 s (P-1) views", "the same <= 2 s (P-1)", control=True),
        ),
        families={f"s = {s}, P = {p}": _of_system(s, p) for s, p in ((0, 3), (1, 4), (3, 2))},
        sides=asynchronous,
    ),
    Theorem(
        "ssp, astray",
        claims=(Claim("F from the start alone", "R <= 4 F L sqrt(2 (s+1) P T)", control=True),),
        families={"misleading": Family(_misleading)},
        sides=astray,
        at_most=300,
        steps=0,
    ),
)
