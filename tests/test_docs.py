"""The README and the pages of `docs/`: their blocks run as pasted and print the output in their comments."""

import re
from pathlib import Path

import pytest

from tests.pages import blocks, run

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", [page for page in (README, *PAGES) if blocks(page)], ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom(page: Path) -> None:
    """Each block separately, unless the page says that its blocks are one program."""
    first: dict[str, object] = {"__name__": page.stem}
    together = "one program" in page.read_text()
    for block in blocks(page):
        run(block, page.name, first if together else dict(first))


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_is_short() -> None:
    """At most 150 lines; details are on the pages of `docs/`, and every page is linked."""
    assert len(README.read_text().splitlines()) <= 150
    for page in PAGES:
        assert f"docs/{page.name}" in README.read_text(), f"{page.name} is not linked"
