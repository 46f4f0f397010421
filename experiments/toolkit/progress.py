"""How runs get on: on a terminal a table with curves that is drawn anew all the time, elsewhere a line now and then."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from stellaris.systems import Budget, Row

#: Seconds of real time between two lines, where they are lines.
_EVERY = 2.0
#: Characters of a curve, and what they are made of.
_WIDTH, _BARS = 30, "▁▂▃▄▅▆▇█"


@dataclass(kw_only=True)
class Run:
    """What is known of a run while it goes on."""

    label: str
    budget: Budget
    colour: str
    seconds: str = "virtual s"  #: what its seconds are called.
    history: list[Row] = field(default_factory=list)
    wall_seconds: float = 0.0  #: of real time, up to its last round.
    status: str = "running"
    _began: float = 0.0

    @property
    def done(self) -> float:
        """The share of its budget that it has used, between 0 and 1."""
        if self.status == "done":
            return 1.0
        if not self.history:
            return 0.0
        last = self.history[-1]
        return min(max(last["seconds"] / self.budget.seconds, last["steps"] / self.budget.steps), 1.0)

    @property
    def seconds_left(self) -> float:
        """Of real time, if it uses its budget up and goes on as fast as so far."""
        return self.wall_seconds * (1 / self.done - 1) if self.done else math.nan

    def begin(self) -> None:
        """Its real time counts from here."""
        self._began = time.perf_counter()

    def add(self, row: Row) -> None:
        """A round is over."""
        self.history.append(row)
        self.wall_seconds = time.perf_counter() - self._began


class Display:
    """Shows runs as they go on.

    Args:
      console: to print on.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._runs: list[Run] = []
        self._said = 0.0
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "Display":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._live.stop()

    def begin(self, run: Run) -> None:
        """A run begins."""
        self._runs.append(run)

    def row(self, run: Run) -> None:
        """A round of a run is over."""
        if not self._console.is_terminal and time.perf_counter() - self._said > _EVERY:
            self._said = time.perf_counter()
            self._console.print(line(run))

    def end(self, run: Run) -> None:
        """A run has ended: its last line stays."""
        if run.history:
            self._console.print(f"{line(run)}  [bold]{run.status}[/bold]")

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        top = max((row["episode_return"] for run in self._runs for row in run.history), default=1.0)
        for run in self._runs[-6:]:
            last = run.history[-1] if run.history else None
            table.add_row(
                run.label,
                ProgressBar(total=1.0, completed=run.done, width=16),
                Text(curve([row["episode_return"] for row in run.history], top=top), style=run.colour),
                f"return {last['episode_return']:,.0f}" if last else "starting",
                f"{last['seconds']:,.1f} {run.seconds}" if last else "",
                _left(run),
            )
        return table


def curve(values: Sequence[float], *, top: float) -> str:
    """A curve of characters, from 0 to `top`; the last of them is the last value.

    Example:
      >>> curve([0.0, 5.0, 10.0], top=10.0)
      '▁▅█'
    """
    known = [value for value in values if math.isfinite(value)]
    step = max(len(known) / _WIDTH, 1.0)
    shown = [known[-1 - int(i * step)] for i in range(min(len(known), _WIDTH))][::-1]
    scale = (len(_BARS) - 1) / top if top > 0 else 0.0
    return "".join(_BARS[min(max(round(value * scale), 0), len(_BARS) - 1)] for value in shown)


def line(run: Run) -> str:
    """Where a run stands, in one line."""
    row = run.history[-1]
    bills = {name.removeprefix("cost_"): value for name, value in row.items() if name.startswith("cost_")}
    costs = "".join(f"${usd:.4f} {name.replace('pay_per_use', 'by use')}  " for name, usd in bills.items())
    return (
        f"{run.label:<19} {row['seconds']:7.1f} {run.seconds}  {row['steps']:>8,.0f} steps  "
        f"return {row['episode_return']:7.1f}  {costs}"
        f"staleness {number(row['staleness_mean'], '.2f')}  {run.wall_seconds:5.1f} s"
    )


def number(value: float, form: str) -> str:
    """A number, or a dash for what is none."""
    return format(value, form) if math.isfinite(value) else "-"


def _left(run: Run) -> Any:
    if run.status != "running":
        return run.status
    return f"at most {run.seconds_left:,.0f} s left" if math.isfinite(run.seconds_left) else ""
