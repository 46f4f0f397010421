"""Settings of every system, as in the authors' demo and as we tuned them. Each system is one `Contender`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from experiments.tasks import testbed
from stellaris import IMPACT, IMPALA, PPO, staleness_aware
from stellaris._core.describe import describe
from stellaris.acting import ActorCritic, Pixels, configure
from stellaris.algorithms import Algorithm
from stellaris.runtime import FunctionSpec, PriceSheet
from stellaris.systems import (
    AsynchronousActors,
    Budget,
    CentralInference,
    CircularReplay,
    DataParallel,
    StalenessControl,
    Stellaris,
    Synchronous,
    System,
    Workload,
)


@dataclass(frozen=True)
class Contender:
    """A system with its deployment, its prices and its line style in pictures."""

    name: str
    system: System
    functions: Mapping[str, FunctionSpec]  #: the deployment.
    prices: Sequence[PriceSheet]  #: two bills: the demo's and one by use; for MinionsRL, one by use and Azure's.
    colour: str  #: distinct for the colour-blind (Okabe & Ito 2008).
    line: Any  #: matplotlib's line style, a name or dashes, distinct in grey.


@dataclass(frozen=True)
class Preset:
    """A workload, the systems that learn it, and the budget of each run."""

    name: str
    summary: str
    workload: Workload
    contenders: Sequence[Contender]
    budget: Budget

    def settings(self) -> dict[str, Any]:
        """Returns all settings, for the record of a run."""
        systems = {contender.name: describe(contender) for contender in self.contenders}
        return {"workload": describe(self.workload), "budget": describe(self.budget), "systems": systems}


LEARNERS = 4
ACTORS, FRAGMENT = 16, 256

#: Target returns. Source for MuJoCo: the demo of Stellaris (SC 2024). Assumption for CartPole: 450, close to the
#: greatest possible return of 500.
TARGETS = {"Hopper-v4": 600.0, "Humanoid-v4": 1000.0, "Walker2d-v4": 1000.0, "CartPole-v1": 450.0}


#: The papers' Atari games (Stellaris, SC 2024; MinionsRL, AAAI 2024).
ATARI = ("Gravitar-v5", "SpaceInvaders-v5", "Qbert-v5")


def workload(environment: str) -> Workload:
    """Returns the papers' workload: 16 actors of 256 steps; for Atari three frames of 84x84, MinionsRL's convolutions.

    As is common, rewards are divided by the running deviation of discounted returns. Atari has the usual wrappers
    instead: an episode is one life, a reward is clipped to its sign (returns shown are sums of these), and actions are
    sticky with probability 0.25 (Machado et al. 2018). Assumption: the papers name neither scaling nor wrappers.
    """
    if environment not in ATARI:
        policy = ActorCritic(scaling_discount=0.99)
        return Workload(environment, policy=policy, actors=ACTORS, fragment=FRAGMENT)
    game = configure(environment, stack_num=3, episodic_life=True, reward_clip=True, repeat_action_probability=0.25)
    return Workload(game, policy=Pixels("minionsrl"), actors=ACTORS, fragment=FRAGMENT)


def contender(
    name: str,
    system: System,
    *,
    colour: str,
    line: Any = "-",
    actors: int = ACTORS,
    assumed: testbed.Assumed = testbed.ASSUMED,
) -> Contender:
    """Returns a system on its testbed: functions that start on demand if it is serverless, else reserved machines."""
    learners, samples = system.learners, _samples(system)
    if system.serverless:
        functions = testbed.serverless(actors=actors, learners=learners, samples=samples, assumed=assumed)
        prices = testbed.serverless_prices(actors=actors, learners=learners, assumed=assumed)
    else:
        central_inference = "inference" in system.functions
        functions = testbed.reserved(
            actors=actors,
            learners=learners,
            samples=samples,
            central_inference=central_inference,
            assumed=assumed,
        )
        prices = testbed.reserved_prices(actors=actors, learners=learners, assumed=assumed)
    return Contender(name, system, functions, prices, colour, line)


def _samples(system: Any) -> int:
    """Returns the samples per gradient: a minibatch, which IMPALA counts in fragments, or a data-parallel shard."""
    minibatch: int = system.algorithm.minibatch_size
    if isinstance(system.algorithm, IMPALA):
        minibatch *= FRAGMENT
    return minibatch // system.learners if isinstance(system, DataParallel) else minibatch


def _stellaris(system: Stellaris, assumed: testbed.Assumed) -> Contender:
    return contender("stellaris", system, colour="#0072B2", assumed=assumed)


def _synchronous(system: Synchronous, assumed: testbed.Assumed) -> Contender:
    return contender("synchronous", system, colour="#D55E00", line="--", assumed=assumed)


#: The testbed of the demo, whose rounds have an overhead.
DEMO = testbed.Assumed(overhead=testbed.DEMO_OVERHEAD)


def demo_ppo(minibatch_size: int, *, epochs: int = 10) -> PPO:
    """Returns the PPO that runs in the demo, with the given minibatch size and number of epochs.

    The demo passes only batch sizes and epochs to RLlib, so RLlib's defaults run. (Its file of settings names a clip of
    0.2, a value clip of 100 and an entropy coefficient of 0.01, which nothing reads.) The synchronous baseline adapts
    the weight of the KL penalty after each batch; Stellaris' learners keep it constant.

    Differences from the demo: RLlib computes the KL divergence from the distributions, but here it is estimated from
    the actions; layers are initialised orthogonally; and Adam's epsilon is 1e-5.
    """
    return PPO(
        learning_rate=5e-5,
        lambda_=1.0,
        clip=0.3,
        entropy_coefficient=0.0,
        value_coefficient=1.0,
        value_loss_clip=10.0,
        kl_coefficient=0.2,
        kl_target=0.01,
        epochs=epochs,
        minibatch_size=minibatch_size,
        max_gradient_norm=None,
    )


def paper(environment: str, assumed: testbed.Assumed = DEMO) -> Preset:
    """Returns the settings with which the authors' demo actually runs: 20 rounds of 16 x 256 steps.

    The baseline computes each gradient on a whole batch, Stellaris on a quarter of a batch. Observations are not
    normalised, and the policy's standard deviations depend on the state. Stellaris' actors sample in rounds, which do
    not wait until earlier batches are learned from. All its gradients have the weight 1: the demo's scheduler gets the
    optimizer's step count instead of the staleness, and replaces a weight below 0.9 by 1. `assumed.overhead` is the
    time that the demo spends, in every round, on making its workers anew and on evaluation; the time that the demo
    reports includes it.

    Source: the authors' public demo of Stellaris (SC 2024), and RLlib's defaults of its version (`demo_ppo`).
    """
    rounds = 20
    batch = ACTORS * FRAGMENT
    of_vectors = replace(workload(environment), policy=ActorCritic(state_dependent_std=True, normalise=False))
    return Preset(
        name="paper",
        summary=f"the authors' demo: {rounds} rounds, learning rate 5e-5, full batches, actors in rounds",
        workload=workload(environment) if environment in ATARI else of_vectors,
        contenders=(
            _stellaris(
                Stellaris(
                    demo_ppo(batch // LEARNERS),
                    learners=LEARNERS,
                    aggregator=staleness_aware(
                        LEARNERS, decay=0.9, smoothness=math.inf, combine="sequential", threshold="demo"
                    ),
                    rho=1.0,
                    control=StalenessControl(rounds=True),
                ),
                assumed,
            ),
            _synchronous(Synchronous(demo_ppo(batch)), assumed),
        ),
        budget=Budget(steps=rounds * batch),
    )


def tuned(environment: str, assumed: testbed.Assumed = testbed.ASSUMED) -> Preset:
    """Returns our settings: PPO for both systems, each tuned with the same number of runs (`_chosen`)."""
    chosen = _chosen(environment)
    actors = "in rounds" if chosen.stellaris.control == StalenessControl(pace=0) else "sampling on"
    return Preset(
        name="tuned",
        summary=f"ours ({chosen.source}): {_words(chosen.synchronous.algorithm)}; Stellaris "
        f"{_words(chosen.stellaris.algorithm)}, actors {actors}",
        workload=workload(environment),
        contenders=(_stellaris(chosen.stellaris, assumed), _synchronous(chosen.synchronous, assumed)),
        # A run ends at the target, if there is one; the seconds are for runs that never reach it.
        budget=Budget(seconds=50.0 if environment == "CartPole-v1" else 200.0, target_return=TARGETS[environment])
        if environment in TARGETS
        else Budget(seconds=100.0),
    )


def _words(algorithm: Algorithm) -> str:
    """Returns the learning rate, the epochs and the minibatch of PPO in words."""
    assert isinstance(algorithm, PPO)
    return f"learning rate {algorithm.learning_rate:g}, {algorithm.epochs} epochs of {algorithm.minibatch_size}"


def architectures(environment: str) -> Preset:
    """Returns every architecture with the algorithm that it is known for, with `tuned`'s settings."""
    pair, chosen = tuned(environment), _chosen(environment)
    stellaris, synchronous = pair.contenders
    ppo = chosen.synchronous.algorithm
    return Preset(
        name="architectures",
        summary=f"every architecture, each with its own algorithm; settings: {chosen.source}",
        workload=pair.workload,
        contenders=(
            synchronous,
            contender("central inference", CentralInference(ppo), colour="#E69F00", line="-."),
            contender("data-parallel", DataParallel(ppo, learners=LEARNERS), colour="#CC79A7", line=":"),
            contender("asynchronous actors", chosen.asynchronous, colour="#009E73", line=(0, (6, 1, 1, 1, 1, 1))),
            contender("IMPACT", chosen.impact, colour="#56B4E9", line=(0, (1, 3))),
            stellaris,
        ),
        budget=replace(pair.budget, seconds=400.0),  # central inference spends more time: each step is a round trip
    )


def on_demand(row: Contender, assumed: testbed.Assumed = testbed.ASSUMED) -> Contender:
    """Returns a contender whose actors and single learner are functions that start on demand."""
    functions = testbed.serverless(actors=ACTORS, learners=1, samples=_samples(row.system), assumed=assumed)
    del functions["parameter"]
    prices = testbed.serverless_prices(actors=ACTORS, learners=1, assumed=assumed)
    return replace(row, functions=functions, prices=prices)


def minionsrl_max(environment: str) -> Contender:
    """Returns MinionsRL without its scheduler: the most actor functions in every round, and one learner function.

    It learns like the synchronous system.

    Source: MinionsRL (AAAI 2024), its variant "Max".
    """
    return on_demand(contender("MinionsRL-Max", _chosen(environment).synchronous, colour="#000000", line=":"))


def asynchronous_learners(algorithm: Algorithm, control: StalenessControl) -> Stellaris:
    """Returns Stellaris with four learners, a cap of 2, and a step for each gradient of a group."""
    aggregator = staleness_aware(LEARNERS, decay=1.0, combine="sequential")
    return Stellaris(algorithm, learners=LEARNERS, aggregator=aggregator, rho=2.0, control=control)


class _Chosen(NamedTuple):
    """The systems with the settings for a kind of environment."""

    source: str
    synchronous: Synchronous
    stellaris: Stellaris
    asynchronous: AsynchronousActors
    impact: CircularReplay


def _chosen(environment: str) -> _Chosen:
    """Returns the settings for an environment's kind. Except for Atari's, `experiments.tuning` has chosen them."""
    if environment in ATARI:
        return _FOR_ATARI
    if environment == "CartPole-v1":
        return _FOR_CARTPOLE
    return _FOR_MUJOCO


#: Settings for CartPole: of eight per system, the one with the best mean return over 15 virtual seconds.
_FOR_CARTPOLE = _Chosen(
    "tuned on CartPole-v1",
    Synchronous(PPO(learning_rate=6e-4, epochs=10, minibatch_size=1024)),
    asynchronous_learners(PPO(learning_rate=6e-4, epochs=10, minibatch_size=1024), StalenessControl(pace=1)),
    AsynchronousActors(IMPALA(learning_rate=1e-2, epochs=4, minibatch_size=4)),
    CircularReplay(IMPACT(learning_rate=6e-4, epochs=1, minibatch_size=1024), passes=10, buffer=1),
)

#: Settings for MuJoCo: of eight per system, the one with the best return after 60 virtual seconds of Hopper-v4.
_FOR_MUJOCO = _Chosen(
    "tuned on Hopper-v4",
    Synchronous(PPO(learning_rate=3e-4, epochs=10, minibatch_size=1024)),
    asynchronous_learners(PPO(learning_rate=3e-4, epochs=10, minibatch_size=512), StalenessControl(pace=1)),
    AsynchronousActors(IMPALA(learning_rate=1e-3, epochs=4, minibatch_size=4), control=StalenessControl(pace=0)),
    CircularReplay(IMPACT(learning_rate=1.2e-3, epochs=1, minibatch_size=512), passes=10, buffer=1),
)

#: Settings for Atari, which are not tuned. PPO: Schulman et al. 2017, Table 5, but without its decay of learning rate
#: and clip. IMPALA: Espeholt et al. 2018, Table G.1. Stellaris' aggregator and IMPACT's replay have settings that an
#: earlier tuning chose for MuJoCo with rewards as they are.
_ATARI_PPO = PPO(
    learning_rate=2.5e-4, clip=0.1, epochs=3, minibatch_size=256, entropy_coefficient=0.01, value_coefficient=1.0
)
_FOR_ATARI = _Chosen(
    "the papers' own for Atari",
    Synchronous(_ATARI_PPO),
    asynchronous_learners(_ATARI_PPO, StalenessControl(pace=0)),
    AsynchronousActors(IMPALA(learning_rate=6e-4, epochs=1, minibatch_size=4)),
    CircularReplay(
        IMPACT(learning_rate=2.5e-4, clip=0.1, epochs=1, minibatch_size=256, entropy_coefficient=0.01),
        passes=10,
        buffer=1,
    ),
)

PRESETS = {"paper": paper, "tuned": tuned}
