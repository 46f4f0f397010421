"""Progress of runs: a live table with learning curves on a terminal, or a line every few seconds elsewhere."""

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

#: The least seconds of real time between two lines, if the output is not a terminal.
_EVERY = 2.0
#: Width of a curve in characters, and the characters that stand for its values, from 0 to the greatest.
_WIDTH, _BARS = 30, "▁▂▃▄▅▆▇█"


@dataclass(kw_only=True)
class Run:
    """The state of a run in progress."""

    label: str
    budget: Budget
    colour: str
    seconds: str = "virtual s"  #: the name of the unit of time.
    history: list[Row] = field(default_factory=list)
    wall_seconds: float = 0.0  #: real time from `begin` to the end of the last round.
    status: str = "running"
    _began: float = 0.0

    @property
    def done(self) -> float:
        """The used fraction of the budget, between 0 and 1."""
        if self.status == "done":
            return 1.0
        if not self.history:
            return 0.0
        last = self.history[-1]
        return min(max(last["seconds"] / self.budget.seconds, last["steps"] / self.budget.steps), 1.0)

    @property
    def seconds_left(self) -> float:
        """Expected real seconds until the budget is used up, at the speed so far; NaN before the first round."""
        return self.wall_seconds * (1 / self.done - 1) if self.done else math.nan

    def begin(self) -> None:
        """Starts the clock of `wall_seconds`."""
        self._began = time.perf_counter()

    def add(self, row: Row) -> None:
        """Adds the row of a finished round."""
        self.history.append(row)
        self.wall_seconds = time.perf_counter() - self._began


class Display:
    """Shows the progress of runs.

    Args:
      console: the console to print on.
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
        """Adds a run to the table."""
        self._runs.append(run)

    def row(self, run: Run) -> None:
        """Prints the state of a run after a round, if the output is not a terminal and a line is due."""
        if not self._console.is_terminal and time.perf_counter() - self._said > _EVERY:
            self._said = time.perf_counter()
            self._console.print(line(run))

    def end(self, run: Run) -> None:
        """Prints the final line of a run, which stays on the screen."""
        if run.history:
            self._console.print(f"{line(run)}  [bold]{run.status}[/bold]")

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        returns = (row["episode_return"] for run in self._runs for row in run.history)
        top = max(filter(math.isfinite, returns), default=1.0)  # NaN until an episode ends
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
    """Draws values as a line of characters whose height goes from 0 to `top`; the last character is the last value.

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
    """Formats the state of a run as one line."""
    row = run.history[-1]
    bills = {name.removeprefix("cost_"): value for name, value in row.items() if name.startswith("cost_")}
    costs = "".join(f"${usd:.4f} {name.replace('pay_per_use', 'by use')}  " for name, usd in bills.items())
    return (
        f"{run.label:<19} {row['seconds']:7.1f} {run.seconds}  {row['steps']:>8,.0f} steps  "
        f"return {row['episode_return']:7.1f}  {costs}"
        f"staleness {number(row['staleness_mean'], '.2f')}  {run.wall_seconds:5.1f} s"
    )


def number(value: float, form: str) -> str:
    """Formats a number, or returns a dash if it is not finite."""
    return format(value, form) if math.isfinite(value) else "-"


def _left(run: Run) -> Any:
    if run.status != "running":
        return run.status
    return f"at most {run.seconds_left:,.0f} s left" if math.isfinite(run.seconds_left) else ""
