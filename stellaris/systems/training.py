"""`train`: sets a system up on a platform, and runs it within a budget."""

import contextlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from stellaris._core import checks
from stellaris._core.describe import describe
from stellaris.acting.policies import PolicyVersion
from stellaris.acting.rollout import Fragment
from stellaris.runtime.contract import Platform, Resumable
from stellaris.runtime.costs.billing import Bill
from stellaris.runtime.costs.price_sheets import PriceSheet
from stellaris.runtime.state.checkpoint import Checkpoints
from stellaris.runtime.trace.trace import Trace
from stellaris.systems.environments import Environments
from stellaris.systems.history import Row
from stellaris.systems.record import POLICY
from stellaris.systems.session import Session
from stellaris.systems.workload import Budget, Evaluation, Workload


class Result(NamedTuple):
    """What a run leaves."""

    history: Sequence[Row]  #: a row a round, with the columns of `history`.
    policy: PolicyVersion  #: the newest version.
    trace: Trace
    bill: Mapping[str, Bill]  #: by price sheet.


@runtime_checkable
class System(Protocol):
    """An actor-learner architecture: a frozen configuration and its event loop."""

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions that must be deployed, besides `actor`, which `train` always asks for."""

    def run(self, session: Session) -> None:
        """Runs until `session.next_completion()` gives None."""


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
      system: such as `systems.Stellaris()` or `systems.Synchronous()`.
      workload: what is to be learned.
      platform: a fresh one, with the functions that the system needs, and always one named `actor`: environments are
        made for its containers. It is closed at the end, whatever happens.
      budget: when to stop.
      evaluation: when versions are evaluated; the history then has a column `evaluation_return`. None for never: the
        training episodes' returns are in the history in any case.
      prices: sheets under which the run is billed; the first is the budget's.
      seed: of parameters, environments, actions and shuffles. The platform has a seed of its own for delays and faults.
      threads: that step the environments; results do not depend on them.
      checkpoints: where the run is saved, and how often; None for never. The environments restart at every checkpoint,
        so a run with checkpoints differs from one without; but one that was broken off and resumed does not differ from
        one that was not.
      resume: whether to go on from the newest checkpoint, if there is one.
      on_progress: called with every row of the history as soon as it is there; not again when resumed.
      on_fragment: called with what every actor delivers, such as `stellaris.replay.Episodes(...).add`: a fragment, or
        the pieces of one under `Workload.refresh`. Each once, of one environment in order, whether or not it is learned
        from; it is not to be changed. When resumed, what came after the checkpoint comes again.

    Returns:
      The history, the newest policy version, the trace and the bills.

    Raises:
      CheckpointError: if the checkpoint was saved by another run, or by a platform with other functions; if there are
        checkpoints, but none that can be loaded; or if none can be written.
      FunctionError: if a body raised, or a function's attempts are used up; names the function and the invocation. Rows
        were handed to `on_progress` before, and `platform.trace` stays readable.
      LookupError: if a function that the system needs, or `actor`, is not deployed.
      RuntimeError: if nothing goes on, and no limit of the budget is reached; or if an evaluation fails, with its error
        as the cause.
      TypeError: if `prices` is one sheet, `checkpoints` a folder's name, or the seed no whole number.
      ValueError: if the environment is unknown or unsupported, a budget of cost comes without prices, two price sheets
        have one name, one prices nothing that is deployed, the seed is out of [0, 2**31), or there are checkpoints of
        a run that is not to be resumed; if there are fewer containers than actors that need one each; or if the window
        of the system's `StalenessControl` is below the number of actors.
    """
    with platform:
        checks.seed(seed=seed)
        _check_functions(system, platform)
        _check_prices(prices, budget, platform)
        _check_checkpoints(checkpoints, resume, platform)
        slots = platform.slots("actor", concurrent=workload.actors)
        grows = getattr(system, "scheduler", None) is not None
        env = Environments(workload, slots, seed, threads, grows=grows)
        with contextlib.closing(env), platform:  # the platform first: its bodies may still step the environments
            policy = workload.make_policy(env.spec)
            session = Session(
                workload,
                platform,
                policy,
                env,
                budget=budget,
                evaluation=evaluation,
                prices=tuple(prices),
                seed=seed,
                configuration=describe(
                    {"system": system, "workload": workload, "evaluation": evaluation, "prices": prices, "seed": seed}
                ),
                checkpoints=checkpoints,
                resume=resume,
                on_progress=on_progress,
                on_fragment=on_fragment,
            )
            system.run(session)
            session.finish()
            version = platform.store.value(POLICY)
    return Result(session.history, version, platform.trace, {sheet.name: platform.bill(sheet) for sheet in prices})


def _check_functions(system: System, platform: Platform) -> None:
    """Raises unless the platform has the functions that the system needs."""
    if not isinstance(system, System):
        raise TypeError(f"system={system!r} is no system: it needs functions, the names of those it invokes, and run")
    for name in ("actor", *system.functions):  # the environments have a slot for every container of the actors'
        if name not in platform.functions:
            raise LookupError(f"no function {name!r} is deployed: the platform has {sorted(platform.functions)}")


def _check_prices(prices: Sequence[PriceSheet], budget: Budget, platform: Platform) -> None:
    """Raises unless each sheet has a name of its own, and prices something of this platform."""
    if isinstance(prices, PriceSheet):
        raise TypeError(f"prices is one sheet, {prices.name!r}: pass a sequence of sheets, prices=[sheet]")
    if math.isfinite(budget.cost) and not prices:
        raise ValueError(f"budget.cost={budget.cost} needs prices: there is no sheet to bill under")
    for name, times in Counter(sheet.name for sheet in prices).items():
        if times > 1:
            raise ValueError(
                f"prices: {times} sheets have the name {name!r}: one's costs would be taken for the other's"
            )
    deployed = platform.functions.keys()
    for sheet in prices:
        unknown, unpriced = sorted(sheet.named - deployed), sorted(deployed - sheet.named)
        if sheet.named.isdisjoint(deployed) and (unknown or not sheet.machines):
            raise ValueError(f"price sheet {sheet.name!r} prices {unknown}: the platform has {sorted(deployed)}")
        if unknown and unpriced:  # sheets are shared between deployments; but it looks like a slip
            warnings.warn(
                f"price sheet {sheet.name!r} prices {unknown}, which are not deployed, and not {unpriced}, which are",
                stacklevel=3,
            )


def _check_checkpoints(checkpoints: Checkpoints | None, resume: bool, platform: Platform) -> None:
    """Raises unless the run can be saved there."""
    if checkpoints is None:
        return
    if not isinstance(checkpoints, Checkpoints):
        raise TypeError(f"checkpoints={checkpoints!r} is no Checkpoints: pass Checkpoints({checkpoints!r})")
    if not isinstance(platform, Resumable):
        raise TypeError(f"checkpoints={checkpoints!r}: {type(platform).__name__} has nothing to save a run by")
    if not resume and checkpoints.newest() is not None:
        raise ValueError(f"{checkpoints} holds a run already: pass resume=True to go on with it, or another folder")
    checkpoints.prepare()
