"""The learned scheduler: a small policy that observes MinionsRL's states, and its file format."""

import functools
import io
import json
import math
import operator
import os
import zipfile
from collections.abc import Mapping, Sequence
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

#: Version of the file format, and what the headers of files of earlier versions lack.
FORMAT = 3
_EARLIER: Mapping[int, Mapping[str, Any]] = {1: {"hold": 1, "width": 0.0}, 2: {"width": 0.0}}
#: Tanh units in the two layers of the policy; the critic has the same. Source: MinionsRL (AAAI 2024), Table 3.
HIDDEN = (64, 64)
#: Largest number of actors. It limits the memory that a file can claim, since the network grows with the number.
MOST = 2**16
#: Largest number of actors with a kernel.
MOST_SHARED = 2**12
#: Largest size in bytes of a file's header, and of the header of one of its arrays.
_HEADER = 2**16
#: States are clipped to this magnitude, so that their squares can still be summed in single precision.
FAR = 1e15


class SchedulerError(ValueError):
    """A file does not hold a scheduler that this version can use."""


@dataclass(frozen=True, eq=False, repr=False)
class Learned:
    """Decides by a learned policy: a categorical distribution over 1 to `most` actors, given a state.

    A decision is sampled from this distribution and holds for `hold` rounds, in training and in use. All decisions
    follow from the run's seed.

    Args:
      most: the largest decision, `I_max`; the workload must have exactly this many actors.
      params: the network's parameters, a tree of NumPy arrays.
      statistics: statistics of the states that were learned from; they normalise the network's observations.
      hold: number of rounds for which a decision holds. If every round draws anew, a run's mean number of actors hardly
        varies, so runs tell little about which number is best; a number above that of all rounds holds the first
        decision for the whole run.
      width: the standard deviation, in ln(actors), of the kernel by which neighbouring numbers share logits, so that a
        run with 12 actors also tells about 11 and 13; 0 for logits of their own. With logits of their own, training
        settles on single numbers whose few runs were lucky.

    Raises:
      ValueError: if `most` is below 1 or above 65,536, `hold` is below 1, `width` is negative or not finite, `width`
        is not 0 and `most` above 4,096, `params` are not those of a policy for `most` actors, or a parameter or
        statistic is not finite.

    Source:
      MinionsRL (AAAI 2024): two layers of 64 tanh units for the policy and for the critic, a decision every round. The
      kernel is ours.

    Example:
      >>> scheduler = Learned.untrained(most=32, seed=0)
      >>> before = State(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, budget=1.0)
      >>> 1 <= scheduler.decide([before], most=32, key=jax.random.key(0)) <= 32
      True
    """

    most: int
    params: Tree
    statistics: Statistics
    hold: int = 1
    width: float = 0.0

    def __post_init__(self) -> None:
        _check_most(self.most)
        checks.whole(at_least=1, hold=self.hold)
        checks.not_negative(width=self.width)
        checks.finite(width=self.width)
        if self.width and self.most > MOST_SHARED:  # the kernel has most x most entries
            raise ValueError(f"width={self.width} with most={self.most}: a kernel needs most <= {MOST_SHARED}")
        shapes, own = (jax.tree.map(np.shape, tree) for tree in (self.params, _like(self.most)[0]))
        if found := list(differences(shapes, own, "params")):
            wrong = ", ".join(f"{place} is {there} instead of {here}" for place, there, here in found)
            raise ValueError(f"{wrong}: pass the parameters of a scheduler with most={self.most}")
        with np.errstate(all="ignore"):  # an overflow is found below
            version = self.version  # in single precision, as for decisions
        for name, tree in (("params", version.params), ("statistics", version.normaliser)):
            if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)):
                raise ValueError(
                    f"{name} of {self!r} are not finite: training has diverged, so try a lower learning rate"
                )

    def __repr__(self) -> str:
        width = f", width={self.width:g}" if self.width else ""
        return f"Learned(most={self.most}, states={float(self.statistics.count):.0f}, hold={self.hold}{width})"

    @staticmethod
    def untrained(*, most: int, seed: int, hold: int = 1, width: float = 0.0) -> "Learned":
        """Returns a scheduler whose decisions are nearly uniform.

        Args:
          most: number of actors of the workload.
          seed: the seed of the parameters.
          hold: number of rounds for which a decision holds.
          width: width of the kernel by which neighbouring numbers share logits; 0 for none.

        Raises:
          TypeError, ValueError: if an argument is out of range, such as a seed outside [0, 2**31).
        """
        _check_most(most)
        checks.seed(seed=seed)
        policy = policy_for(most)
        params = jax.jit(Policy.init, static_argnums=0)(policy, jax.random.key(seed))
        return Learned(most, jax.tree.map(np.asarray, params), policy.statistics(), hold, width)

    @property
    def version(self) -> PolicyVersion:
        """The parameters and the normalisation of the policy that decides: the kernel is part of its last layer."""
        return PolicyVersion(shared(self.params, self.most, self.width), self.statistics.normaliser())

    def decide(self, states: Sequence[State], *, most: int, key: jax.Array) -> int:
        """Draws a number of actors, or returns the number that holds.

        Args:
          states: the states of the run; the one before the first round of the decision is used.
          most: number of actors of the workload.
          key: the key of the run.

        Raises:
          ValueError: if the scheduler was made for another number of actors, or the run has no budget of cost.
        """
        if most != self.most:
            raise ValueError(
                f"{self!r} was made for workloads of {self.most} actors, but this one has {most}: make both equal"
            )
        if not math.isfinite(states[-1].budget):
            raise ValueError(f"{self!r} needs a budget of cost, which is part of the state: pass Budget(cost=...)")
        began = (len(states) - 1) // self.hold * self.hold
        return int(_drawn(policy_for(self.most), self.version, observed(states[began : began + 1])[0], key, began)) + 1

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the scheduler to a file, atomically.

        Args:
          path: the path of the file, usually `.npz`.
        """
        leaves, _ = jax.tree.flatten((self.params, self.statistics))
        arrays: dict[str, Any] = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
        with atomic_path(path) as draft, draft.open("wb") as file:
            np.savez(file, header=np.array(json.dumps(_header(self.most, self.hold, self.width))), **arrays)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Learned":
        """Reads a scheduler from a file.

        Args:
          path: the path of a file that `save` has written.

        Raises:
          FileNotFoundError: if the file does not exist.
          SchedulerError: if the file does not hold a scheduler, or holds one of another format or shape; the message
            names the difference.
        """
        name = os.fspath(path)
        with Path(path).open("rb") as opened:
            try:
                return _read(opened)
            except SchedulerError as error:
                raise SchedulerError(f"{name} holds {error}") from None
            except Exception as error:  # a damaged file may raise nearly any error in its readers
                raise SchedulerError(f"{name} does not hold a scheduler: {error}") from error


def _read(opened: BinaryIO) -> Learned:
    """Returns the scheduler of a file. Every size is checked before anything is decompressed or allocated.

    Raises:
      SchedulerError: if the file holds a scheduler of another format or shape.
      Exception: if the file is damaged or hostile.
    """
    with zipfile.ZipFile(opened) as file:
        header = json.loads(str(_array(_member(file, "header", most=_HEADER))))
        if missing := _EARLIER.get(header.get("format")):
            header |= {"format": FORMAT, **missing}
        most, hold, width = int(header["most"]), int(header["hold"]), float(header["width"])
        _check_most(most)
        if found := list(differences(header, _header(most, hold, width))):
            said = ", ".join(f"{place} is {there!r} instead of {here!r}" for place, there, here in found)
            raise SchedulerError(f"a scheduler of another kind: {said}")
        leaves, structure = jax.tree.flatten(_like(most))
        held = file.namelist()
        arrays = []
        for i, leaf in enumerate(leaves):
            nbytes = math.prod(leaf.shape) * leaf.dtype.itemsize
            content = _member(file, f"leaf{i}", most=nbytes + _HEADER) if f"leaf{i}.npy" in held else None
            there, here = "nothing" if content is None else _kind(*_shape(content)), _kind(leaf.shape, leaf.dtype)
            if content is None or there != here:
                raise SchedulerError(f"a scheduler of another kind: array {i} is {there} instead of {here}")
            arrays.append(_array(content))
    return Learned(most, *jax.tree.unflatten(structure, arrays), hold=hold, width=width)  # type: ignore[misc]


def _member(file: zipfile.ZipFile, name: str, *, most: int) -> BinaryIO:
    """Returns the content of an array's file within the scheduler's zip file.

    Raises:
      ValueError: if the array's file claims more than `most` bytes; it is then not decompressed.
    """
    info = file.getinfo(f"{name}.npy")
    if info.file_size > most:
        raise ValueError(f"{name} has {info.file_size} bytes: expected at most {most}")
    return io.BytesIO(file.read(info))


def _shape(content: BinaryIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Reads the shape and the type at the start of an array's file."""
    if np.lib.format.read_magic(content) != (1, 0):
        raise ValueError("an array's file is not in version 1.0 of NumPy's npy format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(content)
    content.seek(0)
    return shape, dtype


def _array(content: BinaryIO) -> NDArray:
    """Returns the array of a file, if the file has as many bytes as it claims."""
    shape, dtype = _shape(content)
    if math.prod(shape) * dtype.itemsize > content.seek(0, os.SEEK_END):
        raise ValueError(f"an array of {_kind(shape, dtype)} is truncated")
    content.seek(0)
    array: NDArray = np.lib.format.read_array(content, allow_pickle=False)
    return array


def _check_most(most: Any) -> None:
    """Raises unless this is a possible number of actors."""
    checks.whole(at_least=1, most=most)
    if most > MOST:
        raise ValueError(f"most={most} is above {MOST}, the largest number of actors")


def _header(most: int, hold: int, width: float) -> dict[str, Any]:
    """Returns the header that `save` writes, and that a file must have to be loaded."""
    # Numbers of NumPy become numbers of Python, which JSON can hold.
    numbers = {"format": FORMAT, "most": operator.index(most), "hold": operator.index(hold), "width": float(width)}
    return {**numbers, "hidden": list(HIDDEN), "state": list(State._fields)}


def _kind(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    """Describes an array's type and shape."""
    return f"{dtype}{list(shape)}"


def observed(states: Sequence[State]) -> NDArray:
    """Returns the policy's observations of states, float32 `[K, 8]`: finite even if a learner has diverged.

    Args:
      states: the states of a run.

    Example:
      >>> print(observed([State(1, math.nan, math.inf, 0.0, 0.0, 0.0, 2.5, budget=1.0)]))
      [[1.0e+00 0.0e+00 1.0e+15 0.0e+00 0.0e+00 0.0e+00 2.5e+00 1.0e+00]]
    """
    numbers = np.nan_to_num(np.array(states, np.float64))
    return np.clip(numbers, -FAR, FAR).astype(np.float32)


@functools.cache
def policy_for(most: int) -> Policy:
    """Returns the policy of schedulers for up to `most` actors; they all share it."""
    spec = EnvSpec("the scheduler's state", np.zeros(len(State._fields), np.float32), actions=most, discrete=True)
    return ActorCritic(hidden=HIDDEN)(spec)


@functools.cache
def _like(most: int) -> tuple[Tree, Statistics]:
    """Returns the shapes and types of the parameters, and statistics of no states."""
    policy = policy_for(most)
    return jax.eval_shape(policy.init, jax.random.key(0)), policy.statistics()


def shared(params: Tree, most: int, width: float) -> Tree:
    """Returns the parameters of the policy whose logits are those of `params`, shared between neighbouring numbers.

    With the kernel `k(i, j) = exp(-(ln i - ln j)^2 / (2 width^2))`, the logit of `i` actors is
    `sum_j k(i, j) x_j / sqrt(sum_j k(i, j)^2)` for the logits `x` of `params`. Logits are linear in the last layer, so
    the kernel is multiplied into it.
    """
    if not width:
        return params
    number = np.log(np.arange(1, most + 1))
    kernel = np.exp(-0.5 * ((number[:, None] - number) / width) ** 2)
    weights = (kernel / np.sqrt(np.sum(kernel**2, axis=0))).astype(np.float32)
    towers, last = params["params"], f"Dense_{len(HIDDEN)}"
    layer = jax.tree.map(lambda x: x @ weights, towers["policy"][last])
    return {**params, "params": {**towers, "policy": {**towers["policy"], last: layer}}}


@functools.partial(jax.jit, static_argnums=0)
def _drawn(policy: Policy, version: PolicyVersion, observation: Any, key: jax.Array, began: Any) -> jax.Array:
    action, _ = policy.act(version, observation[None], policy.noise(jax.random.fold_in(key, began), 1))
    return action[0]
