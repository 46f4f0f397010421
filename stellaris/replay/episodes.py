"""Assembly of actors' fragments into whole trajectories, to fill a table from a run on any platform.

A fragment is the steps that an actor samples before it delivers them; an episode may span several fragments.

episodes = Episodes(length=1000)
train(..., on_fragment=episodes.add)  # or your own function, which calls add and then takes and inserts
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

if TYPE_CHECKING:  # so that replay works without environments and networks installed
    from stellaris.acting.policies import Policy
    from stellaris.acting.rollout import Fragment

#: The scalar columns of a step. Log-probabilities are in the dtype of the network's computation, and become float32.
_SCALARS = {"reward": np.float32, "terminated": np.bool_, "log_prob": np.float32}


class Trajectories(NamedTuple):
    """A batch of whole episodes, as `insert` takes it: `insert(table, **batch._asdict())`."""

    columns: dict[str, NDArray]  #: `[batch, length, ...]`; zeros after an episode's last step.
    length: NDArray  #: `[batch]` int32, the steps of each episode.
    version: NDArray  #: `[batch]` int32, the oldest policy version that sampled a step of the episode.


def columns_of(policy: "Policy") -> Spec:
    """The columns of an episode's steps, as `init` takes them.

    A tree of observations becomes one column per array, such as `observation.position`. The observation after an
    episode's last action is left out.

    Args:
      policy: the policy that acts, as `Workload.make_policy` returns it.

    Returns:
      The columns `observation`, `action`, `reward`, `terminated` and `log_prob`. Rewards and log-probabilities are
      float32; observations and actions have the dtypes of the policy.

    Example:
      >>> from stellaris.acting import ActorCritic, envs
      >>> policy = ActorCritic()(envs.make("Hopper-v4", slots=1).spec)
      >>> {name: column.shape for name, column in columns_of(policy).items()}
      {'observation': (11,), 'action': (3,), 'reward': (), 'terminated': (), 'log_prob': ()}
    """
    return {
        **_named(policy.spec.observation),
        "action": policy.action,
        **{name: jax.ShapeDtypeStruct((), dtype) for name, dtype in _SCALARS.items()},  # type: ignore[no-untyped-call]
    }


class Episodes:
    """Joins the fragments of a run into whole episodes, for each environment separately.

    A whole episode runs from the first step after a reset to its termination or truncation. Incomplete episodes are
    dropped. An episode is incomplete if its environment or one of its fragments was lost, if it was under way when the
    run ended, or if its fragment ended and the next fragment restarted the environment. Episodes of more than `length`
    steps are dropped and counted in `too_long`, because the return to go within a part of an episode would be wrong.

    Args:
      length: the most steps of an episode, usually the table's.

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
        self.too_long = 0  #: episodes dropped because they had more steps than `length`.
        self._length = length
        self._whole: deque[_Episode] = deque()
        self._open: dict[int, _Open] = {}  # by slot

    def __len__(self) -> int:
        """The number of whole episodes that wait to be taken."""
        return len(self._whole)

    def add(self, fragment: "Fragment") -> None:
        """Adds a fragment. Fragments of one environment must come in order; environments may interleave.

        Args:
          fragment: a whole fragment or a piece of one, as `train` passes it to `on_fragment`.
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
            # An invalid step marks the end of the episode before it. If an episode ends with the fragment, that step
            # belongs to the next fragment; the end is then recognised by `unfinished == 0`.
            if end < len(valid) or fragment.unfinished == 0:
                if pieces:
                    self._whole.append(_joined(pieces))
                pieces = []
        self._open[fragment.slot] = _Open(fragment.follows, pieces)

    def take(self, batch: int) -> Trajectories | None:
        """Removes and returns the oldest `batch` whole episodes; None if fewer wait.

        Every batch has the same shape, so that `insert` compiles once.

        Args:
          batch: the number of episodes.

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
        """The earlier pieces of the episode that a fragment continues; None if the episode's beginning is missing."""
        if fragment.first == 0:
            return []
        before = self._open.get(fragment.slot)
        if before is None or before.follows != (fragment.slot, fragment.environment, fragment.first):
            return None
        return before.pieces


class _Episode(NamedTuple):
    """The steps of an episode, or of a piece of one."""

    columns: dict[str, NDArray]  #: `[steps, ...]`.
    version: NDArray  #: `[steps]`.


class _Open(NamedTuple):
    """Where an environment's next fragment begins, and the pieces of the episode that it continues."""

    follows: tuple[int, int, int]  #: the slot, environment and step with which the next fragment must begin.
    pieces: list[_Episode] | None  #: the running episode so far; None if the episode is dropped.


def _steps(trajectory: Trajectory, begin: int, end: int) -> _Episode:
    """Steps `begin` to `end`, copied so that they do not keep the fragment in memory."""
    others = {name: getattr(trajectory, name) for name in ("action", *_SCALARS)}
    of_steps = {**_named(trajectory.observation), **others}
    return _Episode(
        {name: np.array(column[begin:end, 0], _SCALARS.get(name)) for name, column in of_steps.items()},
        np.array(trajectory.version[begin:end, 0]),
    )


def _joined(pieces: list[_Episode]) -> _Episode:
    joined: _Episode = jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)
    return joined


def _named(observation: Tree) -> dict[str, Any]:
    """An observation's arrays, by column name."""
    return {
        ".".join(["observation", *([jax.tree_util.keystr(path, simple=True, separator=".")] if path else [])]): leaf
        for path, leaf in jax.tree.leaves_with_path(observation)
    }
