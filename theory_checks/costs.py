"""Time and cost of runs: the papers' formulas against the platform's clock and bills.

Small random runs are played on `SimulatedPlatform`, in virtual time. The formulas use only the drawn durations, never
the trace. Failed calls take time and are billed like other calls.

**Rounds.** MinionsRL (AAAI 2024), Eq. 1 and 2: in round k, I_k actor functions run in parallel for P^a_ki seconds,
and then a learner function for P^l_k; with d the resources of each function, and c their unit price,

    P_k = P^l_k + max_i P^a_ki
    C_k = c (P^l_k d^l + sum_i P^a_ki d^a)

In the paper, P is an execution time. With new containers, which take S seconds to start, Eq. 1 uses S + P, and the
slowest actor need not be the one that runs longest. Eq. 2 is the provider's bill, with c and d as vectors (memory,
processors, GPU slots), b = 1 if starts are billed, n calls at a price q each, and [x] for x rounded up to a multiple of
the granularity, separately for the start and the run:

    P_k = S^l new_k + P^l_k + max_i (S^a new_ki + P^a_ki)
    C_k = sum over both functions of  c.d sum ([P] + b new [S]) + n q

All containers are new if they are not kept between calls, as in MinionsRL. If they are kept, a round uses the
containers of earlier rounds first: actor i of round k is new if i >= max_{j<k} I_j, and the learner only in the first
round.

**Asynchronous runs.** Stellaris (SC 2024), with the prices of its public demo: actors are called again without a
pause, every few of their batches lead to a call of one of L learner functions, and every few gradients to a call of
the parameter function. Queues are served in order of arrival. After T seconds,

    demo        = T (L slot + actor machine),  slot = learner machine / L
    pay-per-use = sum over functions of  price x (seconds run by T);  starts are not billed

The demo's code bills its serverless run by the first formula, which is the serverful baseline's price per second for
every L: under this bill, a run is cheaper only because it is shorter. The cost by use differs.

A bill splits into the time that a function or machine was busy, idle, cold (starting) or wasted (failing); the parts
of a machine sum to its price x T.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.tasks import testbed
from stellaris.runtime import FunctionSpec, PriceSheet, Rate, Resources, SimulatedPlatform, Split
from stellaris.runtime.delays import Constant
from stellaris.types import NDArray
from theory_checks.check import Claim, Family, Instance, Sides, Theorem

#: Absolute rounding errors in seconds, and in USD, for values that may be exactly 0.
_SECONDS, _USD = 1e-9, 1e-12
_ROUNDS, _MOST_ACTORS = 4, 5
#: Rounding error of a multiple of the granularity, in units of the granularity.
_NEARLY = 1e-9


# ---- rounds -----------------------------------------------------------------------------------------------------


class Rounds(NamedTuple):
    """A run of K rounds, and its prices; pairs are for the actor and the learner function."""

    actor: NDArray  #: [K, I] seconds that each actor runs; 0 if the actor is not called.
    learner: NDArray  #: [K, 1] seconds that the learner runs.
    fails: NDArray  #: [K, I] whether an actor's body raises.
    start: NDArray  #: [2] seconds that a new container takes to start.
    kept: bool  #: whether idle containers stay for ever.
    resources: NDArray  #: [2, 3] d: GB, processors, GPU slots.
    prices: NDArray  #: [3] c: price of a second of each resource.
    per_request: NDArray  #: [2] q: price of a call.
    granularity: float  #: billed seconds are rounded up to its multiples; 0 for no rounding.
    cold: bool  #: b: whether starts are billed.


def rounds(instance: Instance) -> Mapping[str, Sides]:
    """Returns both sides of Eq. 1 and 2 for one run, and of the split of its containers' seconds."""
    drawn: Rounds = instance.fixed
    played, length, cost, seconds = _play_rounds(drawn), _lengths(drawn), _costs(drawn), _container_seconds(drawn)
    mean = drawn.learner[:, 0] + drawn.actor.sum(1) / (drawn.actor > 0).sum(1)
    idle = drawn.resources @ drawn.prices @ seconds[:, Split._fields.index("idle")]
    return {
        "Eq. 1, rounds": Sides(played.lengths, length),
        "Eq. 1": Sides(played.clock, length.sum()),
        "Eq. 2, rounds": Sides(played.costs, cost.sum(0)),
        "Eq. 2, functions": Sides(played.parts, cost.sum(1)),
        "Eq. 2": Sides(played.total, cost.sum()),
        "container seconds": Sides(played.seconds, seconds, _SECONDS),
        "idle containers billed": Sides(played.with_idle, cost.sum() + idle),
        "the mean actor": Sides(played.lengths, mean),
        "starts for nothing": Sides(played.total, _costs(drawn._replace(cold=False)).sum()),
        "idle as if busy": Sides(played.with_idle, cost.sum()),
    }


def _calls_by_round(drawn: Rounds) -> list[tuple[NDArray, NDArray]]:
    """Returns the seconds that calls run, and whether they get a new container: `[K, n]` for each function."""
    both = []
    for run in (drawn.actor, drawn.learner):
        called = run > 0
        there = np.maximum.accumulate(called.sum(1))  # containers, if they are kept
        before = np.concatenate([[0], there[:-1]]) * drawn.kept
        both.append((run, called & (np.arange(run.shape[1]) >= before[:, None])))
    return both


def _phases(drawn: Rounds) -> NDArray:
    """Returns the seconds of each round's actors, and of its learner: `[2, K]`."""
    both = zip(_calls_by_round(drawn), drawn.start, strict=True)
    return np.stack([(start * new + run).max(1) for (run, new), start in both])


def _lengths(drawn: Rounds) -> NDArray:
    """Computes P_k by Eq. 1."""
    length: NDArray = _phases(drawn).sum(0)
    return length


def _costs(drawn: Rounds) -> NDArray:
    """Computes C_k by Eq. 2 for each function: `[2, K]`."""

    def billed(seconds: NDArray) -> NDArray:
        unit = drawn.granularity
        return np.asarray(np.ceil(seconds / unit - _NEARLY) * unit) if unit else seconds

    a_second = drawn.resources @ drawn.prices
    rows = []
    for i, (run, new) in enumerate(_calls_by_round(drawn)):
        seconds = (billed(run) + drawn.cold * new * billed(drawn.start[i])).sum(1)
        rows.append(a_second[i] * seconds + drawn.per_request[i] * (run > 0).sum(1))
    return np.stack(rows)


def _container_seconds(drawn: Rounds) -> NDArray:
    """Returns busy, idle, cold and wasted seconds of each function's containers: `[2, 4]`."""
    phases = _phases(drawn)
    left = phases.sum() - (np.cumsum(phases.T).reshape(-1, 2).T - phases)  # from a phase's beginning to the run's end
    rows = []
    for i, (run, new) in enumerate(_calls_by_round(drawn)):
        cold = (drawn.start[i] * new).sum()
        wasted = run[drawn.fails].sum() if i == 0 else 0.0
        idle = new.sum(1) @ left[i] - cold - run.sum() if drawn.kept else 0.0
        rows.append([run.sum() - wasted, idle, cold, wasted])
    return np.array(rows)


class _PlayedRounds(NamedTuple):
    """The platform's results for a run in rounds."""

    lengths: NDArray  # [K]
    clock: float
    costs: NDArray  # [K]
    total: float
    parts: NDArray  # [2]
    seconds: NDArray  # [2, 4]
    with_idle: float


def _play_rounds(drawn: Rounds) -> _PlayedRounds:
    names = ("actor", "learner")
    keep_alive = math.inf if drawn.kept else 0.0
    specs, rates = {}, {}
    for i, name in enumerate(names):
        memory, vcpus, slots = drawn.resources[i].tolist()
        specs[name] = _function(drawn.start[i], keep_alive=keep_alive, resources=Resources(memory, vcpus, int(slots)))
        by_resource = dict(zip(("gb", "vcpu", "gpu_slot"), drawn.prices.tolist(), strict=True))
        rates[name] = Rate(
            **{f"per_{resource}_second": price for resource, price in by_resource.items()},
            per_request=float(drawn.per_request[i]),
            granularity=drawn.granularity,
            cold=drawn.cold,
        )
    idle = PriceSheet("idle billed", {name: replace(rate, idle=True) for name, rate in rates.items()})
    sheet = PriceSheet("by use", rates)
    clock, totals = [0.0], [0.0]
    with SimulatedPlatform(specs, threads=1) as platform:
        for actors, fails, learner in zip(drawn.actor, drawn.fails, drawn.learner, strict=True):
            for seconds, fail in zip(actors.tolist(), fails, strict=True):
                if seconds > 0:
                    platform.invoke("actor", _fail if fail else _succeed, work=seconds)
            while platform.next_completion():
                pass
            platform.invoke("learner", _succeed, work=float(learner[0]))
            platform.next_completion()
            clock.append(platform.now)
            totals.append(platform.bill(sheet).total)
        bill = platform.bill(sheet)
        return _PlayedRounds(
            lengths=np.diff(clock),
            clock=platform.now,
            costs=np.diff(totals),
            total=bill.total,
            parts=np.array([bill.parts[name] for name in names]),
            seconds=np.array([bill.seconds[name] for name in names]),
            with_idle=platform.bill(idle).total,
        )


def _draw_rounds(*, started: bool, cold: bool, kept: bool = True, extras: bool = False) -> Family:
    """Returns a family of runs in rounds; `extras` adds a price per request and a granularity."""

    def draw(key: jax.Array, index: jax.Array) -> Instance:
        rng = _generator(key)
        shape = (_ROUNDS, _MOST_ACTORS)
        granularity = float(rng.choice([0.001, 0.1, 1.0])) if extras else 0.0
        actor, learner = rng.uniform(0.1, 3.0, shape), rng.uniform(0.1, 2.0, (_ROUNDS, 1))
        if extras:  # make some durations multiples of the granularity, which must not be rounded up
            actor = np.where(rng.random(shape) < 0.5, np.ceil(actor / granularity) * granularity, actor)
        count = rng.integers(1, _MOST_ACTORS + 1, _ROUNDS)
        launched = np.arange(_MOST_ACTORS) < count[:, None]
        slots = np.array([0, rng.integers(1, 4)])
        resources = np.stack([rng.uniform(0.5, 8.0, 2), rng.uniform(0.25, 4.0, 2), slots], 1)
        # One to three of the resources have a price; in the paper, one has.
        prices = rng.uniform(0.1, 2.0, 3) * (rng.permutation(3) < rng.integers(1, 4))
        return Instance(
            (),
            Rounds(
                actor=actor * launched,
                learner=learner,
                fails=launched & (rng.random(shape) < 0.2),
                start=rng.uniform(0.2, 2.0, 2) * started,
                kept=kept,
                resources=resources,
                prices=prices,
                per_request=rng.uniform(0.0, 0.5, 2) * extras,
                granularity=granularity,
                cold=cold,
            ),
        )

    return Family(draw)


# ---- asynchronous runs ------------------------------------------------------------------------------------------


class Asynchronous(NamedTuple):
    """A run of A actors and at most L learners; triples are for the actor, learner and parameter function."""

    actor: NDArray  #: [A, n] seconds of each actor's calls, in order.
    learner: NDArray  #: [A n] seconds of learner calls, in order.
    parameter: NDArray  #: [A n] seconds of parameter calls, in order.
    fails: NDArray  #: [A n] whether a learner's body raises, and so returns no gradient.
    start: NDArray  #: [3] seconds that a new container takes to start.
    learners: int  #: L, the maximum number of learner functions.
    batches: int  #: batches per gradient.
    gradients: int  #: gradients per call of the parameter function.
    share: float  #: fraction of the run at which the bills are checked; 1 for the end of the run.


_FUNCTIONS = ("actor", "learner", "parameter")


def asynchronous(instance: Instance) -> Mapping[str, Sides]:
    """Returns both sides of the claims about Stellaris' two bills of one run."""
    drawn: Asynchronous = instance.fixed
    calls = _calls(drawn)
    until = drawn.share * max(float(call.ended.max(initial=0.0)) for call in calls)
    played = _play_asynchronous(drawn, until if drawn.share < 1 else math.inf)
    seconds = np.array([_seconds(call, until) for call in calls])
    busy, _, cold, wasted = seconds.T
    slot = testbed.SERVER_LEARNER / drawn.learners
    use = np.array([testbed.ACTOR_FUNCTION, slot, testbed.PARAMETER_FUNCTION]) * (busy + wasted)
    machines = np.array([drawn.learners * slot, testbed.SERVER_ACTORS])
    places = np.array([testbed.SERVER_ACTORS / len(drawn.actor), slot])
    used = places[:, None] * seconds[:2]
    used[:, 1] = places * (np.array([len(drawn.actor), drawn.learners]) * until - (busy + cold + wasted)[:2])
    return {
        "clock": Sides(played.clock, until),
        "pay-per-use, functions": Sides(played.use_parts, use, _USD),
        "pay-per-use": Sides(played.use, use.sum()),
        "demo's bill": Sides(played.demo, until * machines.sum()),
        "serverful rate": Sides(played.demo, played.reserved),
        "container seconds": Sides(played.seconds, seconds, _SECONDS),
        "machines split": Sides(played.machines, used[::-1], _USD),
        "machines' parts": Sides(played.machines.sum(1), until * machines),
        "one bill": Sides(played.use, played.demo),
        "always busy": Sides(played.machines[:, 0], until * machines, _USD),
    }


class _Calls(NamedTuple):
    """Calls of one function `[n]`, and the instants at which its containers were created."""

    acquired: NDArray
    started: NDArray
    ended: NDArray
    created: NDArray
    fails: NDArray


def _serve(arrivals: NDArray, run: NDArray, fails: NDArray, *, places: int, start: float) -> _Calls:
    """Serves calls in order of arrival, by containers that are created on demand up to a limit."""
    free: list[float] = []  # the instant at which each container becomes free
    created, acquired, started, ended = [], [], [], []
    for arrival, seconds in zip(arrivals.tolist(), run.tolist(), strict=False):
        if min(free, default=math.inf) > arrival and len(free) < places:
            created.append(arrival)
            acquired.append(arrival)
            started.append(arrival + start)
            free.append(math.inf)
            mine = len(free) - 1
        else:
            mine = free.index(min(free))
            acquired.append(max(arrival, free[mine]))
            started.append(acquired[-1])
        free[mine] = started[-1] + seconds
        ended.append(free[mine])
    return _Calls(np.array(acquired), np.array(started), np.array(ended), np.array(created), fails[: len(ended)])


def _calls(drawn: Asynchronous) -> tuple[_Calls, _Calls, _Calls]:
    """Computes the instants of all calls."""
    ended = drawn.start[0] + np.cumsum(drawn.actor, axis=1)
    started = ended - drawn.actor
    acquired = started - drawn.start[0] * (np.arange(started.shape[1]) == 0)
    never = np.zeros(ended.size, bool)
    actor = _Calls(acquired.ravel(), started.ravel(), ended.ravel(), np.zeros(len(ended)), never)
    due = np.sort(actor.ended)[drawn.batches - 1 :: drawn.batches]
    learner = _serve(due, drawn.learner, drawn.fails, places=drawn.learners, start=float(drawn.start[1]))
    due = np.sort(learner.ended[~learner.fails])[drawn.gradients - 1 :: drawn.gradients]
    return actor, learner, _serve(due, drawn.parameter, never, places=1, start=float(drawn.start[2]))


def _seconds(calls: _Calls, until: float) -> list[float]:
    """Returns the busy, idle, cold and wasted seconds of containers up to an instant."""

    def within(begin: NDArray, end: Any) -> NDArray:
        return np.asarray(np.maximum(np.minimum(end, until) - begin, 0.0))

    ran, cold = within(calls.started, calls.ended), within(calls.acquired, calls.started).sum()
    wasted = ran[calls.fails & (calls.ended <= until)].sum()  # a running call has not failed yet
    return [ran.sum() - wasted, within(calls.created, until).sum() - cold - ran.sum(), cold, wasted]


class _PlayedAsynchronous(NamedTuple):
    """The platform's results for an asynchronous run."""

    clock: float
    use: float
    use_parts: NDArray  # [3]
    demo: float
    reserved: float
    seconds: NDArray  # [3, 4]
    machines: NDArray  # [2, 4] the learners', the actors'


def _play_asynchronous(drawn: Asynchronous, until: float) -> _PlayedAsynchronous:
    limits = (len(drawn.actor), drawn.learners, 1)
    specs = {
        name: _function(start, max_concurrency=limit)
        for name, start, limit in zip(_FUNCTIONS, drawn.start, limits, strict=True)
    }
    actor = [iter(row) for row in drawn.actor.tolist()]
    learner = zip(drawn.learner.tolist(), drawn.fails, strict=True)
    parameter = iter(drawn.parameter.tolist())
    batches, gradients = itertools.count(1), itertools.count(1)
    with SimulatedPlatform(specs, threads=1) as platform:
        for i, row in enumerate(actor):
            platform.invoke("actor", _succeed, work=next(row), tag=i)
        while (done := platform.next_completion(until=until)) is not None:
            if done.function == "actor":
                if seconds := next(actor[done.tag], None):
                    platform.invoke("actor", _succeed, work=seconds, tag=done.tag)
                if next(batches) % drawn.batches == 0:
                    work, fails = next(learner)
                    platform.invoke("learner", _fail if fails else _succeed, work=work)
            elif done.function == "learner" and done.status == "completed" and next(gradients) % drawn.gradients == 0:
                platform.invoke("parameter", _succeed, work=next(parameter))
        demo, by_use = map(platform.bill, testbed.serverless_prices(actors=limits[0], learners=limits[1]))
        reserved = platform.bill(testbed.reserved_prices(actors=limits[0])[0])
        return _PlayedAsynchronous(
            clock=platform.now,
            use=by_use.total,
            use_parts=np.array([by_use.parts[name] for name in _FUNCTIONS]),
            demo=demo.total,
            reserved=reserved.total,
            seconds=np.array([by_use.seconds[name] for name in _FUNCTIONS]),
            machines=np.array([demo.split["learner machines"], demo.split["actor machine"]]),
        )


def _draw_asynchronous(*, started: bool, stopped: bool = False) -> Family:
    """Returns a family of free-running actors and learners; if `stopped`, bills are checked before the end of a run."""

    def draw(key: jax.Array, index: jax.Array) -> Instance:
        rng = _generator(key)
        shape = tuple(rng.integers(1, 5, 2))
        n = math.prod(shape)
        return Instance(
            (),
            Asynchronous(
                actor=rng.uniform(0.1, 2.0, shape),
                learner=rng.uniform(0.1, 3.0, n),
                parameter=rng.uniform(0.05, 0.5, n),
                fails=rng.random(n) < 0.2,
                start=rng.uniform(0.2, 2.0, 3) * started,
                learners=int(rng.integers(1, 5)),
                batches=int(rng.integers(1, 3)),
                gradients=int(rng.integers(1, 3)),
                share=rng.uniform(0.2, 0.9) if stopped else 1.0,
            ),
        )

    return Family(draw)


# ---- both -------------------------------------------------------------------------------------------------------


def _function(start: float, **deployment: Any) -> FunctionSpec:
    """Returns a function whose calls run for `work` seconds."""
    return FunctionSpec(Constant(1.0), cold_start=Constant(float(start)), **deployment)


def _succeed(context: Any) -> None:
    pass


def _fail(context: Any) -> None:
    raise ArithmeticError


def _generator(key: jax.Array) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _equal(name: str, statement: str) -> Claim:
    return Claim(name, statement, equality=True)


def _unequal(name: str, statement: str) -> Claim:
    return Claim(name, statement, equality=True, control=True)


THEOREMS = (
    Theorem(
        "costs of rounds",
        claims=(
            _equal("Eq. 1, rounds", "length of round k = P^l_k + max_i P^a_ki"),
            _equal("Eq. 1", "clock = sum_k P_k"),
            _equal("Eq. 2, rounds", "bill of round k = c (P^l_k d^l + sum_i P^a_ki d^a)"),
            _equal("Eq. 2, functions", "bill of f = c d^f sum P^f"),
            _equal("Eq. 2", "bill = sum_k C_k"),
            _equal("container seconds", "busy, idle, cold, wasted"),
            _equal("idle containers billed", "bill with idle = sum_k C_k + c d (idle seconds)"),
            _unequal("the mean actor", "length of round k = P^l_k + mean_i P^a_ki"),
            _unequal("starts for nothing", "bill = c (sum P^l d^l + sum P^a d^a), b = 0"),
            _unequal("idle as if busy", "bill with idle = sum_k C_k"),
        ),
        families={
            "warm": _draw_rounds(started=False, cold=False),
            "starts not billed": _draw_rounds(started=True, cold=False),
            "starts billed": _draw_rounds(started=True, cold=True),
            "nothing kept": _draw_rounds(started=True, cold=True, kept=False),
            "requests, granularity": _draw_rounds(started=True, cold=True, extras=True),
        },
        sides=rounds,
        at_most=200,
        compiled=False,
    ),
    Theorem(
        "costs of asynchronous runs",
        claims=(
            _equal("clock", "T = the last end"),
            _equal("pay-per-use, functions", "bill of f = price x (seconds that f ran)"),
            _equal("pay-per-use", "bill = sum_f price x seconds"),
            _equal("demo's bill", "bill = T (L slot + actor machine)"),
            _equal("serverful rate", "demo's bill = the serverful baseline's"),
            _equal("container seconds", "busy, idle, cold, wasted"),
            _equal("machines split", "busy, idle, cold, wasted"),
            _equal("machines' parts", "busy + idle + cold + wasted = price x T"),
            _unequal("one bill", "pay-per-use = demo's bill"),
            _unequal("always busy", "busy = price x T"),
        ),
        families={
            "warm": _draw_asynchronous(started=False),
            "with starts": _draw_asynchronous(started=True),
            "in the middle": _draw_asynchronous(started=True, stopped=True),
        },
        sides=asynchronous,
        at_most=200,
        compiled=False,
    ),
)
