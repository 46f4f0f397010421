"""The command line of the theory checks."""

import argparse
import dataclasses
import json
import math
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.toolkit import options, shell
from experiments.toolkit.output import usable
from theory_checks import convergence, costs, improvement, rates, ssp, threshold, truncation, update, vtrace
from theory_checks.check import Outcome, Theorem, replay, verify

#: Checks by name. A module has `THEOREMS`, and may have `findings(seed)`, which returns further measurements, and
#: `picture(path, seed)`.
CHECKS: Mapping[str, ModuleType] = {
    "improvement": improvement,
    "update": update,
    "truncation": truncation,
    "vtrace": vtrace,
    "convergence": convergence,
    "rates": rates,
    "ssp": ssp,
    "threshold": threshold,
    "costs": costs,
}


class Row(NamedTuple):
    """A row of the table."""

    check: str
    theorem: str
    outcome: Outcome


@shell.command
def main(argv: Sequence[str] | None = None) -> int:
    """Runs the checks; returns 0 if every bound holds and every control breaks, 1 if not, 2 after a wrong option."""
    arguments = _parser().parse_args(argv)
    with jax.enable_x64(True):
        if arguments.replay is not None:
            return _replay(arguments.replay, arguments.seed)
        with usable(arguments.out) if arguments.plot else nullcontext():
            return _run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = options.Parser(
        prog="python -m theory_checks",
        description="Are the papers' bounds true, how tight are they, and which assumptions do they need? In float64, "
        "without sampling except in rates.",
        epilog="Columns: instances and violations, drawn + the adversary's; smallest slack, right - left; tightness, "
        "the median of left / right; kappa*, the largest left / right: the factor by which a right side above zero "
        "could be multiplied; for an equality, 1 plus the largest relative gap.",
    )
    named = f"one of {', '.join(CHECKS)}; default all"
    parser.add_argument("checks", nargs="*", type=_known, metavar="CHECK", help=named)
    parser.add_argument("--seed", type=options.whole(0), default=0, help="seed of the random instances; default 0")
    parser.add_argument(
        "--instances",
        type=options.whole(1),
        default=10_000,
        help="instances of each theorem; default 10,000, and fewer for costly theorems",
    )
    parser.add_argument("--plot", action="store_true", help="draw one picture per check")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument("--replay", metavar="LABEL", help="print one instance and both sides of its claims")
    folder = Path("results/theory_checks")
    parser.add_argument("--out", type=options.folder, default=folder, help=f"folder of the pictures; default {folder}")
    return parser


def _known(name: str) -> str:
    if name not in CHECKS:
        raise argparse.ArgumentTypeError(f"{name!r}: unknown; choose from {', '.join(CHECKS)}")
    return name


def _run(arguments: argparse.Namespace) -> int:
    console = Console(highlight=False, soft_wrap=True, stderr=True)
    rows: list[Row] = []
    findings: dict[str, Mapping[str, Any]] = {}
    undrawn: list[str] = []
    began = time.perf_counter()

    def work() -> None:
        for name in dict.fromkeys(arguments.checks or CHECKS):  # each once, however often it is named
            module, start = CHECKS[name], time.perf_counter()
            for theorem in module.THEOREMS:
                with console.status(theorem.name):
                    outcomes = verify(theorem, seed=arguments.seed, instances=arguments.instances)
                rows.extend(Row(name, theorem.name, outcome) for outcome in outcomes)
            if hasattr(module, "findings"):
                findings[name] = module.findings(arguments.seed)
            if arguments.plot and hasattr(module, "picture"):
                try:
                    module.picture(arguments.out / f"{name}.png", arguments.seed)
                except OSError as error:
                    shell.complain(f"--out {arguments.out}: no picture of {name}: {shell.reason(error)}")
                    undrawn.append(name)
            mine = [row.outcome for row in rows if row.check == name]
            wrong = sum(not outcome.as_expected for outcome in mine)
            verdict = "all as expected" if not wrong else f"{wrong} NOT as expected"
            console.print(f"{name}: {len(mine)} claims, {verdict} ({time.perf_counter() - start:.0f} s)")

    try:
        interrupted = shell.interruptible(work)
    finally:
        if arguments.json:
            print(json.dumps(_as_json(rows, findings), indent=1))
        else:
            _print(Console(highlight=False, soft_wrap=True), rows, findings)
    if interrupted:
        return shell.INTERRUPTED
    faults = [row for row in rows if not row.outcome.as_expected]
    for row in faults:
        console.print(_complaint(row, arguments.seed), markup=False)
    bounds = sum(not row.outcome.claim.control for row in rows)
    console.print(
        f"{bounds} bounds and {len(rows) - bounds} controls in {time.perf_counter() - began:.0f} s: "
        + (f"{len(faults)} not as expected" if faults else "every bound holds, every control breaks")
    )
    return shell.FAILED if faults or undrawn else 0


def _complaint(row: Row, seed: int) -> str:
    """Says which claim failed, and gives the command that shows its worst instance."""
    check, outcome = row.theorem, row.outcome
    if outcome.claim.control:
        return f"{check}: the control {outcome.claim.name!r} did not break in {outcome.instances} instances"
    worst = max(outcome.witnesses, key=lambda witness: _ratio(witness.left, witness.right))
    command = f"python -m theory_checks --seed {seed} --replay {shlex.quote(worst.label)}"
    return f"{check}: {outcome.claim.name!r} is violated, {worst.left:.9g} > {worst.right:.9g}; again:\n  {command}"


def _ratio(left: float, right: float) -> float:
    """Returns left / right, or infinity if the ratio is undefined, so that the instance sorts as the worst."""
    return left / right if right and not math.isnan(left / right) else math.inf


def _replay(label: str, seed: int) -> int:
    """Prints an instance and both sides of each of its claims."""
    theorems: dict[str, Theorem] = {t.name: t for module in CHECKS.values() for t in module.THEOREMS}
    name, _, rest = label.partition("/")
    family, _, rest = rest.partition("/")
    index, _, claim = rest.partition("/")
    if name not in theorems or not re.fullmatch("[0-9]{1,9}", index):
        raise shell.UsageError(f"--replay {label!r}: expected THEOREM/FAMILY/NUMBER[/CLAIM], of {sorted(theorems)}")
    try:
        instance, sides = replay(theorems[name], family, int(index), claim or None, seed=seed)
    except LookupError as error:
        raise shell.UsageError(f"--replay {label!r}: {error.args[0]}") from error
    with np.printoptions(precision=17, threshold=200):
        for path, leaf in jax.tree_util.tree_leaves_with_path(instance):
            print(f"{jax.tree_util.keystr(path)} =\n{np.asarray(leaf)}")
        for said in theorems[name].claims:
            left, right, tolerance = (np.asarray(side, float) for side in sides[said.name])
            print(f"{said.name}: {said.statement}\n  left {left}\n  right {right}\n  tolerance {tolerance}")
    return 0


def _print(console: Console, rows: Iterable[Row], findings: Mapping[str, Mapping[str, Any]]) -> None:
    console.width = max(console.width, 170)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("theorem", "claim", "statement"):
        table.add_column(heading, overflow="fold")
    for heading in ("instances", "violations", "smallest slack", "tightness", "kappa*", ""):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    last = None
    for _, theorem, outcome in rows:
        claim, verdict = outcome.claim, _VERDICTS[outcome.claim.control, outcome.as_expected]
        table.add_row(
            "" if theorem == last else escape(theorem),
            escape("control: " * claim.control + claim.name),
            escape(claim.statement),
            _both(outcome.instances, outcome.searched),
            _both(outcome.violations, outcome.found),
            f"{outcome.slack:.2g}",
            _number(outcome.tightness),
            _number(outcome.kappa),
            verdict,
            style=None if outcome.as_expected else "bold red",
        )
        last = theorem
    console.print(table)
    for check, found in findings.items():
        for name, value in found.items():
            console.print(f"{check}: {name}: {_told(value)}", markup=False)


#: Verdicts, by whether the claim is a control, and whether the outcome is as expected.
_VERDICTS = {
    (False, True): "holds",
    (False, False): "VIOLATED",
    (True, True): "broke as expected",
    (True, False): "DID NOT BREAK",
}


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_told(of)}" for name, of in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(_told, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _both(drawn: int, searched: int) -> str:
    """Formats the number of drawn instances, and the number of the adversary's instances."""
    return f"{drawn:,} + {searched}" if searched else f"{drawn:,}"


def _number(value: float) -> str:
    return (
        f"{value:.4f}"
        if abs(value) < 1e3
        else f"{value:.0f}"
        if abs(value) < 1e6
        else "> 1e6"
        if value > 0
        else "< -1e6"
    )


def _as_json(rows: Iterable[Row], findings: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    claims = [
        {
            "check": row.check,
            "theorem": row.theorem,
            **dataclasses.asdict(row.outcome.claim),
            "instances": row.outcome.instances,
            "violations": row.outcome.violations,
            "searched": row.outcome.searched,
            "found": row.outcome.found,
            **{name: _finite(getattr(row.outcome, name)) for name in ("slack", "tightness", "kappa")},
            "as_expected": row.outcome.as_expected,
        }
        for row in rows
    ]
    return {"claims": claims, "findings": findings}


def _finite(value: float) -> float | None:
    """Replaces a number that is not finite by None, as JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None
