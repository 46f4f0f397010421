"""The history of a run: one row per round, computed from the trace."""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from stellaris.diagnostics import LagReport
from stellaris.runtime.costs.billing import Meter
from stellaris.runtime.costs.price_sheets import PriceSheet
from stellaris.runtime.costs.usage import USE_EVENTS
from stellaris.runtime.functions import FunctionSpec
from stellaris.runtime.trace.trace import Trace
from stellaris.scheduling.scheduler import Round
from stellaris.systems.record import AGE, LAG, METRIC, POLICY

#: A row of the history: the values at the end of a round, by column.
Row: TypeAlias = Mapping[str, float]
#: Default number of last episodes whose mean return is in the history; `Budget(window=...)` overrides it.
WINDOW = 100
#: Events that the history must show: if one of them follows the last round, the history gets one more row.
_NEWS = frozenset(("sampled", "episode", "published", "staleness", "dropped_gradient"))
#: Events whose mean over a round is a column, with the names of the columns.
_MEANS = {
    "episode_length": "sampled_length",
    "trained_episode": "trained_length",
    "evaluated": "evaluation_return",
    "policy_kl": "policy_kl",
    "scheduled": "actors",
    "actor_took": "actor_seconds",
    "learner_took": "learner_seconds",
    f"{AGE}in_flight": "lag_in_flight",
    f"{AGE}in_queue": "lag_in_queue",
    f"{AGE}mean": "lag_mean",
}
#: Events whose maximum over a round is a column, with the names of the columns.
_MAXIMA = {f"{AGE}oldest": "lag_oldest", f"{AGE}span": "version_span"}
#: Events whose sum since the start is a column, from the first event on, with the names of the columns.
_SUMS = {
    "discarded": "discarded",
    "dropped_gradient": "gradients_dropped",
    "lost_steps": "lost_steps",
    "lost_episode": "lost_episode_steps",
}
#: The fields of a `LagReport` that the history shows.
_BY_LAG = ("kl", "clip_fraction", "truncation_fraction", "effective_sample_size")


def history(
    trace: Trace,
    *,
    prices: Sequence[PriceSheet] = (),
    functions: Mapping[str, FunctionSpec] | None = None,
    window: int = WINDOW,
) -> list[Row]:
    """Returns the history of a run from its trace; `train` returns the same.

    A row has the columns `round`, `seconds`, `steps` (delivered), `version` (the newest), `episodes` (that ended),
    `episode_return` (mean of the last episodes; NaN before one ended), `gradients` (applied), `staleness_mean` and
    `staleness_max` (of the round's applied gradients, in versions; both NaN without such gradients, as usual in the
    last row), and `cost_NAME` in USD for each price sheet. Other columns are in a row only if they have values:

    * ages of fragments when they became part of a batch, in versions behind the newest (a fragment is the steps that an
      actor delivers together): `lag_in_flight`, the age that the oldest step had at delivery, and `lag_in_queue`, the
      versions published since delivery, both means over fragments; `lag_mean`, the mean over steps; `lag_oldest`, the
      maximum; and `version_span`, the maximum difference of versions within a fragment;
    * `sampled_length` and `trained_length`: the mean length of the episodes that were sampled, and of the episodes that
      became part of a batch. They differ if fragments are discarded;
    * sums since the start, in steps: `discarded`, `lost_steps` (of fragments that were not whole when their environment
      was lost) and `lost_episode_steps` (of episodes cut short by a lost environment); and `gradients_dropped`, the
      gradients that an aggregator found too stale;
    * `evaluation_return`: the mean over the episodes of an evaluation;
    * `policy_kl`: `KL(new || old)` in nats between the policy after a batch (new) and the policy after the batch before
      it (old), as the mean over some of the batch's observations and over the round's batches. A custom distribution
      needs a method `kl_divergence(other)` for it, as in distrax;
    * in rounds with a scheduler: `actors`, the number that sampled; `actor_seconds`, the time that the round waited for
      a fragment, as the mean over its actors; `learner_seconds`, the time that the round waited for its learner; and
      `round_return`, the mean return of the episodes that ended in the round;
    * the learners' metrics: the mean of each, or the maximum if its name ends in `_max`; and for each policy lag with
      samples `lagK_samples`, `lagK_kl`, `lagK_clip_fraction`, `lagK_truncation_fraction` and
      `lagK_effective_sample_size`. PPO, IMPALA and IMPACT distinguish eight lags: `lag7` is a lag of 7 or more.

    Args:
      trace: the trace of a run.
      prices: price sheets under which the run is billed.
      functions: the deployed functions, for bills by resources.
      window: the number of last episodes whose mean is the `episode_return`, as in the run's budget.

    Returns:
      One row per round, and one for the events after the last round.

    Example:
      >>> trace = Trace()
      >>> trace.append(1.0, "sampled", value=256)
      >>> trace.append(1.0, "episode", value=20.0)
      >>> trace.append(2.0, "round", value=1)
      >>> row = history(trace)[0]
      >>> row["seconds"], row["steps"], row["episode_return"]
      (2.0, 256, 20.0)
    """
    reader = Reader(prices, functions or {}, window=window)
    return list(reader.read(trace.rows()))


def rounds_of(rows: Iterable[Row], sheet: str) -> list[Round]:
    """Returns the complete rounds of a history in which a scheduler decided the number of actors.

    Args:
      rows: rows of the history. The last round is left out if it is incomplete, because the run ended within it.
      sheet: name of the price sheet of the costs; "" for none.

    Raises:
      ValueError: if the history lacks costs by this sheet.
    """
    complete = [row for row in rows if "actors" in row and "learner_seconds" in row]
    if sheet and complete and f"cost_{sheet}" not in complete[0]:
        known = [name.removeprefix("cost_") for name in complete[0] if name.startswith("cost_")]
        raise ValueError(f"sheet={sheet!r} is not among the price sheets of the history: {', '.join(known) or 'none'}")
    return [
        Round(
            actors=int(row["actors"]),
            # `loss` is absent without a metric of this name, `policy_kl` if the distribution has no `kl_divergence`.
            loss=row.get("loss", 0.0),
            round_return=row.get("round_return"),
            policy_kl=row.get("policy_kl", 0.0),
            learner_seconds=row["learner_seconds"],
            actor_seconds=row["actor_seconds"],
            seconds=row["seconds"],
            episodes=int(row["episodes"]),
            episode_return=row["episode_return"],
            cost=row[f"cost_{sheet}"] if sheet else 0.0,
            evaluation_return=row.get("evaluation_return"),
        )
        for row in complete
    ]


class Reader:
    """Computes a history from a growing trace; every row of the trace is read once.

    Args:
      prices: price sheets under which the run is billed.
      functions: the deployed functions.
      window: the number of last episodes whose mean return is reported.
    """

    def __init__(
        self, prices: Sequence[PriceSheet], functions: Mapping[str, FunctionSpec], *, window: int = WINDOW
    ) -> None:
        self._meters = {sheet.name: Meter(sheet, functions=functions) for sheet in prices}
        self._recent: deque[float] = deque(maxlen=window)
        self._steps = 0
        self._version = -1
        self._episodes = 0
        self._gradients = 0
        self._round: dict[str, list[float]] = defaultdict(list)  # values of the round's events, by event
        self._sums: dict[str, float] = defaultdict(float)  # sums since the start, by event
        self._used: list[tuple[float, str, str, int, int, float]] = []  # rows that the meters have not read yet
        self.rows_read = 0  #: number of rows of the trace read so far.
        # The flag starts true, so that a run that ends within its first round has a row.
        self.anything_new = True  #: whether an event in `_NEWS`, or a metric, has come since the last row.

    def read(self, rows: Iterable[tuple[float, str, str, int, int, float]]) -> Iterable[Row]:
        """Reads new rows of the trace; yields rows of the history.

        Args:
          rows: rows of the trace, from `rows_read` on.

        Yields:
          The history's row of every round that is over.
        """
        for row in rows:
            time, event, name, _, _, value = row
            self.rows_read += 1
            if event in USE_EVENTS:
                # Most rows concern only the meters, which are faster if they read many rows at once.
                self._used.append(row)
                continue
            if event == "round":
                for meter in self._meters.values():
                    meter.read(self._used)
                self._used.clear()
                yield self._row(int(value), time)
                self._round.clear()
                self.anything_new = False
                continue
            self.anything_new |= event in _NEWS or event.startswith((METRIC, LAG))
            if event == "sampled":
                self._steps += int(value)
            elif event == "published" and name == POLICY:
                self._version = int(value)
            elif event == "episode":
                self._episodes += 1
                self._round[event].append(value)
                self._recent.append(value)
            elif event == "staleness":  # one per applied gradient
                self._gradients += 1
                self._round[event].append(value)
            elif event in _SUMS:
                self._sums[event] += value
            elif event in _MEANS or event in _MAXIMA or event.startswith((METRIC, LAG)):
                self._round[event].append(value)

    @property
    def full_window(self) -> bool:
        """Whether as many episodes have ended as the window holds."""
        return len(self._recent) == self._recent.maxlen

    def _row(self, number: int, time: float) -> Row:
        staleness = self._round["staleness"]
        row: dict[str, float] = {
            "round": number,
            "seconds": time,
            "steps": self._steps,
            "version": self._version,
            "episodes": self._episodes,
            "episode_return": _mean(self._recent),
            "gradients": self._gradients,
            "staleness_mean": _mean(staleness),
            "staleness_max": max(staleness, default=math.nan),
        }
        row |= {f"cost_{name}": meter.bill(until=time).total for name, meter in self._meters.items()}
        row |= {name: _mean(self._round[event]) for event, name in _MEANS.items() if event in self._round}
        if "scheduled" in self._round and self._round["episode"]:
            row["round_return"] = _mean(self._round["episode"])
        row |= {name: max(self._round[event]) for event, name in _MAXIMA.items() if event in self._round}
        row |= {name: self._sums[event] for event, name in _SUMS.items() if event in self._sums}
        for event, values in self._round.items():
            if event.startswith(METRIC):
                name = event.removeprefix(METRIC)
                row[name] = max(values) if name.endswith("_max") else _mean(values)
        return row | self._by_lag()

    def _by_lag(self) -> dict[str, float]:
        """Returns the columns of a round's `LagReport`s, summed; the trace holds only lags with samples."""
        sums: dict[int, dict[str, float]] = defaultdict(dict)
        for event, values in self._round.items():
            if event.startswith(LAG):
                _, lag, name = event.split(":")
                sums[int(lag)][name] = math.fsum(values)
        if not sums:
            return {}
        lags = sorted(sums)
        report = LagReport(*(np.array([sums[lag][name] for lag in lags]) for name in LagReport._fields))
        shown = {"samples": report.count} | {name: getattr(report, name) for name in _BY_LAG}
        return {f"lag{lag}_{name}": float(shown[name][i]) for i, lag in enumerate(lags) for name in shown}


def _mean(values: Sequence[float] | deque[float]) -> float:
    return sum(values) / len(values) if values else math.nan
