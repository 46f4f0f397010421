"""What the README shows works as pasted."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.S))
def test_examples_run(block: str) -> None:
    """Every Python block, each on its own."""
    exec(compile(block, "README.md", "exec"), {})


def test_links_within_the_repository_lead_somewhere() -> None:
    """Files and pictures that are linked are there."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target
