import pytest


@pytest.fixture(autouse=True)
def _in_haste(compiled_in_haste):
    """Figures are not judged in tests."""
