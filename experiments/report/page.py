"""The report's page: `page.html` with pictures, `style.css` and `timeline.js` embedded."""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Study(NamedTuple):
    """A study's section of the page."""

    name: str
    of: str  #: paper and figure.
    description: str
    command: str
    pictures: Sequence[Path]
    table: Sequence[Sequence[str]]  #: rows of the study's `table.csv`, the headings first.
    rows: Sequence[Sequence[str]]  #: one row per variant.
    taken: str  #: total time of the study's runs, in words.


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
    """Returns the page as HTML.

    Args:
      claims: rows of the table of claims.
      notes: pairs of a claim and the reason why our measurement differs.
      studies: the studies in the order of their sections.
      frameworks: rows of the paper's comparison, the headings first.
      settings: rows of environment, system, source of the settings, and settings.
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
        assumptions=_table(("number", "value", "meaning and source"), assumptions),
        frameworks=_table(frameworks[0], frameworks[1:]),
        settings=_table(("environment", "system", "source", "settings"), settings),
        timeline=json.dumps(timeline, separators=(",", ":")).replace("<", "\\u003c"),
        script=_part("timeline.js"),
    )


def _part(name: str) -> str:
    """Reads a file of this package."""
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
    """Returns a figure whose width is a style property, so that the text of all pictures gets the same size."""
    data = path.read_bytes()
    pixels = int.from_bytes(data[16:20])  # the width in a PNG's header
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
    """Returns cells that carry their headings, which the style shows on a screen too narrow for a row of headings."""
    return "".join(
        f'<td data-name="{html.escape(heading)}">{html.escape(text)}</td>'
        for heading, text in zip(headings, row, strict=True)
    )
