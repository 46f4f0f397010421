"""One run of MinionsRL as a pure function: a loop over its rounds, in which the scheduler decides."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.acting import jax_env
from stellaris.acting.jax_env import JaxEnvironment, Slot, Stepped
from stellaris.acting.normalisation import Statistics
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.algorithms import PPO, update
from stellaris.lab import statistics
from stellaris.lab.evaluation import evaluated
from stellaris.lab.rounds import bills, containers
from stellaris.lab.rounds.containers import Calls, Pool
from stellaris.lab.rounds.draws import Draws
from stellaris.lab.rounds.minibatches import Widths, minibatches, samples, whole
from stellaris.lab.sampling import chosen, sample
from stellaris.lab.statistics import wide
from stellaris.runtime.costs.price_sheets import PriceSheet
from stellaris.runtime.functions import FunctionSpec
from stellaris.scheduling.learned import FAR, policy_for
from stellaris.scheduling.scheduler import State
from stellaris.systems.workload import Budget
from stellaris.types import Array, NDArray, Trajectory, Tree

#: The most branches of learning, by the number of actors; each is compiled.
_PARTS = 8
#: The functions of MinionsRL.
ACTOR, LEARNER = "actor", "learner"


class Keys(NamedTuple):
    """The random keys of a run, as in a session."""

    batches: Array
    noise: Array
    schedule: Array
    containers: Array  #: key of the containers' environments: one folded key per container.
    seed: Array  #: seed of the environment in slot 0; slot i has `seed + i`.


class Given(NamedTuple):
    """The inputs that differ between the runs of a deployment."""

    params: Tree  #: the first parameters.
    keys: Keys
    draws: Mapping[str, Draws]  #: the durations, by function.
    evaluations: Array  #: int32 `[R]`: the seed of the evaluation after each round; `[0]` without evaluations.
    schedule: Array  #: int32 `[R]`: the number of actors in each round; `[0]` if a policy decides.
    scheduler: PolicyVersion | None  #: the policy that decides; None with a schedule.
    hold: Array  #: int32: number of rounds for which a decision of the policy holds.
    cost: Array  #: float64: the most USD of the run, by the first price sheet.


class Row(NamedTuple):
    """A round; in the result of a segment each array is `[L]`. Columns are as in a history; times are float64."""

    actors: Array
    loss: Array
    round_return: Array  #: NaN if no episode ended in the round.
    policy_kl: Array
    learner_seconds: Array
    actor_seconds: Array
    seconds: Array
    steps: Array
    episodes: Array
    episode_return: Array  #: NaN before an episode has ended.
    gradients: Array
    evaluation_return: Array  #: NaN without evaluations.
    costs: Array  #: `[S]`: USD under each price sheet.


class Carry(NamedTuple):
    """The state of a run between two rounds."""

    round: jax.Array  #: int32: number of rounds so far.
    held: jax.Array  #: int32: the number of actors of the last round.
    version: PolicyVersion  #: the last version.
    opt_state: Tree
    statistics: Statistics
    slots: Slot  #: `[C, ...]`: the environment of each slot.
    discounted: jax.Array | None  #: float64 `[C]`; None if the policy does not scale rewards.
    pools: Mapping[str, Pool]
    containers: jax.Array  #: number of containers made so far.
    now: jax.Array
    state: jax.Array  #: float64 `[8]`: the scheduler's `State`.
    recent: jax.Array  #: float64 `[window]`: returns of the last episodes, as a ring.
    steps: jax.Array
    episodes: jax.Array
    gradients: jax.Array
    over: jax.Array  #: bool: whether a limit of the budget has ended the run.
    reached: jax.Array  #: bool: whether the last episodes, or the last evaluation, had the target return.
    finite: jax.Array  #: bool: whether all parameters were finite.


class _Sampled(NamedTuple):
    """The fragments of a round, in the order of their delivery, padded to the largest number."""

    trajectory: Trajectory  #: `[T, W, ...]`; padding is invalid.
    stepped: Stepped  #: `[T, W]`; no episode ends in padding.
    returns: jax.Array | None  #: float64 `[T, W]`: discounted returns, or None.


class _Learned(NamedTuple):
    """The result of learning from a batch."""

    version: PolicyVersion
    opt_state: Tree
    statistics: Statistics
    loss: jax.Array
    finite: jax.Array
    gradients: jax.Array  #: int32: number of gradients.


@dataclass(frozen=True, eq=False)
class Program:
    """A run of MinionsRL, as pure functions of arrays.

    Args:
      env: the environment.
      policy: the policy.
      algorithm: PPO's settings.
      functions: the specifications of `actor` and `learner`.
      prices: price sheets; the first is that of the budget.
      prewarm: whether containers are prewarmed in the first round.
      actors: the workload's number of actors.
      most: the largest number of actors that is ever decided for; arrays have room for so many fragments.
      length: steps of a fragment.
      rounds: the largest number of rounds of a run.
      segment: the number of rounds of a segment.
      budget: the limits of a run; that of the cost is an input.
      episodes: number of episodes of the evaluation after each round; 0 for none.
      actor_bytes: bytes that an actor transfers.
      learner_bytes: bytes that a learner transfers, by number of fragments, `[most]`.
      alone: whether the program computes a single run, so that it can branch by the number of actors.
    """

    env: JaxEnvironment
    policy: Policy
    algorithm: PPO
    functions: Mapping[str, FunctionSpec]
    prices: Sequence[PriceSheet]
    prewarm: bool
    actors: int
    most: int
    length: int
    rounds: int
    segment: int
    budget: Budget
    episodes: int
    actor_bytes: int
    learner_bytes: Sequence[int]
    alone: bool = False

    def run(self, given: Given, carry: Carry) -> tuple[Carry, Row]:
        """Continues a run by the rounds of a segment; fewer, if a limit of the budget or the most rounds is reached."""
        began = carry.round

        def more(state: tuple[Carry, Row]) -> jax.Array:
            after, _ = state
            return ~after.over & (after.round < jnp.minimum(began + self.segment, self.rounds))

        def step(state: tuple[Carry, Row]) -> tuple[Carry, Row]:
            before, rows = state
            after, row = self._round(given, before)
            return after, self._written(rows, before.round - began, row)

        last: tuple[Carry, Row] = jax.lax.while_loop(more, step, (carry, self._no_rows()))
        return last

    # ---- the first state -------------------------------------------------------------------------------------------

    @wide
    def first(self, given: Given) -> Carry:
        """Returns the state of a run before its first round."""
        none = statistics.empty(self.policy.statistics())
        zero, clock, no = jnp.int32(0), jnp.float64(0), jnp.bool_(False)
        with jax.enable_x64(False):
            opt_state = self.algorithm.optimizer().init(given.params)
            places = jnp.arange(self.actors)
            slots = jax.vmap(functools.partial(self._start, given.keys))(places, places)  # replaced when they are used
        return Carry(
            round=zero,
            held=zero,
            version=PolicyVersion(given.params, statistics.normaliser(none)),
            opt_state=opt_state,
            statistics=none,
            slots=slots,
            discounted=None if self.policy.scaling_discount is None else jnp.zeros(self.actors, jnp.float64),
            pools={
                # A second container of the learner is made if the prewarmed one is not ready in time.
                ACTOR: containers.empty(self.actors, 1 + len(self.prices)),
                LEARNER: containers.empty(1 + self._second_learner, 1 + len(self.prices)),
            },
            containers=zero,
            now=clock,
            state=jnp.stack([jnp.float64(1), *[clock] * 6, given.cost]),
            recent=jnp.zeros(self.budget.window, jnp.float64),
            steps=zero,
            episodes=zero,
            gradients=zero,
            over=no,
            reached=no,
            finite=jnp.bool_(True),
        )

    @wide
    def _no_rows(self) -> Row:
        """Returns an empty table for the rounds of a segment."""
        seconds, numbers = jnp.full(self.segment, jnp.nan, jnp.float64), jnp.zeros(self.segment, jnp.int32)
        return Row(
            actors=numbers,
            loss=seconds,
            round_return=seconds,
            policy_kl=seconds,
            learner_seconds=seconds,
            actor_seconds=seconds,
            seconds=seconds,
            steps=numbers,
            episodes=numbers,
            episode_return=seconds,
            gradients=numbers,
            evaluation_return=seconds,
            costs=jnp.full((self.segment, len(self.prices)), jnp.nan, jnp.float64),
        )

    @wide
    def _written(self, rows: Row, place: jax.Array, row: Row) -> Row:
        """Returns the table with the row of a round."""
        written: Row = jax.tree.map(lambda table, x: table.at[place].set(x.astype(table.dtype)), rows, row)
        return written

    @property
    def _second_learner(self) -> bool:
        limit = self.functions[LEARNER].max_concurrency
        return self.prewarm and (limit is None or limit > 1)

    def _start(self, keys: Keys, slot: Array, container: Array) -> Slot:
        """Starts the environment of a new container, with the number that its container draws."""
        number = jax.random.bits(jax.random.fold_in(keys.containers, container), dtype=jnp.uint32)
        return jax_env.start(self.env, keys.seed + slot, number)

    # ---- a round ---------------------------------------------------------------------------------------------------

    def _round(self, given: Given, carry: Carry) -> tuple[Carry, Row]:
        actors = self._decided(given, carry)
        pools, calls, made = self._invoke_actors(given, carry, actors)
        carry, sampled = self._sample(given, carry, actors, pools, calls)
        learned = self._learn(given, carry, actors, sampled)
        divergence = self._divergence(learned.version, carry.version, actors, sampled)
        pools, learner, made = self._invoke_learner(given, actors, pools, calls, made, learned.gradients)
        carry = carry._replace(
            held=actors,
            version=learned.version,
            opt_state=learned.opt_state,
            statistics=learned.statistics,
            pools=pools,
            containers=made,
            gradients=carry.gradients + learned.gradients,
            finite=learned.finite,
        )
        evaluation = self._evaluation(given, carry)
        carry, row = self._account(given, carry, actors, calls, learner, sampled, learned, divergence, evaluation)
        return self._ended(given, carry, row), row

    def _decided(self, given: Given, carry: Carry) -> jax.Array:
        """Returns the number of actors of the round."""
        if given.scheduler is None:
            number: jax.Array = jnp.asarray(given.schedule)[jnp.minimum(carry.round, len(given.schedule) - 1)]
            return number
        with jax.enable_x64(True):
            far = jnp.float64(FAR)
            state = jnp.clip(jnp.nan_to_num(carry.state), -far, far).astype(jnp.float32)
        policy, key = policy_for(self.actors), jax.random.fold_in(given.keys.schedule, carry.round)
        action, _ = policy.act(given.scheduler, state[None], policy.noise(key, 1))
        return jnp.where(carry.round % given.hold == 0, action[0].astype(jnp.int32) + 1, carry.held)

    @wide
    def _invoke_actors(self, given: Given, carry: Carry, actors: jax.Array) -> tuple[dict[str, Pool], Calls, jax.Array]:
        """Invokes the round's actors; before them, containers are prewarmed in the first round."""
        pools, made = dict(carry.pools), carry.containers
        if self.prewarm:
            others = jnp.int32(self.actors) - actors
            first = carry.round == 0
            warm = {
                LEARNER: containers.prewarmed(given.draws[LEARNER], pools[LEARNER], jnp.int32(1), made),
                ACTOR: containers.prewarmed(given.draws[ACTOR], pools[ACTOR], others, made + 1),
            }
            pools = jax.tree.map(lambda one, other: jnp.where(first, one, other), warm, pools)
            made = made + jnp.where(first, 1 + others, 0)
        pools[ACTOR], calls, made = containers.invoked(
            self.functions[ACTOR],
            bills.granularities(self.prices, ACTOR),
            given.draws[ACTOR],
            pools[ACTOR],
            width=self.most,
            count=actors,
            now=carry.now,
            total=made,
            work=self.length,
            nbytes=self.actor_bytes,
        )
        return pools, calls, made

    def _sample(
        self, given: Given, carry: Carry, actors: jax.Array, pools: Mapping[str, Pool], calls: Calls
    ) -> tuple[Carry, _Sampled]:
        """Samples a fragment in the container of each actor."""
        policy = self.policy
        fresh = pools[ACTOR].number != carry.pools[ACTOR].number
        places = jnp.arange(self.actors)
        slots = chosen(
            fresh, jax.vmap(functools.partial(self._start, given.keys))(places, pools[ACTOR].number), carry.slots
        )
        own = jax.tree.map(lambda x: jnp.take(x, calls.slot, axis=0, mode="clip"), slots)
        begun = carry.pools[ACTOR].started + jnp.arange(self.most, dtype=jnp.int32)
        noise = jax.vmap(lambda number: jax.random.fold_in(given.keys.noise, number))(begun)
        own, trajectory, stepped = sample(self.env, policy, carry.version, jnp.int32(0), own, noise, self.length)
        there = jnp.arange(self.most) < actors
        stepped = stepped._replace(valid=stepped.valid & there, finished=stepped.finished & there)
        slots = jax.tree.map(lambda kept, new: kept.at[calls.slot].set(new, mode="drop"), slots, own)
        carry, returns = carry._replace(slots=slots), None
        if policy.scaling_discount is not None:
            with jax.enable_x64(True):
                assert carry.discounted is not None
                before = jnp.where(fresh, 0.0, carry.discounted)
                own_before = jnp.take(before, calls.slot, mode="clip")
                returns = statistics.discounted(own_before, stepped.reward, stepped.valid, policy.scaling_discount)
                carry = carry._replace(discounted=before.at[calls.slot].set(returns[-1], mode="drop"))
        sampled = _Sampled(trajectory._replace(valid=stepped.valid), stepped, returns)
        with jax.enable_x64(True):
            delivered = jnp.argsort(calls.ended, stable=True)  # at one instant, in the order of the invocations
            return carry, jax.tree.map(lambda x: x[:, delivered], sampled)

    def _learn(self, given: Given, carry: Carry, actors: jax.Array, sampled: _Sampled) -> _Learned:
        """Learns from the round's batch."""
        version, trajectory = carry.version, sampled.trajectory
        acted_on = jax.tree.map(lambda x: x[:-1].reshape(-1, *x.shape[2:]), trajectory.observation)
        present = jnp.tile(jnp.arange(self.most) < actors, self.length)
        of_returns = None if sampled.returns is None else statistics.of_returns(sampled.returns, sampled.stepped.valid)
        own = statistics.observed(acted_on, carry.statistics, of_returns, present=present)
        reward = version.normaliser.rewards(trajectory.reward, statistics.normaliser(own))
        batch = self.algorithm.prepare(trajectory._replace(reward=reward), self.policy.apply, version)
        key = jax.random.fold_in(given.keys.batches, carry.round + 1)  # batches are numbered from 1
        indices, count = minibatches(self.algorithm, key, batch, self.length, actors, self._widths)

        def apply(params: Tree, observation: Tree) -> tuple[Any, jax.Array]:
            return self.policy.apply(version._replace(params=params), observation)

        def learned_from(columns: NDArray, batch: Any, indices: jax.Array) -> tuple[Tree, Tree, Any]:
            return update(
                self.algorithm, apply, version.params, carry.opt_state, batch, indices[:, columns], count=count
            )

        parts = self._parts(indices.shape[1])
        which = jnp.searchsorted(jnp.asarray([*parts]), actors)
        branches = [functools.partial(learned_from, columns) for columns in parts.values()]
        params, opt_state, metrics = jax.lax.switch(which, branches, batch, indices)
        merged = statistics.merged(carry.statistics, own)
        after = PolicyVersion(params, statistics.normaliser(merged))
        return _Learned(after, opt_state, merged, metrics["loss"], metrics["finite"], count)

    def _parts(self, items: int) -> Mapping[int, NDArray]:
        """Returns the columns of minibatches of `items` that hold the items of up to so many actors, ascending.

        If every minibatch is the whole batch, it has padding where a round has fewer actors than the most. A program of
        one run branches, and computes gradients without most of the padding. Of several runs in one program each would
        compute all branches, so there is one.
        """
        columns = np.arange(items)
        if not self.alone or not whole(self.algorithm, self.length, self._widths):
            return {self.most: columns}
        step = -(-self.actors // _PARTS)
        return {most: columns[columns % self.most < most] for most in (*range(step, self.most, step), self.most)}

    @property
    def _widths(self) -> Widths:
        return Widths.of(self.actors, self.most)

    def _divergence(
        self, version: PolicyVersion, before: PolicyVersion, actors: jax.Array, sampled: _Sampled
    ) -> jax.Array:
        """Returns `KL(new || old)` on some of the batch's observations; 0 if the distribution does not define it."""
        table = samples(self.length, self._widths)
        place, weight = (jnp.asarray(column)[actors - 1] for column in table)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[place], sampled.trajectory.observation)

        def one(observation: Tree) -> jax.Array:
            return self.policy.divergence(version, before, jax.tree.map(lambda x: x[None], observation))

        mean = jnp.sum(weight * jax.vmap(one)(flat))
        return jnp.where(jnp.isnan(mean), 0.0, mean)

    def _evaluation(self, given: Given, carry: Carry) -> jax.Array:
        """Returns the mean return of the newest version's evaluation; NaN without one."""
        if not self.episodes:
            return jnp.full((), jnp.nan)
        seed = jnp.asarray(given.evaluations)[carry.round]
        returns = evaluated(self.env, self.policy, carry.version, episodes=self.episodes, seed=seed)
        with jax.enable_x64(True):
            mean: jax.Array = jnp.mean(returns.astype(jnp.float64))
            return mean

    # ---- times and costs -------------------------------------------------------------------------------------------

    @wide
    def _invoke_learner(
        self,
        given: Given,
        actors: jax.Array,
        pools: Mapping[str, Pool],
        calls: Calls,
        made: jax.Array,
        gradients: jax.Array,
    ) -> tuple[dict[str, Pool], Calls, jax.Array]:
        """Invokes the learner when the last fragment is delivered."""
        pool, learner, made = containers.invoked(
            self.functions[LEARNER],
            bills.granularities(self.prices, LEARNER),
            given.draws[LEARNER],
            pools[LEARNER],
            width=1,
            count=jnp.int32(1),
            now=_last(calls),
            total=made,
            work=gradients,
            nbytes=jnp.asarray(self.learner_bytes)[actors - 1],
        )
        return {**pools, LEARNER: pool}, learner, made

    @wide
    def _account(
        self,
        given: Given,
        carry: Carry,
        actors: jax.Array,
        calls: Calls,
        learner: Calls,
        sampled: _Sampled,
        learned: _Learned,
        divergence: jax.Array,
        evaluation: jax.Array,
    ) -> tuple[Carry, Row]:
        """Moves the clock, and counts steps, episodes and costs; returns the row of the round."""
        # Ordered by fragment and then by step, as the event loop counts episodes.
        finished, returns = (x.T.ravel() for x in (sampled.stepped.finished, sampled.stepped.episode_return))
        count = jnp.sum(finished, dtype=jnp.int32)
        nth = jnp.cumsum(finished, dtype=jnp.int32) - 1
        counts = finished & (nth >= count - self.budget.window)
        place = jnp.where(counts, (carry.episodes + nth) % self.budget.window, self.budget.window)
        recent = carry.recent.at[place].set(returns.astype(jnp.float64), mode="drop")
        episodes = carry.episodes + count
        total = jnp.sum(jnp.where(finished, returns, 0.0), dtype=jnp.float64)
        waits = jnp.where(calls.present, calls.ended - carry.now, 0.0)
        end, steps = learner.ended[0], carry.steps + actors * jnp.int32(self.length)
        row = Row(
            actors=actors,
            loss=learned.loss.astype(jnp.float64),
            round_return=jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.nan),
            policy_kl=divergence.astype(jnp.float64),
            learner_seconds=end - _last(calls),
            actor_seconds=jnp.sum(waits) / actors,
            seconds=end,
            steps=steps,
            episodes=episodes,
            episode_return=jnp.where(
                episodes > 0, jnp.sum(recent) / jnp.clip(episodes, 1, jnp.int32(self.budget.window)), jnp.nan
            ),
            gradients=carry.gradients,
            evaluation_return=evaluation,
            costs=bills.costs(self.prices, self.functions, carry.pools, end),
        )
        state: dict[str, Any] = {
            "round": carry.state[0] + 1,
            "loss": row.loss,
            "episode_return": jnp.where(count > 0, row.round_return, carry.state[2]),
            "policy_kl": row.policy_kl,
            "learner_seconds": row.learner_seconds,
            "actor_seconds": row.actor_seconds,
            "round_seconds": end - carry.now,
            "budget": given.cost - (row.costs[0] if self.prices else 0.0),
        }
        carry = carry._replace(now=end, recent=recent, episodes=episodes, steps=steps, state=_stacked(State(**state)))
        return carry, row

    @wide
    def _ended(self, given: Given, carry: Carry, row: Row) -> Carry:
        """Counts the round, and decides whether the run is over."""
        by_window = (row.episodes >= self.budget.window) & (row.episode_return >= self.budget.target_return)
        reached = jnp.asarray(by_window | (row.evaluation_return >= self.budget.target_evaluation))
        spent = jnp.asarray(row.costs[0] >= given.cost if self.prices else False)
        return carry._replace(
            round=carry.round + jnp.int32(1),
            over=reached | spent | (carry.steps >= self.budget.steps) | ~carry.finite,
            reached=reached,
        )


def _last(calls: Calls) -> jax.Array:
    """Returns the time at which the last of several invocations ends."""
    return jnp.max(jnp.where(calls.present, calls.ended, -jnp.inf))


def _stacked(state: Sequence[Any]) -> jax.Array:
    """Returns a state as a float64 array."""
    return jnp.stack([jnp.asarray(number, jnp.float64) for number in state])
