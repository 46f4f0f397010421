"""`python -m experiments pages`: the documentation's tables of results are those of the committed results."""

import re

import pytest

from experiments import command
from experiments.report import pages
from experiments.report.tables import TABLES

#: The pages whose tables of results are all written from the committed files.
WRITTEN = [
    pages.ROOT / "README.md",
    *(pages.ROOT / "docs" / f"{name}.md" for name in ("results", "replay", "systems", "traces")),
    *sorted((pages.ROOT / "docs" / "results").glob("*.md")),
]


def test_the_tables_are_those_of_the_committed_results(capsys):
    """If they are not, `python -m experiments pages` rewrites them."""
    assert (command.main(["pages", "--check"]), capsys.readouterr().out) == (0, "")


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_no_table_of_results_is_typed(page):
    """Outside of the marks, no cell of a table begins with a number."""
    typed = re.sub(r"<!-- table: .*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
    cells = [cell.strip() for line in typed.splitlines() if line.startswith("|") for cell in line.split("|")]
    assert not [cell for cell in cells if re.match(r"[-\u2212<>~ ]*\d", cell)]


def test_every_table_has_its_provenance():
    """Below the rows, where a blank line ends them."""
    for page in pages.pages():
        for table in re.findall("<!-- table: .*? -->\n(.*?)<!-- end -->", page.read_text(), flags=re.DOTALL):
            *_, below = table.removesuffix("\n").split("\n\n")
            assert re.fullmatch(r"\*commit [0-9a-f]{7}.*; jax .*\*", below), table


def test_every_table_is_on_a_page():
    marked = [name for page in pages.pages() for name in re.findall("<!-- table: (.*) -->", page.read_text())]
    assert sorted(marked) == sorted(TABLES)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The only page of a repository, which has one table as it should be."""
    (tmp_path / "README.md").write_text(pages.rewritten("# A\n<!-- table: free-lag -->\n<!-- end -->\n\nText 9.\n"))
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return tmp_path / "README.md"


def test_a_changed_number_is_reported_and_put_right(page, capsys):
    right = page.read_text()
    assert right.count("\n|") == 9
    wrong = right.replace("; 256 |", "; 257 |")
    page.write_text(wrong)
    assert command.main(["pages", "--check"]) == 1
    assert capsys.readouterr().out == "README.md: differs from the committed results\n"
    assert page.read_text() == wrong
    assert command.main(["pages"]) == 0
    assert capsys.readouterr().out == "README.md: rewritten\n"
    assert page.read_text() == right
    assert command.main(["pages", "--check"]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- table: nothing -->\n<!-- end -->", "<!-- table: nothing -->: unknown; choose one of runs,"),
        ("<!-- table: runs -->\n| a |\n\nText.\n", "<!-- table: runs --> has no end: write <!-- end -->"),
        ("<!-- table: runs -->\nText.\n<!-- table: free-lag -->\n<!-- end -->\n", "<!-- table: runs --> has no end"),
    ],
)
def test_marks_that_make_no_sense(page, text, said, capsys):
    """One line, status 2, and the page is unchanged."""
    page.write_text(text)
    assert command.main(["pages"]) == 2
    assert capsys.readouterr().err.startswith(f"error: README.md: {said}")
    assert page.read_text() == text
