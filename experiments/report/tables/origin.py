"""The line below a table that says which code and machine its runs come from."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from experiments.report.tables import results

#: The most values that a line names, such as commits; digests are shown by their first digits.
_MOST, _DIGITS = 3, 7
#: Parts of a study, by their first word, whose tables have names that begin with it. Other tables lack their runs.
_APART = ("newest", "mixed", "sharing")


def line(paths: Iterable[str]) -> str:
    """Returns the committed provenance of files in one line of Markdown, or the empty string if they lack it.

    Args:
      paths: the CSV files from which a table was computed, by their paths under `experiments/results/`.
    """
    of = [one for path in paths for one in _beside(results.RESULTS / path)]
    if not of:
        return ""
    commits = _several(_short(commit) for one in of for commit in one["commit"].split("; "))
    codes = _several(_short(code) for one in of if "code" in one for code in one["code"].split("; "))
    jax = _several(version for one in of for version in one["jax"].split("; "))
    parts = [f"commit {commits}", f"code {codes}" if codes else "", f"jax {jax}", _several(map(_machine, of))]
    return f"*{'; '.join(part for part in parts if part)}*"


def _beside(path: Path) -> Iterator[Mapping[str, str]]:
    """Yields the provenance of a file: of the parts of a study that its name tells, or else of all parts.

    A name tells a part with which it ends, and parts in `_APART` with which it begins.
    """
    name = path.name.split(".")[0]
    parts: dict[str, Mapping[str, str]] = {}
    for place in (path.with_name(f"{name}.json"), *sorted(path.parent.glob("provenance*.json"))):
        if place.exists():
            parts |= _parts(place)
    if not parts and (settings := path.with_name("settings.json")).exists():
        parts |= _parts(settings)
    apart = {part: word for part in parts if (word := part.split("_")[0]) in _APART}
    own = [
        one for part, one in parts.items() if name.endswith(part) or (part in apart and name.startswith(apart[part]))
    ]
    yield from own or [one for part, one in parts.items() if part not in apart]


def _parts(place: Path) -> Mapping[str, Mapping[str, str]]:
    """Returns the provenance in a file by part: one that is named by the file, or several named in it."""
    known = json.loads(place.read_text())
    several = {place.stem.removeprefix("provenance_"): known} if "commit" in known else known
    return {part: one for part, one in several.items() if isinstance(one, dict) and "commit" in one}


def _short(digest: str) -> str:
    """Returns the first digits of a digest, with the mark of a changed tree.

    Example:
      >>> _short("fb805d12aa+"), _short("unknown")
      ('fb805d1+', 'unknown')
    """
    return digest.removesuffix("+")[:_DIGITS] + "+" * digest.endswith("+")


def _machine(of: Mapping[str, str]) -> str:
    """Returns the accelerator, or without one the processor and the newest instructions that it has.

    These determine the kernels of NumPy's BLAS, with which a run may round differently.
    """
    devices = {name for name in of["devices"].split(", ") if not name.strip("[]").lower().startswith("cpu")}
    if devices:
        return ", ".join(sorted(devices))
    newest = of.get("instructions", "").rpartition(", ")[2]
    return f"{of['processor']} ({newest})" if newest else of["processor"]


def _several(values: Iterable[str]) -> str:
    """Names distinct values in their order.

    Example:
      >>> _several("aabcd"), _several("ab")
      ('a, b, c and others', 'a, b')
    """
    distinct = list(dict.fromkeys(values))
    return ", ".join(distinct[:_MOST]) + " and others" * (len(distinct) > _MOST)
