"""The `Algorithm` protocol: the methods that a training system calls. PPO, IMPALA and IMPACT implement it."""

from typing import Any, Protocol, runtime_checkable

import jax
import optax

from stellaris.types import ApplyFn, Array, Trajectory, Tree


@runtime_checkable
class Algorithm(Protocol):
    """Learns a policy from trajectories: an optimizer, batches and a loss. Make it a frozen dataclass: systems hash it.

    `prepare` turns a trajectory into a *batch*: a tree of arrays with an attribute `valid`, which is False for samples
    that are not transitions. A batch consists of *items*, which `minibatches` groups: single samples for PPO and
    IMPACT, whole trajectories for IMPALA.

    Example:
      >>> from stellaris import IMPALA, PPO
      >>> isinstance(PPO(), Algorithm), isinstance(IMPALA(), Algorithm), isinstance(optax.adam(1e-3), Algorithm)
      (True, True, False)
    """

    def optimizer(self) -> optax.GradientTransformation:
        """Makes the optimizer that applies the gradients."""

    def prepare(self, trajectory: Trajectory, apply_fn: ApplyFn, target: Tree) -> Any:
        """Turns a trajectory into a batch, once, before learning from it.

        Args:
          trajectory: `[T, B, ...]` of any behaviour policies.
          apply_fn: `(params, observation) -> (distribution parameters, value)`.
          target: the newest parameters, for algorithms with a target policy.
        """

    def minibatches(self, key: jax.Array, batch: Any) -> Array:
        """Indices of the items of every minibatch, int32 `[gradients, m]`, in the order of learning.

        An index beyond the batch is padding. Only the batch's shapes are used.

        Args:
          key: key of the shuffles.
          batch: a batch from `prepare`.
        """

    def select(self, batch: Any, indices: Array) -> Any:
        """The items of a batch at `[m]` indices, as a batch; an index beyond the batch gives an invalid item."""

    def loss(
        self, apply_fn: ApplyFn, params: Tree, batch: Any, peers: tuple[Tree, ...] = (), *, rho: Any, version: Any
    ) -> tuple[Any, Any]:
        """The scalar loss on a batch, and a dictionary of metrics, each a scalar or a `LagReport`.

        Args:
          apply_fn: `(params, observation) -> (distribution parameters, value)`.
          params: the policy that learns.
          batch: a batch from `select`.
          peers: parameters of the policies that other learners hold now, for a global cap.
          rho: truncation level of the cap.
          version: version of the policy that learns.
        """


def check_algorithm(algorithm: Any) -> None:
    """Raises unless a system can use this algorithm.

    Raises:
      TypeError: if `algorithm` is not an `Algorithm`, or cannot be hashed; the message names the missing methods.
    """
    methods = ("optimizer", "prepare", "minibatches", "select", "loss")
    lacking = [name for name in methods if not callable(getattr(algorithm, name, None))]
    if lacking or isinstance(algorithm, type):
        why = f"it lacks {', '.join(lacking)}" if lacking else "it is a class, not an instance"
        raise TypeError(
            f"algorithm={algorithm!r} is not an Algorithm: {why}. Pass PPO(...), IMPALA(...), IMPACT(...), or an "
            "object with the methods of stellaris.algorithms.Algorithm"
        )
    try:
        hash(algorithm)
    except TypeError as error:
        raise TypeError(
            f"algorithm={algorithm!r} cannot be hashed ({error}): make it a frozen dataclass of numbers"
        ) from None
