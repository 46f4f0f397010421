"""From what actors deliver to whole trajectories: a table is fed by a run on any platform.

episodes = Episodes(length=1000)
train(..., on_fragment=episodes.add)  # or a function of one's own, which also takes and inserts
while (batch := episodes.take(8)) is not None:
    table = insert(table, **batch._asdict())
"""

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from stellaris._core import checks
from stellaris.replay.table import Spec
from stellaris.types import NDArray, Trajectory, Tree

if TYPE_CHECKING:  # a table is usable without environments and networks
    from stellaris.acting.policies import Policy
    from stellaris.acting.rollout import Fragment

#: What a step holds, beside its observation.
_COLUMNS = ("action", "reward", "terminated", "log_prob")


class Trajectories(NamedTuple):
    """A batch of whole episodes, as `insert` takes it: `insert(table, **batch._asdict())`."""

    columns: dict[str, NDArray]  #: `[batch, length, ...]`; zeros behind an episode's end.
    length: NDArray  #: `[batch]` int32, in steps.
    version: NDArray  #: `[batch]` int32, the oldest of the policy versions that have sampled it.


def columns_of(policy: "Policy") -> Spec:
    """What a step of an episode holds, for `init`.

    An observation that is a tree has a column for each of its arrays, such as `observation.position`. An episode's last
    observation, which nothing was done in, is left out.

    Args:
      policy: that acts, as `Workload.make_policy` gives it.

    Returns:
      The columns `observation`, `action`, `reward`, `terminated` and `log_prob`.

    Example:
      >>> from stellaris.acting import ActorCritic, envs
      >>> policy = ActorCritic()(envs.make("Hopper-v4", slots=1).spec)
      >>> {name: column.shape for name, column in columns_of(policy).items()}
      {'observation': (11,), 'action': (3,), 'reward': (), 'terminated': (), 'log_prob': ()}
    """
    scalars = {"reward": np.float32, "terminated": np.bool_, "log_prob": np.float32}
    return {
        **_named(policy.spec.observation),
        "action": policy.action,
        **{name: jax.ShapeDtypeStruct((), dtype) for name, dtype in scalars.items()},  # type: ignore[no-untyped-call]
    }


class Episodes:
    """Puts the fragments of a run together to whole episodes, each environment's by itself.

    An episode is known from its first step, after a reset, to its last, terminated or truncated. What is not whole is
    left out: episodes whose environment or one of whose fragments was lost, those that are under way at a run's end,
    and, where fragments restart their environment, those that do not end within one. So are episodes of more than
    `length` steps: of a part of one, the return to go would be another.

    Args:
      length: the most steps of an episode: the table's.

    Raises:
      ValueError: if `length` is below 1.

    Example:
      >>> from stellaris import PPO
      >>> from stellaris.acting import ActorCritic
      >>> from stellaris.replay import init, insert
      >>> from stellaris.runtime import FunctionSpec, SimulatedPlatform
      >>> from stellaris.runtime.delays import Constant
      >>> from stellaris.systems import Budget, Synchronous, Workload, train
      >>> functions = {name: FunctionSpec(compute=Constant(0.1)) for name in ("actor", "learner")}
      >>> workload = Workload("CartPole-v1", policy=ActorCritic(hidden=(8,)), actors=2, fragment=64)
      >>> episodes = Episodes(length=500)
      >>> result = train(
      ...     Synchronous(PPO(epochs=1, minibatch_size=128)),
      ...     workload,
      ...     platform=SimulatedPlatform(functions),
      ...     budget=Budget(steps=256),
      ...     on_fragment=episodes.add,
      ... )
      >>> len(episodes) == result.history[-1]["episodes"]
      True
      >>> batch = episodes.take(4)
      >>> batch.columns["observation"].shape, bool(batch.columns["reward"].sum() == batch.length.sum())
      ((4, 500, 4), True)
    """

    def __init__(self, length: int) -> None:
        checks.whole(at_least=1, length=length)
        self.too_long = 0  #: episodes that were left out because they had more steps than `length`.
        self._length = length
        self._whole: deque[_Episode] = deque()
        self._open: dict[int, _Open] = {}  # by slot

    def __len__(self) -> int:
        """Episodes that wait to be taken."""
        return len(self._whole)

    def add(self, fragment: "Fragment") -> None:
        """Takes what an actor has delivered: of one environment in order, of several in any.

        Args:
          fragment: or a piece of one, as `train` hands it to `on_fragment`.
        """
        valid = np.asarray(fragment.trajectory.valid)[:, 0]
        pieces = self._pieces_before(fragment)
        resets = np.flatnonzero(~valid).tolist()
        for begin, end in zip([0, *(reset + 1 for reset in resets)], [*resets, len(valid)], strict=True):
            if begin > 0:
                pieces = []
            if pieces is not None and end > begin:
                pieces.append(_steps(fragment.trajectory, begin, end))
                if sum(len(piece.version) for piece in pieces) > self._length:
                    self.too_long += 1
                    pieces = None
            # A step that resets tells of the end before it; at a fragment's end that step is yet to come.
            if end < len(valid) or fragment.unfinished == 0:
                if pieces:
                    self._whole.append(_joined(pieces))
                pieces = []
        self._open[fragment.slot] = _Open(fragment.follows, pieces)

    def take(self, batch: int) -> Trajectories | None:
        """The oldest of the whole episodes, so many that `insert` always gets batches of one shape; None if fewer wait.

        Args:
          batch: how many.

        Raises:
          ValueError: if `batch` is below 1.
        """
        checks.whole(at_least=1, batch=batch)
        if len(self._whole) < batch:
            return None
        taken = [self._whole.popleft() for _ in range(batch)]
        first = taken[0].columns
        padded = {
            name: np.zeros((batch, self._length, *column.shape[1:]), column.dtype) for name, column in first.items()
        }
        for row, episode in enumerate(taken):
            for name, column in episode.columns.items():
                padded[name][row, : len(column)] = column
        return Trajectories(
            padded,
            length=np.array([len(episode.version) for episode in taken], np.int32),
            version=np.array([episode.version.min() for episode in taken], np.int32),
        )

    def _pieces_before(self, fragment: "Fragment") -> "list[_Episode] | None":
        """What is known of the episode that a fragment begins in: None if its beginning is not."""
        if fragment.first == 0:
            return []
        before = self._open.get(fragment.slot)
        if before is None or before.follows != (fragment.slot, fragment.environment, fragment.first):
            return None
        return before.pieces


class _Episode(NamedTuple):
    """An episode, or a piece of one."""

    columns: dict[str, NDArray]  #: `[steps, ...]`.
    version: NDArray  #: `[steps]`.


class _Open(NamedTuple):
    """Where an environment stands after a fragment."""

    follows: tuple[int, int, int]  #: where the next one begins.
    pieces: list[_Episode] | None  #: of the episode under way; None if it is to be left out.


def _steps(trajectory: Trajectory, begin: int, end: int) -> _Episode:
    """Some steps; copies, which do not keep the fragment in memory."""
    of_steps = {**_named(trajectory.observation), **{name: getattr(trajectory, name) for name in _COLUMNS}}
    return _Episode(
        {name: np.array(column[begin:end, 0]) for name, column in of_steps.items()},
        np.array(trajectory.version[begin:end, 0]),
    )


def _joined(pieces: list[_Episode]) -> _Episode:
    joined: _Episode = jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)
    return joined


def _named(observation: Tree) -> dict[str, Any]:
    """An observation's arrays by the names of their columns."""
    return {
        ".".join(["observation", *([jax.tree_util.keystr(path, simple=True, separator=".")] if path else [])]): leaf
        for path, leaf in jax.tree.leaves_with_path(observation)
    }
