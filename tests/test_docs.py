"""What the README and the pages of `docs/` show works as pasted."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))


def blocks(page: Path) -> list[str]:
    """Its Python blocks."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", blocks(README))
def test_examples_of_the_readme_run(block: str) -> None:
    """Every Python block, each on its own."""
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom(page: Path) -> None:
    """Each block by itself, unless the page says that they are one program."""
    first: dict[str, object] = {"__name__": page.stem}
    together = "one program" in page.read_text()
    for block in blocks(page):
        exec(compile(block, page.name, "exec"), first if together else dict(first))


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    """Files and pictures that are linked are there."""
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_is_short() -> None:
    """What takes longer to say is on a page of `docs/`, which is linked."""
    assert len(README.read_text().splitlines()) <= 150
    for page in PAGES:
        assert f"docs/{page.name}" in README.read_text(), f"{page.name} is linked nowhere"
