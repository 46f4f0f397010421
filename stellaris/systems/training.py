"""`train`: runs a system on a platform within a budget."""

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax

from stellaris._core import checks
from stellaris._core.describe import describe
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import Fragment
from stellaris.runtime.contract import Platform, Resumable
from stellaris.runtime.costs.billing import Bill
from stellaris.runtime.costs.price_sheets import PriceSheet, check_sheets
from stellaris.runtime.state.checkpoint import Checkpoints
from stellaris.runtime.trace.trace import Trace
from stellaris.systems.checkpointing import Checkpointing
from stellaris.systems.environments import Environments
from stellaris.systems.history import Row
from stellaris.systems.progress import Progress
from stellaris.systems.record import POLICY
from stellaris.systems.rounds import Declared, Scheduled
from stellaris.systems.session import Keys, Session
from stellaris.systems.system import System
from stellaris.systems.workload import Budget, Evaluation, Workload, check_target, check_types
from stellaris.types import Tree


class Result(NamedTuple):
    """The results of a run."""

    history: Sequence[Row]  #: one row per round, with the columns that the function `history` explains.
    policy: PolicyVersion  #: the newest version.
    trace: Trace
    bill: Mapping[str, Bill]  #: the cost of the run, by name of the price sheet.


def train(
    system: System,
    workload: Workload,
    *,
    platform: Platform,
    budget: Budget,
    evaluation: Evaluation | None = None,
    prices: Sequence[PriceSheet] = (),
    seed: int = 0,
    threads: int = 1,
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    on_progress: Callable[[Row], None] | None = None,
    on_fragment: Callable[[Fragment], None] | None = None,
) -> Result:
    """Trains a policy with an actor-learner architecture on a platform.

    Args:
      system: the architecture, such as `systems.Stellaris()` or `systems.Synchronous()`.
      workload: the environment, the policy, and the settings of sampling.
      platform: a fresh platform with all functions in `system.functions`, and `system.acts` (by default `actor`), whose
        containers hold the environments. `train` closes the platform at the end, even after an error.
      budget: the limits at which the run stops.
      evaluation: the rounds in which versions are evaluated; the history then has a column `evaluation_return`, with
        which `budget.target_evaluation` is compared. None for no evaluation: the training episodes' returns are always
        in the history.
      prices: price sheets under which the run is billed; `budget.cost` limits the cost under the first.
      seed: seed of parameters, environments, actions and shuffles. The platform has a separate seed for delays and
        faults.
      threads: number of threads that step the environments; results do not depend on it.
      checkpoints: the folder in which the run is saved, and the number of rounds between checkpoints; None to save
        nothing. The environments restart at every checkpoint, so a run with checkpoints differs from one without. A run
        that was interrupted and resumed equals the uninterrupted run with the same checkpoints.
      resume: whether to continue from the newest checkpoint, if there is one.
      on_progress: called with every new row of the history, for example a sink, such as `systems.TensorBoard("logs")`;
        a resumed run does not pass old rows again.
      on_fragment: called with every fragment that an actor delivers, or with its pieces under `Workload.refresh`,
        whether or not it is learned from; for example `stellaris.replay.Episodes(...).add`. Each fragment or piece is
        passed once, in order for each environment, and must not be changed. A resumed run passes the fragments after
        its checkpoint again.

    Returns:
      The history, the newest policy version, the trace and the bills.

    Raises:
      CheckpointError: if the checkpoint was saved with other settings of the run or the platform; if the checkpoints
        cannot be loaded; or if a checkpoint cannot be written.
      FunctionError: if a body raised, or the attempts of an invocation are used up; the error names the function and
        the invocation. The rows so far were passed to `on_progress`, and `platform.trace` stays readable.
      LookupError: if a function that the system needs is not deployed.
      RuntimeError: if the run is in a deadlock: no invocation is pending, and no limit of the budget is reached; or if
        an evaluation fails, with its error as the cause.
      TypeError: if an argument has another type, `prices` is a single sheet, the platform cannot be saved in
        `checkpoints`, or the seed is not a whole number.
      ValueError: if the environment is unknown or unsupported, a budget of cost lacks prices, a target of
        evaluations lacks `evaluation`, two price sheets have the same name, a sheet prices no deployed function, the
        seed is out of [0, 2**31), the checkpoints' folder holds a run and `resume` is False, or `resume` lacks
        `checkpoints`; if there may be fewer containers than actors that need one each; if the window of the system's
        `StalenessControl` is below the number of actors; or, with a scheduler, if a decision is not in [1, actors], or
        the first round cost more than the budget.
    """
    if not isinstance(platform, Platform):  # before it is entered
        raise TypeError(f"platform={platform!r} is not a platform: pass SimulatedPlatform(functions) or another one")
    # The environments are closed after the platform, whose bodies may still be stepping them.
    with contextlib.ExitStack() as environments, platform:
        # The checks are within the block, so that the platform is closed even if a check fails.
        checks.seed(seed=seed)
        check_types(workload, budget, evaluation)
        _check_system(system, platform)
        _check_prices(prices, budget, platform)
        check_target(budget, evaluation)
        _check_checkpoints(checkpoints, resume, platform)
        # There may be more slots than actors, because prewarmed and provisioned containers have slots as well.
        slots = platform.slots(system.acts, concurrent=workload.actors)
        # The system prewarms later, and its containers may still be starting while actors make further ones.
        spare = platform.slots(system.acts, concurrent=workload.actors + system.prewarms(workload.actors)) - slots
        # With a scheduler most actors may never run, so environments are made only when they are needed.
        env = Environments(workload, slots, seed, threads, grows=system.scheduler is not None, spare=spare)
        environments.enter_context(contextlib.closing(env))
        policy, keys = workload.make_policy(env.spec), Keys.of(seed)
        # The initialisation is compiled once for equal policies, because the policy is a static argument.
        params: Tree = jax.jit(Policy.init, static_argnums=0)(policy, keys.params)
        progress = Progress(
            workload,
            platform,
            policy,
            budget=budget,
            evaluation=evaluation,
            prices=tuple(prices),
            seed=seed,
            on_progress=on_progress,
        )
        # The configuration is compared when the run is resumed. Budget and threads are left out: both may change.
        # The policy is compared as well as the workload, because the workload names a function that makes the policy,
        # but not its code. The policy sorts after the workload, so that an error names a workload's setting first.
        configuration = describe(
            {
                "system": system,
                "workload": workload,
                "workload.policy(spec)": policy,
                "evaluation": evaluation,
                "prices": prices,
                "seed": seed,
            }
        )
        session = Session(
            workload,
            platform,
            policy,
            env,
            acts=system.acts,
            rounds=Declared() if system.scheduler is None else Scheduled(system.scheduler),
            progress=progress,
            keys=keys,
            first_params=params,
            checkpointing=Checkpointing(checkpoints, resume, configuration, params),
            on_fragment=on_fragment,
        )
        system.run(session)
        progress.report_rest(session.round)
        version = platform.store.value(POLICY)
    bills = {sheet.name: platform.bill(sheet) for sheet in prices}
    return Result(progress.history, version, platform.trace, bills)


def _check_system(system: object, platform: Platform) -> None:
    """Checks that the platform has the functions that the system needs."""
    if not isinstance(system, System):
        raise TypeError(f"system={system!r} is not a System: pass an instance of a subclass, such as Synchronous()")
    for name in (system.acts, *system.functions):
        if name not in platform.functions:
            raise LookupError(f"function {name!r} is not deployed: the platform has {sorted(platform.functions)}")


def _check_prices(prices: Sequence[PriceSheet], budget: Budget, platform: Platform) -> None:
    """Checks that the price sheets have different names, and that each prices a function of this platform."""
    check_sheets(prices)
    if math.isfinite(budget.cost) and not prices:
        raise ValueError(f"budget.cost={budget.cost} needs prices: pass prices=[sheet]")
    deployed = platform.functions.keys()
    for sheet in prices:
        unknown, unpriced = sorted(sheet.named - deployed), sorted(deployed - sheet.named)
        if sheet.named.isdisjoint(deployed) and (unknown or not sheet.machines):
            raise ValueError(
                f"price sheet {sheet.name!r} prices {unknown}: name deployed functions, {sorted(deployed)}"
            )
        # A name is probably misspelt. This is only a warning, because one sheet may serve several deployments.
        if unknown and unpriced:
            warnings.warn(
                f"price sheet {sheet.name!r} prices {unknown}, which are not deployed, and not {unpriced}, which are",
                stacklevel=3,
            )


def _check_checkpoints(checkpoints: Checkpoints | None, resume: bool, platform: Platform) -> None:
    """Checks that the run can be saved in the folder of `checkpoints`."""
    if checkpoints is None:
        if resume:  # the run would silently begin anew
            raise ValueError("resume=True needs checkpoints: pass checkpoints=Checkpoints(folder)")
        return
    if not isinstance(checkpoints, Checkpoints):
        raise TypeError(f"checkpoints={checkpoints!r} is not a Checkpoints: pass Checkpoints({checkpoints!r})")
    if not isinstance(platform, Resumable):
        raise TypeError(
            f"checkpoints={checkpoints!r}: a {type(platform).__name__} cannot be saved; leave checkpoints out"
        )
    if not resume and checkpoints.newest() is not None:
        raise ValueError(f"{checkpoints} holds a run already: pass resume=True to continue it, or another folder")
    # The folder is made last, so that a run that is refused leaves no folder behind.
    checkpoints.prepare()
