"""The history of a run: a row a round, read off its trace."""

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

#: What was reached by the end of a round, by column.
Row: TypeAlias = Mapping[str, float]
#: Episodes whose mean return is reported, unless a budget says otherwise.
WINDOW = 100
#: Events that a row of the history tells of.
_NEWS = frozenset(("sampled", "episode", "published", "staleness", "dropped_gradient"))
#: Events whose mean over a round is a column of the same name, or of another.
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
#: Events of which a round's greatest is a column.
_MAXIMA = {f"{AGE}oldest": "lag_oldest", f"{AGE}span": "version_span"}
#: Events whose sum since the start is a column, once there was any.
_SUMS = {
    "discarded": "discarded",
    "dropped_gradient": "gradients_dropped",
    "lost_steps": "lost_steps",
    "lost_episode": "lost_episode_steps",
}
#: Of a `LagReport`, what the history shows.
_BY_LAG = ("kl", "clip_fraction", "truncation_fraction", "effective_sample_size")


def history(
    trace: Trace,
    *,
    prices: Sequence[PriceSheet] = (),
    functions: Mapping[str, FunctionSpec] | None = None,
    window: int = WINDOW,
) -> list[Row]:
    """The history that a trace tells: `train` returns the same.

    A row has the columns `round`, `seconds`, `steps` (delivered), `version` (the newest), `episodes` (that ended),
    `episode_return` (mean of the last episodes; NaN before one ended), `gradients` (applied), `staleness_mean` and
    `staleness_max` (of the round's applied gradients, in versions; both NaN where there were none, as is usual of the
    last row), and `cost_NAME` in USD for each price sheet. What did not happen in a round, its row does not have:

    * of the fragments that became batches, in versions behind the newest: `lag_in_flight` (of the oldest step, when the
      fragment was delivered) and `lag_in_queue` (since then), both means over fragments; `lag_mean` over steps; the
      greatest `lag_oldest`, and the greatest `version_span` within a fragment;
    * `sampled_length` and `trained_length`: the mean length of episodes that were sampled, and of those that became
      part of a batch. Where fragments are thrown away the two differ;
    * since the start, in steps: `discarded` (thrown away), `lost_steps` (of fragments that were not whole when their
      environment was lost) and `lost_episode_steps` (of episodes that will not end); and `gradients_dropped`, those
      that an aggregator found too stale;
    * `evaluation_return`: the mean over the episodes of an evaluation;
    * `policy_kl`: the divergence of the policy that a batch has led to from the one that the batch before it led to,
      `KL(new || old)` in nats, a mean over some of the batch's observations; where there were several batches, over
      these. Distributions of one's own need a method `kl_divergence(other)` for it, as those of distrax have;
    * of rounds that a scheduler decides about: `actors`, how many sampled; `actor_seconds`, the mean over them of the
      time that the round has waited for its fragment, and `learner_seconds`, that it has waited for its learner; and
      `round_return`, the mean return of the episodes that ended in the round, if one did;
    * what the learners reported: the mean of each metric, or the greatest if its name ends in `_max`; and for each
      policy lag of which there were samples `lagK_samples`, `lagK_kl`, `lagK_clip_fraction`, `lagK_truncation_fraction`
      and `lagK_effective_sample_size`.

    Args:
      trace: of a run.
      prices: sheets under which it is billed.
      functions: the deployment, for bills by resources.
      window: episodes whose mean is the `episode_return`, as the run's budget has it.

    Returns:
      A row for each round, and one for what came after the last.

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
    """Returns the complete rounds of a history that a scheduler decided about.

    Args:
      rows: of the history. The last round may be incomplete, because the run ended within it: it is left out.
      sheet: the price sheet of the costs; "" for none.
    """
    return [
        Round(
            actors=int(row["actors"]),
            loss=row.get("loss", 0.0),
            round_return=row.get("round_return"),
            policy_kl=row.get("policy_kl", 0.0),
            learner_seconds=row["learner_seconds"],
            actor_seconds=row["actor_seconds"],
            seconds=row["seconds"],
            episodes=int(row["episodes"]),
            episode_return=row["episode_return"],
            cost=row[f"cost_{sheet}"] if sheet else 0.0,
        )
        for row in rows
        if "actors" in row and "learner_seconds" in row
    ]


class Reader:
    """Reads a history off a trace that grows: every row of the trace is looked at once.

    Args:
      prices: sheets under which the run is billed.
      functions: the deployment.
      window: episodes whose mean return is reported.
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
        self._round: dict[str, list[float]] = defaultdict(list)  # what the round's events carry, by event
        self._sums: dict[str, float] = defaultdict(float)  # of events since the start
        self._used: list[tuple[float, str, str, int, int, float]] = []  # rows that no bill has seen yet
        self.rows_read = 0  #: of the trace.
        self.anything_new = True  #: whether there is anything to tell since the last row.

    def read(self, rows: Iterable[tuple[float, str, str, int, int, float]]) -> Iterable[Row]:
        """Goes on reading.

        Args:
          rows: of the trace, from `rows_read` on.

        Yields:
          The row of every round that is over.
        """
        for row in rows:
            time, event, name, _, _, value = row
            self.rows_read += 1
            if event in USE_EVENTS:
                # Most rows are for the meters alone, which read them together.
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
            elif event == "staleness":
                self._gradients += 1
                self._round[event].append(value)
            elif event in _SUMS:
                self._sums[event] += value
            elif event in _MEANS or event in _MAXIMA or event.startswith((METRIC, LAG)):
                self._round[event].append(value)

    @property
    def full_window(self) -> bool:
        """Whether there have been as many episodes as the mean return is taken over."""
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
        """What the `LagReport`s of a round say together; only lags of which there were samples are in the trace."""
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
