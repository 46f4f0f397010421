"""The deployments of the map, in units of a fragment's duration, and the systems that are compared on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.tasks import testbed
from stellaris import PPO, ActorCritic, staleness_aware
from stellaris.lab import CartPole
from stellaris.runtime import FunctionSpec, Machine, PriceSheet, Rate, SimulatedPlatform
from stellaris.runtime.delays import Constant, Delay, LogNormal
from stellaris.systems import (
    AsynchronousActors,
    DataParallel,
    StalenessControl,
    Stellaris,
    Synchronous,
    System,
    Workload,
)

ACTORS, FRAGMENT = 16, 64
#: Mean seconds of a fragment. All other durations are relative to it.
FRAGMENT_SECONDS = 1.0
#: A batch has 8 minibatches, so it makes 80 gradients, as with the tuned settings for Hopper.
ALGORITHM = PPO(epochs=10, minibatch_size=ACTORS * FRAGMENT // 8)
GRADIENTS = 80
#: The seconds of a cold start would end in the first rounds, so they are left out: everything is warm.
_WARM = 0.0

#: The systems: the baseline, two ways to be faster than it without asynchronous learners, and Stellaris.
SYNCHRONOUS, DATA_PARALLEL, ONE_LEARNER = "synchronous", "data-parallel", "asynchronous actors, one learner"
IN_ROUNDS, SAMPLING_ON = "Stellaris, actors in rounds", "Stellaris, actors sampling on"


@dataclass(frozen=True)
class Point:
    """A system on a deployment.

    Args:
      system: one of the systems above.
      kappa: seconds of all gradients of a batch on one learner alone, divided by the seconds of a fragment, `G τ / A`.
      variation: coefficient of variation of every duration.
      learners: number of learners.
      sharers: learners per GPU; `k` of them take `sqrt(k)` times as long, as on the testbed.
      growth: a gradient on `1/N` of a minibatch takes `N ** -growth` times as long; it matters to data-parallel
        learners alone.
      update: seconds of an update of the policy, divided by the seconds of a gradient; it matters to Stellaris alone.
    """

    system: str
    kappa: float
    variation: float
    learners: int = 1
    sharers: int = 1
    growth: float = 0.0
    update: float = 0.1

    @property
    def gradient(self) -> float:
        """Mean seconds of a gradient on a whole minibatch, alone on a GPU."""
        return self.kappa * FRAGMENT_SECONDS / GRADIENTS

    def make_system(self, algorithm: PPO = ALGORITHM) -> System:
        """Makes the system."""
        if self.system == SYNCHRONOUS:
            return Synchronous(algorithm)
        if self.system == DATA_PARALLEL:
            return DataParallel(algorithm, learners=self.learners)
        if self.system == ONE_LEARNER:
            return AsynchronousActors(algorithm, control=StalenessControl(pace=1))
        return Stellaris(
            algorithm,
            learners=self.learners,
            aggregator=staleness_aware(self.learners, decay=1.0, combine="sequential"),
            rho=2.0,
            control=StalenessControl(pace=0 if self.system == IN_ROUNDS else 1),
        )

    def functions(self, fragment: int = FRAGMENT) -> Mapping[str, FunctionSpec]:
        """Returns the deployment of the system's functions, all warm, for fragments of this many steps."""

        def varying(mean: float) -> Delay:
            return LogNormal(mean, self.variation) if self.variation else Constant(mean)

        gradient = self.gradient * min(self.sharers, self.learners) ** testbed.GPU_SHARING
        if self.system == DATA_PARALLEL:
            gradient *= self.learners**-self.growth
        functions = {
            "actor": FunctionSpec(varying(FRAGMENT_SECONDS / fragment), max_concurrency=ACTORS),
            "learner": FunctionSpec(varying(gradient), max_concurrency=self.learners),
            "parameter": FunctionSpec(varying(self.update * self.gradient), max_concurrency=1),
            "all_reduce": FunctionSpec(Constant(0.0), max_concurrency=1),
        }
        return {name: functions[name] for name in ("actor", *self.make_system().functions)}

    def platform(self, seed: int = 0) -> SimulatedPlatform:
        """Makes the platform."""
        return SimulatedPlatform(self.functions(), seed=seed)

    def prices(self) -> Sequence[PriceSheet]:
        """The two bills of the testbed: for machines by the duration of the run, and for functions by their use.

        Systems that are not serverless pay for machines under both.
        """
        gpus = -(-self.learners // self.sharers)
        machines = {
            "learner machines": Machine(gpus * testbed.SERVER_LEARNER, runs=("learner",), places=self.learners),
            "actor machine": Machine(testbed.SERVER_ACTORS, runs=("actor",), places=ACTORS),
        }
        if self.make_system().serverless:
            rates = {
                "actor": Rate(per_second=testbed.ACTOR_FUNCTION),
                "learner": Rate(per_second=testbed.SERVER_LEARNER * gpus / self.learners),
                "parameter": Rate(per_second=testbed.PARAMETER_FUNCTION),
            }
            return PriceSheet("machines", machines=machines), PriceSheet("use", rates)
        return PriceSheet("machines", machines=machines), PriceSheet("use", machines=machines)


def workload(hidden: tuple[int, ...] = (32, 32)) -> Workload:
    """Returns the workload, whose environment matters to learning alone."""
    return Workload(CartPole(), ActorCritic(hidden=hidden), actors=ACTORS, fragment=FRAGMENT)
