"""The scheduler that is learned: a small policy whose observations are MinionsRL's states, and its file."""

import functools
import json
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stellaris import checks
from stellaris.acting.normalisation import Statistics
from stellaris.acting.policies import ActorCritic, Policy, PolicyVersion
from stellaris.acting.vector import EnvSpec
from stellaris.configuration import differences
from stellaris.runtime.files import atomic_path
from stellaris.scheduling.scheduler import State
from stellaris.types import NDArray, Tree

#: Of the file: raised when what is written changes.
FORMAT = 1
#: Tanh units of the two layers of the policy, and of the critic. Source: MinionsRL (AAAI 2024), Table 3.
HIDDEN = (64, 64)
#: Of a state's numbers that is seen, either side of 0: so much can be squared and summed in single precision.
_FAR = 1e15


class SchedulerError(ValueError):
    """A file that holds no scheduler which this version can use."""


@dataclass(frozen=True, eq=False, repr=False)
class Learned:
    """Decides by a policy that was learned: a categorical distribution over 1 to `most`, given the last state alone.

    It draws its decisions, as it does when it learns: the same run, by its seed, gets the same ones.

    Args:
      most: the most actors that it decides for, `I_max`; the workload must have as many.
      params: of the network, a tree of NumPy arrays.
      statistics: of the states that it has learned from, by which it normalises them.

    Raises:
      ValueError: if `most` is below 1.

    Source:
      MinionsRL (AAAI 2024): two layers of 64 tanh units for the policy and for the critic.

    Example:
      >>> scheduler = Learned.untrained(most=32, seed=0)
      >>> before = State(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, budget=1.0)
      >>> 1 <= scheduler.decide([before], most=32, key=jax.random.key(0)) <= 32
      True
    """

    most: int
    params: Tree
    statistics: Statistics

    def __post_init__(self) -> None:
        checks.whole(at_least=1, most=self.most)

    def __repr__(self) -> str:
        return f"Learned(most={self.most}, states={float(self.statistics.count):.0f})"

    @staticmethod
    def untrained(*, most: int, seed: int) -> "Learned":
        """One whose decisions are nearly uniform.

        Args:
          most: actors that there are.
          seed: of its parameters.
        """
        checks.whole(at_least=1, most=most)
        policy = policy_for(most)
        params = jax.jit(Policy.init, static_argnums=0)(policy, jax.random.key(seed))
        return Learned(most, jax.tree.map(np.asarray, params), policy.statistics())

    @property
    def version(self) -> PolicyVersion:
        """What its policy acts by."""
        return PolicyVersion(self.params, self.statistics.normaliser())

    def decide(self, states: Sequence[State], *, most: int, key: jax.Array) -> int:
        """Draws a number of actors.

        Args:
          states: of which it looks at the last.
          most: actors that there are.
          key: of the draw.

        Raises:
          ValueError: if it was made for another number of actors, or there is no budget of cost.
        """
        if most != self.most:
            raise ValueError(f"{self!r} decides for up to {self.most} actors: the workload has {most}")
        if not math.isfinite(states[-1].budget):
            raise ValueError(f"{self!r} needs to know what budget is left: pass Budget(cost=...)")
        return int(_drawn(policy_for(self.most), self.version, observed(states[-1:])[0], key)) + 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a file, which is there once it is whole.

        Args:
          path: of the file, by custom `.npz`.
        """
        leaves, _ = jax.tree.flatten((self.params, self.statistics))
        arrays: dict[str, Any] = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        with atomic_path(path) as draft, draft.open("wb") as file:
            np.savez(file, header=np.array(json.dumps(_header(self.most))), **arrays)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Learned":
        """Reads one from a file.

        Args:
          path: of a file that `save` has written.

        Raises:
          FileNotFoundError: if there is no such file.
          SchedulerError: if it holds something else, or a scheduler of another format or shape; says what differs.
        """
        name = os.fspath(path)
        try:
            with Path(path).open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                held = {key: file[key] for key in file.files}
            header = json.loads(str(held.pop("header")))
            most = int(header["most"])
            checks.whole(at_least=1, most=most)
        except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise SchedulerError(f"{name} holds no scheduler: {error}") from error
        if found := list(differences(header, _header(most))):
            said = ", ".join(f"{place} is {there!r}, here {here!r}" for place, there, here in found)
            raise SchedulerError(f"{name} holds a scheduler of another kind: {said}")
        like = Learned.untrained(most=most, seed=0)
        leaves, structure = jax.tree.flatten((like.params, like.statistics))
        arrays = [held.get(f"leaf{i}") for i in range(len(leaves))]
        for i, (array, leaf) in enumerate(zip(arrays, leaves, strict=True)):
            if (there := _kind(array)) != (here := _kind(np.asarray(leaf))):
                raise SchedulerError(f"{name} holds a scheduler of another kind: array {i} is {there}, here {here}")
        params, statistics = jax.tree.unflatten(structure, arrays)
        return Learned(most, params, statistics)


def _header(most: int) -> dict[str, Any]:
    """What must be the same where a scheduler is read."""
    return {"format": FORMAT, "most": most, "hidden": list(HIDDEN), "state": list(State._fields)}


def _kind(array: NDArray | None) -> str:
    """Of what numbers an array is, and its shape."""
    return "nothing" if array is None else f"{array.dtype}{list(array.shape)}"


def observed(states: Sequence[State]) -> NDArray:
    """What the policy sees of states, float32 `[K, 8]`: finite, where a learner has diverged as well.

    Args:
      states: of a run.

    Example:
      >>> print(observed([State(1, math.nan, math.inf, 0.0, 0.0, 0.0, 2.5, budget=1.0)]))
      [[1.0e+00 0.0e+00 1.0e+15 0.0e+00 0.0e+00 0.0e+00 2.5e+00 1.0e+00]]
    """
    numbers = np.nan_to_num(np.array(states, np.float64))
    return np.clip(numbers, -_FAR, _FAR).astype(np.float32)


@functools.cache
def policy_for(most: int) -> Policy:
    """The policy, of which one is enough for all schedulers with so many actors."""
    spec = EnvSpec("the scheduler's state", np.zeros(len(State._fields), np.float32), actions=most, discrete=True)
    return ActorCritic(hidden=HIDDEN)(spec)


@functools.partial(jax.jit, static_argnums=0)
def _drawn(policy: Policy, version: PolicyVersion, observation: Any, key: jax.Array) -> jax.Array:
    action, _ = policy.act(version, observation[None], policy.noise(key, 1))
    return action[0]
