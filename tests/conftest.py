"""Fixtures that tests of several modules share."""

import contextlib
import gc
import os
from collections.abc import Iterator

import jax
import jaxtyping
import pytest

# What is imported stays, and compiling leaves so many objects that looking through them again and again takes a
# twentieth of the tests' time. Tests that are about memory collect by themselves.
gc.freeze()
gc.set_threshold(100_000, 20, 10)
# Otherwise Ray's workers have a niceness of 15, and starve while other tests compile on all cores.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Drops compiled programs before they are too many: each maps memory, and Linux lets a process map 65,530 times.

    Beyond that compiling ends the process. What is needed again is read from the cache on the disk.
    """
    yield
    with open("/proc/self/maps") as maps:
        if sum(1 for _ in maps) > 20_000:
            jax.clear_caches()


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the tests' own type checker, as users run the library: arguments meet the library's checks alone."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def compiled_in_haste() -> Iterator[None]:
    """Programs are hardly optimised: for tests in which compiling takes longer than running, to the same numbers."""
    with _compiling(hastily=True):
        yield


@pytest.fixture
def optimised() -> Iterator[None]:
    """Programs are optimised, whatever the Makefile says: for tests in which running takes longer than compiling."""
    with _compiling(hastily=False):
        yield


@contextlib.contextmanager
def _compiling(*, hastily: bool) -> Iterator[None]:
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", hastily)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def dask_on_this_machine() -> Iterator[str]:
    """The address of a Dask cluster of two workers, started once for all tests that need it."""
    import dask.config

    from stellaris.runtime.dask.platform import local_cluster

    # Dask gives up a worker that is missing 15 s after a loss, even if that is another loss, of the next test.
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}), local_cluster(workers=2) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="session")
def ray_on_this_machine() -> Iterator[None]:
    """Ray, started once for all tests that need it: its small store is enough for them."""
    import ray

    from stellaris.runtime.ray.platform import connect

    assert connect(object_store_memory=100 * 2**20, num_cpus=4)
    yield
    ray.shutdown()
