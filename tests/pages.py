"""Runs the Python blocks of a page as pasted, and compares what they print with their comments.

The comment after a statement that prints, on the same line or on the lines below it, contains the output. It may add an
explanation. A number after `about` may differ by a tenth, because training amplifies a difference in the last bits; all
other numbers and words must be equal.

A block that needs an extra says so by the command that installs it. `python tests/pages.py PAGE EXTRAS` runs the blocks
that need exactly these extras, such as `experiments,ray` or the empty string, in an environment that may have nothing
else: this module imports the standard library alone.
"""

import ast
import contextlib
import io
import re
import sys
from pathlib import Path


def blocks(page: Path) -> list[str]:
    """The page's Python blocks."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def extras(block: str) -> str:
    """The extras that a block says it needs, separated by commas; empty if the library alone is enough."""
    named = re.search(r"pip install '[\w.-]*\[([\w,]+)\]'", block)
    return named[1] if named else ""


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


def main(page: str, needed: str) -> None:
    """Runs the page's blocks that need exactly these extras; fails if there is none."""
    ran = 0
    for number, block in enumerate(blocks(Path(page)), 1):
        if extras(block) == needed:
            run(block, f"{page}, block {number}", {"__name__": "page"})
            print(f"{page}, block {number}: as printed")
            ran += 1
    if not ran:
        sys.exit(f"{page} has no block that needs {needed or 'no extra'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
