"""Central inference, as in SEED RL: actors only step environments, and a central machine chooses every action."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from stellaris.acting.envs import Step, VectorEnv
from stellaris.acting.policies import Policy
from stellaris.acting.rollout import ActorState, Episode, Fragment, start, statistics_of
from stellaris.acting.vector import checked_step
from stellaris.algorithms import PPO, Algorithm
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.algorithms.batch import observations
from stellaris.runtime.functions import Context, Function, Invocation
from stellaris.runtime.state.registry import register_value
from stellaris.scheduling.scheduler import Scheduler, check_scheduler
from stellaris.systems import programs
from stellaris.systems.batches import LearnerBatch
from stellaris.systems.central_learner import IN_STEP, take_learned
from stellaris.systems.fragments import Fragments, check_containers, lives_too_short
from stellaris.systems.record import POLICY
from stellaris.systems.session import Session
from stellaris.systems.system import System
from stellaris.types import NDArray, Trajectory, Tree, Versioned


@dataclass(frozen=True)
class CentralInference(System):
    """Synchronous training whose actors send every observation to a central machine, and wait for the action.

    Each environment step is one invocation of its actor. The inference function is invoked on all observations that
    have arrived since its last invocation. Each step therefore costs an actor the latency of two messages, and the
    actor may wait until the inference under way is done. When all fragments are whole, one learner computes all
    epochs.

    The memories of a policy that has one stay on the central machine, one for each actor's environment; they are never
    sent. The memory of an environment that was lost is lost with it.

    The platform must deploy `actor` (compute time per environment step, without the policy's forward pass), `inference`
    (per batch of observations) and `learner` (per gradient). Each actor needs a container to itself.

    Args:
      algorithm: the algorithm, whose loss, minibatches and epochs are used.
      scheduler: decides how many actors sample in each round; by default all of them.

    Raises:
      TypeError: if the algorithm or the scheduler has the wrong type.
      ValueError: in a run, if the workload sets `restart` (actors must keep their environments) or `refresh` (actors
        hold no policy); or if there may be fewer containers than actors.
      RuntimeError: in a run, if an actor's environment was lost a thousand times before its fragment was whole:
        containers do not live long enough to sample a fragment.

    Source:
      Espeholt et al. 2020, SEED RL, for central inference. Actors are synchronous here, as in the slides of Stellaris
      (SC 2024).
    """

    functions: ClassVar[tuple[str, ...]] = ("actor", "inference", "learner")
    serverless: ClassVar[tuple[str, ...]] = ()

    algorithm: Algorithm = PPO()
    scheduler: Scheduler | None = None

    def __post_init__(self) -> None:
        check_algorithm(self.algorithm)
        if self.scheduler is not None:
            check_scheduler(self.scheduler)

    def run(self, session: Session) -> None:
        """Runs the event loop."""
        platform, workload = session.platform, session.workload
        if workload.restart or workload.refresh is not None:
            raise ValueError(
                f"restart={workload.restart}, refresh={workload.refresh}: with central inference actors keep their "
                "environments and do not act themselves, so leave both at their defaults"
            )
        check_containers(session)
        fragments = session.fragments(IN_STEP)
        newest = platform.store.latest(POLICY)
        step = _environment(session.env, session.policy.scaling_discount)
        # Each actor has a separate program, so that it keeps the container that holds its environment.
        steps = [session.program(f"step {i}", programs.for_one_actor(step)) for i in range(workload.actors)]
        infer = session.program("infer", _inference(session.policy))
        learn = session.program("learn", programs.whole_batch(self.algorithm, session.policy))

        def first() -> _Loop:
            session.publish(session.first_params)
            return _Loop(session.first_params, self.algorithm.optimizer().init(session.first_params))

        loop = session.begin(first)
        while session.next_round(loop):
            # `fragments.sample()` is not used: its invocations sample a whole fragment, but here each takes one step.
            while (actor := fragments.start_actor()) is not None:
                # An actor would draw the same noise, so the actions do not depend on where inference runs.
                loop.sampling[actor] = _Rollout(fragments.noise())
                _continue(session, loop, actor, steps[actor])
            # One inference runs at a time, on all observations that have arrived; later ones wait for the next.
            if loop.asking and not loop.answering:
                loop.answering = loop.asking
                loop.asking = []
                rows = [loop.sampling[actor].request for actor in loop.answering]
                observation, noise, memory = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
                platform.invoke("inference", infer, newest, _Requests(observation, noise), _Memories(memory))
            if loop.learning is None and (data := fragments.next_batch(self.algorithm, loop.params)):
                loop.learning = data
                platform.invoke("learner", learn, newest, loop.opt_state, data, work=len(data.indices))
                session.round_over()
            if (done := session.next_completion(loop)) is None:
                break
            match done.function:
                case "actor":
                    _observed(session, fragments, loop, done)
                case "inference":
                    answers: _Answers = done.result()
                    for row, actor in enumerate(loop.answering):
                        loop.sampling[actor].choose(answers, row)
                        loop.keep_memory(session.policy, actor, answers, row)
                        _continue(session, loop, actor, steps[actor])
                    loop.answering = []
                case "learner":
                    assert loop.learning is not None
                    loop.params, loop.opt_state = take_learned(session, done, loop.learning)
                    # The batch's observations enter the statistics before the new version, which normalises by them.
                    session.learned_from(loop.learning)
                    loop.learning = None
                    session.publish(loop.params)
        session.unused(batches=[loop.learning] if loop.learning else [])


#: The most times that the sampling of one fragment may begin, before the run fails.
_TIMES = 1000


@register_value
@dataclass
class _Rollout:
    """A fragment that is being sampled."""

    noise: NDArray  #: `[T, ...]`: the noise of its actions.
    begun: int = 1  #: number of times that the fragment began.
    observation: list[Tree] = field(default_factory=list)
    memory: list[Tree] = field(default_factory=list)  #: the memory before each observation.
    action: list[NDArray] = field(default_factory=list)
    log_prob: list[NDArray] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    outcome: list["_Outcome"] = field(default_factory=list)

    @property
    def request(self) -> tuple[Tree, NDArray, Tree]:
        """The newest observation, the noise of the next action, and the memory before the observation."""
        return self.observation[-1], self.noise[len(self.action)], self.memory[-1]

    def observe(self, observation: Tree, memory: Tree) -> None:
        """Appends an observation, and the memory before it."""
        self.observation.append(observation)
        self.memory.append(memory)

    def choose(self, answers: "_Answers", row: int) -> None:
        """Appends the chosen action."""
        self.action.append(answers.action[row])
        self.log_prob.append(answers.log_prob[row])
        self.version.append(answers.version)


class _Kept(NamedTuple):
    """A memory, and the observation that it precedes: that of an environment after so many steps."""

    environment: int
    steps: int
    memory: Tree


@register_value
@dataclass
class _Loop:
    """The state of the event loop between two events."""

    params: Tree
    opt_state: Tree
    environments: dict[int, "_Outcome"] = field(default_factory=dict)  #: states of environments, by actor.
    memories: dict[int, _Kept] = field(default_factory=dict)  #: memories of environments, by actor.
    sampling: dict[int, _Rollout] = field(default_factory=dict)  #: fragments that are being sampled, by actor.
    asking: list[int] = field(default_factory=list)  #: actors whose observation has arrived.
    answering: list[int] = field(default_factory=list)  #: actors whose actions are being chosen.
    learning: LearnerBatch | None = None

    def keep_memory(self, policy: Policy, actor: int, answers: "_Answers", row: int) -> None:
        """Keeps the memory after a chosen action, for the observation to which the action leads."""
        state = self.environments[actor].state
        memory = jax.tree.map(lambda leaf: leaf[row], answers.memory)
        # An action at the end of an episode only resets the environment, and the next episode starts afresh.
        memory = _first_memory(policy) if state.ended else memory
        self.memories[actor] = _Kept(state.environment, state.steps + 1, memory)

    def memory(self, policy: Policy, actor: int) -> Tree:
        """Returns the memory before an actor's newest observation."""
        state, kept = self.environments[actor].state, self.memories.get(actor)
        if kept is not None and (kept.environment, kept.steps) == (state.environment, state.steps):
            return kept.memory
        return _first_memory(policy)  # the environment is new


def _first_memory(policy: Policy) -> Tree:
    return jax.tree.map(np.asarray, policy.initial_memory())


def _continue(session: Session, loop: _Loop, actor: int, step: Function) -> None:
    """Invokes an actor's next step if its action is chosen; otherwise requests an action for its newest observation.

    An actor whose environment is not known yet is first invoked without an action, to report the environment.
    """
    rollout = loop.sampling[actor]
    known = loop.environments.get(actor)
    if len(rollout.action) > len(rollout.outcome):  # an action is chosen and not taken yet
        assert known is not None
        state = known.state
        session.platform.invoke("actor", step, rollout.action[-1], state.environment, state.steps, tag=actor)
    elif known is None:
        # At first the actor only reports its environment, so the compute time is 0.
        session.platform.invoke("actor", step, None, 0, 0, work=0.0, tag=actor)
    else:
        rollout.observe(known.state.observation, loop.memory(session.policy, actor))
        loop.asking.append(actor)


def _observed(session: Session, fragments: Fragments, loop: _Loop, done: Invocation) -> None:
    """Handles an actor's report of its environment, usually after a step."""
    outcome: _Outcome = done.result()
    actor, rollout = done.tag, loop.sampling[done.tag]
    loop.environments[actor] = outcome
    if not outcome.stepped:
        # The environment is new, was lost and replaced, or has taken a step whose message was lost. The steps sampled
        # so far do not lead to this state, so the fragment starts again, with the same noise.
        if rollout.begun == _TIMES:
            raise RuntimeError(lives_too_short(actor, _TIMES, session.workload))
        _abandon(session, rollout.outcome, done)
        loop.sampling[actor] = rollout = _Rollout(rollout.noise, rollout.begun + 1)
    else:
        rollout.outcome.append(outcome)
    rollout.observe(outcome.state.observation, loop.memory(session.policy, actor))
    if len(rollout.outcome) < session.workload.fragment:
        loop.asking.append(actor)
    else:
        del loop.sampling[actor]
        # Actors are synchronous, so the newest version chose all actions of the fragment; it also computes the values.
        fragments.deliver(done, _fragment(session.policy, rollout, session.platform.store.value(POLICY)))


def _abandon(session: Session, outcomes: Sequence["_Outcome"], done: Invocation) -> None:
    """Counts the steps of a fragment that starts again: the budget counts all sampled steps, even lost ones."""
    if outcomes:
        session.state.steps += len(outcomes)
        resets = sum(not outcome.valid for outcome in outcomes)
        episodes = [outcome.episode for outcome in outcomes if outcome.episode is not None]
        slot, last = outcomes[-1].slot, outcomes[-1].state
        first = last.steps - len(outcomes)
        cut = session.state.rollouts.cut_short(slot, last.environment, first, last.episode_length)
        session.record.abandoned(done, steps=len(outcomes), resets=resets, episodes=episodes, episode=cut)


def _fragment(policy: Policy, rollout: _Rollout, version: Any) -> Fragment:
    """Returns the fragment that an actor would have delivered if it had chosen its actions itself."""
    observation = jax.tree.map(
        lambda leaf, *rows: np.stack(rows).astype(leaf.dtype)[:, None], policy.spec.observation, *rollout.observation
    )
    outcomes = rollout.outcome
    trajectory = Trajectory(
        observation=observation,
        action=np.stack(rollout.action)[:, None],
        reward=np.array([[outcome.reward] for outcome in outcomes], np.float32),
        terminated=np.array([[outcome.terminated] for outcome in outcomes]),
        valid=np.array([[outcome.valid] for outcome in outcomes]),
        log_prob=np.array(rollout.log_prob)[:, None],
        value=np.zeros(0),
        version=np.array(rollout.version, np.int32)[:, None],
        memory=jax.tree.map(lambda leaf: leaf[None, None], rollout.memory[0]),
    )
    trajectory = trajectory._replace(value=np.asarray(_values(policy, version, observations(trajectory))))
    # The last observation is left out, because the next fragment starts with it: every observation counts once.
    acted_on = jax.tree.map(lambda column: column[:-1, 0], observation)
    discounted = np.array([outcome.state.discounted for outcome in outcomes])
    statistics = statistics_of(policy, acted_on, discounted, np.array([outcome.valid for outcome in outcomes]))
    last = outcomes[-1].state
    return Fragment(
        trajectory=trajectory,
        statistics=statistics,
        episodes=tuple(outcome.episode for outcome in outcomes if outcome.episode is not None),
        slot=outcomes[-1].slot,
        first=last.steps - len(outcomes),
        environment=last.environment,
        unfinished=last.episode_length,
    )


@functools.partial(jax.jit, static_argnums=0)
def _values(policy: Policy, version: Any, observation: Any) -> jax.Array:
    return policy.apply(version, observation)[1]


# ---- the programs ---------------------------------------------------------------------------------------------------


class _Outcome(NamedTuple):
    """The state of an environment, and the step that led to this state."""

    slot: int
    state: ActorState
    stepped: bool  #: whether the requested step was taken; if so, the fields below describe it.
    reward: float = 0.0
    terminated: bool = False
    valid: bool = False
    episode: Episode | None = None  #: the episode that the step ended, if any.


def _environment(env: VectorEnv, discount: float | None) -> Function:
    """Returns the actor function, `(action or None, environment, steps so far) -> _Outcome`.

    `discount` is the policy's `scaling_discount`.

    The step is taken only if the environment is still in the state that was observed. In a new environment, or after
    another step, the action would belong to a different observation.
    """

    def batched(contexts: Sequence[Context], arguments: Sequence[tuple[Any, ...]]) -> list[_Outcome]:
        # These are the outcomes if no step is taken; a step below replaces its environment's outcome.
        outcomes = [_Outcome(context.slot, context.state, stepped=False) for context in contexts]
        asked = []
        for i, (action, *seen) in enumerate(arguments):
            state: ActorState = contexts[i].state
            if action is not None and [state.environment, state.steps] == seen:
                asked.append(i)
        if asked:
            # One call steps all environments together.
            slots = np.array([contexts[i].slot for i in asked], np.int32)
            step = checked_step(env.step(slots, np.stack([arguments[i][0] for i in asked])), len(asked), env.spec)
            for row, i in enumerate(asked):
                outcomes[i] = _taken(contexts[i], step, row, discount)
        return outcomes

    def body(context: Context, action: Any, environment: int, steps: int) -> _Outcome:
        return batched([context], [(action, environment, steps)])[0]

    nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(env.spec.observation)) + _FLAGS
    return Function(body, init=lambda slot, key: start(env, slot, key), batched=batched, upload=nbytes)


#: Bytes of a reward (4) and of two flags, terminated and truncated.
_FLAGS = 6


def _taken(context: Context, step: Step, row: int, discount: float | None) -> _Outcome:
    """Returns the outcome of an environment's step, and keeps the new state in its container."""
    before: ActorState = context.state
    valid = not before.ended  # after an episode's end the step only resets the environment
    reward, terminated = step.reward[row], bool(step.terminated[row])
    ended = terminated or bool(step.truncated[row])
    total = before.episode_return + (float(reward) if valid else 0.0)
    length = before.episode_length + valid
    discounted = discount * before.discounted + float(reward) if valid and discount is not None else 0.0
    context.state = ActorState(
        # The observation is copied, because a view would keep the observations of all environments alive.
        observation=jax.tree.map(lambda column: column[row].copy(), step.observation),
        ended=ended,
        episode_return=0.0 if ended else total,
        episode_length=0 if ended else length,
        steps=before.steps + 1,
        environment=before.environment,
        discounted=discounted,
    )
    episode = Episode(total, length) if ended else None
    return _Outcome(context.slot, context.state, True, reward, terminated, valid, episode)


class _Requests(NamedTuple):
    """Observations that need actions."""

    observation: Tree  #: `[n, *obs]`.
    noise: NDArray  #: `[n, actions]`.


@register_value
@dataclass(frozen=True, eq=False)
class _Memories:
    """The memories before the observations, `[n, ...]`; they are on the central machine already."""

    value: Tree
    nbytes: ClassVar[int] = 0


class _Answers(NamedTuple):
    """The chosen actions."""

    action: NDArray  #: `[n, ...]`.
    log_prob: NDArray  #: `[n]`.
    version: int
    memory: Tree  #: `[n, ...]`: the memories after the actions.


def _inference(policy: Policy) -> Function:
    """Returns the inference function, `(Versioned, _Requests, _Memories) -> _Answers`."""

    def body(context: Context, version: Versioned, requests: _Requests, memories: _Memories) -> _Answers:
        del context
        n = len(requests.noise)
        padding = (1 << (n - 1).bit_length()) - n  # up to a power of two, so that few shapes are compiled
        padded = jax.tree.map(
            lambda rows: np.concatenate([rows, rows[:1].repeat(padding, axis=0)]), (*requests, memories.value)
        )
        answers = jax.device_get(_chosen(policy, version.value, *padded))
        action, log_prob, memory = jax.tree.map(lambda rows: rows[:n], answers)
        return _Answers(action, log_prob, version.version, memory)

    # Only actions are sent: the log-probabilities stay on the central machine, where the fragment is put together.
    action_bytes = int(policy.action.size * policy.action.dtype.itemsize)

    def upload(version: Versioned, requests: _Requests, memories: _Memories) -> int:
        del version, memories
        return len(requests.noise) * action_bytes

    return Function(body, upload=upload)


@functools.partial(jax.jit, static_argnums=0)
def _chosen(
    policy: Policy, version: Any, observation: Any, noise: Any, memory: Any
) -> tuple[jax.Array, jax.Array, Any]:
    return policy.step(version, observation, noise, memory)
