from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """As `python -m theory_checks` computes."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _in_haste(compiled_in_haste: None) -> None:
    """There are few instances of every theorem."""
