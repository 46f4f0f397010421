"""The README and the pages of `docs/`: their blocks run as pasted and print the output in their comments."""

import importlib
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

import stellaris
from tests.pages import blocks, extras, run

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if "_build" not in page.parts]
#: Folders of the library; each exports the names that its `__init__.py` imports as themselves.
ROOMS = (
    "acting",
    "aggregation",
    "algorithms",
    "corrections",
    "lab",
    "lab.language",
    "replay",
    "runtime",
    "scheduling",
    "systems",
)


def name(page: Path) -> str:
    """A page's path within `docs/`, without its ending, as a table of contents names it."""
    return page.relative_to(DOCS).with_suffix("").as_posix() if page != README else "README"


def absent(block: str) -> set[str]:
    """The modules that a block needs and the tests' environment does not have."""
    packages = {"tunix": "google-tunix", "tinker": "tinker"}
    torch = {"torch"} & set(extras(block).split(","))
    return torch | {module for module, package in packages.items() if f"# pip install {package}\n" in block}


def run_all(page: Path, chosen: list[str]) -> None:
    first: dict[str, object] = {"__name__": page.stem}
    together = "one program" in page.read_text()
    for block in chosen:
        run(block, page.name, first if together else dict(first))


@pytest.mark.parametrize(
    "page",
    [README, *(pytest.param(page, marks=pytest.mark.slow) for page in PAGES if blocks(page))],
    ids=name,
)
def test_a_page_runs_from_top_to_bottom(page: Path) -> None:
    """Each block separately, unless the page says that its blocks are one program."""
    run_all(page, [block for block in blocks(page) if not absent(block)])


NEEDY = {(page, *sorted(absent(block))): None for page in PAGES for block in blocks(page) if absent(block)}


@pytest.mark.parametrize("needy", NEEDY, ids=lambda needy: f"{name(needy[0])}: {', '.join(needy[1:])}")
def test_blocks_that_need_more_run(needy: tuple[Path, *tuple[str, ...]]) -> None:
    """If PyTorch, Tunix or Tinker's SDK, which they need, are installed."""
    page, *modules = needy
    for module in modules:
        pytest.importorskip(module, reason=f"{module} is not in requirements.lock: install it, then run this test")
    run_all(page, [block for block in blocks(page) if absent(block) == {*modules}])


@pytest.mark.parametrize("page", [README, *PAGES], ids=name)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_is_short() -> None:
    """At most 150 lines; details are on the pages of `docs/`."""
    assert len(README.read_text().splitlines()) <= 150


def contents(page: Path) -> list[Path]:
    """The pages in a page's tables of contents, and those in theirs."""
    lists = re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    below = [
        page.parent / f"{line}.md"
        for lines in lists
        for line in lines.splitlines()
        if line and not line.startswith(":")
    ]
    return below + [deeper for inner in below for deeper in contents(inner)]


def test_every_page_is_in_the_contents_once() -> None:
    """So the site has it in its navigation."""
    assert Counter(map(name, contents(DOCS / "index.md"))) == Counter(name(p) for p in PAGES if name(p) != "index")


def documented() -> list[tuple[str, str]]:
    """The module and the name of every part of the library in the reference."""
    text = "\n".join(page.read_text() for page in sorted((DOCS / "reference").glob("*.md")))
    lists = re.findall(r"^```\{api\} (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(module, line) for module, names in lists for line in names.split()]


def public() -> dict[int, str]:
    """The name of every public part of the library, by identity: from `stellaris` itself if that exports it."""
    found = {}
    for room in ROOMS:
        source = (ROOT / "stellaris" / room.replace(".", "/") / "__init__.py").read_text()
        exports = re.findall(r"^ *from \S+ import (\w+) as \1$", source, re.MULTILINE)
        assert exports, room
        found |= {id(part(f"stellaris.{room}", export)): f"stellaris.{room}.{export}" for export in exports}
    found |= {id(part("stellaris", export)): f"stellaris.{export}" for export in stellaris.__all__}
    modules = {id(module) for module in sys.modules.values()}
    return {key: export for key, export in found.items() if key not in modules}


def part(module: str, export: str) -> object:
    """A part of the library."""
    return getattr(importlib.import_module(module), export)


def test_the_reference_has_every_public_name_once() -> None:
    """Under the shortest name that can be imported; other parts may be there in addition, once as well."""
    names = {f"{module}.{export}": id(part(module, export)) for module, export in documented()}
    assert len(names) == len(documented()) == len(set(names.values()))
    assert {*public().values()} - {*names} == set()
