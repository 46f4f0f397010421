"""The session: what a system of one's own can rely on, shown by systems that learn nothing."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.special
import scipy.stats

from stellaris.acting.policies import PolicyVersion
from stellaris.runtime import Faults, Function, SimulatedPlatform
from stellaris.runtime.delays import Constant, Exponential
from stellaris.systems import Budget, Result, Session, StalenessControl, Stellaris, Synchronous, System, Workload, train
from tests.systems import tiny

FREE = StalenessControl()
ONE_ACTOR = replace(tiny.WORKLOAD, actors=1)


@dataclass
class Sampling(System):
    """One actor samples, and nothing is learned; a round is over when `rounds` says so."""

    rounds: Callable[[int], bool] = lambda delivered: delivered % 2 == 0
    functions: tuple[str, ...] = ("actor",)
    versions: list[Any] = field(default_factory=list)

    def run(self, session: Session) -> None:
        fragments = session.fragments(FREE)

        def first() -> list[int]:
            session.publish(session.first_params)
            return [0]

        loop = session.begin(first)
        while True:
            fragments.sample()
            if (done := session.next_completion(loop)) is None:
                break
            fragments.deliver(done)
            batch = fragments.next_batch(tiny.PPO_CONFIG, session.first_params)
            assert batch is not None
            session.learned_from(batch)
            loop[0] += 1
            session.publish(session.first_params)
            self.versions.append(session.platform.store.value("policy"))
            if self.rounds(loop[0]):
                session.round_over()


def sample(system: Any = None, **options: Any) -> Result:
    """Fragments of 16 steps, of 0.01 s each."""
    options = {"budget": Budget(steps=16 * 10), "prices": (), "workload": ONE_ACTOR} | options
    return tiny.run(system or Sampling(), tiny.deployment(), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "rows"),
    [
        ((1, 3, 6, 10), [(1, 16), (2, 48), (3, 96), (4, 160)]),
        ((4,), [(1, 64), (1, 160)]),  # the rest has the number of the last round
        ((), [(0, 160)]),
        ((2, 4, 6, 8, 10), [(1, 32), (2, 64), (3, 96), (4, 128), (5, 160)]),
    ],
)
def test_rounds_are_declared(rounds: Any, rows: Any) -> None:
    """After some of ten fragments; each version of the policy normalises by all observations up to then."""
    system = Sampling(lambda delivered: delivered in rounds)
    assert [(row["round"], row["steps"]) for row in sample(system).history] == rows
    means = [version.normaliser.mean for version in system.versions]
    assert len(means) == 10
    assert all(np.abs(one - other).max() > 0 for one, other in itertools.pairwise(means))


def test_how_far_successive_policies_are_apart() -> None:
    """Of the policy that a batch has led to from the one before it, over that batch's observations."""

    class Remembering(Sampling):
        def run(self, session: Session) -> None:
            self.policy = session.policy
            self.samples: list[Any] = []
            learned_from = session.learned_from

            def remember(data: Any) -> None:
                self.samples.append(data.sample)
                learned_from(data)

            session.learned_from = remember  # type: ignore[method-assign]
            super().run(session)

    system = Remembering()
    history = sample(system).history
    before = PolicyVersion(system.versions[0].params, system.policy.statistics().normaliser())
    apart = []
    for version, seen in zip(system.versions, system.samples, strict=True):
        (one, _), (other, _) = system.policy.apply(version, seen), system.policy.apply(before, seen)
        p, q = (scipy.special.softmax(np.asarray(of.logits, np.float64), axis=-1) for of in (one, other))
        apart.append(float(scipy.stats.entropy(p, q, axis=-1).mean()))
        before = version
    assert apart[0] > 1e-6  # as the observations are normalised otherwise
    # A version of the second batch is published after the first round was declared; the last after the last.
    expected = [np.mean(pair) for pair in zip(apart[::2], apart[1::2], strict=True)]
    np.testing.assert_allclose([row["policy_kl"] for row in history], expected, rtol=1e-3, atol=1e-7)


class Waiting(Sampling):
    def run(self, session: Session) -> None:
        session.next_completion(None)


def long(system: System, workload: Workload = ONE_ACTOR, **deployed: Any) -> Callable[[], Result]:
    """A run with a large budget."""
    return lambda: tiny.run(system, tiny.deployment(**deployed), workload=workload, budget=Budget(steps=32_000))


REFRESHING = replace(tiny.WORKLOAD, refresh=4)
SYNCHRONOUS = Synchronous(tiny.PPO_CONFIG)


@pytest.mark.parametrize(
    ("start", "error", "message"),
    [
        (long(Waiting()), RuntimeError, "deadlock at 0 s: no invocation is pending, but the budget is not used up"),
        # Time alone does not end a deadlock: nothing happens until the budget's end.
        (
            lambda: tiny.run(Waiting(), tiny.deployment(), workload=ONE_ACTOR, budget=Budget(seconds=9.0)),
            RuntimeError,
            "deadlock at 0 s: no invocation is pending, but .*; check that a batch does not wait for more actors",
        ),
        (long(Sampling(functions=("judge",))), LookupError, "function 'judge' is not deployed: the platform has"),
        (
            long(SYNCHRONOUS, REFRESHING, keep_alive=0.0, queueing=Constant(0.01)),
            RuntimeError,
            r"actor \d has lost its environment 100 times before fragment=16 steps",
        ),
        (long(SYNCHRONOUS, REFRESHING, max_concurrency=1), ValueError, "max_concurrency=1 of 'actor' is below actors"),
    ],
)
def test_runs_that_can_learn_nothing(start: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        start()


def test_the_budget_ends_the_run_between_two_events() -> None:
    """Of seconds exactly; of steps after the fragment that reaches them."""
    assert sample(budget=Budget(seconds=0.4)).history[-1]["seconds"] == 0.4
    assert sample(budget=Budget(steps=17)).history[-1]["steps"] == 32
    rows = sample(budget=Budget(cost=0.005, steps=1000), prices=tiny.PRICES).history
    assert rows[-1]["cost_demo"] >= 0.005 > rows[0]["cost_demo"]
    assert not math.isnan(rows[-1]["cost_pay_per_use"])


@pytest.mark.slow
def test_an_actor_refreshes_its_policy_inside_a_fragment() -> None:
    """The tags say which step used which version, and a fragment's spans more than one."""
    workload = replace(tiny.WORKLOAD, refresh=4)
    functions = tiny.deployment(Constant(0.05), Constant(0.01))
    system = Stellaris(tiny.PPO_CONFIG, learners=2, control=StalenessControl(pace=2))
    fresh, whole = (
        tiny.run(system, functions, workload=w, budget=Budget(steps=32 * 8)) for w in (workload, tiny.WORKLOAD)
    )
    assert set(fresh.trace.select("sampled").value) == {4}
    assert max(row.get("version_span", 0) for row in fresh.history) >= 2
    assert max(row.get("version_span", 0) for row in whole.history) == 0
    assert mean(fresh, "lag_mean") < mean(whole, "lag_mean")
    assert len(fresh.trace.select("age:oldest").value) == len(whole.trace.select("age:oldest").value)


def mean(result: Result, column: str) -> float:
    return float(np.mean([row[column] for row in result.history if column in row]))


def test_a_refreshed_fragment_is_one_trajectory() -> None:
    """On the same version all along it is sampled in pieces, each with noise of its own, in one environment."""
    workload = replace(tiny.WORKLOAD, refresh=4)
    result = tiny.run(Synchronous(tiny.PPO_CONFIG), tiny.deployment(), workload=workload)
    trace = result.trace
    assert result.history[-1]["gradients"] == 3 * tiny.GRADIENTS_A_ROUND
    np.testing.assert_array_equal(trace.select("episode").value, trace.select("episode_length").value)
    assert not len(trace.select("lost_steps").value)


def test_environments_restart_with_every_fragment() -> None:
    """Then no episode is longer than a fragment, and what a fragment cuts off is counted as lost."""
    restarted = tiny.run(Synchronous(tiny.PPO_CONFIG), tiny.deployment(), workload=replace(tiny.WORKLOAD, restart=True))
    kept = tiny.run(Synchronous(tiny.PPO_CONFIG), tiny.deployment())
    assert restarted.trace.select("episode_length").value.max() <= 16 < kept.trace.select("episode_length").value.max()
    assert restarted.history[-1]["lost_episode_steps"] > 0
    assert "lost_episode_steps" not in kept.history[-1]


def test_episodes_are_lost_with_their_containers() -> None:
    functions = tiny.deployment()
    faults = {"actor": Faults(lifetime=Exponential(0.4))}
    platform = SimulatedPlatform(functions, faults=faults)
    workload = replace(tiny.WORKLOAD, refresh=4)
    result = train(Synchronous(tiny.PPO_CONFIG), workload, platform=platform, budget=Budget(steps=32 * 8))
    last, trace = result.history[-1], result.trace
    assert last["lost_episode_steps"] > 0
    assert last["lost_steps"] > 0
    spent = sum(trace.select(event).value.sum() for event in ("learned", "waiting", "reset", "lost_steps"))
    assert abs(trace.select("sampled").value.sum() - spent) == 0


@dataclass(frozen=True)
class Own(System):
    """Workers with a program of their own fill batches of three fragments; their function is not named `actor`."""

    functions: ClassVar[tuple[str, ...]] = ("worker",)
    acts: ClassVar[str] = "worker"

    def run(self, session: Session) -> None:
        sampled = session.actor_program()

        def body(context: Any, version: Any, number: int) -> Any:
            return sampled.body(context, version, number), number

        fragments = session.fragments(FREE, batch=3, act=Function(body, init=sampled.init))
        loop = session.begin(lambda: [session.publish(session.first_params)])
        while True:
            fragments.sample()
            if (done := session.next_completion(loop)) is None:
                break
            fragment, number = done.result()
            fragments.deliver(done, fragment)
            loop.append(number)
            if batch := fragments.next_batch(tiny.PPO_CONFIG, session.first_params):
                assert len(batch.unseen) == 3 * 16
                session.learned_from(batch)
                session.round_over()
        assert loop[1:] == [*range(len(loop) - 1)]


def test_a_program_a_batch_size_and_a_name() -> None:
    """Two workers fill batches of three; every third fragment ends a round, and no function `actor` is deployed."""
    functions = {"worker": tiny.deployment()["actor"]}
    platform = SimulatedPlatform(functions)
    result = train(Own(), tiny.WORKLOAD, platform=platform, budget=Budget(steps=16 * 9))
    assert [row["steps"] for row in result.history] == [48, 96, 144]
