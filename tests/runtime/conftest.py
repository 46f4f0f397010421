"""Fixtures of the platforms' tests."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture
def blocked() -> Iterator[Callable[..., Any]]:
    """A body that does not return before the test ends."""
    event = threading.Event()
    yield lambda context, *arguments: event.wait(60.0)
    event.set()
