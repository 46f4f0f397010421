"""Examples in docstrings: those that need PyTorch, where it is not installed; those that compile whole runs."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest

collect_ignore = [] if importlib.util.find_spec("torch") else ["stellaris/torch.py", "stellaris/_core/autograd.py"]


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Leaves the lab's examples to `make test-all`: each compiles a run, which takes up to half a minute."""
    lab = Path(__file__).with_name("stellaris") / "lab"
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.path.is_relative_to(lab):
            item.add_marker(pytest.mark.slow)
