"""MinionsRL: rounds of serverless actors, as many as a scheduler decides, and one serverless learner."""

from dataclasses import dataclass
from typing import ClassVar

from stellaris.algorithms import PPO, Algorithm
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.scheduling.rules import Maximum
from stellaris.scheduling.scheduler import Scheduler, check_scheduler
from stellaris.systems.central_learner import IN_STEP, run
from stellaris.systems.session import Session


@dataclass(frozen=True)
class MinionsRL:
    """In round `k` a scheduler has `I_k` actor functions sample; when all have, one learner function learns from that.

    It needs the functions `actor` and `learner` on its platform; compute times are per environment step and per
    gradient. There may be as many actors as the workload has, `I_max`. A round takes

        `P_k = P^l_k + max_i P^a_k,i`

    where each `P` is the time that the round waits for that function (Eq. 1). Where functions are priced by the second
    and nothing else, it costs `C_k = sum_i P^a_k,i * price of an actor + P^l_k * price of a learner`, of the time that
    they run (Eq. 2).

    The run ends by its budget, which is looked at after every round: `Budget(cost=B, target_return=J, window=I_max)` is
    Eq. 3 and 4. The paper compares the mean return of the round's actors with J; that of a single actor's episode
    reaches it by chance.

    Args:
      algorithm: whose loss, minibatches and epochs.
      scheduler: how many actors sample in each round; all of them by default.
      prewarm: whether containers are made before they are needed: of the learner and of all actors that there may be,
        while the first round's actors sample. Only the first round then waits for cold starts, unless idle containers
        expire meanwhile, as their `keep_alive` says.

    Raises:
      TypeError: if the algorithm or the scheduler is none.

    Source:
      MinionsRL (AAAI 2024).
    """

    functions: ClassVar[tuple[str, ...]] = ("actor", "learner")
    serverless: ClassVar[tuple[str, ...]] = functions

    algorithm: Algorithm = PPO()
    scheduler: Scheduler = Maximum()
    prewarm: bool = False

    def __post_init__(self) -> None:
        check_algorithm(self.algorithm)
        check_scheduler(self.scheduler)

    def run(self, session: Session) -> None:
        """The event loop."""
        run(session, self.algorithm, IN_STEP, self.scheduler, prewarm=self.prewarm)
