import jax
import pytest


@pytest.fixture(autouse=True)
def _float64():
    """As `python -m theory_checks` computes."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _in_haste(compiled_in_haste):
    """There are few instances of every theorem."""
