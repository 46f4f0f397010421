"""`python -m experiments pages`: writes the tables of results into the README and the pages of `docs/`.

A page marks a table with `<!-- table: NAME -->` on the line before it and `<!-- end -->` on the line after it. Below a
table is the provenance of its runs, where it is committed.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.report.tables import TABLES, origin, results
from experiments.report.tables.table import Table
from experiments.toolkit import shell

DESCRIPTION = "write the tables of results into README.md and docs/, from the committed results"

ROOT = Path(__file__).parents[2]

_BEGIN = re.compile(r"^<!-- table: (.*) -->$", re.MULTILINE)
#: A marked table. Between the marks no other mark may stand, so that a forgotten end does not take the text after it.
_MARKED = re.compile(r"^(<!-- table: (.*) -->\n)(?:(?!<!--).*\n)*(<!-- end -->)$", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the option."""
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a page differs, and name it"
    )


def main(arguments: argparse.Namespace) -> int:
    """Rewrites the pages that differ, or with `--check` names them."""
    differing = differences()
    for page, text in differing.items():
        if not arguments.check:
            page.write_text(text)
        print(f"{page.relative_to(ROOT)}: {'differs from the committed results' if arguments.check else 'rewritten'}")
    return shell.FAILED if arguments.check and differing else 0


def pages() -> list[Path]:
    """Returns the README and the pages of `docs/`."""
    written = (page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts)
    return [ROOT / "README.md", *written]


def differences() -> dict[Path, str]:
    """Returns the new texts of the pages whose tables differ from the committed results."""
    made: dict[Path, str] = {}
    for page in pages():
        text = page.read_text()
        try:
            written = rewritten(text)
        except ValueError as error:
            raise shell.UsageError(f"{page.relative_to(ROOT)}: {error}") from error
        if written != text:
            made[page] = written
    return made


def rewritten(text: str, tables: Mapping[str, Callable[[], Table]] = TABLES) -> str:
    """Returns the text of a page with its marked tables written anew.

    Args:
      text: the page.
      tables: the functions that return the tables, by name.

    Raises:
      ValueError: if a table's name is unknown, or if a mark has no end; the message says how to write it.

    Example:
      >>> print(rewritten("<!-- table: it -->\\n<!-- end -->", {"it": lambda: Table(("run", "s"), [("a", "1")])}))
      <!-- table: it -->
      | run | s |
      | --- | ---: |
      | a | 1 |
      <!-- end -->
    """
    marked = [found[2] for found in _MARKED.finditer(text)]
    for i, name in enumerate(_BEGIN.findall(text)):
        if name not in tables:
            raise ValueError(f"<!-- table: {name} -->: unknown; choose one of {', '.join(tables)}")
        if marked[i : i + 1] != [name]:
            raise ValueError(f"<!-- table: {name} --> has no end: write <!-- end --> on the line after the table")
    return _MARKED.sub(lambda found: found[1] + _block(tables[found[2]]) + found[3], text)


def _block(table: Callable[[], Table]) -> str:
    """Returns a table as Markdown, and below it the provenance of the files from which it is computed."""
    with results.noted() as paths:
        written = table().markdown()
    below = origin.line(paths)
    return f"{written}\n{below}\n" if below else written
