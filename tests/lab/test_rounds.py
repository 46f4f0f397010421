"""Compiled rounds make the decisions, histories, states and parameters of `train`; their parts are the platform's."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import IMPALA, PPO
from stellaris.acting import ActorCritic, evaluation
from stellaris.acting.policies import PolicyVersion
from stellaris.lab import CartPole
from stellaris.lab.evaluation import evaluated
from stellaris.lab.rounds import Rounds, bills, containers, play
from stellaris.lab.rounds.draws import draws_of
from stellaris.lab.rounds.minibatches import Widths, minibatches, samples
from stellaris.lab.rounds.play import SEGMENT
from stellaris.lab.statistics import wide as in_float64
from stellaris.runtime import Function, FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant, LogNormal, Measured
from stellaris.scheduling import Adapt, Fixed, Learned, Maximum, Stepped
from stellaris.scheduling.objective import Objective
from stellaris.scheduling.training import train_scheduler
from stellaris.systems import Budget, Evaluation, Workload
from stellaris.systems.batches import _sample, _without_empty
from stellaris.systems.rounds import Scheduled
from tests.lab.equality import scaled
from tests.lab.rounds_equality import PRICES, Configuration, compare, configure, deployment, draw

WHOLE = PPO(epochs=3, minibatch_size=10 * 16, learning_rate=1e-3)
#: Containers may be prewarmed although their cold starts vary, because there are never more of them than actors.
LIMITED = deployment(True, max_concurrency=8)
#: Functions, because a scheduler takes seconds to make.
CONFIGURATIONS: dict[str, Callable[[], Configuration]] = {
    "maximum, prewarmed": lambda: configure(Maximum(), functions=LIMITED, prewarm=True),
    "fixed": lambda: configure(Fixed(3), budget=Budget(steps=16 * 36, cost=100.0)),
    "fixed, nothing varies": lambda: configure(Fixed(5), functions=deployment(False), prewarm=True, seed=1),
    "a schedule": lambda: configure([8, 2, 5, 1, 8, 3, 3, 7, 2, 1, 4, 6]),
    "a schedule, whole batches": lambda: configure(
        [10, 2, 5, 1, 9, 3, 3, 7, 2, 8, 4, 6],  # two numbers share a branch of learning
        ppo=WHOLE,
        workload=Workload(CartPole(), ActorCritic(hidden=(8,)), actors=10, fragment=16),
        seed=2,
    ),
    "increase, scaled rewards": lambda: configure(
        Stepped(1, 1, every=2),
        workload=Workload(CartPole(), scaled, actors=8, fragment=16),
        functions=LIMITED,
        prewarm=True,
    ),
    "learned": lambda: configure(Learned.untrained(most=8, seed=0), seed=3),
    "learned, prewarmed, to a target": lambda: configure(
        Learned.untrained(most=8, seed=1, hold=3),
        budget=Budget(steps=10**5, cost=100.0, target_return=26.0, window=12),
        functions=LIMITED,
        prewarm=True,
        seed=4,
    ),
    "containers expire": lambda: configure(
        Stepped(8, -1, every=1), functions=deployment(True, keep_alive=1.0, reuse="least_recent"), seed=5
    ),
    "an evaluation ends it": lambda: configure(
        Stepped(2, 1, every=4),
        budget=Budget(steps=10**5, cost=100.0, target_evaluation=60.0),
        evaluation=Evaluation(every=1, episodes=3),
        seed=8,
    ),
    "cost ends it": lambda: configure(
        Fixed(4), budget=Budget(steps=10**5, cost=2.0), functions=LIMITED, prewarm=True, seed=6
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_compiled_rounds_are_those_of_train(name: str) -> None:
    """And so are the states that a scheduler sees, and the parameters after the last round."""
    compared = compare(CONFIGURATIONS[name]())
    assert compared.decisions[0] == compared.decisions[1]
    assert len(compared.decisions[0]) >= 10
    assert compared.worst < 1, compared.where
    assert compared.moved > 1e-3
    assert compared.params < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("hold", [3, 8, 9, 16])
def test_decisions_that_hold_over_segments(hold: int) -> None:
    """In a segment without a decision, the program is only as wide as the decision that holds."""
    compared = compare(
        configure(
            Learned.untrained(most=8, seed=hold, hold=hold), budget=Budget(steps=16 * 8 * 24, cost=100.0), seed=hold
        )
    )
    own, others = compared.decisions
    assert own == others
    assert len(own) > 2 * SEGMENT + 1
    assert all(len({*own[first : first + hold]}) == 1 for first in range(0, len(own), hold))
    assert len({*own}) > 1
    assert compared.worst < 1, compared.where
    assert compared.params < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_configurations(seed: int) -> None:
    """`python -m tests.lab.rounds_equality` runs hundreds."""
    compared = compare(draw(seed))
    assert compared.decisions[0] == compared.decisions[1]
    assert compared.worst < 1, compared.where
    assert compared.params < 1e-5


# ---- the parts ------------------------------------------------------------------------------------------------------

ACTORS = 6


def random_functions(rng: np.random.Generator) -> dict[str, FunctionSpec]:
    def one_of(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    functions = deployment(
        one_of(True, False),
        keep_alive=one_of(math.inf, 3.0, 1.0, 0.0),
        reuse=one_of("newest", "most_recent", "least_recent"),
        queueing=one_of(Constant(0.0), Constant(0.1)),
        max_concurrency=one_of(None, ACTORS),
    )
    learner = replace(functions["learner"], max_concurrency=one_of(None, 1), keep_alive=one_of(math.inf, 1.0))
    return {"actor": replace(functions["actor"], transfer=None), "learner": replace(learner, transfer=None)}


def on_the_platform(functions: dict[str, FunctionSpec], counts: list[int], *, prewarm: bool, seed: int) -> Any:
    """For each round: by actor, its slot, start and end; when the learner starts and ends; and the costs so far."""
    rounds = []
    body = Function(lambda context: context.slot)
    with SimulatedPlatform(functions, seed=seed) as platform:
        for k, count in enumerate(counts):
            actors = [platform.invoke("actor", body, work=16) for _ in range(count)]
            if prewarm and k == 0:
                platform.prewarm("learner")
                if count < ACTORS:
                    platform.prewarm("actor", ACTORS - count)
            for _ in actors:
                platform.next_completion()
            learner = platform.invoke("learner", body, work=3)
            platform.next_completion()
            rounds.append(
                (
                    [actor.result() for actor in actors],
                    [[call.started, call.finished] for call in [*actors, learner]],
                    [platform.bill(sheet).total for sheet in PRICES],
                )
            )
    return rounds


@in_float64
def compiled(functions: dict[str, FunctionSpec], counts: list[int], *, prewarm: bool, seed: int) -> Any:
    """The same of compiled pools."""
    draws = {name: draws_of(name, functions[name], seed, 64) for name in functions}
    second = prewarm and functions["learner"].max_concurrency is None
    pools = {name: containers.empty(size, 4) for name, size in (("actor", ACTORS), ("learner", 1 + second))}
    made, now, rounds = jnp.int32(0), jnp.float64(0), []

    def invoked(name: str, count: int, now: Any, made: Any, width: int, work: int) -> Any:
        pools[name], calls, made = containers.invoked(
            functions[name],
            bills.granularities(PRICES, name),
            draws[name],
            pools[name],
            width=width,
            count=jnp.int32(count),
            now=now,
            total=made,
            work=work,
            nbytes=0,
        )
        return calls, made

    for k, count in enumerate(counts):
        if prewarm and k == 0:
            pools["learner"] = containers.prewarmed(draws["learner"], pools["learner"], jnp.int32(1), made)
            others = jnp.int32(ACTORS - count)
            pools["actor"] = containers.prewarmed(draws["actor"], pools["actor"], others, made + 1)
            made = made + 1 + others
        calls, made = invoked("actor", count, now, made, ACTORS, 16)
        learner, made = invoked("learner", 1, jnp.max(calls.ended[:count]), made, 1, 3)
        now = learner.ended[0]
        times = [[*map(float, pair)] for of in (calls, learner) for pair in zip(of.started, of.ended, strict=True)]
        rounds.append(
            (
                calls.slot[:count].tolist(),
                [pair for pair in times if pair[0] < math.inf],
                bills.costs(PRICES, functions, pools, now).tolist(),
            )
        )
    return rounds


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_containers_are_those_of_the_platform(seed: int) -> None:
    """Which one an actor gets, when calls start and end, and what is billed after every round."""
    rng = np.random.default_rng(seed)
    functions, prewarm = random_functions(rng), bool(seed % 2)
    counts = rng.integers(1, ACTORS + 1, 7).tolist()
    there = on_the_platform(functions, counts, prewarm=prewarm, seed=seed)
    here = compiled(functions, counts, prewarm=prewarm, seed=seed)
    for (slots, times, costs), (own, own_times, own_costs) in zip(there, here, strict=True):
        assert own == slots
        np.testing.assert_allclose(own_times, times, rtol=1e-12)
        np.testing.assert_allclose(own_costs, costs, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("ppo", [PPO(epochs=2, minibatch_size=10), PPO(epochs=2, minibatch_size=8 * 6)])
def test_minibatches_are_those_of_padded_batches(ppo: PPO) -> None:
    """In the order of learning, for every number of fragments; steps that only reset are left out alike.

    If each is the whole batch, the order of its samples does not count.
    """
    length, actors = 6, 8
    ordered = list if ppo.minibatch_size < length * actors else sorted
    widths, key = Widths.of(actors, actors), jax.random.key(3)
    for fragments in range(1, actors + 1):
        valid = np.arange(length * actors).reshape(length, actors) % 7 != 3
        valid &= np.arange(actors) < fragments
        indices, count = minibatches(ppo, key, valid_batch(valid), length, jnp.int32(fragments), widths)
        width = Scheduled(Maximum()).width(fragments, actors)
        narrow = valid[:, :width].ravel()
        expected = np.asarray(ppo.minibatches(key, valid_batch(narrow)))
        if fragments < width and expected.shape[1] < width * length:
            expected = _without_empty(expected, narrow.astype(int))
        assert int(count) == len(expected)
        for row, other in zip(indices[:count], expected, strict=True):
            ours = [divmod(i, actors) for i in row.tolist() if i < valid.size and valid.ravel()[i]]
            theirs = [divmod(i, width) for i in other.tolist() if i < narrow.size and narrow[i]]
            assert ordered(ours) == ordered(theirs) != []


def test_a_batch_without_transitions_has_one_minibatch_of_padding() -> None:
    """As on the event loop."""
    length, actors, ppo = 1, 4, PPO(epochs=2, minibatch_size=1)
    nothing = valid_batch(np.zeros((length, actors), bool))
    indices, count = minibatches(ppo, jax.random.key(3), nothing, length, jnp.int32(2), Widths.of(actors, actors))
    assert (int(count), int(indices[0, 0])) == (1, length * actors)


def valid_batch(valid: np.ndarray) -> Any:
    from stellaris import Batch

    flat = jnp.asarray(valid.ravel())
    return Batch(*[flat] * 7, flat)


def test_policies_are_compared_on_the_sampled_observations() -> None:
    length, actors = 50, 8
    table = samples(length, Widths.of(actors, actors))
    for fragments in range(1, actors + 1):
        observation = np.arange((length + 1) * actors).reshape(length + 1, actors)
        own = SimpleNamespace(observation=observation[:, :fragments], memory=None)
        expected = _sample(own, Scheduled(Maximum()).width(fragments, actors))
        place, weight = table.place[fragments - 1], table.weight[fragments - 1]
        assert place[weight > 0].tolist() == expected.tolist()
        assert weight.sum() == pytest.approx(1)


# ---- many runs ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rounds() -> Rounds:
    workload = Workload(CartPole(), ActorCritic(hidden=(4,)), actors=4, fragment=8)
    ppo = PPO(epochs=1, minibatch_size=16)
    return Rounds(workload, ppo, deployment(True), PRICES, budget=Budget(steps=8 * 24, cost=50.0), most=30)


@pytest.mark.slow
def test_runs_do_not_depend_on_the_runs_beside_them(rounds: Rounds) -> None:
    """Nor on the size of a block; results are in the order of the seeds."""
    schedulers = [Fixed(4), [1, 4, 2], Stepped(4, -1, every=2), Fixed(3)]
    seeds = [5, 6, 5, 7]
    together = rounds.play(schedulers, seeds, block=4)
    for i, (scheduler, seed) in enumerate(zip(schedulers, seeds, strict=True)):
        alone = rounds.play(scheduler, [seed], block=4)
        assert [row["actors"] for row in alone.history(0)] == [row["actors"] for row in together.history(i)]
        for one, other in zip(alone.history(0), together.history(i), strict=True):
            assert one == pytest.approx(other, rel=1e-5, abs=1e-6, nan_ok=True)
    assert together.rows.actors[1, :5].tolist() == [1, 4, 2, 2, 2]
    assert together.last("steps").tolist() == [8 * 24, 8 * 25, 8 * 24, 8 * 24]


@pytest.mark.slow
def test_the_number_of_cores_changes_nothing(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    schedulers = [Fixed(4), [1, 4, 2], Stepped(4, -1, every=2), Fixed(3)]
    several = []
    for cores in (1, 3):
        monkeypatch.setattr("stellaris.lab.threads.count", lambda cores=cores: cores)
        several.append(rounds.play(schedulers, range(4), block=1))
    for one, other in zip(*map(jax.tree.leaves, several), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("hold", "widths"),
    [
        (1, [4, 4, 4, 4]),
        (8, [4, 4, 4, 4]),  # the decision is in the first round of every segment
        (9, [4, 4, 4, 4]),  # in the rounds 0, 9, 18 and 27
        (16, [4, 2, 4, 2]),
        (20, [4, 2, 4, 2]),  # in the rounds 0 and 20
        (24, [4, 2, 2, 4]),
        (10**6, [4, 2, 2, 2]),
    ],
)
def test_a_segment_has_room_for_its_decisions(rounds: Rounds, hold: int, widths: list[int]) -> None:
    """Whichever they may be; without one, for the decision that holds, here for two actors."""
    learned = SimpleNamespace(hold=hold)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(play, "Learned", SimpleNamespace)
        assert [rounds._width(cast(Any, learned), began, 2) for began in range(0, 4 * SEGMENT, SEGMENT)] == widths


def test_a_segment_has_room_for_its_numbers(rounds: Rounds) -> None:
    numbers = np.array([1] * 8 + [2, 4] + [1] * 6 + [3] * 4)
    assert [rounds._width(numbers, began, 0) for began in (0, 8, 16)] == [1, 4, 3]


@dataclass(frozen=True)
class Endless(CartPole):
    """The pole never falls."""

    def step(self, state: Any, action: jax.Array, key: jax.Array) -> Any:
        return super().step(state, action, key)._replace(terminated=jnp.bool_(False), truncated=jnp.bool_(False))


@pytest.mark.parametrize("env", [CartPole(time_limit=70), Endless()])
def test_evaluations_are_those_of_evaluate(env: CartPole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an episode reaches the limit of steps."""
    monkeypatch.setattr(evaluation, "MOST_STEPS", 100)
    policy = ActorCritic(hidden=(4,))(env.spec)
    version = PolicyVersion(policy.init(jax.random.key(1)), policy.statistics().normaliser())
    returns = jax.jit(lambda seed: evaluated(env, policy, version, episodes=5, seed=seed))(jnp.int32(7))
    played = evaluation.evaluate(policy, version, env, episodes=5, seed=7)
    assert returns.tolist() == [episode.episode_return for episode in played]
    assert (len({*returns.tolist()}) > 1) != isinstance(env, Endless)


@pytest.mark.slow
def test_a_run_that_does_not_end(rounds: Rounds) -> None:
    """It has the most rounds, and is not over."""
    short = replace(rounds, most=3)
    played = short.play(Fixed(1), [0])
    assert (played.rounds.tolist(), played.over.tolist(), played.reached.tolist()) == ([3], [False], [False])


@pytest.mark.slow
def test_a_budget_in_place_of_that_of_the_rounds(rounds: Rounds) -> None:
    """It ends a run after the round that spends it; without one, a run goes on to its other limits."""
    free = rounds.play([2], [5], cost=math.inf)
    costs = free.rows.costs[0, :, 0]
    assert free.rounds.tolist() == [12]
    ended = rounds.play([2], [5], cost=float(costs[4]))
    assert (ended.rounds.tolist(), ended.over.tolist(), ended.reached.tolist()) == ([5], [True], [False])
    np.testing.assert_array_equal(ended.rows.costs[0, :, 0], costs[:5])
    with pytest.raises(ValueError, match="cost=0 is not positive"):
        rounds.play([2], [5], cost=0)
    with pytest.raises(ValueError, match="needs a budget of cost"):
        rounds.play(Learned.untrained(most=4, seed=0), [5], cost=math.inf)


@pytest.mark.slow
def test_a_scheduler_is_trained_on_compiled_rounds(rounds: Rounds) -> None:
    """Histories have what training needs."""
    objective = Objective(20.0, 50.0, "by_use", window=4, minimise="cost")
    start = Learned.untrained(most=4, seed=0)
    progress: list[Any] = []
    trained = train_scheduler(
        start, rounds.histories, objective, episodes=8, together=4, on_progress=lambda *of: progress.append(of[0])
    )
    assert [one.episodes for one in progress] == [4, 8]
    assert all(math.isfinite(reward) and reward < 0 for one in progress for reward in one.rewards)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), start.params, trained.params)
    assert max(jax.tree.leaves(moved)) > 1e-3


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"workload": Workload("CartPole-v1", actors=4)}, TypeError, "not written in JAX"),
        ({"algorithm": IMPALA()}, TypeError, "PPO only"),
        ({"workload": Workload(CartPole(), actors=4, restart=True)}, ValueError, "restart=True"),
        ({"workload": Workload(CartPole(), actors=4, fragment=8, refresh=4)}, ValueError, "refresh=4"),
        ({"budget": Budget(seconds=3.0)}, ValueError, r"budget\.seconds"),
        ({"prices": ()}, ValueError, "needs prices"),
        ({"functions": {"actor": FunctionSpec(Constant(1.0))}}, LookupError, "'learner' is not specified"),
        ({"functions": deployment(True, compute=Measured())}, ValueError, "Measured"),
        ({"functions": deployment(True, queueing=Constant(0.1), provisioned=2)}, ValueError, "provisioned=2"),
        ({"functions": deployment(True, max_concurrency=3)}, ValueError, "a limit of 3"),
        ({"prewarm": True}, ValueError, r"cold_start=LogNormal.*initialisation=LogNormal.* max_concurrency=4"),
        (
            {"prewarm": True, "functions": deployment(True, cold_start=Constant(0.3))},
            ValueError,
            r"^initialisation=LogNormal",
        ),
        ({"prewarm": True, "functions": deployment(True, max_concurrency=5)}, ValueError, "max_concurrency=4"),
        ({"most": 0}, ValueError, "most"),
        ({"budget": Budget(steps=9, target_evaluation=3.0)}, ValueError, r"target_evaluation=3\.0 needs"),
        ({"evaluation": Evaluation(every=2)}, ValueError, "every=2"),
    ],
)
def test_what_is_not_supported_is_named(
    rounds: Rounds, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        replace(rounds, **change)


@pytest.mark.parametrize("functions", [deployment(False), deployment(True, max_concurrency=4)])
def test_containers_may_be_prewarmed(rounds: Rounds, functions: dict[str, FunctionSpec]) -> None:
    """If all are ready at once, or there are never more of them than actors."""
    assert replace(rounds, functions=functions, prewarm=True).prewarm


@pytest.mark.slow
def test_prewarmed_containers_have_draws_of_their_own() -> None:
    """A run of as many rounds as there are draws for is the beginning of a longer one: no draw is repeated."""
    cold = {"cold_start": LogNormal(0.3, cv=1.0), "keep_alive": 0.01}  # every round starts all containers anew
    functions = {
        "actor": FunctionSpec(Constant(0.01), max_concurrency=2, **cold),
        "learner": FunctionSpec(Constant(0.5), **cold),
    }
    small = Workload(CartPole(), scaled, actors=2, fragment=16)
    seconds = []
    for most in (8, 9):
        made = Rounds(
            small, PPO(epochs=1, minibatch_size=64), functions, budget=Budget(steps=10**6), most=most, prewarm=True
        )
        rows = made.play([[2] * 8], seeds=[0]).rows
        seconds.append([column[0, :8].tolist() for column in (rows.actor_seconds, rows.learner_seconds)])
    assert seconds[0] == seconds[1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"functions": [FunctionSpec(Constant(1.0))]}, r"functions=\[.*: expected a mapping"),
        ({"functions": {"actor": 1.0}}, r"functions=\{'actor': 1\.0\}: expected FunctionSpec"),
        ({"budget": None}, "budget=None is not a Budget"),
        ({"evaluation": 5}, "evaluation=5 is not an Evaluation"),
        ({"prices": PRICES[0]}, r"prices is a single sheet.*: pass a sequence of sheets"),
    ],
)
def test_types_that_are_refused(rounds: Rounds, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        replace(rounds, **changed)


def test_no_seeds(rounds: Rounds) -> None:
    with pytest.raises(ValueError, match=r"seeds=\[\] has no seeds"):
        rounds.play(Fixed(1), seeds=[])


@pytest.mark.parametrize(
    ("scheduler", "error", "message"),
    [
        (Fixed(5), ValueError, "decided for 5 actors"),
        ([1, 5], ValueError, "none above actors=4"),
        ([0, 1], ValueError, "schedule"),
        ([3.9, 2.9], TypeError, r"schedule\[0\]=3.9 is not a whole number"),
        (Adapt(target=3.0), TypeError, "expected a Learned"),
        ([Fixed(1), Fixed(2)], ValueError, "2 schedulers and 1 seeds"),
        (Learned.untrained(most=3, seed=0), ValueError, "workloads of 3 actors"),
    ],
)
def test_schedulers_that_cannot_decide(rounds: Rounds, scheduler: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        rounds.play(scheduler, [0])
