"""What a system asks of an algorithm: the protocol that PPO, IMPALA and IMPACT keep, and that one of your own may."""

from typing import Any, Protocol, runtime_checkable

import jax
import optax

from stellaris.types import ApplyFn, Array, Trajectory, Tree


@runtime_checkable
class Algorithm(Protocol):
    """How a policy learns from trajectories: an optimizer, batches and a loss; a frozen dataclass, so that it hashes.

    A *batch* is what `prepare` makes of a trajectory: a tree of arrays with an attribute `valid`, which is False for
    samples that are no transition. It consists of *items*, of which `minibatches` makes groups: single samples for PPO
    and IMPACT, whole trajectories for IMPALA.

    Example:
      >>> from stellaris import IMPALA, PPO
      >>> isinstance(PPO(), Algorithm), isinstance(IMPALA(), Algorithm), isinstance(optax.adam(1e-3), Algorithm)
      (True, True, False)
    """

    def optimizer(self) -> optax.GradientTransformation:
        """The optimizer that applies its gradients."""

    def prepare(self, trajectory: Trajectory, apply_fn: ApplyFn, target: Tree) -> Any:
        """The batch that a trajectory becomes, once, before it is learned from.

        Args:
          trajectory: `[T, B, ...]` of any behaviour policies.
          apply_fn: `(params, observation) -> (distribution parameters, value)`.
          target: the newest parameters there are, for algorithms that need a policy beside the behaviour policy.
        """

    def minibatches(self, key: jax.Array, batch: Any) -> Array:
        """Indices of the items of every minibatch, int32 `[gradients, m]`, in the order in which they are learned from.

        An index beyond the batch stands for an item that is not there. Only the batch's shapes are used.

        Args:
          key: of the shuffles.
          batch: from `prepare`.
        """

    def select(self, batch: Any, indices: Array) -> Any:
        """The items of a batch at `[m]` indices, as a batch; an item beyond it is not valid."""

    def loss(
        self, apply_fn: ApplyFn, params: Tree, batch: Any, peers: tuple[Tree, ...] = (), *, rho: Any, version: Any
    ) -> tuple[Any, Any]:
        """The scalar loss on a batch, and what there is to report: a dictionary of scalars; and of `LagReport`s.

        Args:
          apply_fn: `(params, observation) -> (distribution parameters, value)`.
          params: the policy that learns.
          batch: from `select`.
          peers: parameters of the policies that other learners hold now; what a global cap is taken over.
          rho: truncation level of the cap.
          version: of the policy that learns.
        """


def check_algorithm(algorithm: Any) -> None:
    """Raises unless this can learn in a system.

    Raises:
      TypeError: if it is no `Algorithm`, or cannot be hashed; says what it lacks.
    """
    methods = ("optimizer", "prepare", "minibatches", "select", "loss")
    lacking = [name for name in methods if not callable(getattr(algorithm, name, None))]
    if lacking or isinstance(algorithm, type):
        why = f"it has no {', '.join(lacking)}" if lacking else "that is a class"
        raise TypeError(
            f"algorithm={algorithm!r} is no algorithm ({why}): pass PPO(...), IMPALA(...), IMPACT(...), or one with "
            "the methods of stellaris.algorithms.Algorithm"
        )
    try:
        hash(algorithm)
    except TypeError as error:
        raise TypeError(
            f"algorithm={algorithm!r} cannot be hashed ({error}): make it a frozen dataclass of numbers"
        ) from None
