"""Skips examples that need PyTorch where it is not installed, and marks examples that compile a run as slow."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest

collect_ignore = [] if importlib.util.find_spec("torch") else ["stellaris/torch.py", "stellaris/_core/autograd.py"]


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Leaves examples that compile an algorithm or a run, which take seconds each, to `make test-all`."""
    package = Path(__file__).with_name("stellaris")
    compiling = [package / name for name in ("lab", "algorithms", "acting/evaluation.py", "replay/episodes.py")]
    for item in items:
        if isinstance(item, pytest.DoctestItem) and any(item.path.is_relative_to(path) for path in compiling):
            item.add_marker(pytest.mark.slow)
