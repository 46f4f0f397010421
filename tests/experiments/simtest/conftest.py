import pytest


@pytest.fixture(autouse=True)
def _in_haste(compiled_in_haste: None) -> None:
    """Networks are tiny, and runs short."""
