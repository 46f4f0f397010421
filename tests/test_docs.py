"""The README and the pages of `docs/`: their blocks run as pasted and print the output in their comments.

The comment after a statement that prints, on the same line or on the lines below it, contains the output. It may add an
explanation. A number after `about` may differ by a tenth, because training amplifies a difference in the last bits; all
other numbers and words must be equal.
"""

import ast
import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))


def blocks(page: Path) -> list[str]:
    """The page's Python blocks."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def run(block: str, name: str, namespace: dict[str, object]) -> None:
    """Runs a block statement by statement, and compares the output of each with its comment."""
    for statement in ast.parse(block).body:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module([statement], []), name, "exec"), namespace)
        expected = comment_after(statement, block)
        if printed.getvalue() and expected:
            assert contains(expected, printed.getvalue()), f"{name}: printed {printed.getvalue()!r}, not {expected!r}"


def comment_after(statement: ast.stmt, block: str) -> str:
    """The comment on a statement's last line, or else on the lines below it; empty if there is none."""
    lines = block.splitlines()
    end = statement.end_lineno or 0
    rest = lines[end - 1].encode()[statement.end_col_offset :].decode()  # `ast` counts columns in bytes
    if "#" in rest:
        return rest.partition("#")[2].strip()
    below = []
    for line in lines[end:]:
        if not line.startswith("#"):
            break
        below.append(line.lstrip("# "))
    return " ".join(below)


def contains(expected: str, printed: str) -> bool:
    """Whether the words and numbers of the output occur in the comment, in order and without a gap."""
    words, rough = [], set()
    for token in _tokens(expected):
        if token == "about":
            rough.add(len(words))
        else:
            words.append(token)
    output = _tokens(printed)
    return any(
        all(_agree(one, words[first + i], rough=first + i in rough) for i, one in enumerate(output))
        for first in range(len(words) - len(output) + 1)
    )


def _tokens(text: str) -> list[str]:
    return re.findall(r"-?\d+\.?\d*(?:e[+-]?\d+)?|[^\W\d]+|[^\s\w]", text.lower())


def _agree(one: str, other: str, *, rough: bool) -> bool:
    try:
        given, expected = float(one), float(other)
    except ValueError:
        return one == other
    return abs(given - expected) <= (0.1 * abs(expected) if rough else 0.0)


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
