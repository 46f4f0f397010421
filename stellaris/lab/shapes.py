"""The numbers of gradients, items and bytes of a batch, computed from shapes, without making the batch."""

import functools
import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.algorithms import Algorithm
from stellaris.types import NDArray, Trajectory


class Shapes(NamedTuple):
    """The sizes of a batch."""

    nbytes: int
    indices: NDArray  #: `[gradients, m]`: zeros in the shape of the minibatches' indices.
    items: int  #: number of items, such as steps, that minibatches choose from; counted as in `batch_of`.


def shapes_of(algorithm: Algorithm, policy: Policy, length: int, fragments: int) -> Shapes:
    """Returns the sizes of a batch of `fragments` fragments with `length` steps each."""
    return _shapes(cast(Any, algorithm), policy, length, fragments)


@functools.lru_cache(maxsize=64)
def _shapes(algorithm: Any, policy: Policy, length: int, fragments: int) -> Shapes:
    action = policy.action

    def column(steps: int, shape: tuple[int, ...] = (), dtype: Any = np.float32) -> Any:
        return jax.ShapeDtypeStruct((steps, fragments, *shape), dtype)  # type: ignore[no-untyped-call]

    trajectory = Trajectory(
        observation=jax.tree.map(lambda leaf: column(length + 1, leaf.shape, leaf.dtype), policy.spec.observation),
        action=column(length, action.shape, action.dtype),
        reward=column(length),
        terminated=column(length, dtype=bool),
        valid=column(length, dtype=bool),
        log_prob=column(length),
        value=column(length + 1),
        version=column(length, dtype=np.int32),
        memory=jax.eval_shape(lambda: policy.initial_memory(1, fragments)),
    )

    def make(trajectory: Any, key: jax.Array) -> tuple[Any, Any]:
        version = PolicyVersion(policy.init(key), policy.statistics().normaliser())
        batch = algorithm.prepare(trajectory, policy.apply, version)
        return batch, algorithm.minibatches(key, batch)

    batch, indices = jax.eval_shape(make, trajectory, jax.random.key(0))
    nbytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(batch))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), batch)
    # Items are counted as in `batch_of`: their number decides which share of a batch's bytes a minibatch fetches.
    items = int(jnp.max(jax.jit(algorithm.minibatches)(jax.random.key(0), zeros))) + 1
    return Shapes(nbytes, np.zeros(indices.shape, np.int32), items)
