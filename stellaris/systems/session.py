"""A run as its system sees it: invocations that complete, rounds, fragments, and published versions."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax

from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import Fragment
from stellaris.runtime.contract import Platform
from stellaris.runtime.functions import Function, Invocation
from stellaris.systems import programs
from stellaris.systems.batches import LearnerBatch, unlearned
from stellaris.systems.checkpointing import Checkpointing
from stellaris.systems.deliveries import Deliveries
from stellaris.systems.environments import Environments
from stellaris.systems.fragments import Fragments
from stellaris.systems.progress import Progress
from stellaris.systems.record import POLICY, Record
from stellaris.systems.rollouts import Rollouts, Waiting
from stellaris.systems.rounds import Declared, Rounds
from stellaris.systems.run_state import RunState
from stellaris.systems.staleness_control import StalenessControl
from stellaris.systems.workload import Workload
from stellaris.types import Tree

T = TypeVar("T")

#: Numbers that are folded into the key of the batches, for the keys of the noise and of the schedule. They exceed the
#: number of every batch, so that these keys differ from the key of every batch.
_NOISE, _SCHEDULE = 2**32 - 1, 2**32 - 2


class Keys(NamedTuple):
    """The random keys of a run, which all follow from its seed."""

    params: jax.Array  #: key of the first parameters.
    batches: jax.Array  #: key of the shuffles: one folded key per batch.
    noise: jax.Array  #: key of the actions' noise: one folded key per invocation of an actor.
    schedule: jax.Array  #: key of the scheduler's decisions: one folded key per round.

    @staticmethod
    def of(seed: int) -> "Keys":
        """Returns the keys that follow from a seed."""
        params, batches = jax.random.split(jax.random.key(seed))
        return Keys(params, batches, jax.random.fold_in(batches, _NOISE), jax.random.fold_in(batches, _SCHEDULE))


class Session:
    """A run, as its event loop sees it. `train` makes the session, and passes it to `System.run`.

    An event loop starts with `begin`, and takes completed invocations with `next_completion` until that returns None.
    Between two completions, the loop has actors sample `fragments`, learns from their batches, publishes versions, and
    declares the ends of rounds. The loop records its actions in `record`, which writes them into the platform's trace,
    from which the history is computed.

    Attributes:
      workload: the environment, the policy, and the settings of sampling.
      platform: the platform that runs the functions: `platform.invoke`, `platform.store`, `platform.now`.
      policy: the policy whose versions are published.
      env: the environments of the actors, with a slot per container.
      first_params: the parameters of the first version.
      record: the record, which notes the system's actions, such as applied gradients.
      acts: the name of the function whose containers hold the environments.
      keys: the random keys of the run.
      state: everything that a checkpoint saves, except the platform.
      rounds: the rounds of the run, declared or scheduled.
      progress: the history, evaluations and the budget.
      on_fragment: called with every fragment, or piece of a fragment, that an actor delivers.
    """

    def __init__(
        self,
        workload: Workload,
        platform: Platform,
        policy: Policy,
        env: Environments,
        *,
        acts: str,
        rounds: Rounds,
        progress: Progress,
        keys: Keys,
        first_params: Tree,
        checkpointing: Checkpointing,
        on_fragment: Callable[[Fragment], None] | None,
    ) -> None:
        self.workload = workload
        self.platform = platform
        self.policy = policy
        self.env = env
        self.first_params = first_params
        self.record = Record(platform)
        self.acts = acts
        self.keys = keys
        self.state = RunState(Rollouts(list(range(workload.actors)), workload.actors), policy.statistics())
        self.rounds = rounds
        self.progress = progress
        self.on_fragment = on_fragment
        # Whether the event loop repeats the pass that had ended when the checkpoint was saved; see `begin`.
        self.repeats = False
        self._checkpointing = checkpointing
        self._deliveries = Deliveries(platform, self.state.handled, self.state.retries)

    @property
    def round(self) -> int:
        """The number of rounds that are over."""
        return self.state.round

    @property
    def version(self) -> int:
        """The number of the newest version; -1 before the first."""
        return self.state.version

    def program(self, name: str, program: Function) -> Function:
        """Registers a program under a name, and returns the program.

        Call it before `begin`, which loads checkpoints: they hold only the names of programs.
        """
        self._checkpointing.programs[name] = program
        return program

    def actor_program(self) -> Function:
        """Returns the library's actor program, `(Versioned, number) -> Fragment`, which a system's program may wrap."""
        steps, restart = self.workload.steps_at_once, self.workload.restart
        return programs.actor(self.policy, self.env, steps, self.keys.noise, restart=restart)

    def fragments(
        self, control: StalenessControl, *, batch: int | None = None, act: Function | None = None
    ) -> Fragments:
        """Sets up the sampling of fragments; see `Fragments` for the arguments. Call it once, before `begin`."""
        return Fragments(self, control, batch=batch, act=act)

    def begin(self, first: Callable[[], T]) -> T:
        """Returns the state of the event loop: a new state, or the saved state if the run is resumed.

        Args:
          first: a function that makes the state of a new run, publishes the first version, and may invoke functions.

        Returns:
          The state, to be passed to `next_completion` and `next_round`, so that checkpoints can save it.
        """
        saved = self._checkpointing.load(self.platform, self.env)
        if saved is None:
            return first()
        self.state.restore(saved)
        # `Deliveries` is made again, because `restore` has replaced the objects that it held.
        self._deliveries = Deliveries(self.platform, self.state.handled, self.state.retries)
        self.progress.read()  # so that the history has the rounds of the restored trace
        # Without a scheduler, runs are saved in `next_completion`, when the loop has reacted to the last event. It now
        # reacts a second time, and must find nothing to do: a batch that was made may have discarded fragments, and the
        # actors in their place start only after the next event, as in the uninterrupted run.
        self.repeats = isinstance(self.rounds, Declared)
        loop: T = self.state.loop
        return loop

    def next_completion(self, loop: Any) -> Invocation | None:
        """Returns the next invocation that completes within the budget; None when the run is over.

        Each invocation is returned once, even if it was retried or its result was delivered several times.

        Args:
          loop: the state of the event loop, to be saved if a checkpoint is due.

        Raises:
          FunctionError: if the attempts of an invocation are used up.
          RuntimeError: if nothing is pending although the budget is not used up.
        """
        self.repeats = False
        if not self.rounds.under_way and not self._may_continue(loop):
            return None
        done = self._deliveries.next(until=self.progress.budget.seconds)
        # Once the budget's time is up, None ends the run, unless nothing was pending, so that the time passed in vain.
        if done is None and (self.platform.now < self.progress.budget.seconds or not self._deliveries.outstanding):
            last = max((time for time in self.platform.trace.invocations().ended.tolist() if time >= 0), default=0.0)
            raise RuntimeError(
                f"deadlock at {last:.6g} s: no invocation is pending, but the budget is not used up; check that a "
                "batch does not wait for more actors, or the aggregator for more learners, than exist"
            )
        return done

    def next_round(self, loop: Any) -> bool:
        """Begins a round if the system has a scheduler and no round is under way. Call it before every event.

        The scheduler decides how many actors sample a fragment for the round's batch. The round is over when its batch
        has been learned from. Without a scheduler this does nothing.

        Args:
          loop: the state of the event loop, to be saved if a checkpoint is due.

        Returns:
          Whether the run continues; if not, no round has begun.

        Raises:
          ValueError: if the scheduler's decision is not in [1, actors], or the first round cost more than the budget.
        """
        if isinstance(self.rounds, Declared) or self.rounds.under_way:
            return True
        may_continue = self._may_continue(loop)
        self.progress.check_first_round()  # checked before the run ends, so that the reason is shown
        if may_continue:
            actors = self.rounds.begin(
                self.progress.rounds,
                budget=self.progress.budget.cost,
                most=self.workload.actors,
                key=self.keys.schedule,
                record=self.record,
            )
            self.state.rollouts.begin_round(actors)
        return may_continue

    def round_over(self) -> None:
        """Declares that a round is over; the history gets a row for it. With a scheduler this does nothing."""
        self.state.round += self.rounds.declared()

    def _may_continue(self, loop: Any) -> bool:
        """Reports a round that is over and saves the run if that is due; returns whether there is budget left."""
        before, now = self.progress.reported, self.round
        if now > before:
            # The round is reported here and not in `round_over`, because the system calls `round_over` while it still
            # handles the round's last event.
            self.progress.report(now)
            if self._checkpointing.due(before, now):
                self.state.loop = loop
                self._checkpointing.save(self.platform, self.acts, self.env, self.state)
        return self.progress.within_budget(self.state.steps)

    def versioned(self, params: Tree) -> PolicyVersion:
        """Returns parameters with the normalisation of the newest version."""
        # The current statistics are not used, because they may include batches after which no version was published:
        # the last gradients of such a batch were dropped.
        return PolicyVersion(params, self.state.normaliser)

    def publish(self, params: Tree) -> int:
        """Publishes the next version of the policy; returns its number."""
        state = self.state
        version = PolicyVersion(params, state.statistics.normaliser())
        state.normaliser = version.normaliser
        state.version = self.platform.store.publish(POLICY, version)
        # The first version is not compared, because there is no earlier version.
        if state.compared is None:
            state.compared = version
        elif state.sample is not None:
            # A version is compared only if it completes a batch: `Stellaris` also publishes versions within a batch.
            self.record.diverged(float(_divergence(self.policy, version, state.compared, state.sample)))
            state.compared, state.sample = version, None
        return state.version

    def learned_from(self, data: LearnerBatch) -> None:
        """Counts a batch as learned from: later versions also normalise by its observations.

        Call it after the batch's last gradient, because the normalisation must not change within a batch, as in PPO.
        """
        state = self.state
        state.round += self.rounds.learned(self.record)
        state.rollouts.learned += 1
        self.record.learned_from(data.number)
        state.statistics = state.statistics.merge(data.statistics)
        state.sample = data.sample

    def unused(
        self, *, gradients: int = 0, batches: Sequence[LearnerBatch] = (), fragments: Sequence[Waiting] = ()
    ) -> None:
        """Records queued gradients, and batches and fragments that were not learned from. Call it after the loop."""
        steps = unlearned(batches) + sum(waiting.transitions for waiting in fragments)
        self.record.unused(gradients=gradients, steps=self.state.rollouts.unlearned + steps)


@functools.partial(jax.jit, static_argnums=0)
def _divergence(policy: Policy, version: PolicyVersion, before: PolicyVersion, observation: Tree) -> jax.Array:
    return policy.divergence(version, before, observation)
