"""MinionsRL's testbed, prices and workloads, and the systems compared on them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import stellaris
from experiments.tasks import presets, testbed, testbeds
from experiments.tasks.presets import Contender
from experiments.toolkit import shell
from stellaris import PPO, ActorCritic
from stellaris.runtime import FunctionSpec, PriceSheet, Rate, Resources, Transfer
from stellaris.runtime.costs import prices
from stellaris.scheduling import Learned, Scheduler, SchedulerError
from stellaris.scheduling.objective import Objective
from stellaris.systems import Budget, CircularReplay, Evaluation, MinionsRL, Synchronous, Workload

#: Most actor functions per round. Source: MinionsRL (AAAI 2024), "Testbeds".
ACTORS = 32
#: Bandwidth between functions, in bytes per second. Source: ibid., "Communication overheads": 6,144 stacks of three
#: Atari frames of 84 x 84 bytes in less than 0.8 s. The paper's figure for MuJoCo, 65,536 steps in less than 0.1 s,
#: needs a third of this bandwidth.
BANDWIDTH = 6_144 * 3 * 84 * 84 / 0.8
#: Resources of the containers. Source: ibid., "Testbeds": one core per actor, a V100 for the learner.
#: Assumption: the memory of both containers, and the learner's core, one of the six of the reserved machine.
ACTOR, LEARNER = Resources(memory=4.0, vcpus=1.0), Resources(memory=16.0, vcpus=1.0, gpu_slots=1)
#: The folder of trained schedulers.
SCHEDULERS = Path(__file__).parents[1] / "schedulers"


@dataclass(frozen=True)
class Task:
    """A workload and its algorithm, with the target and the budget of a run."""

    workload: Workload
    ppo: PPO
    target: float  #: the mean return to reach, the paper's J.
    steps: int  #: the most steps of a run.
    budget: float = math.inf  #: the most USD to spend, the paper's B.
    functions: Mapping[str, FunctionSpec] = field(default_factory=lambda: functions())  #: the deployment.
    evaluation: Evaluation | None = None  #: tests the target; otherwise the mean of the last episodes does.

    @property
    def limits(self) -> Budget:
        """The limits of a run; without evaluations the target is a mean over the last `ACTORS` episodes."""
        budget = Budget(steps=self.steps, cost=self.budget, window=ACTORS)
        if self.evaluation is None:
            return replace(budget, target_return=self.target)
        return replace(budget, target_evaluation=self.target)

    def objective(self, minimise: Literal["time", "cost"] = "time", *, failure: float | None = 1.0) -> Objective:
        """Returns the objective for which a scheduler is trained; its rewards are computed from this objective."""
        return Objective(
            self.target,
            self.budget,
            sheet="pay_per_use",
            window=ACTORS,
            minimise=minimise,
            failure=failure,
            evaluated=self.evaluation is not None,
        )


#: Targets: `presets.TARGETS`. Assumptions: the targets of Acrobot, HalfCheetah and Qbert, because the paper on
#: MinionsRL does not state any.
TARGETS: Mapping[str, float] = {
    "CartPole-v1": presets.TARGETS["CartPole-v1"],
    "Acrobot-v1": -100.0,
    "Hopper-v4": presets.TARGETS["Hopper-v4"],
    "HalfCheetah-v4": 1000.0,
    "Humanoid-v4": presets.TARGETS["Humanoid-v4"],
    "Qbert-v5": 3.0,
}
#: Budgets in USD of runs under a learned scheduler, by environment and testbed: three quarters of the median cost of
#: runs with all actors, on the seeds 0 to 19 of the ceiling, on four seeds from 100 on, on MuJoCo with the authors'
#: learner on seed 100, and on Acrobot, but for the faster settings, on the seeds 100 and 101.
BUDGETS: Mapping[tuple[str, str], float] = {
    ("CartPole-v1", "tuned"): 0.75 * 0.0060,
    ("CartPole-v1", "authors"): 0.75 * 0.0422,
    ("Acrobot-v1", "authors"): 0.75 * 0.0953,
    ("Acrobot-v1", "tuned"): 0.75 * 0.0126,
    ("Acrobot-v1", "tuned-0.0012"): 0.75 * 0.0071,
    ("Hopper-v4", "authors-0.0003"): 0.75 * 0.0415,
    ("HalfCheetah-v4", "authors-0.0003"): 0.75 * 0.0478,
    ("Hopper-v4", "tuned"): 0.75 * 0.0262,
}
#: Steps of an actor in a round. With all actors, a round has as many steps as a batch of the other experiments.
FRAGMENT = 128
#: The same in the paper: over all actors 65,536 for MuJoCo and 6,144 for Atari. Source: MinionsRL (AAAI 2024),
#: "Communication overheads".
PAPERS_FRAGMENT, PAPERS_FRAGMENT_ATARI = 2_048, 192
#: Environments whose tasks take too few steps for the paper's fragments.
CLASSIC = ("CartPole-v1", "Acrobot-v1")
#: The most steps of a run, if its fragments have `FRAGMENT` steps. CartPole needs about 60,000 to its target, and
#: Hopper with the tuned learner from 160,000 to more than 400,000.
STEPS, STEPS_ON_MUJOCO = 400_000, 2_000_000


class _Tuned(NamedTuple):
    """The tuned learner's PPO, and the baseline IMPACT, on one kind of environment."""

    ppo: PPO
    impact: CircularReplay


#: Settings for CartPole were chosen by hand on seed 0; those for Acrobot are of Hopper-v4, from twelve for each system,
#: with two layers of 256 units and rewards that are not scaled. Results of many thousand runs have both.
_ON_CARTPOLE = _Tuned(
    PPO(learning_rate=5e-4, epochs=5, minibatch_size=512),
    CircularReplay(stellaris.IMPACT(learning_rate=1e-3, epochs=1, minibatch_size=512)),
)
_ON_ACROBOT = _Tuned(
    PPO(learning_rate=6e-4, epochs=10, minibatch_size=512),
    CircularReplay(stellaris.IMPACT(learning_rate=3e-4, epochs=1, minibatch_size=512), passes=10, buffer=1),
)


#: The fastest settings of the tuned learner, by environment, where its own take more than 1.2 times as long. Source:
#: `minionsrl-tuning`, nine settings on the seeds 100 to 103.
RETUNED: Mapping[str, PPO] = {"Acrobot-v1": PPO(learning_rate=0.0012, epochs=10, minibatch_size=1024)}


def _tuned(environment: str) -> _Tuned:
    """Returns the settings for an environment; MuJoCo and Atari have the presets' of the other systems."""
    if environment in CLASSIC:
        return _ON_CARTPOLE if environment == "CartPole-v1" else _ON_ACROBOT
    systems: dict[str, Any] = {row.name: row.system for row in presets.architectures(environment).contenders}
    return _Tuned(systems["synchronous"].algorithm, systems["IMPACT"])


#: Gradients of a round of the authors' learner, each on the whole batch. Source: the code of MinionsRL's authors, whose
#: minibatch is the batch.
GRADIENTS = 30
#: Learning rate of the authors' learner. Source: MinionsRL (AAAI 2024), Table 1.
AS_PUBLISHED = 5e-5
#: The learning rate with which it is run on MuJoCo, where the published one needs more rounds than we can afford: the
#: faster of 0.0003 and 0.001, with fragments of 128 steps, for runs with all actors, by the median time to the target
#: on the seeds 100 and 101 (on Hopper, tested by the last 32 episodes).
RATES: Mapping[str, float] = {"Hopper-v4": 0.0003, "HalfCheetah-v4": 0.0003}
#: Seconds of its gradient on the whole batch. Assumption: slightly more than of one on a minibatch.
WHOLE_GRADIENT = 0.013


def testbeds_of(environment: str) -> dict[str, Task]:
    """Returns an environment's tasks: one with the tuned learner, and one with the authors'.

    Where `RETUNED` has faster settings of the tuned learner, they are one more. The tuned learner computes as many more
    gradients as there are more samples. The authors' computes as many in every round, and an evaluation tests the
    target after each round. The cost is not limited.

    Raises:
      UsageError: if the environment has no target.
    """
    if environment not in TARGETS:
        raise shell.UsageError(f"--env {environment} has no target; choose one of {', '.join(TARGETS)}")
    found = {"tuned": tuned_task(environment)}
    if environment in RETUNED:
        ppo = RETUNED[environment]
        found[f"tuned-{ppo.learning_rate:g}"] = replace(found["tuned"], ppo=ppo)
    rate = RATES.get(environment)
    found["authors" if rate is None else f"authors-{rate:g}"] = _affordable(environment)
    return found


def both_learners(environment: str) -> dict[str, Task]:
    """Returns an environment's task with the tuned learner, and with the authors'.

    Without a target in `TARGETS`, runs end by their steps alone.
    """
    return {"tuned": tuned_task(environment), "authors": _affordable(environment)}


def _affordable(environment: str) -> Task:
    """Returns the authors' task at the learning rate with which it is run."""
    return authors_task(environment, RATES.get(environment, AS_PUBLISHED))


def label(testbed: str) -> str:
    """Returns the words for a testbed's learner, in pictures and on pages.

    Example:
      >>> label("authors-0.0003")
      "the authors' learner, rate 0.0003"
    """
    learner, _, rate = testbed.partition("-")
    return {"tuned": "the tuned learner", "authors": "the authors' learner"}[learner] + (
        f", rate {rate}" if rate else ""
    )


def tuned_task(environment: str) -> Task:
    """Returns an environment's task with the settings of the tuned learner."""
    workload = replace(presets.workload(environment), actors=ACTORS, fragment=FRAGMENT)
    if environment not in presets.ATARI:
        workload = replace(workload, policy=ActorCritic(hidden=(64, 64), scaling_discount=0.99))
    steps = STEPS if environment in (*CLASSIC, *presets.ATARI) else STEPS_ON_MUJOCO
    return Task(workload, _tuned(environment).ppo, TARGETS.get(environment, math.inf), steps)


def authors_task(environment: str, learning_rate: float = AS_PUBLISHED) -> Task:
    """Returns an environment's task with the learner, the settings and the test of the target of the authors' code.

    An actor's fragment has as many steps as the paper's. CartPole and Acrobot would need few rounds of 2,048 steps, so
    that their fragments have 128 steps that take as long; if all actors sample, they have three quarters of a round's
    cost.
    """
    tuned = tuned_task(environment)
    papers = PAPERS_FRAGMENT_ATARI if environment in presets.ATARI else PAPERS_FRAGMENT
    fragment = FRAGMENT if environment in CLASSIC else papers
    step = testbed.ENVIRONMENT_STEP * papers / fragment
    ppo = replace(presets.demo_ppo(ACTORS * fragment, epochs=GRADIENTS), learning_rate=learning_rate)
    deployed = {
        "actor": replace(tuned.functions["actor"], compute=testbed.ASSUMED.varying(step)),
        "learner": replace(tuned.functions["learner"], compute=testbed.ASSUMED.varying(WHOLE_GRADIENT)),
    }
    return replace(
        tuned,
        workload=replace(tuned.workload, fragment=fragment),
        ppo=ppo,
        functions=deployed,
        steps=STEPS * fragment // FRAGMENT,
        evaluation=Evaluation(every=1, episodes=10),
    )


# ---- the testbed ------------------------------------------------------------------------------------------------


def functions() -> dict[str, FunctionSpec]:
    """Returns the functions on Azure."""
    varying = testbed.ASSUMED.varying
    transfer = Transfer(varying(testbed.STORE_LATENCY), BANDWIDTH)
    return {
        "actor": FunctionSpec(
            compute=varying(testbed.ENVIRONMENT_STEP),
            cold_start=varying(testbed.ACTOR_COLD_START),
            keep_alive=testbed.KEEP_ALIVE,
            max_concurrency=ACTORS,
            transfer=transfer,
            resources=ACTOR,
        ),
        "learner": FunctionSpec(
            compute=varying(testbed.GRADIENT),
            cold_start=varying(testbed.LEARNER_COLD_START),
            keep_alive=testbed.KEEP_ALIVE,
            max_concurrency=1,
            transfer=transfer,
            resources=LEARNER,
        ),
    }


def serverless_prices() -> tuple[PriceSheet, PriceSheet]:
    """Returns two bills: Eq. 2's, for the time that functions run, and Azure's, for the life of container instances."""
    azure = prices.rate("azure_aci")
    running = Rate(
        per_gb_second=azure.per_gb_second,
        per_vcpu_second=azure.per_vcpu_second,
        per_gpu_slot_second=azure.per_gpu_slot_second,
    )
    source = str(prices.catalogue()["azure_aci"]["source"])
    return (
        PriceSheet("pay_per_use", {"actor": running, "learner": running}, source=f"MinionsRL, Eq. 2; {source}"),
        PriceSheet("azure", {"actor": azure, "learner": azure}, source=source),
    )


def reserved() -> tuple[dict[str, FunctionSpec], tuple[PriceSheet, PriceSheet]]:
    """Returns the baselines' reserved machines, with the functions' bandwidth; both bills charge wall-clock time."""
    machines = testbeds.minionsrl_azure()
    transfer = Transfer(testbed.ASSUMED.varying(testbed.STORE_LATENCY), BANDWIDTH)
    own = {name: replace(spec, transfer=transfer) for name, spec in testbed.reserved(actors=ACTORS).items()}
    bills = tuple(
        PriceSheet(name, machines=machines.machines, source=machines.source) for name in ("pay_per_use", "azure")
    )
    return own, (bills[0], bills[1])


# ---- the systems ------------------------------------------------------------------------------------------------

LEARNED, MAX, ADAPT, AZURE, IMPACT = "MinionsRL", "MinionsRL-Max", "MinionsRL-Adapt", "Azure ML", "IMPACT"
STYLES = {
    LEARNED: ("#0072B2", "-"),
    MAX: ("#000000", ":"),
    ADAPT: ("#E69F00", "-."),
    AZURE: ("#D55E00", "--"),
    IMPACT: ("#56B4E9", (0, (6, 1, 1, 1, 1, 1))),
}


def minions(name: str, scheduler: Scheduler, of: Task, *, prewarmed: bool = True) -> Contender:
    """Returns MinionsRL with a scheduler on a task.

    Without pre-warming, a container is made for one invocation and ends with it.
    """
    colour, line = STYLES.get(name, STYLES[LEARNED])
    deployed = of.functions
    if not prewarmed:
        deployed = {function: replace(spec, keep_alive=0.0) for function, spec in deployed.items()}
    system = MinionsRL(of.ppo, scheduler, prewarm=prewarmed)
    return Contender(name, system, deployed, serverless_prices(), colour, line)


def trained(path: Path) -> Learned:
    """Loads the scheduler of the option `--start`.

    Raises:
      UsageError: if the file does not hold a scheduler for as many actors.
    """
    try:
        start = Learned.load(path)
    except (OSError, SchedulerError) as error:
        raise shell.UsageError(f"--start {path}: {error}") from error
    if start.most != ACTORS:
        raise shell.UsageError(
            f"--start {path} decides for up to {start.most} actors: choose a scheduler for up to {ACTORS}"
        )
    return start


def baselines(environment: str, of: Task) -> list[Contender]:
    """Returns the paper's baselines on reserved machines; their steps, and Azure ML's gradients, take the task's time.

    IMPACT has minibatches of its own, whose gradients take the testbed's time.
    """
    machines, bills = reserved()
    actor, learner = (replace(machines[name], compute=of.functions[name].compute) for name in ("actor", "learner"))
    return [
        Contender(name, system, machines | own, bills, *STYLES[name])
        for name, system, own in (
            (AZURE, Synchronous(of.ppo), {"actor": actor, "learner": learner}),
            (IMPACT, _tuned(environment).impact, {"actor": actor}),
        )
    ]
