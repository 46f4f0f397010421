"""The README and the pages of `docs/`: their blocks run as pasted and print the output in their comments."""

import re
from pathlib import Path

import pytest

from tests.pages import blocks, extras, run

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))


def of_torch(block: str) -> bool:
    """Whether a block needs PyTorch, which the tests' environment does not have."""
    return "torch" in extras(block).split(",")


def run_all(page: Path, chosen: list[str]) -> None:
    first: dict[str, object] = {"__name__": page.stem}
    together = "one program" in page.read_text()
    for block in chosen:
        run(block, page.name, first if together else dict(first))


@pytest.mark.parametrize("page", [page for page in (README, *PAGES) if blocks(page)], ids=lambda page: page.stem)
def test_a_page_runs_from_top_to_bottom(page: Path) -> None:
    """Each block separately, unless the page says that its blocks are one program."""
    run_all(page, [block for block in blocks(page) if not of_torch(block)])


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(of_torch, blocks(page)))], ids=lambda page: page.stem
)
def test_blocks_of_pytorch_run(page: Path) -> None:
    """If it is installed."""
    pytest.importorskip("torch", reason="PyTorch is not in requirements.lock: pip install torch, then run this test")
    run_all(page, [*filter(of_torch, blocks(page))])


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_is_short() -> None:
    """At most 150 lines; details are on the pages of `docs/`, and every page is linked."""
    assert len(README.read_text().splitlines()) <= 150
    for page in PAGES:
        assert f"docs/{page.name}" in README.read_text(), f"{page.name} is not linked"
