"""Platforms on the session's cluster of two workers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def deploy(dask_on_this_machine: str) -> Iterator[Callable[..., Any]]:
    """Makes platforms with the functions that are given by name; they are closed after the test."""
    from stellaris.runtime import DaskPlatform

    made = []

    def make(options: dict[str, Any] | None = None, **functions: Any) -> DaskPlatform:
        made.append(DaskPlatform(functions, address=dask_on_this_machine, **(options or {})))
        return made[-1]

    yield make
    for platform in made:
        platform.close()
