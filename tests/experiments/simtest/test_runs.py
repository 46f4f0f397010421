"""Simulation testing: 200 seeds hold, and each of a dozen defects, put in by hand, is found within as many."""

import re
from collections.abc import Callable
from typing import Any

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
def test_invariants_hold(first: int) -> None:
    """On random systems, delays and faults."""
    for seed in range(first, first + BLOCK):
        runs.run(seed)


def test_the_same_seed_is_the_same_run() -> None:
    """Otherwise no failure could be replayed."""
    for seed in (3, 5):
        assert runs.run(seed) == runs.run(seed)


# ---- defects --------------------------------------------------------------------------------------------------------


def a_retried_gradient_is_applied_twice(patch: pytest.MonkeyPatch) -> None:
    """The keys of learners' invocations are forgotten, so that a second delivery passes for a first."""
    run = session.Session.next_completion

    def forgetting(self: Any, loop: Any) -> Any:
        done = run(self, loop)
        if done is not None and done.function == "learner":
            handled = self._deliveries.handled
            handled.above.update(range(done.key + 1, handled.floor))
            handled.above.discard(done.key)
            handled.floor = min(handled.floor, done.key)
            loop.running.setdefault(done.tag, next(iter(loop.running.values()), None))
        return done

    patch.setattr(session.Session, "next_completion", forgetting)


def a_container_is_reused_after_expiry(patch: pytest.MonkeyPatch) -> None:
    """Nothing ends it."""
    patch.setattr(fleet.Fleet, "_expire", lambda self, container, now: None)


def a_lost_completion_is_never_retried(patch: pytest.MonkeyPatch) -> None:
    """Its loss is never noticed."""
    deliver = departures.Departures._deliver

    def silent(self: Any, message: Any, now: float) -> Any:
        done = deliver(self, message, now)
        return None if message[1] == "noticed" else done

    patch.setattr(departures.Departures, "_deliver", silent)


def a_gradient_is_lost(patch: pytest.MonkeyPatch) -> None:
    """A learner's completion is dropped as if it had been seen."""
    run = session.Session.next_completion

    def dropping(self: Any, loop: Any) -> Any:
        done = run(self, loop)
        return run(self, loop) if done is not None and done.function == "learner" and done.number % 5 == 0 else done

    patch.setattr(session.Session, "next_completion", dropping)


def a_learner_gets_an_old_version(patch: pytest.MonkeyPatch) -> None:
    """The one before the newest, where there is one."""
    newest = store.Store._version

    def older(self: Any, argument: Any) -> Any:
        version = newest(self, argument)
        if isinstance(argument, store.Latest) and version and version - 1 in self.versions(argument.name):
            return version - 1
        return version

    patch.setattr(store.Store, "_version", older)


def the_version_clock_stands_still(patch: pytest.MonkeyPatch) -> None:
    """A version is published under the last one's number."""
    stored = transfers.Transfers._stored
    patch.setattr(transfers.Transfers, "_stored", lambda self, n, version, size: stored(self, n, version // 2, size))


def the_threshold_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """A queue with anything in it is applied."""
    patch.setattr(pending_gradients, "_ready", lambda aggregator, queue, clock, round: np.asarray(queue.count) > 0)


def a_limit_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """More invocations run at once than are allowed."""
    patch.setattr(fleet.Fleet, "may_have_room", lambda self, pool: True)


def a_failed_attempt_is_not_billed(patch: pytest.MonkeyPatch) -> None:
    """As if only what completes cost money."""
    billed = usage.Use.billed
    patch.setattr(usage.Use, "billed", lambda self, until: billed(self, until)._replace(wasted=0.0))


def a_busy_container_is_given_away(patch: pytest.MonkeyPatch) -> None:
    """It stays among the idle ones."""
    acquire = fleet.Fleet.acquire

    def keeping(self: Any, invocation: Any, now: float) -> Any:
        found = acquire(self, invocation, now)
        if found is not None and not invocation.cold:
            invocation.pool.give(found[0], now)
        return found

    patch.setattr(fleet.Fleet, "acquire", keeping)


def a_crashed_container_lives_on(patch: pytest.MonkeyPatch) -> None:
    """Its state is used again."""
    release = fleet.Fleet.release
    patch.setattr(
        fleet.Fleet,
        "release",
        lambda self, container, now, *, started, dies: release(self, container, now, started=started, dies=False),
    )


def those_that_wait_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Nobody wakes them."""
    patch.setattr(admission.Admission, "wake", lambda self, now: None)


def an_invocation_ends_twice(patch: pytest.MonkeyPatch) -> None:
    """A duplicated message ends it once more."""
    deliver = departures.Departures._deliver

    def ending(self: Any, message: Any, now: float) -> Any:
        invocation = deliver(self, message, now)
        self._rows.append((now, "completed", invocation.function, invocation.number, -1, 0.0))
        return invocation

    patch.setattr(departures.Departures, "_deliver", ending)


def two_containers_share_a_slot(patch: pytest.MonkeyPatch) -> None:
    """Slots are counted, not kept."""
    make = fleet.Fleet._make

    def shared(self: Any, pool: Any, program: Any, now: float) -> Any:
        pool.slots.clear()
        return make(self, pool, program, now)

    patch.setattr(fleet.Fleet, "_make", shared)


MUTANTS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    a_retried_gradient_is_applied_twice,
    a_container_is_reused_after_expiry,
    a_lost_completion_is_never_retried,
    a_gradient_is_lost,
    a_learner_gets_an_old_version,
    the_version_clock_stands_still,
    the_threshold_is_ignored,
    a_limit_is_ignored,
    a_failed_attempt_is_not_billed,
    a_busy_container_is_given_away,
    a_crashed_container_lives_on,
    those_that_wait_are_forgotten,
    an_invocation_ends_twice,
    two_containers_share_a_slot,
)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_defect_is_found(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """By an invariant, or by what notices a standstill: not by a crash before anything is looked at."""
    mutant(monkeypatch)
    for seed in range(SEEDS):
        try:
            runs.run(seed)
        except ViolationError:
            return
        except RuntimeError as error:
            if not re.search("wait for room that nothing will ever free|nothing goes on after", str(error)):
                raise
            return
    pytest.fail(f"{mutant.__name__} was not found within {SEEDS} seeds")
