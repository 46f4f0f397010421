"""Files of trained policies: the arrays as safetensors, with a description in their header."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris._core.extras import needs
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.runtime.files import atomic_path

#: The key of the description in the header of a file.
_DESCRIPTION = "stellaris"


class PolicyFileError(ValueError):
    """A file does not hold a version of this policy."""


class Saved(NamedTuple):
    """The content of a policy's file."""

    version: PolicyVersion
    description: Mapping[str, Any]


def save_policy(
    path: str | os.PathLike[str], version: PolicyVersion, description: Mapping[str, Any] | None = None
) -> None:
    """Writes a policy version to a file, atomically.

    Every array has the name of its place in the version, such as `params/params/policy/Dense_0/kernel`, so other
    libraries can read the file.

    Args:
      path: the path of the file, usually `.safetensors`.
      version: the version, such as `train(...).policy`.
      description: plain data for JSON, such as the settings of the run.

    Raises:
      ModuleNotFoundError: without safetensors; the message names the extra.
      TypeError: if the description is not plain data.
      ValueError: if two arrays have the same name, because a key contains "/".
    """
    with needs("save_policy"):
        from safetensors.numpy import save_file
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in _named(version).items()}
    header = {_DESCRIPTION: json.dumps(description or {})}
    with atomic_path(path) as draft:
        save_file(arrays, draft, metadata=header)


def load_policy(path: str | os.PathLike[str], policy: Policy) -> Saved:
    """Reads a policy version from a file.

    Args:
      path: the path of a file that `save_policy` has written.
      policy: the policy, made as for training: `ActorCritic()(env.spec)`, for instance.

    Returns:
      The version, and the description that was saved with it.

    Raises:
      FileNotFoundError: if the file does not exist.
      ModuleNotFoundError: without safetensors; the message names the extra.
      PolicyFileError: if the file is damaged, or its arrays do not fit this policy; the message names the first
        difference.

    Example:
      >>> import tempfile
      >>> from stellaris.acting import ActorCritic, EnvSpec
      >>> policy = ActorCritic(hidden=(8,))(EnvSpec("CartPole-v1", np.zeros(4), actions=2, discrete=True))
      >>> version = PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser())
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save_policy(f"{folder}/policy.safetensors", version, {"steps": 300})
      ...     load_policy(f"{folder}/policy.safetensors", policy).description
      {'steps': 300}
    """
    with needs("load_policy"):
        from safetensors import SafetensorError, safe_open
    if not Path(path).exists():
        raise FileNotFoundError(f"{os.fspath(path)} does not exist")
    try:
        with safe_open(path, framework="numpy") as file:
            description = json.loads((file.metadata() or {}).get(_DESCRIPTION, "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
    except (SafetensorError, ValueError, OSError) as error:
        raise PolicyFileError(f"{os.fspath(path)} is not a policy's file: {error}") from error
    return Saved(_filled(policy, arrays, os.fspath(path)), description)


def description_of(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Returns the description in a policy's file, from which the policy can be made.

    Raises:
      FileNotFoundError, ModuleNotFoundError, PolicyFileError: as `load_policy`.
    """
    with needs("description_of"):
        from safetensors import SafetensorError, safe_open
    if not Path(path).exists():
        raise FileNotFoundError(f"{os.fspath(path)} does not exist")
    try:
        with safe_open(path, framework="numpy") as file:
            found: Mapping[str, Any] = json.loads((file.metadata() or {}).get(_DESCRIPTION, "{}"))
    except (SafetensorError, ValueError, OSError) as error:
        raise PolicyFileError(f"{os.fspath(path)} is not a policy's file: {error}") from error
    return found


def _named(version: Any) -> dict[str, Any]:
    """Returns the leaves of a version by their places in it."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(version)
    named = [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]
    places = dict(named)
    if len(places) < len(named):
        twice = next(name for name in places if sum(name == one for one, _ in named) > 1)
        raise ValueError(f"two arrays have the place {twice!r}: keys of dictionaries must not contain '/'")
    return places


def _filled(policy: Policy, arrays: Mapping[str, Any], path: str) -> PolicyVersion:
    """Returns the version that has these arrays in the places of the policy's own."""
    like = PolicyVersion(jax.eval_shape(policy.init, jax.random.key(0)), policy.statistics().normaliser())
    places = _named(like)
    if missing := places.keys() ^ arrays.keys():
        name = min(missing)
        said = "lacks" if name in places else "has, unlike the policy,"
        raise PolicyFileError(f"{path} {said} the array {name}: make the policy with the settings of its training")
    for name, leaf in places.items():
        there, here = (arrays[name].shape, arrays[name].dtype), (leaf.shape, leaf.dtype)
        if there != here:
            raise PolicyFileError(f"{path}: {name} is {there[1]}{list(there[0])} instead of {here[1]}{list(here[0])}")
    version: PolicyVersion = jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in places])
    return version
