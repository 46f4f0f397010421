"""A table of a page, and its Markdown."""

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """A table: its headings, and rows with one text for each heading."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Collection[str] = ()  #: headings of columns that hold words; the first column does, all others hold numbers.

    def markdown(self) -> str:
        """Returns the table as Markdown, one line per row; columns of numbers are aligned to the right."""
        first, *others = self.headings
        ruler = ["---", *("---" if heading in self.left else "---:" for heading in others)]
        return "".join(f"|{'|'.join(map(_cell, row))}|\n" for row in ((first, *others), ruler, *self.rows))


def _cell(text: str) -> str:
    return f" {text} " if text else " "
