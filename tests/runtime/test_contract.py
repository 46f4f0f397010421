"""The contract's tests, for the platforms of this project and for those that docs/backend.md shows."""

import re
from pathlib import Path

import pytest

from stellaris import runtime
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


@pytest.mark.slow
class TestDask(PlatformContract):
    """The platform on a Dask cluster."""

    @pytest.fixture(autouse=True)
    def _cluster(self, dask_on_this_machine: str) -> None:
        self.address = dask_on_this_machine

    def make(self, functions):
        return runtime.DaskPlatform(functions, address=self.address)


PAGE = (Path(__file__).parents[2] / "docs" / "backend.md").read_text()


def test_the_page_counts_the_tests_of_the_kit() -> None:
    assert f"has its {sum(name.startswith('test_') for name in vars(PlatformContract))} tests" in PAGE


def _shown(name: str) -> type[PlatformContract]:
    """A test class of the page "Write a backend"."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names = {"__name__": "docs.backend"}
    exec(next(block for block in blocks if name in block), names)
    return names[name]


TestContainersInThisProcess = _shown("TestPoolPlatform")
TestContainersOfMessages = _shown("TestThreadPlatform")
