"""The report's page: `page.html` with its pictures, `style.css` and `timeline.js` within itself."""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Study(NamedTuple):
    """What the page shows of a study."""

    name: str
    of: str  #: paper and figure.
    description: str
    command: str
    pictures: Sequence[Path]
    table: Sequence[Sequence[str]]  #: what it prints, the headings first.
    rows: Sequence[Sequence[str]]  #: a row for each of its variants.
    taken: str  #: how long its runs took.


_CLAIMS = ("claim", "paper", "paper's value", "ours", "seeds", "reproduced?", "command")
_RUNS = ("environment", "system", "setting", "return", "seeds", "virtual s", "steps", "USD demo", "USD by use")


def document(
    *,
    claims: Sequence[Sequence[str]],
    notes: Sequence[tuple[str, str]],
    studies: Sequence[Study],
    frameworks: Sequence[Sequence[str]],
    settings: Sequence[Sequence[str]],
    assumptions: Sequence[Sequence[str]],
    timeline: Sequence[Any],
) -> str:
    """The whole page.

    Args:
      claims: rows of the table of claims.
      notes: claims, and why what was measured differs from them.
      studies: in the order in which they are shown.
      frameworks: rows of the papers' comparison, the first one its headings.
      settings: environment, system, where its settings are from, and what they are.
      assumptions: names, values and sources of the testbed's numbers.
      timeline: `[function, container, acquired, started, ended, cold]` of each invocation.
    """
    contents = "".join(f'<li><a href="#{study.name}">{study.name}</a></li>' for study in studies)
    return _part("page.html").format(
        style=_part("style.css"),
        contents=contents,
        claims=_table(_CLAIMS, claims),
        notes="".join(f"<p><em>{html.escape(claim)}.</em> {html.escape(note)}</p>" for claim, note in notes),
        studies="".join(map(_section, studies)),
        assumptions=_table(("number", "value", "what it is, and its source"), assumptions),
        frameworks=_table(frameworks[0], frameworks[1:]),
        settings=_table(("environment", "system", "chosen how", "settings"), settings),
        timeline=json.dumps(timeline, separators=(",", ":")).replace("<", "\\u003c"),
        script=_part("timeline.js"),
    )


def _part(name: str) -> str:
    """A file beside this module."""
    return Path(__file__).with_name(name).read_text()


def _section(study: Study) -> str:
    pictures = "".join(_picture(path) for path in study.pictures)
    return (
        f'<section id="{study.name}"><h2>{study.name}</h2><p><em>{html.escape(study.of)}.</em> '
        f"{html.escape(study.description[:1].upper() + study.description[1:])}.</p>{pictures}"
        f"{_table(study.table[0], study.table[1:])}"
        f"<details><summary>all settings</summary>{_table(_RUNS, study.rows)}</details>"
        f"<pre>{html.escape(study.command)}</pre><p>{html.escape(study.taken)}</p></section>"
    )


def _picture(path: Path) -> str:
    """It tells the style how wide it is, so that the text of every picture is shown in one size."""
    data = path.read_bytes()
    pixels = int.from_bytes(data[16:20])  # as the header of a PNG has it
    name = html.escape(path.stem.replace("_", " "))
    image = (
        f'<img alt="{name}" style="--pixels:{pixels}px" src="data:image/png;base64,{base64.b64encode(data).decode()}">'
    )
    return f'<figure><div class="wide">{image}</div><figcaption>{name}</figcaption></figure>'


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(heading)}</th>' for heading in headings)
    body = "".join(f"<tr>{_cells(headings, row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(headings: Sequence[str], row: Sequence[str]) -> str:
    """Each carries its heading, which the style shows where there is no room for a row of headings."""
    return "".join(
        f'<td data-name="{html.escape(heading)}">{html.escape(text)}</td>'
        for heading, text in zip(headings, row, strict=True)
    )
