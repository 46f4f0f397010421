"""All of these tests have Ray."""

import pytest


@pytest.fixture(autouse=True)
def _ray(ray_on_this_machine: None) -> None:
    """Started once for the session."""
