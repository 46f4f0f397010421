"""Runs of MinionsRL, many at a time in one compiled program, with the durations of a simulated platform."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from stellaris._core import checks
from stellaris.acting.envs import as_jax
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import fragment_bytes
from stellaris.algorithms import PPO
from stellaris.lab import threads
from stellaris.lab.rounds.draws import draws_of
from stellaris.lab.rounds.program import ACTOR, LEARNER, Carry, Given, Keys, Program, Row
from stellaris.lab.sampling import check_memoryless
from stellaris.lab.shapes import shapes_of
from stellaris.lab.statistics import wide
from stellaris.runtime.costs.price_sheets import PriceSheet, check_sheets
from stellaris.runtime.delays import Constant, Measured
from stellaris.runtime.engine.execution import CONTAINERS
from stellaris.runtime.functions import FunctionSpec
from stellaris.runtime.references import size
from stellaris.scheduling.learned import Learned
from stellaris.scheduling.rules import Fixed, Maximum, Stepped
from stellaris.scheduling.scheduler import State, decide_actors
from stellaris.systems.history import Row as HistoryRow
from stellaris.systems.progress import evaluation_seed
from stellaris.systems.rounds import Scheduled
from stellaris.systems.session import Keys as SessionKeys
from stellaris.systems.workload import Budget, Evaluation, Workload, check_target, check_types
from stellaris.types import NDArray

#: Decides in compiled rounds: a learned policy, a rule that knows only the number of the round, or the numbers
#: themselves; the last number also holds for all later rounds.
Decider: TypeAlias = Learned | Fixed | Maximum | Stepped | Sequence[int]
#: Rounds after which the runs that are over leave their blocks.
SEGMENT = 8


class Played(NamedTuple):
    """The results of `n` runs; columns are `[n, R]` for the `R` rounds of the longest, elsewhere NaN or 0."""

    rounds: NDArray  #: int32 `[n]`: the number of rounds of each run.
    over: NDArray  #: bool `[n]`: whether a limit of the budget ended the run; otherwise it had the most rounds.
    reached: NDArray  #: bool `[n]`: whether its last episodes had the target return.
    rows: Row  #: the columns of the histories; `costs` is `[n, R, S]`.
    policy: PolicyVersion  #: the last version of each run, `[n, ...]`.
    sheets: tuple[str, ...]  #: names of the price sheets.

    def history(self, run: int) -> list[HistoryRow]:
        """Returns the history of a run, with the columns that schedulers and their training need."""
        return [self._row(run, k) for k in range(int(self.rounds[run]))]

    def _row(self, run: int, k: int) -> HistoryRow:
        columns = {name: column[run, k].item() for name, column in self.rows._asdict().items() if name != "costs"}
        for name in ("round_return", "evaluation_return"):  # `train` leaves them out of rounds without such episodes
            if math.isnan(columns[name]):
                del columns[name]
        costs = {f"cost_{name}": cost.item() for name, cost in zip(self.sheets, self.rows.costs[run, k], strict=True)}
        return {"round": k + 1, "version": k + 1, **columns, **costs}

    def last(self, column: str) -> NDArray:
        """Returns a column of `rows` at the end of every run, `[n]`, or `[n, S]` for `costs`."""
        ends: NDArray = getattr(self.rows, column)[np.arange(len(self.rounds)), self.rounds - 1]
        return ends


@dataclass(frozen=True, eq=False)
class Rounds:
    """MinionsRL on a deployment, as one compiled program in which the scheduler decides.

    A run is that of `train(MinionsRL(algorithm, scheduler, prewarm), workload, platform=SimulatedPlatform(functions,
    seed=seed), budget=budget, evaluation=evaluation, prices=prices, seed=seed)`: the same decisions, environments,
    actions, minibatches, durations, bills and evaluations, up to rounding. Programs are compiled when they are first
    used, and kept.

    Args:
      workload: a workload whose environment is written in JAX.
      algorithm: PPO's settings.
      functions: the specifications of `actor` and `learner`.
      prices: price sheets; `budget.cost` limits the cost under the first.
      budget: the limits of a run.
      most: the largest number of rounds. A run that has not ended then is not `over`.
      prewarm: whether containers are prewarmed in the first round.
      evaluation: an evaluation in every round, whose return `budget.target_evaluation` limits; None for none.

    Raises:
      LookupError: if `actor` or `learner` is missing.
      TypeError: if the environment is not written in JAX, the policy has a memory, the algorithm is not PPO, or another
        argument has the wrong type.
      ValueError: if a setting is not supported: a budget of seconds, `refresh`, `restart`, a `Measured` compute time, a
        queueing time of actors that varies, prewarming where the actors' cold start or initialisation varies and
        `max_concurrency` is not their number, provisioned containers, a time-out, fewer containers than actors, or
        evaluations that are not in every round; or if a budget of cost lacks prices, or a target of evaluations lacks
        evaluations.

    Example:
      >>> from stellaris import ActorCritic
      >>> from stellaris.lab import CartPole
      >>> rounds = Rounds(
      ...     Workload(CartPole(), ActorCritic(hidden=(8,)), actors=4, fragment=16),
      ...     PPO(epochs=1, minibatch_size=64),
      ...     {"actor": FunctionSpec(Constant(0.01)), "learner": FunctionSpec(Constant(0.1))},
      ...     budget=Budget(steps=16 * 8),
      ...     most=8,
      ... )
      >>> played = rounds.play([Fixed(2), Stepped(4, -3, every=1)], seeds=[0, 0])
      >>> [column.tolist() for column in (played.rounds, played.rows.actors[1, :5])]
      [[4, 5], [4, 1, 1, 1, 1]]
      >>> print(played.last("seconds").round(2))
      [1.04 1.3 ]
    """

    workload: Workload
    algorithm: PPO
    functions: Mapping[str, FunctionSpec]
    prices: Sequence[PriceSheet] = ()
    budget: Budget = field(kw_only=True)
    most: int = field(kw_only=True)
    prewarm: bool = field(default=False, kw_only=True)
    evaluation: Evaluation | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.whole(at_least=1, most=self.most)
        check_types(self.workload, self.budget, self.evaluation)
        check_sheets(self.prices)
        checks.mapping(FunctionSpec, "FunctionSpec(compute=...)", functions=self.functions)
        _check(self.workload, self.algorithm, self.functions, self.prices, self.budget)
        if self.prewarm:
            _check_prewarm(self.functions[ACTOR], self.workload.actors)
        _check_evaluation(self.budget, self.evaluation)
        check_memoryless(self._policy)

    def play(
        self,
        schedulers: Decider | Sequence[Decider],
        seeds: Sequence[int],
        *,
        block: int | None = None,
        cost: float | None = None,
    ) -> Played:
        """Plays one run for each seed.

        Args:
          schedulers: the scheduler of every run, or one for each run.
          seeds: the seed of each run, and of its platform.
          block: the largest number of runs that one program computes; by default 1 on a CPU, where every core computes
            a block of its own, and 256 on another device. Runs that are over leave their blocks every few rounds.
          cost: the most USD of a run, in place of `budget.cost`: runs with and without a budget share programs.

        Returns:
          The results, in the order of the seeds.

        Raises:
          FloatingPointError: if parameters became infinite or NaN; the message names the seeds.
          TypeError: if a scheduler is not one of `Decider`, or a number of actors is not whole.
          ValueError: if there are no seeds, `cost` is not positive or lacks prices, there are not as many schedulers as
            seeds, a decision is not in [1, actors], a learned scheduler lacks a budget of cost or was made for another
            number of actors, or the first round of a run cost more than the budget.
        """
        if not len(seeds):
            raise ValueError(f"seeds={seeds!r} has no seeds: give at least one")
        for seed in seeds:
            checks.seed(seed=seed)
        block = (1 if jax.default_backend() == "cpu" else 256) if block is None else block
        checks.whole(at_least=1, block=block)
        if cost is not None:
            checks.positive(cost=cost)
            _check_cost(cost, self.prices)
        cost = self.budget.cost if cost is None else float(cost)
        runs = [self._decisions(one, cost) for one in _each(schedulers, len(seeds))]
        learned = np.array([isinstance(one, Learned) for one in runs])
        groups = [group for kind in (True, False) if (group := np.flatnonzero(learned == kind).tolist())]
        block = min(block, 1 << (len(seeds) - 1).bit_length())  # few sizes, because each is compiled
        ended = [self._played([runs[i] for i in of], [seeds[i] for i in of], block, cost) for of in groups]
        longest = max(int(carry.round.max()) for carry, _ in ended)
        order = np.argsort(np.concatenate(groups))
        carry = jax.tree.map(lambda *of: np.concatenate(of)[order], *[carry for carry, _ in ended])
        rows = jax.tree.map(lambda *of: np.concatenate(of)[order], *[_padded(rows, longest) for _, rows in ended])
        self._check_results(rows, carry, seeds, cost)
        sheets = tuple(sheet.name for sheet in self.prices)
        return Played(carry.round, carry.over, carry.reached, rows, carry.version, sheets)

    def histories(self, scheduler: Decider, seeds: Sequence[int]) -> list[list[HistoryRow]]:
        """Plays one run for each seed; returns the histories, as `scheduling.training.train_scheduler` needs them."""
        played = self.play(scheduler, seeds)
        return [played.history(run) for run in range(len(seeds))]

    def _played(
        self, runs: "Sequence[Learned | NDArray]", seeds: Sequence[int], block: int, cost: float
    ) -> tuple[Carry, Row]:
        """Plays runs whose schedulers are all learned, or all schedules; returns the runs' last states and rows.

        All runs continue by a segment at a time. Then finished runs leave, and the others form new blocks by the number
        of actors that they need next: a run waits for others within a segment only.
        """
        count = len(seeds)
        room = block << math.ceil(math.log2(math.ceil(count / block)))  # so that few shapes are compiled
        given = self._given(_filled(runs, room), _filled(seeds, room), cost)
        carry = self._first(given)
        tables, alive, began, held = list[Row](), [*range(count)], 0, np.zeros(room, np.int32)
        while alive and began < self.most:
            width = np.array([self._width(runs[i], began, int(held[i])) for i in alive])
            blocks = _blocks(np.array(alive), width, self.workload.actors, block)
            # The calls are made one by one, from the newest `carry`, because `_put` donates the one before.
            calls = ((members, self._call(widest, _taken((given, carry), members))) for members, widest in blocks)
            advanced = []
            for members, (own, rows) in threads.computed(calls, threads.count()):
                carry = _put(carry, members, own)
                advanced.append((members, rows))
            tables.append(_table(count, jax.device_get(advanced)))
            over, held = jax.device_get((carry.over, carry.held))
            alive, began = [i for i in alive if not over[i]], began + SEGMENT
        kept = carry._replace(slots=(), pools={}, opt_state=(), statistics=())
        ends: Carry = jax.tree.map(lambda x: x[:count], jax.device_get(kept))
        return ends, jax.tree.map(lambda *of: np.concatenate(of, axis=1)[:, : ends.round.max()], *tables)

    def _width(self, run: "Learned | NDArray", began: int, held: int) -> int:
        """Returns the largest number of actors that a run may have in the segment that begins after `began` rounds."""
        if not isinstance(run, Learned):
            return int(run[began:][:SEGMENT].max())
        decides = -began % run.hold < SEGMENT  # a decision follows within the segment
        return self.workload.actors if decides else held

    # ---- the inputs of a program -----------------------------------------------------------------------------------

    def _decisions(self, decider: Decider, cost: float) -> "Learned | NDArray":
        """Returns a learned scheduler, or the number of actors in each round, int32 `[R]`."""
        actors = self.workload.actors
        if isinstance(decider, Learned):
            if decider.most != actors or not math.isfinite(cost):
                decider.decide([State(1, *[0.0] * 7)._replace(budget=cost)], most=actors, key=jax.random.key(0))
            return decider
        if isinstance(decider, Fixed | Maximum | Stepped):
            states = ([State(k, *[0.0] * 7)] for k in range(1, self.most + 1))
            key = jax.random.key(0)  # these rules do not use it
            return np.array([decide_actors(decider, state, most=actors, key=key) for state in states], np.int32)
        numbers = list(decider)[: self.most]
        checks.whole(at_least=1, **{f"schedule[{k}]": number for k, number in enumerate(numbers)})
        if not numbers or max(numbers) > actors:
            raise ValueError(f"schedule={numbers} must have at least one number, and none above actors={actors}")
        return np.array(numbers + numbers[-1:] * (self.most - len(numbers)), np.int32)

    def _given(self, runs: "Sequence[Learned | NDArray]", seeds: Sequence[int], cost: float) -> Given:
        """Returns the inputs of runs, computed once for each seed."""
        fragments = self.most * self.workload.actors
        if math.isfinite(self.budget.steps):
            fragments = min(fragments, math.ceil(self.budget.steps / self.workload.fragment) + self.workload.actors)
        counts = {ACTOR: fragments, LEARNER: self.most}
        if self.prewarm:  # prewarmed containers have draws, too
            counts = {ACTOR: fragments + self.workload.actors, LEARNER: self.most + 1}
        of_seed = {}
        for seed in set(seeds):
            keys = SessionKeys.of(seed)
            containers = jax.random.fold_in(jax.random.key(seed), CONTAINERS)
            draws = {name: draws_of(name, self.functions[name], seed, count) for name, count in counts.items()}
            of_seed[seed] = (
                jax.jit(Policy.init, static_argnums=0)(self._policy, keys.params),
                Keys(keys.batches, keys.noise, keys.schedule, containers, jnp.int32(seed)),
                draws,
                self._evaluations(seed),
            )
        schedules = np.array([np.zeros(0) if isinstance(one, Learned) else one for one in runs], np.int32)
        versions = [one.version for one in runs if isinstance(one, Learned)]
        holds = [min(one.hold, self.most) if isinstance(one, Learned) else 1 for one in runs]
        version = _stacked(versions) if versions else None
        params, keys, draws, evaluations = _stacked([of_seed[seed] for seed in seeds])
        costs = _stacked([np.float64(cost)] * len(seeds))
        return Given(params, keys, draws, evaluations, schedules, version, np.array(holds, np.int32), costs)

    def _evaluations(self, seed: int) -> NDArray:
        """Returns the seed of the evaluation after each round."""
        rounds = 0 if self.evaluation is None else self.most
        return np.array([evaluation_seed(seed, number) for number in range(1, rounds + 1)], np.int32)

    # ---- programs --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _policy(self) -> Policy:
        return self.workload.make_policy(self.workload.environment.spec)  # type: ignore[union-attr]

    @functools.cached_property
    def _first(self) -> Any:
        return jax.jit(jax.vmap(self._program(1).first))

    @functools.cached_property
    def _advances(self) -> dict[tuple[int, bool], Any]:
        return {}

    def _call(self, width: int, block: tuple[Given, Carry]) -> Callable[[], tuple[Carry, Row]]:
        """Returns the compiled call that continues a block of runs by a segment of at most `width` actors."""
        alone = len(block[1].round) == 1
        if (width, alone) not in self._advances:
            run = self._program(width, alone=alone).run
            self._advances[width, alone] = jax.jit(_of_one(run) if alone else jax.vmap(run))
        lowered = self._advances[width, alone].lower(*block)
        advance = lowered.compile(threads.OPTIONS if threads.count() > 1 else None)  # JAX keeps what it has compiled
        return lambda: jax.block_until_ready(advance(*block))  # type: ignore[no-untyped-call]

    def _program(self, width: int, *, alone: bool = False) -> Program:
        """Returns the program of runs in which at most `width` actors sample in a round."""
        workload, policy, algorithm = self.workload, self._policy, self.algorithm
        params = policy.init(jax.random.key(0))
        opt_state = algorithm.optimizer().init(params)
        version = size(PolicyVersion(params, policy.statistics().normaliser()))
        padded = Scheduled(Maximum()).width
        batches = [
            shapes_of(algorithm, policy, workload.fragment, padded(fragments, workload.actors)).nbytes
            for fragments in range(1, width + 1)
        ]
        return Program(
            env=workload.environment,  # type: ignore[arg-type]
            policy=policy,
            algorithm=algorithm,
            functions=self.functions,
            prices=self.prices,
            prewarm=self.prewarm,
            actors=workload.actors,
            most=width,
            length=workload.fragment,
            rounds=self.most,
            segment=SEGMENT,
            budget=self.budget,
            episodes=0 if self.evaluation is None else self.evaluation.episodes,
            # Each fetches the version. An actor is also sent the number of its noise, a learner its batch and the
            # optimizer's state; it sends back the parameters and that state.
            actor_bytes=version + size(0) + fragment_bytes(policy, workload.fragment),
            learner_bytes=[version + size(opt_state) + batch + size((params, opt_state)) for batch in batches],
            alone=alone,
        )

    def _check_results(self, rows: Row, carry: Carry, seeds: Sequence[int], cost: float) -> None:
        wrong = [seed for seed, finite in zip(seeds, carry.finite, strict=True) if not finite]
        if wrong:
            raise FloatingPointError(
                f"parameters are not finite in the runs of the seeds {wrong}: lower the learning rate"
            )
        if self.prices:
            dear = np.flatnonzero(rows.costs[:, 0, 0] > cost)
            if len(dear):
                raise ValueError(
                    f"cost={cost:g}: the first round of seed {seeds[dear[0]]} cost "
                    f"{rows.costs[dear[0], 0, 0]:g} under {self.prices[0].name!r}; raise the budget or use fewer actors"
                )


def _each(schedulers: Any, count: int) -> list[Any]:
    """Returns the scheduler of each run."""
    if isinstance(schedulers, Learned | Fixed | Maximum | Stepped):
        return [schedulers] * count
    if not isinstance(schedulers, Sequence | np.ndarray) or isinstance(schedulers, str):
        raise TypeError(
            f"schedulers={schedulers!r}: expected a Learned, Fixed, Maximum or Stepped scheduler, the number of actors "
            "in each round, or a list of these"
        )
    if all(np.ndim(one) == 0 and not isinstance(one, Learned | Fixed | Maximum | Stepped) for one in schedulers):
        return [list(schedulers)] * count
    if len(schedulers) != count:
        raise ValueError(f"there are {len(schedulers)} schedulers and {count} seeds: give one scheduler for each seed")
    return [_each(one, 1)[0] for one in schedulers]


def _blocks(alive: NDArray, width: NDArray, actors: int, block: int) -> Iterator[tuple[NDArray, int]]:
    """Yields blocks of runs that share a program: their places, and the width of the program.

    `width` has each run's largest number of actors in the segment. It is rounded up to a power of two, because the
    program samples as many fragments in every round. A block with too few runs repeats its last run.
    """
    widths = np.minimum(actors, 1 << np.ceil(np.log2(width)).astype(int))
    for one in np.unique(widths):
        own = alive[widths == one]
        for first in range(0, len(own), block):
            members = own[first : first + block]
            yield np.pad(members, (0, block - len(members)), mode="edge"), int(one)


def _table(count: int, advanced: Sequence[tuple[NDArray, Row]]) -> Row:
    """Gathers the rows of a segment's blocks, `[count, L]`; other runs have NaN or 0."""

    def column(*of: NDArray) -> NDArray:
        whole = np.full((count, *of[0].shape[1:]), 0 if of[0].dtype.kind == "i" else np.nan, of[0].dtype)
        for (members, _), own in zip(advanced, of, strict=True):
            whole[members] = own
        return whole

    table: Row = jax.tree.map(column, *[rows for _, rows in advanced])
    return table


def _padded(rows: Row, rounds: int) -> Row:
    """Returns rows with columns of `rounds` rounds; the rounds after the last are NaN or 0."""

    def column(x: NDArray) -> NDArray:
        missing = [(0, 0), (0, rounds - x.shape[1]), *[(0, 0)] * (x.ndim - 2)]
        return np.pad(x, missing, constant_values=0 if x.dtype.kind == "i" else np.nan)

    padded: Row = jax.tree.map(column, rows)
    return padded


def _filled(items: Sequence[Any], count: int) -> list[Any]:
    """Returns the items, and the last of them again until there are `count`."""
    return [*items, *[items[-1]] * (count - len(items))]


def _of_one(run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of blocks of one run, `[1, ...]`, which computes what `run` does; `vmap` would not branch."""

    def of_block(*block: Any) -> Any:
        result = run(*jax.tree.map(lambda x: x[0], block))
        return jax.tree.map(lambda x: x[None], result)

    return of_block


@jax.jit
@wide
def _taken(tree: Any, places: Any) -> Any:
    """Takes the runs at these places from a tree of `[n, ...]`."""
    return jax.tree.map(lambda x: x[places], tree)


@functools.partial(jax.jit, donate_argnums=0)
@wide
def _put(tree: Any, places: Any, new: Any) -> Any:
    """Puts runs back at their places."""
    return jax.tree.map(lambda x, y: x.at[places].set(y), tree, new)


def _stacked(trees: Sequence[Any]) -> Any:
    """Stacks the leaves of trees, with durations in float64."""

    def stack(*leaves: Any) -> Any:
        return (np if isinstance(leaves[0], np.ndarray) else jnp).stack(leaves)

    with jax.enable_x64(True):
        return jax.device_put(jax.tree.map(stack, *trees))


def _check(
    workload: Workload,
    algorithm: Any,
    functions: Mapping[str, FunctionSpec],
    prices: Sequence[PriceSheet],
    budget: Budget,
) -> None:
    """Raises unless compiled rounds support these settings."""
    as_jax(workload.environment)
    if not isinstance(algorithm, PPO):
        raise TypeError(f"algorithm={algorithm!r}: compiled rounds support PPO only")
    if workload.restart:
        raise ValueError("restart=True is not supported: episodes in the lab span fragments; set restart=False")
    if workload.steps_at_once != workload.fragment:
        raise ValueError(
            f"refresh={workload.refresh} is not supported: actors of a round have one version; leave it out"
        )
    if math.isfinite(budget.seconds):
        raise ValueError(f"budget.seconds={budget.seconds} is not supported, because it ends a run within a round")
    _check_cost(budget.cost, prices)
    for name, most in ((ACTOR, workload.actors), (LEARNER, 1)):
        if name not in functions:
            raise LookupError(f"function {name!r} is not specified: functions has {sorted(functions)}")
        _check_function(name, functions[name], most)


def _check_cost(cost: float, prices: Sequence[PriceSheet]) -> None:
    """Raises unless a finite budget has a price sheet."""
    if math.isfinite(cost) and not prices:
        raise ValueError(f"a budget of cost={cost} needs prices: pass prices=[sheet]")


def _check_evaluation(budget: Budget, evaluation: Evaluation | None) -> None:
    """Raises unless compiled rounds support the evaluations, and a target of evaluations has some."""
    if evaluation is not None and evaluation.every != 1:
        raise ValueError(f"evaluation={evaluation!r} is not supported: evaluate in every round, or leave it out")
    check_target(budget, evaluation)


def _check_function(name: str, spec: FunctionSpec, most: int) -> None:
    """Raises unless compiled rounds support this function."""
    if isinstance(spec.compute, Measured):
        raise ValueError(f"the compute time of {name!r} is Measured, which cannot be drawn: pass a distribution")
    if name == ACTOR and not isinstance(spec.queueing, Constant):
        raise ValueError(
            f"queueing={spec.queueing!r} of 'actor' varies, so that an actor could reuse a container of its own round, "
            "which is not supported: pass a Constant"
        )
    if spec.provisioned or spec.timeout is not None:
        raise ValueError(
            f"provisioned={spec.provisioned}, timeout={spec.timeout} of {name!r}: not supported, leave both out"
        )
    limits = [limit for limit in (spec.max_concurrency, spec.reserved_concurrency) if limit is not None]
    if limits and min(limits) < most:
        raise ValueError(f"a limit of {min(limits)} on {name!r} is below the {most} of a round: raise it")


def _check_prewarm(spec: FunctionSpec, actors: int) -> None:
    """Raises if actors could make further containers while prewarmed ones start, because pools have one per actor."""
    varying = {
        name: delay
        for name in ("cold_start", "initialisation")
        if not isinstance(delay := getattr(spec, name), Constant)
    }
    # At a limit of as many containers as actors, an actor waits for a container that is starting.
    if varying and actors > 1 and spec.max_concurrency != actors:
        settings = ", ".join(f"{name}={delay!r}" for name, delay in varying.items())
        raise ValueError(
            f"{settings} of 'actor' varies, so that with prewarm=True there could be more containers than actors, "
            f"which is not supported: pass a Constant, or max_concurrency={actors}"
        )
