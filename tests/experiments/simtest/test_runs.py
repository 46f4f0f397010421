"""Simulation testing: 200 seeds hold, and each of a dozen defects, put in by hand, is found within as many."""

import re

import numpy as np
import pytest

from experiments.simtest import runs
from experiments.simtest.invariants import ViolationError
from stellaris.runtime.costs import usage
from stellaris.runtime.engine import admission, departures, fleet, transfers
from stellaris.runtime.store import store
from stellaris.systems import pending_gradients, session

SEEDS, BLOCK = 200, 25


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_invariants_hold(first):
    for seed in range(first, first + BLOCK):
        runs.run(seed)


@pytest.mark.slow
def test_the_same_seed_is_the_same_run():
    """Otherwise no failure could be replayed."""
    for seed in (3, 5):
        assert runs.run(seed) == runs.run(seed)


# ---- defects --------------------------------------------------------------------------------------------------------


def without_learners_keys(right):
    """The keys of learners' invocations are forgotten, so that a second delivery passes for a first."""

    def next_completion(self, loop):
        done = right(self, loop)
        if done is not None and done.function == "learner":
            handled = self._deliveries.handled
            handled.above.update(range(done.key + 1, handled.floor))
            handled.above.discard(done.key)
            handled.floor = min(handled.floor, done.key)
            loop.running.setdefault(done.tag, next(iter(loop.running.values()), None))
        return done

    return next_completion


def dropping_learners(right):
    """A learner's completion is dropped as if it had been seen."""

    def next_completion(self, loop):
        done = right(self, loop)
        return right(self, loop) if done is not None and done.function == "learner" and done.number % 5 == 0 else done

    return next_completion


def unnoticed(right):
    """The loss of an invocation is never noticed."""

    def deliver(self, message, now):
        done = right(self, message, now)
        return None if message[1] == "noticed" else done

    return deliver


def ending_again(right):
    """A duplicated message ends an invocation once more."""

    def deliver(self, message, now):
        invocation = right(self, message, now)
        self._rows.append((now, "completed", invocation.function, invocation.number, -1, 0.0))
        return invocation

    return deliver


def one_before_the_newest(right):
    """Reads return the version before the newest, if there is one."""

    def version_of(self, argument):
        version = right(self, argument)
        if isinstance(argument, store.Latest) and version and version - 1 in self.versions(argument.name):
            return version - 1
        return version

    return version_of


def keeping(right):
    """A busy container stays among the idle ones."""

    def acquire(self, invocation, now):
        found = right(self, invocation, now)
        if found is not None and not invocation.cold:
            invocation.pool.give(found[0], now)
        return found

    return acquire


def with_slots_cleared(right):
    """Slots are counted, not kept."""

    def make(self, pool, program, now):
        pool.slots.clear()
        return right(self, pool, program, now)

    return make


#: An attribute, and a function that makes a wrong one from the right one.
DEFECTS = {
    "a retried gradient is applied twice": (session.Session, "next_completion", without_learners_keys),
    "a gradient is lost": (session.Session, "next_completion", dropping_learners),
    "a lost completion is never retried": (departures.Departures, "_deliver", unnoticed),
    "an invocation ends twice": (departures.Departures, "_deliver", ending_again),
    "a learner gets an old version": (store.Store, "_version", one_before_the_newest),
    "a busy container is given away": (fleet.Fleet, "acquire", keeping),
    "two containers share a slot": (fleet.Fleet, "_make", with_slots_cleared),
    "a container is reused after expiry": (fleet.Fleet, "_expire", lambda _: lambda self, container, now: None),
    "a limit is ignored": (fleet.Fleet, "may_have_room", lambda _: lambda self, pool: True),
    "a crashed container lives on": (
        fleet.Fleet,
        "release",
        lambda right: lambda self, container, now, **how: right(self, container, now, **{**how, "dies": False}),
    ),
    "those that wait are forgotten": (admission.Admission, "wake", lambda _: lambda self, now: None),
    "the version clock stands still": (
        transfers.Transfers,
        "_stored",
        lambda right: lambda self, n, version, size: right(self, n, version // 2, size),
    ),
    "the threshold is ignored": (
        pending_gradients,
        "_ready",
        lambda _: lambda aggregator, queue, clock, round: np.asarray(queue.count) > 0,
    ),
    "a failed attempt is not billed": (
        usage.Use,
        "billed",
        lambda right: lambda self, until: right(self, until)._replace(wasted=0.0),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(name, monkeypatch):
    """By an invariant, or by the engine, which notices a standstill: not by a crash before any invariant is checked."""
    owner, attribute, wrong = DEFECTS[name]
    monkeypatch.setattr(owner, attribute, wrong(getattr(owner, attribute)))
    for seed in range(SEEDS):
        try:
            runs.run(seed)
        except ViolationError:
            return
        except RuntimeError as error:
            if not re.search("wait for room that nothing will ever free|nothing goes on after", str(error)):
                raise
            return
    pytest.fail(f"{name}: not found within {SEEDS} seeds")
