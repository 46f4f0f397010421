"""A run as a system sees it: completions within the budget, rounds that it declares, versions that it publishes."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from stellaris.acting.evaluation import evaluate
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import Fragment
from stellaris.algorithms import Algorithm
from stellaris.runtime.contract import Platform, Resumable
from stellaris.runtime.costs.price_sheets import PriceSheet
from stellaris.runtime.functions import Function, Invocation
from stellaris.runtime.state.checkpoint import Checkpoints
from stellaris.scheduling.scheduler import Scheduler, decide_actors, states_of
from stellaris.systems import programs
from stellaris.systems.batches import LearnerBatch, batch_of, unlearned
from stellaris.systems.deliveries import Deliveries
from stellaris.systems.environments import Environments
from stellaris.systems.history import Reader, Row
from stellaris.systems.record import POLICY, Record
from stellaris.systems.rollouts import Rollouts, Waiting
from stellaris.systems.staleness_control import StalenessControl
from stellaris.systems.workload import Budget, Evaluation, Workload
from stellaris.types import NDArray, Tree

T = TypeVar("T")

#: The keys of all action noise, and of schedulers, are folded from these numbers, which no batch has.
_NOISE, _SCHEDULE = 2**32 - 1, 2**32 - 2
#: The seeds of evaluations are made with this number, and no others.
_EVALUATION = 1
#: So often in a row a fragment's pieces are lost before the run is given up.
_TIMES = 100


class Session:
    """What an event loop works with, besides the platform.

    A system's `run(session)` begins its loop with `begin` and takes `next_completion` until there is none. In between
    it has actors `sample`, takes what they `deliver`, learns from the `next_batch`, publishes versions, and declares
    when a round is over. What else it does it notes in `record`; the history is read off the platform's trace.

    Args:
      workload: what is learned.
      platform: on which its functions are deployed.
      policy: whose versions are published.
      env: the environments that actors step.
      budget: when to stop.
      evaluation: when versions are evaluated, or None.
      prices: sheets under which the history shows costs.
      seed: of parameters and shuffles.
      configuration: of the whole run, as `describe`; a run that is resumed must have the same.
      checkpoints: where the run is saved.
      resume: whether to go on from the newest checkpoint, if there is one.
      on_progress: called with every row of the history.
      on_fragment: called with everything that actors deliver.
    """

    def __init__(
        self,
        workload: Workload,
        platform: Platform,
        policy: Policy,
        env: Environments,
        *,
        budget: Budget,
        evaluation: Evaluation | None,
        prices: Sequence[PriceSheet],
        seed: int,
        configuration: Mapping[str, Any],
        checkpoints: Checkpoints | None,
        resume: bool,
        on_progress: Callable[[Row], None] | None,
        on_fragment: Callable[[Fragment], None] | None,
    ) -> None:
        self.workload = workload
        self.platform = platform
        self.policy = policy
        self.env = env
        self.record = Record(platform)
        self.rollouts = Rollouts(parked=list(range(workload.actors)), batch=workload.actors)
        self.round = 0  #: how many rounds are over.
        self.history: list[Row] = []
        init_key, self._key = jax.random.split(jax.random.key(seed))
        self._noise_key = jax.random.fold_in(self._key, _NOISE)
        self._schedule_key = jax.random.fold_in(self._key, _SCHEDULE)
        self.first_params: Tree = jax.jit(Policy.init, static_argnums=0)(
            policy, init_key
        )  # compiled once for equal ones
        self._budget = budget
        self._evaluation = evaluation
        self._seed = seed
        self._prices = prices
        self._configuration = configuration
        self._checkpoints = checkpoints
        self._resume = resume
        self._on_progress = on_progress
        self._on_fragment = on_fragment
        self._reader = Reader(prices, platform.functions, window=budget.window)
        self._deliveries = Deliveries(platform)
        self._programs: dict[str, Function] = {}
        self._statistics = policy.statistics()  # of all observations learned from
        self._steps = 0  # that were delivered: what the budget limits
        self.version = -1  #: the newest.
        self._batches = 0  # that were made
        self._restarts = 0  # of the environments: one for each checkpoint
        self._scheduled = False  # whether a scheduler decides how many actors a round has
        self._under_way = False  # whether such a round is
        self._since = 0.0  # when its actors were invoked, or its batch was made: what the round waits for
        self._compared: PolicyVersion | None = None  # the version that the last batch has led to
        self._sample: Tree = None  # observations of a batch that has been learned from since
        self._act = [self.program(*named) for named in _actors(workload, policy, env, self._noise_key)]
        if len(self._act) > 1:
            self.check_containers()

    def program(self, name: str, program: Function) -> Function:
        """Names a program of the system's. Checkpoints do not hold it: a run that is resumed brings it again."""
        self._programs[name] = program
        return program

    def check_containers(self) -> None:
        """For actors that keep a container each.

        Raises:
          ValueError: if there may be fewer containers than actors: they would end one another's.
        """
        most = self.platform.functions["actor"].max_concurrency
        if most is not None and most < self.workload.actors:
            raise ValueError(
                f"max_concurrency={most} of 'actor' is below actors={self.workload.actors}, each of which needs a "
                "container of its own, where its environment is: allow as many"
            )

    def begin(self, first: Callable[[], T]) -> T:
        """Where the event loop stands at its beginning: what `first` makes, or what was saved of a run to be resumed.

        Args:
          first: sets the loop up: publishes the first version, invokes what is invoked first.

        Returns:
          The loop's state, which is handed to `next_completion` again and again, so that checkpoints can save it.
        """
        if self._checkpoints is None or not self._resume or self._checkpoints.newest() is None:
            return first()
        loop: T = self._resumed(self._checkpoints)
        return loop

    def next_completion(self, loop: Any) -> Invocation | None:
        """The next invocation that completes within the budget, each piece of work once; None when the run is over.

        Args:
          loop: where the event loop stands, to be saved at a checkpoint.

        Raises:
          FunctionError: if an invocation's attempts are used up.
          RuntimeError: if nothing is pending, and the budget is not used up.
        """
        if not self._scheduled and not self._goes_on(loop):  # else `next_round` has asked, and the round is ended
            return None
        done = self._deliveries.next(until=self._budget.seconds)
        if done is None and self.platform.now < self._budget.seconds:
            raise RuntimeError(
                f"nothing goes on after {self.platform.now:.6g} s, and the budget is not used up: the system waits for "
                "what never comes, such as its aggregator for learners that there are not"
            )
        return done

    def next_round(self, scheduler: Scheduler | None, loop: Any) -> bool:
        """Begins a round, unless one is under way: a scheduler decides how many actors' fragments its batch has.

        As many `sample` then, with nothing ahead; the round is over once the batch has been learned from.

        Args:
          scheduler: is told how the rounds before went. Without one every batch has a fragment of each actor, and the
            system declares its rounds: nothing is done here.
          loop: where the event loop stands, to be saved at a checkpoint.

        Returns:
          Whether the run goes on; if not, nothing has begun.

        Raises:
          ValueError: if the decision is no number of actors that there are, or the budget is below the first round's
            cost.
        """
        if scheduler is None or self._under_way:
            return True
        goes_on = self._goes_on(loop)
        sheet = self._prices[0].name if self._prices else ""
        budget = self._budget.cost
        # Before the run ends for want of budget, which it would do without a word.
        if len(self.history) == 1 and math.isfinite(budget) and self.history[0][f"cost_{sheet}"] > budget:
            raise ValueError(
                f"budget.cost={budget:g} is below what the first round has cost, {self.history[0][f'cost_{sheet}']:g} "
                f"under {sheet!r}: allow more, or fewer actors"
            )
        if not goes_on:
            return False
        states = states_of(self.history, budget=budget, sheet=sheet)
        key = jax.random.fold_in(self._schedule_key, self.round)
        actors = decide_actors(scheduler, states, most=self.workload.actors, key=key)
        self.record.scheduled(actors)
        self.rollouts.begin_round(actors)
        self._scheduled = self._under_way = True
        self._since = self.platform.now
        return True

    def sample(self, control: StalenessControl) -> None:
        """Has actors begin fragments on the newest version, as far as the control admits.

        Raises:
          ValueError: if the control's window holds fewer fragments than a batch has: no batch would ever be whole.
        """
        self._check_window(control)
        while (actor := self.rollouts.take_actor(control)) is not None:
            self._invoke(actor)

    def deliver(self, done: Invocation, fragment: Fragment | None = None) -> None:
        """Takes delivery of what an actor sampled: a fragment, or a piece of one that it goes on with.

        Args:
          done: the actor's invocation, with the actor as its tag.
          fragment: what was sampled, if that is not the invocation's result.

        Raises:
          RuntimeError: if an actor's fragment had to be begun anew a hundred times in a row, because its environment
            was lost before the fragment was whole.
        """
        piece = done.result() if fragment is None else fragment
        self._steps += piece.steps
        self.record.sampled(done, piece)
        lost = self.rollouts.add(done.tag, piece, self.workload.fragment, self.version)
        self.record.lost(done, steps=lost.steps, episode=lost.episode)
        if self.rollouts.lost.get(done.tag, 0) == _TIMES:
            raise RuntimeError(lives_too_short(done.tag, _TIMES, self.workload))
        if self._on_fragment is not None:
            self._on_fragment(piece)
        if done.tag in self.rollouts.pieces:
            self._invoke(done.tag)
        elif self._scheduled:
            self.record.took("actor", self.platform.now - self._since)

    def next_noise(self) -> NDArray:
        """The action noise `[T, ...]` of the next fragment, as an actor would draw it that chooses its own actions."""
        key = jax.random.fold_in(self._noise_key, self.rollouts.begun)
        self.rollouts.begun += 1
        return np.asarray(_noise(self.policy, self.workload.fragment, key))

    def _invoke(self, actor: int) -> None:
        """Has an actor sample once."""
        steps, number = self.workload.steps_at_once, self.rollouts.begun
        self.rollouts.begun += 1
        act = self._act[actor % len(self._act)]
        self.platform.invoke("actor", act, self.platform.store.latest(POLICY), number, work=steps, tag=actor)

    def next_batch(self, algorithm: Algorithm, params: Tree, control: StalenessControl) -> LearnerBatch | None:
        """The batch of the oldest fragments that wait; None if too few do.

        Args:
          algorithm: which prepares it.
          params: the newest ones, for algorithms that need a policy beside the behaviour policy.
          control: which fragments are thrown away first.

        Raises:
          ValueError: as `sample`.
        """
        fragments = self.next_fragments(control)
        return None if fragments is None else self.batch(algorithm, fragments, self.versioned(params))

    def next_fragments(self, control: StalenessControl) -> list[Waiting] | None:
        """The oldest fragments that wait, as many as a batch has; None if there are fewer.

        Raises:
          ValueError: as `sample`.
        """
        self._check_window(control)
        self.discard(self.rollouts.discard(control, self.version))
        taken = self.rollouts.take()
        if taken is not None:
            self.record.trained(taken, self.version)
        return taken

    def _check_window(self, control: StalenessControl) -> None:
        """Raises unless as many fragments are kept as a batch has."""
        if control.window < self.rollouts.batch:
            raise ValueError(
                f"window={control.window} is below the {self.rollouts.batch} fragments of a batch "
                f"(actors={self.workload.actors}): no batch would ever be whole, so keep as many"
            )

    def discard(self, fragments: Sequence[Waiting]) -> None:
        """Throws fragments away: they will not be learned from, and others are sampled in their place."""
        self.rollouts.accepted -= len(fragments)
        for waiting in fragments:
            self.record.discarded(waiting.transitions)

    def batch(self, algorithm: Algorithm, fragments: Sequence[Waiting], target: PolicyVersion) -> LearnerBatch:
        """The batch that fragments become, shuffled by this round's key.

        Args:
          algorithm: which prepares it.
          fragments: from `next_fragments`.
          target: a version, for algorithms that need a policy beside the behaviour policy.
        """
        self._batches += 1
        self._since = self.platform.now
        return batch_of(
            [waiting.fragment for waiting in fragments],
            width=self._width(len(fragments)) if self._scheduled else None,
            algorithm=algorithm,
            policy=self.policy,
            target=target,
            key=jax.random.fold_in(self._key, self._batches),
        )

    def _width(self, fragments: int) -> int:
        """Columns of a batch's arrays: one for each actor, or a quarter, and so on: each shape is compiled for."""
        width = self.workload.actors
        while width // 4 >= fragments:
            width //= 4
        return width

    def learned_from(self, data: LearnerBatch) -> None:
        """A batch has been learned from: its observations count among those that later versions normalise by.

        Once all of the batch was learned from, and not before: it is learned from under the normalisation that it was
        sampled under, as in plain PPO.
        """
        if self._scheduled:
            self.record.took("learner", self.platform.now - self._since)
            self._under_way = False
            self.round += 1
        self.rollouts.learned += 1
        self._statistics = self._statistics.merge(data.statistics)
        self._sample = data.sample

    def unused(
        self, *, gradients: int = 0, batches: Sequence[LearnerBatch] = (), fragments: Sequence[Waiting] = ()
    ) -> None:
        """Notes what the end of a run leaves: gradients in a queue, and what was taken but not wholly learned from."""
        steps = unlearned(batches) + sum(waiting.transitions for waiting in fragments)
        self.record.unused(gradients=gradients, steps=self.rollouts.unlearned + steps)

    def versioned(self, params: Tree) -> PolicyVersion:
        """Parameters, with the normalisation by all observations that were learned from so far."""
        return PolicyVersion(params, self._statistics.normaliser())

    def publish(self, params: Tree) -> int:
        """Publishes the next version of the policy; returns its number."""
        version = self.versioned(params)
        self.version = self.platform.store.publish(POLICY, version)
        if self._compared is None:
            self._compared = version
        elif self._sample is not None:
            self.record.diverged(float(_divergence(self.policy, version, self._compared, self._sample)))
            self._compared = version
            self._sample = None
        return self.version

    def round_over(self) -> None:
        """Declares that a round is over: a row of the history follows. Those of a scheduler end by themselves."""
        if not self._scheduled:
            self.round += 1

    def finish(self) -> None:
        """Reports where the run stands at its end, if anything has happened since its last round."""
        self._read()
        if self._reader.anything_new or self.platform.now > self.history[-1]["seconds"]:
            self._report()

    def _goes_on(self, loop: Any) -> bool:
        """Reports a round that is over, and saves the run if it is time to; whether there is budget left."""
        before = self.history[-1]["round"] if self.history else 0
        if self.round > before:
            # Now, and not when the round was declared: the system has handled its last event to the end.
            self._report()
            every = self._checkpoints.every if self._checkpoints else 0
            if self._checkpoints and self.round // every > before // every:
                self._save(self._checkpoints, loop)
        return self._within_budget()

    def _within_budget(self) -> bool:
        budget = self._budget
        if self._steps >= budget.steps:
            return False
        if not self.history:
            return True
        last = self.history[-1]
        if self._prices and last[f"cost_{self._prices[0].name}"] >= budget.cost:
            return False
        return not (self._reader.full_window and last["episode_return"] >= budget.target_return)

    # ---- the history ----------------------------------------------------------------------------------------------

    def _report(self) -> None:
        if self._evaluation is not None and self.round % self._evaluation.every == 0:
            self._evaluate(self._evaluation.episodes)
        self.record.round_over(self.round)
        for row in self._read():
            if self._on_progress is not None:
                self._on_progress(row)

    def _read(self) -> list[Row]:
        """Reads the rows of the trace that are new; returns the rows of the history that they make."""
        rows = list(self._reader.read(self.platform.trace.rows(self._reader.rows_read)))
        self.history += rows
        return rows

    def _evaluate(self, episodes: int) -> None:
        """Plays with the newest version: seeds follow from the round, so that nothing else has a part in them."""
        seed = int(np.random.SeedSequence([self._seed, self.round, _EVALUATION]).generate_state(1)[0] >> 1)
        version = self.platform.store.value(POLICY)
        try:
            played = evaluate(self.policy, version, self.workload.environment, episodes=episodes, seed=seed)
        except Exception as error:  # of the environment, mostly, whose traceback is the cause's
            raise RuntimeError(
                f"the evaluation after round {self.round} has failed: {type(error).__name__}: {error}"
            ) from error
        self.record.evaluated(played)

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def _save(self, checkpoints: Checkpoints, loop: Any) -> None:
        """Saves everything but the environments: they restart, here as in a run that is resumed."""
        platform = self.platform
        assert isinstance(platform, Resumable)  # as `train` has checked
        self._restarts += 1
        platform.trace.append(platform.now, "checkpoint", value=self._restarts)
        platform.reinitialise("actor")
        self.env.restart(self._restarts)
        state = {
            "loop": loop,
            "rollouts": self.rollouts,
            "round": self.round,
            "version": self.version,
            "batches": self._batches,
            "steps": self._steps,
            "restarts": self._restarts,
            "statistics": self._statistics,
            "compared": self._compared,
            "handled": self._deliveries.handled,
            "retries": self._deliveries.retries,
        }
        # Above what is there: the newest may be damaged, and the run have been resumed from one before.
        step = (checkpoints.newest() or 0) + 1
        checkpoints.save(step, platform, state, **self._brought)

    @property
    def _brought(self) -> dict[str, Any]:
        """What checkpoints do not hold, and a run that is resumed brings again."""
        like = {"params": self.first_params}  # a network's parameters may be of classes of its library's
        return {"externals": self._programs, "like": like, "configuration": self._configuration}

    def _resumed(self, checkpoints: Checkpoints) -> Any:
        """Goes on where a run was saved; returns where its event loop stood."""
        assert isinstance(self.platform, Resumable)
        state = checkpoints.load(self.platform, **self._brought)
        self.rollouts = state["rollouts"]
        self.round = state["round"]
        self.version = state["version"]
        self._batches = state["batches"]
        self._steps = state["steps"]
        self._restarts = state["restarts"]
        self._statistics = state["statistics"]
        self._compared = state["compared"]
        self._deliveries = Deliveries(self.platform, state["handled"], state["retries"])
        self.env.restart(self._restarts)
        self._read()
        return state["loop"]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _noise(policy: Policy, length: int, key: jax.Array) -> jax.Array:
    return policy.noise(key, length)


@functools.partial(jax.jit, static_argnums=0)
def _divergence(policy: Policy, version: PolicyVersion, before: PolicyVersion, observation: Tree) -> jax.Array:
    return policy.divergence(version, before, observation)


def lives_too_short(actor: int, times: int, workload: Workload) -> str:
    """Says that an actor's fragment will never be whole, and what helps."""
    return (
        f"actor {actor} has lost its environment {times} times before fragment={workload.fragment} steps were sampled: "
        "containers do not live as long, so raise keep_alive, or lower the rate of faults"
    )


def _actors(workload: Workload, policy: Policy, env: Environments, key: jax.Array) -> Sequence[tuple[str, Function]]:
    """The programs of the actors, by name: one that all share, or one each.

    An actor that samples its fragment in pieces has a program of its own, because containers serve only the program
    that initialised them: so each piece goes on in the environment of the last.
    """
    act = programs.actor(policy, env, workload.steps_at_once, key, restart=workload.restart)
    if workload.steps_at_once == workload.fragment:
        return [("act", act)]
    return [(f"act {i}", programs.for_one_actor(act)) for i in range(workload.actors)]
