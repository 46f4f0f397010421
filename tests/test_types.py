"""Joining trajectories."""

import re
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.types import Trajectory, concatenate

ROOT = Path(__file__).parent.parent


def test_shapes_are_checked_wherever_they_are_said():
    """Every module whose signatures say shapes is among those that these tests check as they run."""
    addopts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    checked = re.search(r"--jaxtyping-packages=(\S+)", addopts).group(1).split(",")
    for path in (ROOT / "stellaris").rglob("*.py"):
        if "jaxtyping" in path.read_text():
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            assert any(module == name or module.startswith(f"{name}.") for name in checked), module


def fragment(batch: int, start: int = 0, length: int = 3) -> Trajectory:
    """A trajectory of `batch` environments, in which environment `b` holds `start + b` everywhere."""

    def column(rows, dtype, *feature):
        numbers = np.arange(start, start + batch).astype(dtype).reshape(1, batch, *[1] * len(feature))
        return np.broadcast_to(numbers, (rows, batch, *feature))

    return Trajectory(
        observation=column(length + 1, np.uint8, 2, 2),
        action=column(length, np.float32, 4),
        reward=column(length, np.float32),
        terminated=column(length, bool),
        valid=column(length, bool),
        log_prob=column(length, np.float64),
        value=column(length + 1, np.float32),
        version=column(length, np.int32),
        memory=column(1, np.float16, 5),
    )


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
@pytest.mark.parametrize("sizes", [(1,), (1, 1), (2, 3, 1), (2, 0)])
def test_concatenate_puts_environments_side_by_side(sizes, convert):
    """Environments keep their order, and every field its dtype and its own number of rows."""
    starts = np.cumsum([0, *sizes])
    parts = [jax.tree.map(convert, fragment(size, start)) for size, start in zip(sizes, starts, strict=False)]
    joined, expected = concatenate(parts), fragment(sum(sizes))
    for name, got, want, part in zip(Trajectory._fields, joined, expected, parts[0], strict=True):
        assert isinstance(got, np.ndarray), name
        assert got.dtype == part.dtype, name
        np.testing.assert_array_equal(got, want, err_msg=name)


def test_trajectories_that_cannot_be_joined():
    """None, and those of different lengths, which the error lists."""
    with pytest.raises(ValueError, match="trajectories is empty"):
        concatenate([])
    with pytest.raises(ValueError, match=r"different lengths \[2, 3\]: pass trajectories of one length T"):
        concatenate([fragment(1), fragment(1, length=2), fragment(2)])
