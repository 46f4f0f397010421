"""Sinks for `train(on_progress=...)`: TensorBoard's event files, and Weights & Biases."""

import abc
import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from stellaris._core.extras import needs
from stellaris.systems.history import Row

#: Names that other libraries give to columns of the history.
FIELD_NAMES: Mapping[str, str] = {
    # CleanRL
    "episode_return": "charts/episodic_return",
    "sampled_length": "charts/episodic_length",
    "policy_loss": "losses/policy_loss",
    "entropy": "losses/entropy",
    "kl": "losses/approx_kl",
    "clip_fraction": "losses/clipfrac",
    # prime-rl
    "lag_mean": "off_policy/mean",
    "lag_oldest": "off_policy/max",
    "lag_in_flight": "off_policy/in_flight/mean",
    "lag_in_queue": "off_policy/in_queue/mean",
    # Ours: no other library logs them, or each has another name for them.
    "staleness_mean": "off_policy/staleness/mean",
    "staleness_max": "off_policy/staleness/max",
    "truncation_fraction": "off_policy/truncation_fraction",
}
_OF_ONE_LAG = re.compile(r"(lag\d+)_(.+)")
#: The project of the runs in Weights & Biases, if none is given.
PROJECT = "stellaris"


def named(row: Row) -> dict[str, float]:
    """Returns the finite values of a history's row under the names that sinks give them.

    * `history/NAME`: every column of the row. `history/steps` and `history/seconds` are the two axes.
    * The field's names, for the columns that have one (`FIELD_NAMES`): CleanRL's `charts/...` and `losses/...`, and
      prime-rl's `off_policy/...`, which counts ages in versions.
    * `losses/value_loss`: half the `value_loss`, because CleanRL's is half the squared error.
    * `charts/SPS`: `steps / seconds`, on the platform's clock: in virtual seconds on a simulated platform.
    * `off_policy/lagK/NAME`: `samples`, `kl`, `clip_fraction`, `truncation_fraction` and `effective_sample_size` of the
      samples of policy lag K, from `lagK_NAME`.

    Args:
      row: a row of a history, as `train` passes it to `on_progress`.

    Source:
      Names: CleanRL, `cleanrl/ppo.py` (commit 020cf0e); prime-rl, `src/prime_rl/orchestrator/orchestrator.py` (2026).

    Example:
      >>> named({"steps": 512, "seconds": 2.0, "episode_return": 21.5, "staleness_mean": math.nan, "lag1_kl": 0.5})
      ... # doctest: +NORMALIZE_WHITESPACE
      {'history/steps': 512, 'history/seconds': 2.0, 'history/episode_return': 21.5, 'history/lag1_kl': 0.5,
       'charts/episodic_return': 21.5, 'off_policy/lag1/kl': 0.5, 'charts/SPS': 256.0}
    """
    finite = {name: value for name, value in row.items() if math.isfinite(value)}
    values = {f"history/{name}": value for name, value in finite.items()}
    for name, value in finite.items():
        if name in FIELD_NAMES:
            values[FIELD_NAMES[name]] = value
        elif match := _OF_ONE_LAG.fullmatch(name):
            values[f"off_policy/{match[1]}/{match[2]}"] = value
    if "value_loss" in finite:
        values["losses/value_loss"] = finite["value_loss"] / 2
    if row["seconds"] > 0:
        values["charts/SPS"] = row["steps"] / row["seconds"]
    return values


class Sink(abc.ABC):
    """Logs the rows of a run's history, under the names that `named` explains.

    Use a sink as a context manager, so that it is closed also if the run fails:

        with TensorBoard("runs/a") as sink:
            train(..., on_progress=sink)
    """

    @abc.abstractmethod
    def __call__(self, row: Row) -> None:
        """Logs a row; `on_progress` of `train` calls it with every new row."""

    @abc.abstractmethod
    def close(self, *, failed: bool = False) -> None:
        """Writes the remaining rows and closes the sink; closing twice does nothing.

        Args:
          failed: whether the run failed.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self.close(failed=kind is not None)


class TensorBoard(Sink):
    """Writes TensorBoard's event files.

    The step of every value is the number of environment steps. Its wall time is the time at which the sink was made
    plus the platform's seconds, so that TensorBoard's axis "relative" shows virtual time. Every row is on the disk when
    the call returns.

    Args:
      directory: the folder of the run, which is made if it does not exist. If it holds event files, TensorBoard shows
        them and the new file as one run, as is right for a run that is resumed.

    Raises:
      ModuleNotFoundError: without tensorboardX; the message names the extra.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._tensorboardx = self.package()
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._began = time.time()
        # `SummaryWriter` hands its values to a thread, and its `flush` does not wait for them; this writer is plain.
        # The suffix makes the name unique: without it, a second file of the same second would replace the first.
        self._file = self._tensorboardx.event_file_writer.EventsWriter(
            os.path.join(directory, "events"), filename_suffix=f".{time.time_ns()}"
        )
        self._closed = False

    @staticmethod
    def package() -> ModuleType:
        """Returns tensorboardX.

        Raises:
          ModuleNotFoundError: without it; the message names the extra.
        """
        with needs("a log for TensorBoard"):
            import tensorboardX
        return tensorboardX  # type: ignore[no-any-return]

    def __call__(self, row: Row) -> None:
        """Writes a row."""
        proto = self._tensorboardx.proto
        values = [proto.summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in named(row).items()]
        summary = proto.summary_pb2.Summary(value=values)
        event = proto.event_pb2.Event(wall_time=self._began + row["seconds"], step=int(row["steps"]), summary=summary)
        self._file.write_event(event)
        self._file.flush()

    def close(self, *, failed: bool = False) -> None:
        """Closes the event file, which does not record whether the run failed."""
        if not self._closed:
            self._closed = True
            self._file.close()


class WandB(Sink):
    """Logs to Weights & Biases, offline unless the environment variable `WANDB_MODE` says otherwise.

    The axis of every chart is `history/steps`; choose `history/seconds` in the browser for virtual time. `wandb sync`
    uploads a run that was logged offline. A process may have several sinks at the same time.

    Args:
      directory: the folder in which W&B makes its folder `wandb`. It is made if it does not exist, because W&B would
        write into the system's temporary folder instead.
      name: the name of the run.
      project: the project of the run.
      config: plain data that describes the run, such as its settings.

    Raises:
      ModuleNotFoundError: without wandb; the message names the extra.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        name: str | None = None,
        project: str = PROJECT,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        package = self.package()
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._run = package.init(
            dir=os.fspath(directory),
            name=name,
            project=project,
            config=dict(config or {}),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
            # Runs share the output of the process: it is not recorded, and W&B prints nothing into it.
            settings={"console": "off", "silent": True},
        )
        self._run.define_metric("*", step_metric="history/steps")
        self._closed = False

    @staticmethod
    def package() -> ModuleType:
        """Returns wandb.

        Raises:
          ModuleNotFoundError: without it; the message names the extra.
        """
        with needs("a log for Weights & Biases"):
            import wandb
        return wandb  # type: ignore[no-any-return]

    def __call__(self, row: Row) -> None:
        """Logs a row."""
        self._run.log(named(row))

    def close(self, *, failed: bool = False) -> None:
        """Finishes the run, which W&B shows as failed or finished."""
        if not self._closed:
            self._closed = True
            self._run.finish(exit_code=int(failed))
