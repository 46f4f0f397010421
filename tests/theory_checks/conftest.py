from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """As `python -m theory_checks` computes."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _compiled_in_haste() -> Iterator[None]:
    """With few instances, optimising a program takes longer than running it; the numbers are the same to rounding."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
