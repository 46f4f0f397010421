"""Logs of a study's runs for TensorBoard and Weights & Biases."""

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.study.runs import Outcome
from experiments.toolkit.shell import UsageError
from stellaris._core.describe import describe
from stellaris.systems.sinks import Sink, TensorBoard, WandB

#: The sinks by the names that `--log` accepts.
SINKS: Mapping[str, type[TensorBoard] | type[WandB]] = {"tensorboard": TensorBoard, "wandb": WandB}


def names(text: str) -> list[str]:
    """Parses names of sinks, separated by commas; the type of an option."""
    chosen = text.split(",")
    if unknown := [name for name in chosen if name not in SINKS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no log; choose from {', '.join(SINKS)}")
    return chosen


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the option `--log`."""
    help_ = f"logs of the runs, separated by commas: {', '.join(SINKS)} (offline); in the study's results folder"
    parser.add_argument("--log", metavar="NAME,...", type=names, action="extend", default=[], help=help_)


class Logs:
    """A watcher that sends the rows of each run to separate sinks, and closes them when the run ends.

    Each run has a folder `logs/tensorboard/RUN`, whose earlier log is removed, and a run in `logs/wandb`. At the end of
    the `with` block the logs of runs that have not ended are closed as failed.

    Args:
      chosen: names of `SINKS`.
      home: the study's results folder.

    Raises:
      UsageError: if a package of a sink is missing.
    """

    def __init__(self, chosen: Sequence[str], home: Path) -> None:
        self._chosen = [*dict.fromkeys(chosen)]
        self._folder = home / "logs"
        self._sinks: dict[str, list[Sink]] = {}  # by label of the run
        try:
            for name in self._chosen:
                SINKS[name].package()
        except ModuleNotFoundError as error:
            raise UsageError(f"--log {name}: {error}") from error

    def __enter__(self) -> "Logs":
        return self

    def __exit__(self, *details: object) -> None:
        for label in [*self._sinks]:
            self._close(label, failed=True)

    def begin(self, run: Outcome) -> None:
        """Opens the sinks of a run."""
        sinks = self._sinks[run.label] = []
        for name in self._chosen:
            sinks.append(self._opened(name, run))  # noqa: PERF401  # if one fails, the others are closed

    def row(self, run: Outcome) -> None:
        """Logs the last row of a run."""
        for sink in self._sinks[run.label]:
            sink(run.history[-1])

    def end(self, run: Outcome) -> None:
        """Closes the sinks of a run."""
        self._close(run.label, failed=run.status != "done")

    def _opened(self, name: str, run: Outcome) -> Sink:
        if SINKS[name] is TensorBoard:
            folder = self._folder / name / run.label.replace(" ", "_").replace("/", "-")
            shutil.rmtree(folder, ignore_errors=True)  # TensorBoard would draw both logs as one line
            return TensorBoard(folder)
        settings = {"system": run.contender.system, "functions": run.contender.functions, "budget": run.budget}
        return WandB(self._folder, name=run.label, config={**describe(settings), "seed": run.seed})

    def _close(self, label: str, *, failed: bool) -> None:
        for sink in self._sinks.pop(label, []):
            sink.close(failed=failed)
