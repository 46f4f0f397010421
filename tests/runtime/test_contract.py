"""The contract's tests, for the platforms of this project and for the one that docs/platform.md shows."""

import re
from pathlib import Path

import pytest

from stellaris.runtime import RayPlatform, SimulatedPlatform
from stellaris.testing import PlatformContract


class TestVirtualTime(PlatformContract):
    """The simulated platform in virtual time."""

    def make(self, functions):
        return SimulatedPlatform(functions, threads=2)


class TestWallTime(PlatformContract):
    """The simulated platform on the wall clock."""

    def make(self, functions):
        return SimulatedPlatform(functions, clock="wall")


@pytest.mark.slow
@pytest.mark.usefixtures("ray_on_this_machine")
class TestCluster(PlatformContract):
    """The platform on a Ray cluster."""

    def make(self, functions):
        return RayPlatform(functions)


def _shown() -> type[PlatformContract]:
    """The test class of the page's section "A platform of your own"."""
    page = (Path(__file__).parents[2] / "docs" / "platform.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names = {"__name__": "docs.platform"}
    exec(next(block for block in blocks if "PlatformContract" in block), names)
    return names["TestPoolPlatform"]


TestPlatformOfThePage = _shown()
