"""MinionsRL: serverless actors, whose number a scheduler decides in each round, and one serverless learner."""

from dataclasses import dataclass
from typing import ClassVar

from stellaris.algorithms import PPO, Algorithm
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.scheduling.rules import Maximum
from stellaris.scheduling.scheduler import Scheduler, check_scheduler
from stellaris.systems.central_learner import IN_STEP, run
from stellaris.systems.session import Session
from stellaris.systems.system import System


@dataclass(frozen=True)
class MinionsRL(System):
    """Rounds of serverless functions: in round `k`, `I_k` actors sample, then one learner learns from their batch.

    The scheduler decides `I_k`, at most the workload's number of actors, `I_max`. The platform must deploy `actor` and
    `learner`; compute times are per environment step and per gradient. A round takes

        `P_k = P^l_k + max_i P^a_k,i`

    where `P^a_k,i` is the time that the round waits for its i-th actor, and `P^l_k` for its learner (Eq. 1). If
    functions are priced by the second only, a round costs `C_k = sum_i P^a_k,i * price of an actor + P^l_k * price of a
    learner`, where each `P` is instead the time that the function runs (Eq. 2).

    The budget, checked after every round, ends the run: `Budget(cost=B, target_return=J, window=I_max)` is Eq. 3 and 4.
    The paper compares J with the mean return of the round's actors, which a single lucky episode can reach if the round
    has one actor. `Budget(target_evaluation=J)` compares J with evaluations, as the code of its authors does.

    Args:
      algorithm: the algorithm, whose loss, minibatches and epochs are used.
      scheduler: decides how many actors sample in each round; by default all of them.
      prewarm: whether to prewarm containers for the learner and for all `I_max` actors while the first round's actors
        sample. With prewarming only the first round waits for cold starts, unless idle containers expire
        (`keep_alive`).

    Raises:
      TypeError: if the algorithm or the scheduler has the wrong type.

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

    def prewarms(self, actors: int) -> int:
        """Returns the number of all actors except one, because the first round has at least one."""
        return actors - 1 if self.prewarm else 0

    def run(self, session: Session) -> None:
        """Runs the event loop."""
        run(session, self.algorithm, IN_STEP, prewarm=self.prewarm)
