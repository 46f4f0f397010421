"""`python -m experiments report`: writes one page about all finished studies."""

import argparse
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments import catalogue, reproduce
from experiments.figures.stellaris import frameworks
from experiments.report import marl_eval, page
from experiments.report.claims import Claim, Finding, claims, committed, findings, greatest, verdict
from experiments.report.recorded import Points
from experiments.tasks import minionsrl, testbed
from experiments.tasks.presets import architectures
from experiments.toolkit import options, output, shell
from experiments.toolkit.statistics import estimate
from stellaris.runtime import Trace
from stellaris.runtime.files import atomic_write

DESCRIPTION = "write one offline page with the figures of all finished studies and the papers' claims"

#: Columns of every table of runs.
_NAMES = ("environment", "system", "setting", "seed")
#: The most invocations and the most seconds of the timeline.
_INVOCATIONS, _SECONDS = 4000, 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--out", type=options.folder, default=Path("results"), help="results folder")
    export = "instead, write the runs of one study or of `train` for marl-eval's tools, as FOLDER/marl-eval.json"
    parser.add_argument("--marl-eval", metavar="FOLDER", type=options.folder, help=export)


def main(arguments: argparse.Namespace) -> int:
    """Writes `report.html` into the results folder, or one study's runs for marl-eval."""
    if arguments.marl_eval is not None:
        return _export(arguments.marl_eval)
    out: Path = arguments.out
    ran = [name for name in reproduce.figures() if (out / name / "runs.csv").exists()]
    if not ran:
        raise shell.UsageError(
            f"--out {out} holds no study's results: run one, such as `python -m experiments reproduce --preset smoke`"
        )
    points = {name: _rows(out / name / "curves.csv", _NAMES) for name in ran}
    try:
        found = committed() | findings(points)
    except ValueError as error:
        raise shell.UsageError(f"{out}/{error}; run its study again") from error
    document = page.document(
        claims=_claims(found),
        notes=_notes(found),
        studies=[_study(out / name, name) for name in ran],
        frameworks=[frameworks.HEADINGS, *frameworks.rows()],
        settings=_settings(points),
        assumptions=_assumptions(),
        timeline=_timeline(out),
    )
    with output.kept(out, lambda: "the studies' results are unchanged"), atomic_write(out / "report.html") as file:
        file.write(document)
    print(f"{out / 'report.html'}: {len(ran)} of {len(reproduce.figures())} figures")
    return 0


def _export(folder: Path) -> int:
    """Writes the runs of a study as JSON for marl-eval's tools."""
    curves, target = folder / "curves.csv", folder / "marl-eval.json"
    if not curves.exists():
        raise shell.UsageError(
            f"--marl-eval {folder} holds no curves.csv: name the folder of a study, or results/train"
        )
    try:
        content = marl_eval.exported(_rows(curves, marl_eval.COLUMNS))
    except ValueError as error:
        raise shell.UsageError(f"{curves}: {error}") from error
    with output.kept(folder, lambda: "the study's results are unchanged"), atomic_write(target) as file:
        json.dump(content, file, indent=1, allow_nan=False)
    print(target)
    return 0


def _settings(points: Mapping[str, Points]) -> list[Sequence[str]]:
    """Returns environment, system, source of the settings, and settings, for every environment that was run."""
    environments = dict.fromkeys(row["environment"] for rows in points.values() for row in rows)
    presets = [(environment, architectures(environment)) for environment in environments]
    return [
        (environment, contender.name, preset.summary, repr(contender.system))
        for environment, preset in presets
        for contender in preset.contenders
    ]


def _assumptions() -> list[Sequence[str]]:
    """Returns name, value and source of the testbed's numbers."""
    sources, of_minions = testbed.sources(), testbed.sources(minionsrl.__file__)
    rows = [(name, f"{value:g}", sources[name]) for name, value in testbed.facts().items()]
    targets = "; ".join(f"{name}: {target:g}" for name, target in minionsrl.TARGETS.items())
    budgets = "; ".join(f"{name}, {of}: {usd:.4f} USD" for (name, of), usd in minionsrl.BUDGETS.items())
    own = {"ACTORS": minionsrl.ACTORS, "FRAGMENT": minionsrl.FRAGMENT, "BANDWIDTH": minionsrl.BANDWIDTH}
    rows += [(f"MinionsRL: {name}", f"{value:g}", of_minions[name]) for name, value in own.items()]
    containers = f"{minionsrl.ACTOR}; {minionsrl.LEARNER}"
    return [
        *rows,
        ("MinionsRL: ACTOR, LEARNER", containers, of_minions["ACTOR, LEARNER"]),
        ("MinionsRL: TARGETS", targets, of_minions["TARGETS"]),
        ("MinionsRL: BUDGETS", budgets, of_minions["BUDGETS"]),
    ]


def _claims(found: Mapping[str, Sequence[Finding]]) -> list[Sequence[str]]:
    """Returns one row per claim and environment: the paper's value, ours, and whether it was reproduced."""
    rows: list[Sequence[str]] = []
    for claim in claims():
        value = f"{claim.value:g} ({claim.unit})"
        known = found.get(claim.claim, ())
        up_to = "(up to)" in claim.claim
        for finding in known:
            judged = "" if up_to else verdict(claim, finding)
            rows.append(
                (claim.claim, claim.paper, value, _ours(claim, finding), str(finding.seeds), judged, finding.command)
            )
        for under, finding in greatest(claim, known).items():
            several = ", ".join(one.environment for one in known if one.under == under)
            ours = f"{_ours(claim, finding)}, the greatest of {several}"
            rows.append(
                (claim.claim, claim.paper, value, ours, str(finding.seeds), verdict(claim, finding), finding.command)
            )
        if not known:
            rows.append((claim.claim, claim.paper, value, "not run", "", "", ""))
    return rows


def _ours(claim: Claim, finding: Finding) -> str:
    """Formats the measurement with its environment and settings; explains a missing verdict if budgets ran out."""
    spent = "" if claim.unit == "ratio" or finding.returns is None else f" for {finding.returns} times the return"
    seeds = f"{finding.censored} of {finding.seeds} seeds"
    under = f"{finding.environment}; {finding.under}"
    if not finding.comparable:
        return f"({under}; no number: with {seeds} a run's budget was used up before the target)"
    return f"{finding.ours}{spent} ({under})"


def _notes(found: Mapping[str, Sequence[Finding]]) -> list[tuple[str, str]]:
    """Returns the notes on the claims that have findings."""
    return [(claim.claim, claim.note) for claim in claims() if claim.note and claim.claim in found]


def _study(folder: Path, name: str) -> page.Study:
    """Reads a study's pictures and tables."""
    entry = catalogue.EXPERIMENTS[name]
    groups: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for row in _rows(folder / "runs.csv", _NAMES):
        groups.setdefault((row["environment"], row["system"], row["setting"]), []).append(row)
    with _read(folder / "runs.csv"):
        rows = [(*key, *_figures(of)) for key, of in groups.items()]
    with _read(folder / "wall_seconds.csv") as path:
        taken = _taken(_rows(path, ("wall_seconds",)))
    return page.Study(
        name=name,
        of=entry.of,
        description=entry.load().DESCRIPTION,
        command=f"python -m experiments {name} --preset small",
        pictures=sorted(path for path in folder.glob("*.png") if path.is_file() and not path.is_symlink()),
        table=_lines(folder / "table.csv"),
        rows=rows,
        taken=f"{taken}. {_provenance(folder / 'provenance.json')}",
    )


def _taken(rows: Sequence[Mapping[str, str]]) -> str:
    """Says how long the runs of a study took in total."""
    minutes = sum(float(row["wall_seconds"]) for row in rows) / 60
    return f"{len(rows)} runs, which took {minutes:,.1f} minutes in total, in processes that shared a machine"


def _provenance(path: Path) -> str:
    """Says which code and machine a study's results come from."""
    if not path.exists():
        return "Their provenance was not recorded."
    with _read(path) as known:
        of = json.loads(known.read_text())
        machine = f"{of['processor']} ({of['instructions']}; {of['devices']})"
        return f"Commit {of['commit']}, code {of['code']}, jax {of['jax']}, NumPy {of['numpy']}, on {machine}."


def _figures(of: Sequence[Mapping[str, str]]) -> Sequence[str]:
    """Formats the estimates over a group of runs as cells of a table."""
    columns = ("final_return", "virtual_seconds", "steps", "cost_demo", "cost_pay_per_use")
    final, seconds, steps, *costs = (estimate([float(row.get(column) or "nan") for row in of]) for column in columns)
    of_costs = (f"{cost.middle:.4g}" for cost in costs)
    return (str(final), str(len(of)), f"{seconds.middle:,.4g}", f"{steps.middle:,.0f}", *of_costs)


def _timeline(out: Path) -> list[Any]:
    """Returns `[function, container, acquired, started, ended, cold]` of a Stellaris run's first invocations."""
    for record in sorted((out / "cells").glob("*/cell.json")):
        with _read(record):
            of_stellaris = record.parent.suffix != ".unfinished" and '"type": "Stellaris"' in record.read_text()
        if of_stellaris:
            with _read(record.with_name("trace.parquet")) as path:
                calls = Trace.load(path).invocations()
            break
    else:
        return []
    rows = zip(
        calls.function.tolist(),
        calls.container.tolist(),
        calls.acquired.tolist(),
        calls.started.tolist(),
        calls.ended.tolist(),
        calls.cold.tolist(),
        strict=True,
    )
    return [
        [calls.names[function], container, round(acquired, 5), round(started, 5), round(ended, 5), int(cold)]
        for function, container, acquired, started, ended, cold in rows
        if ended == ended and started == started and ended <= _SECONDS  # NaN if it never started or ended
    ][:_INVOCATIONS]


@contextmanager
def _read(path: Path) -> Iterator[Path]:
    """Raises a UsageError that names the file if the block cannot read it, or if it is a symbolic link."""
    if path.is_symlink():
        raise shell.UsageError(f"{path} is a link, which is not followed: put the file itself there")
    try:
        yield path
    except (OSError, ValueError, LookupError, TypeError, csv.Error) as error:
        raise shell.UsageError(f"{path} is damaged or cut off: {shell.reason(error)}; run its study again") from error


def _lines(path: Path) -> list[list[str]]:
    """Reads a table: the headings, and rows of the same length."""
    with _read(path), path.open(newline="") as file:
        lines = list(csv.reader(file))
        if not lines or any(len(line) != len(lines[0]) for line in lines):
            raise ValueError("headings missing, or a row of another length")
        return lines


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Reads the rows of a table that has at least these columns."""
    with _read(path):
        headings, *lines = _lines(path)
        if missing := [column for column in columns if column not in headings]:
            raise ValueError(f"column {missing[0]} missing")
        return [dict(zip(headings, line, strict=True)) for line in lines]
