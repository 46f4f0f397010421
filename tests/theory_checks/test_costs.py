"""The cost formulas: two runs by hand, and bugs planted in the formulas and in the platform's billing."""

import numpy as np
import pytest

from experiments.tasks import testbed
from stellaris.runtime import Rate, Split
from stellaris.runtime.costs import usage
from theory_checks import check, costs

ROUNDS, ASYNCHRONOUS = costs.THEOREMS
FEW = 10
BY_USE = {"Eq. 2", "Eq. 2, rounds", "Eq. 2, functions"}
WITH_IDLE = BY_USE | {"idle containers billed"}
PAID = {"pay-per-use", "pay-per-use, functions"}
LIVES = {"container seconds"}
CLOSE = {"rel": 1e-12, "abs": 1e-12}


def agree(sides, expected):
    """Both sides of every claim are what is expected."""
    for name, value in expected.items():
        for side in (sides[name].left, sides[name].right):
            assert np.asarray(side).tolist() == pytest.approx(value, **CLOSE), name


def wrong(theorem, **how):
    """The claims that do not come out as they should."""
    return {o.claim.name for o in check.verify(theorem, instances=FEW, **how) if not o.as_expected}


def test_two_rounds_by_hand():
    """One actor, then two, of which the second is new and fails; a second of 1 GB costs 2; nothing else does."""
    drawn = costs.Rounds(
        actor=np.array([[1.0, 0.0], [2.0, 3.0]]),
        learner=np.array([[0.5], [0.25]]),
        fails=np.array([[False, False], [False, True]]),
        start=np.array([0.25, 1.5]),
        kept=True,
        resources=np.array([[1.0, 1.0, 0.0], [4.0, 1.0, 1.0]]),
        prices=np.array([2.0, 0.0, 0.0]),
        per_request=np.array([0.0, 0.0]),
        granularity=0.0,
        cold=True,
    )
    lengths = [0.25 + 1 + 1.5 + 0.5, 0.25 + 3 + 0.25]
    actors, learners = [2 * 1.25, 2 * (2 + 3.25)], [8 * 2.0, 8 * 0.25]
    # The actors' containers live for 6.75 s and 3.5 s, the learner's for 5.5 s.
    idle = [6.75 - 3.25 + 3.5 - 3.25, 5.5 - 2.25]
    expected = {
        "Eq. 1, rounds": lengths,
        "Eq. 1": 6.75,
        "Eq. 2, rounds": [actors[0] + learners[0], actors[1] + learners[1]],
        "Eq. 2, functions": [sum(actors), sum(learners)],
        "Eq. 2": sum(actors) + sum(learners),
        "idle containers billed": 31.0 + 2 * idle[0] + 8 * idle[1],
    }
    sides = costs.rounds(check.Instance((), drawn))
    agree(sides, expected)
    for side in (sides["container seconds"].left, sides["container seconds"].right):
        np.testing.assert_allclose(side, [Split(3.0, idle[0], 0.5, 3.0), Split(0.75, idle[1], 1.5, 0.0)], atol=1e-12)


@pytest.mark.parametrize("kept", [True, False])
def test_granularity_and_requests_by_hand(kept):
    """Starts and runs are rounded up apart; multiples are not; without keeping, the second round starts anew."""
    drawn = costs.Rounds(
        actor=np.array([[0.3], [0.25]]),  # 3 units of 0.1 s, and 3
        learner=np.array([[1.01], [0.05]]),  # 11, and 1
        fails=np.zeros((2, 1), bool),
        start=np.array([0.12, 0.7]),  # 2, and 7
        kept=kept,
        resources=np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 3.0]]),
        prices=np.array([0.0, 1.0, 2.0]),
        per_request=np.array([0.5, 0.25]),
        granularity=0.1,
        cold=True,
    )
    starts = 1 if kept else 2
    expected = [0.1 * (6 + 2 * starts) + 2 * 0.5, 6 * 0.1 * (12 + 7 * starts) + 2 * 0.25]
    agree(costs.rounds(check.Instance((), drawn)), {"Eq. 2, functions": expected, "Eq. 2": sum(expected)})


BY_HAND = costs.Asynchronous(
    actor=np.array([[1.0, 2.0]]),  # 0.5 to 1.5 to 3.5
    learner=np.array([3.0, 1.0]),  # 2.5 to 5.5, for which the second waits, to 6.5
    parameter=np.array([0.1, 0.2]),  # 5.75 to 5.85, 6.5 to 6.7
    fails=np.array([False, False]),
    start=np.array([0.5, 1.0, 0.25]),
    learners=1,
    batches=1,
    gradients=1,
    share=1.0,
)


def test_an_asynchronous_run_by_hand():
    gpu, cpu = (3.06 + 17.92 / 720) / 3600, (2.04 + 17.92 / 720) / 3600
    function = 0.0000166667  # AWS Lambda, 1 GB; the demo rounds it to 1.67e-5
    used = [3 * function, 4 * gpu, 0.3 * function]
    demo = 6.7 * (gpu + cpu)
    expected = {
        "clock": 6.7,
        "pay-per-use, functions": used,
        "pay-per-use": sum(used),
        "demo's bill": demo,
        "serverful rate": demo,
        "machines' parts": [6.7 * gpu, 6.7 * cpu],
    }
    sides = costs.asynchronous(check.Instance((), BY_HAND))
    agree(sides, expected)
    seconds = [Split(3.0, 3.2, 0.5, 0.0), Split(4.0, 0.2, 1.0, 0.0), Split(0.3, 0.65, 0.25, 0.0)]
    machines = [np.multiply((4.0, 1.7, 1.0, 0.0), gpu), np.multiply((3.0, 3.2, 0.5, 0.0), cpu)]
    for name, value in (("container seconds", seconds), ("machines split", machines)):
        for side in sides[name][:2]:
            np.testing.assert_allclose(side, value, rtol=1e-12, atol=1e-12)


def test_a_run_that_is_stopped_by_hand():
    """At 6 s of 6.85 s: a gradient has failed, the next is under way, the parameter function has not been called."""
    drawn = BY_HAND._replace(fails=np.array([True, False]), share=6.0 / 6.85)
    sides = costs.asynchronous(check.Instance((), drawn))
    slot = testbed.SERVER_LEARNER
    agree(sides, {"clock": 6.0, "pay-per-use, functions": [3 * testbed.ACTOR_FUNCTION, 3.5 * slot, 0.0]})
    for side in sides["container seconds"][:2]:
        np.testing.assert_allclose(side, [(3.0, 2.5, 0.5, 0.0), (0.5, 0.0, 1.0, 3.0), (0.0,) * 4], atol=1e-12)


@pytest.mark.parametrize("theorem", costs.THEOREMS, ids=lambda theorem: theorem.name)
def test_identities_are_exact(theorem):
    for outcome in check.verify(theorem, instances=FEW):
        assert outcome.claim.control == (outcome.slack < -1e-11), outcome


@pytest.mark.parametrize(
    ("name", "bug", "of_rounds", "of_asynchronous"),
    [
        # The bill leaves out one of a function's calls.
        ("billed", lambda use, s: s._replace(busy=s.busy * (1 - 1 / max(use.started, 1))), WITH_IDLE, PAID),
        # Then the control "starts for nothing" holds; starts of Stellaris' containers are free.
        ("billed", lambda use, s: s._replace(cold=0.0), WITH_IDLE | {"starts for nothing"}, set()),
        ("billed", lambda use, s: s._replace(wasted=0.0), WITH_IDLE, PAID),
        # Idle seconds come from lives; a bill of containers that live for no time has none.
        ("lived", lambda use, s: 0.0, LIVES | {"idle containers billed", "idle as if busy"}, LIVES),
    ],
)
def test_a_bug_in_the_platforms_billing_is_caught(monkeypatch, name, bug, of_rounds, of_asynchronous):
    right = getattr(usage.Use, name)
    monkeypatch.setattr(usage.Use, name, lambda self, *args: bug(self, right(self, *args)))
    assert wrong(ROUNDS) == of_rounds
    assert wrong(ASYNCHRONOUS) == of_asynchronous


def test_a_rate_that_ignores_memory_is_caught(monkeypatch):
    """The learner's other resources are still paid for."""
    monkeypatch.setattr(
        Rate, "usd_per_second", lambda self, r: self.per_vcpu_second * r.vcpus + self.per_gpu_slot_second * r.gpu_slots
    )
    assert wrong(ROUNDS) == WITH_IDLE
