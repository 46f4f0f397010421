"""The array types that every module shares.

Arrays are time-major: `T` steps, then `B` environments (or any other batch shape), then features. Versions are int32
and count published policies from 0. `value` and `observation` have `T + 1` rows, one more than `reward`: the last row
gives the bootstrap value.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

#: An array on the host.
NDArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]

if TYPE_CHECKING:
    Array: TypeAlias = jax.Array | NDArray
    JaxArray: TypeAlias = jax.Array
    Scalar: TypeAlias = Float[Array, ""] | float
else:
    # At run time each type is one class with a short name, because with a union jaxtyping would turn
    # `Float[Array, "*batch"]` into a union of two annotations, and `help` would print signatures five times as long.

    class _Kinds(type):
        kinds: Any

        def __instancecheck__(cls, x: Any) -> bool:
            return isinstance(x, cls.kinds)

    class Array(metaclass=_Kinds):
        """An array argument of a public function: on a device or on the host."""

        kinds = jax.Array | np.ndarray

    class JaxArray(metaclass=_Kinds):
        """An array that a public function returns: on a device."""

        kinds = jax.Array

    class Scalar(metaclass=_Kinds):
        """A setting: a number, possibly traced, such as one that `vmap` sweeps."""

        kinds = Float[Array, ""] | float | int


#: Any tree of arrays: parameters, gradients, optimizer states.
Tree: TypeAlias = Any


def at_least_float32(dtype: Any) -> Any:
    """Returns the dtype for sums: float32, or `dtype` if it is wider, because sums in narrower types lose digits."""
    return dtype if np.dtype(dtype).itemsize >= 4 else np.dtype(np.float32)


def default_float(x: Any) -> jax.Array:
    """Converts to JAX's default float type: float32, or float64 where it is enabled."""
    return jnp.asarray(x, float)


def alike(tree: Tree) -> Tree:
    """Makes all arrays of a tree vary over the same mesh axes within `jax.shard_map`, as a loop's carry requires.

    Values and random keys do not change. The function costs nothing at run time: the compiler drops the sums, whose
    results are unused, and the choices, whose condition is constant.

    Example:
      >>> alike((jnp.ones(2), None, jnp.int32(3)))
      (Array([1., 1.], dtype=float32), None, Array(3, dtype=int32))
    """
    numbers = [x for x in jax.tree.leaves(tree) if not _is_key(x)]
    false = functools.reduce(operator.or_, (jnp.zeros_like(jnp.sum(x), bool) for x in numbers), jnp.bool_(False))
    return jax.tree.map(lambda x: x if _is_key(x) else jnp.where(false, jnp.zeros_like(x), x), tree)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jax.dtypes.extended)


def largest(dtype: Any) -> float:
    """The largest finite number of a float dtype."""
    return float(jnp.finfo(dtype).max)  # type: ignore[no-untyped-call]


@runtime_checkable
class Distribution(Protocol):
    """The part of an action distribution that algorithms need; distrax's distributions comply."""

    def log_prob(self, value: Any, /) -> Any:
        """Log-probability (density) of actions `[..., *action]` -> `[...]`."""

    def entropy(self) -> Any:
        """Entropy `[...]` in nats."""


#: `(params, observation [..., *obs]) -> (distribution parameters, value [...])`: any network, from any library. The
#: parameters are logits `[..., n]`, a pair `(mean, log_std)`, or a `Distribution`. If the trajectory has a memory, the
#: observation is `stellaris.memory.Sequences`.
ApplyFn: TypeAlias = Callable[[Any, Any], tuple[Any, Any]]


class Versioned(NamedTuple):
    """A published value with its version."""

    version: int
    value: Tree


class Trajectory(NamedTuple):
    """`T` consecutive steps of `B` environments, tagged with the policy that chose every action.

    A step that only resets its environment (the step after an episode's end) is not a transition, and `valid` is False
    there. The observation of that step is the episode's last, so its value bootstraps a truncated episode correctly.
    """

    observation: Tree  #: `[T + 1, B, *obs]`, an array or a tree of arrays, before normalisation.
    action: Array  #: `[T, B, *action]` as sampled, before clipping to the environment's bounds.
    reward: Array  #: `[T, B]` float.
    terminated: Array  #: `[T, B]` bool: the episode ended in a state of value zero; False at a truncation.
    valid: Array  #: `[T, B]` bool: False for a step that only reset its environment.
    log_prob: Array  #: `[T, B]` log-probability of the action under the behaviour policy.
    value: Array  #: `[T + 1, B]` the behaviour policy's value of every observation.
    version: Array  #: `[T, B]` int32 version of the behaviour policy.
    memory: Tree = None  #: `[1, B, ...]` the policy's memory before the first step; None for a policy without memory.


def concatenate(trajectories: Sequence[Trajectory]) -> Trajectory:
    """Joins fragments of equal length along the batch axis (NumPy, on the host).

    Args:
      trajectories: at least one, each `[T, B_i, ...]`.

    Returns:
      One trajectory `[T, sum(B_i), ...]`.

    Raises:
      ValueError: if `trajectories` is empty, or their lengths differ.

    Example:
      >>> import numpy as np
      >>> step = np.zeros((5, 1), np.float32)
      >>> bootstrapped = np.zeros((6, 1), np.float32)
      >>> fragment = Trajectory(bootstrapped, step, step, step, step, step, bootstrapped, step)
      >>> concatenate([fragment, fragment]).reward.shape
      (5, 2)
    """
    if not trajectories:
        raise ValueError("trajectories is empty: pass at least one trajectory")
    lengths = {t.reward.shape[0] for t in trajectories}
    if len(lengths) > 1:
        raise ValueError(f"trajectories have different lengths {sorted(lengths)}: pass trajectories of one length T")
    joined: Trajectory = jax.tree.map(lambda *parts: np.concatenate([*map(np.asarray, parts)], axis=1), *trajectories)
    return joined
