"""The tables of other projects' options in `docs/`: their rows, the calls in the column "here", and data for them."""

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

DOCS = Path(__file__).parent.parent / "docs"

Row = tuple[str, Sequence[str]]
Call = tuple[str, str, str]


def rows_of(page: str) -> Sequence[Row]:
    """The rows of a page's tables of options, each with its project."""
    sections = {part.split("\n", 1)[0]: part for part in (DOCS / page).read_text().split("\n## ")[1:]}
    return [
        (project, re.split(r"(?<!\\) \| ", line.strip("| ")))
        for project, text in sections.items()
        if "| option and default" in text
        for line in text.split("| --- |", 1)[1].splitlines()
        if line.startswith("| ") and "---" not in line
    ]


def calls_of(rows: Sequence[Row]) -> Sequence[Call]:
    """Each call of the column "here", with its project and its option."""
    return [
        (project, row[0], call) for project, row in rows for call in re.findall(r"`([^`]+)`", row[1]) if "(" in call
    ]


def defaults_of(rows: Sequence[Row], project: str) -> Mapping[str, float]:
    """The numbers that are a project's defaults."""
    return {
        name: ast.literal_eval(x)
        for section, row in rows
        if section == project
        for name, x in re.findall(r"(\w+)=(\d[\d.e-]*)", row[0])
    }


def named(rows: Sequence[Row], project: str, start: str, number: int) -> str:
    """A call, by the start of its option's cell and its number in the row."""
    ((_, row),) = [(section, row) for section, row in rows if section == project and row[0].startswith(start)]
    return [call for section, option, call in calls_of(rows) if (section, option) == (project, row[0])][number]


T, B = 5, 6
VALID = jnp.arange(T)[:, None] < jnp.array([5, 3, 1, 4, 5, 2])


def normal(random: np.random.Generator, *shape: int, spread: float = 1.0) -> jax.Array:
    """Normal numbers."""
    return jnp.asarray(spread * random.normal(size=shape), jnp.float32)


def policies(random: np.random.Generator) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-probabilities of `[T, B]` actions under three policies, each near the one before."""
    first = -jnp.abs(normal(random, T, B))
    second = -jnp.abs(first + normal(random, T, B, spread=0.8))
    return first, second, -jnp.abs(second + normal(random, T, B, spread=0.3))
