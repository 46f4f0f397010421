"""A language task as a workload of the systems and of the lab."""

from dataclasses import dataclass

from stellaris.acting.policies import Network, Policy
from stellaris.acting.vector import EnvSpec
from stellaris.lab.language.environment import Answering
from stellaris.systems.workload import Workload


@dataclass(frozen=True)
class _PolicyOf:
    """Makes the policy of a network that reads tokens."""

    network: Network

    def __call__(self, spec: EnvSpec) -> Policy:
        return Policy(spec, self.network, normalise=False)


def workload(environment: Answering, network: Network, *, actors: int = 32, refresh: int | None = None) -> Workload:
    """Makes the workload in which each fragment is a group: the answers of one actor to one prompt.

    Args:
      environment: the task, and the number of answers to a prompt.
      network: a `Transformer`, perhaps within a `WarmStart`.
      actors: number of actors; each works on one prompt at a time.
      refresh: number of steps after which an actor takes the newest version, even within an answer, as in `Workload`;
        it must divide `environment.steps`. The cache is then computed anew with that version.

    Raises:
      TypeError: if a number is not whole.
      ValueError: if a number is below 1, or `refresh` does not divide the number of steps.

    Example:
      >>> from stellaris.lab.language import Sorting, Transformer
      >>> env = Answering(Sorting(most=6), group=8)
      >>> workload(env, Transformer.of(env.task), refresh=32).fragment
      64
    """
    return Workload(environment, _PolicyOf(network), actors=actors, fragment=environment.steps, refresh=refresh)
