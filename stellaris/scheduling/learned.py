"""The scheduler that is learned: a small policy whose observations are MinionsRL's states, and its file."""

import functools
import io
import json
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from stellaris._core import checks
from stellaris._core.describe import differences
from stellaris.acting.normalisation import Statistics
from stellaris.acting.policies import ActorCritic, Policy, PolicyVersion
from stellaris.acting.vector import EnvSpec
from stellaris.runtime.files import atomic_path
from stellaris.scheduling.scheduler import State
from stellaris.types import NDArray, Tree

#: Of the file: raised when what is written changes.
FORMAT = 1
#: Tanh units of the two layers of the policy, and of the critic. Source: MinionsRL (AAAI 2024), Table 3.
HIDDEN = (64, 64)
#: The most actors that a scheduler may decide for: a file may claim any number, and its network grows with it.
MOST = 2**16
#: Bytes that the header of a file may have, and what comes before an array's numbers.
_HEADER = 2**16
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
      ValueError: if `most` is below 1 or above 65,536, or a parameter or statistic is not finite.

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
        _check_most(self.most)
        with np.errstate(all="ignore"):
            version = self.version  # in single precision, in which it decides
        for name, tree in (("params", version.params), ("statistics", version.normaliser)):
            if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)):
                raise ValueError(f"{name} of {self!r} are not finite: it has diverged, so try a lower learning rate")

    def __repr__(self) -> str:
        return f"Learned(most={self.most}, states={float(self.statistics.count):.0f})"

    @staticmethod
    def untrained(*, most: int, seed: int) -> "Learned":
        """One whose decisions are nearly uniform.

        Args:
          most: actors that there are.
          seed: of its parameters.
        """
        _check_most(most)
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
        with Path(path).open("rb") as opened:
            try:
                return _read(opened)
            except SchedulerError as error:
                raise SchedulerError(f"{name} holds {error}") from None
            except Exception as error:  # whatever a damaged file makes of its readers
                raise SchedulerError(f"{name} holds no scheduler: {error}") from error


def _read(opened: BinaryIO) -> Learned:
    """The scheduler of a file. Nothing is decompressed or made before it is known to be as large as it must be.

    Raises:
      SchedulerError: if it is one of another kind.
      Exception: if it is damaged, or hostile.
    """
    with zipfile.ZipFile(opened) as file:
        header = json.loads(str(_array(_member(file, "header", most=_HEADER))))
        most = int(header["most"])
        _check_most(most)
        if found := list(differences(header, _header(most))):
            said = ", ".join(f"{place} is {there!r}, here {here!r}" for place, there, here in found)
            raise SchedulerError(f"a scheduler of another kind: {said}")
        policy = policy_for(most)
        like = jax.eval_shape(policy.init, jax.random.key(0)), policy.statistics()
        leaves, structure = jax.tree.flatten(like)
        held = file.namelist()
        arrays = []
        for i, leaf in enumerate(leaves):
            nbytes = math.prod(leaf.shape) * leaf.dtype.itemsize
            content = _member(file, f"leaf{i}", most=nbytes + _HEADER) if f"leaf{i}.npy" in held else None
            there, here = "nothing" if content is None else _kind(*_shape(content)), _kind(leaf.shape, leaf.dtype)
            if content is None or there != here:
                raise SchedulerError(f"a scheduler of another kind: array {i} is {there}, here {here}")
            arrays.append(_array(content))
    return Learned(most, *jax.tree.unflatten(structure, arrays))


def _member(file: zipfile.ZipFile, name: str, *, most: int) -> BinaryIO:
    """An array's file within a file.

    Raises:
      ValueError: if it would have more bytes than these; nothing is decompressed then.
    """
    info = file.getinfo(f"{name}.npy")
    if info.file_size > most:
        raise ValueError(f"{name} has {info.file_size} bytes, and {most} at most are expected")
    return io.BytesIO(file.read(info))


def _shape(content: BinaryIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the type that an array's file begins with."""
    if np.lib.format.read_magic(content) != (1, 0):
        raise ValueError("an array is of another format than 1.0")
    shape, _, dtype = np.lib.format.read_array_header_1_0(content)
    content.seek(0)
    return shape, dtype


def _array(content: BinaryIO) -> NDArray:
    """The array of a file that holds as many bytes as it says."""
    shape, dtype = _shape(content)
    if math.prod(shape) * dtype.itemsize > content.seek(0, os.SEEK_END):
        raise ValueError(f"an array of {_kind(shape, dtype)} is cut off")
    content.seek(0)
    array: NDArray = np.lib.format.read_array(content, allow_pickle=False)
    return array


def _check_most(most: Any) -> None:
    """Raises unless there may be so many actors."""
    checks.whole(at_least=1, most=most)
    if most > MOST:
        raise ValueError(f"most={most} is above {MOST}")


def _header(most: int) -> dict[str, Any]:
    """What must be the same where a scheduler is read."""
    return {"format": FORMAT, "most": most, "hidden": list(HIDDEN), "state": list(State._fields)}


def _kind(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Of what numbers an array is, and its shape."""
    return f"{dtype}{list(shape)}"


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
