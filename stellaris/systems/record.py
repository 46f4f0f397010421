"""Writes a system's actions into the trace. Recording never changes the training."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stellaris._core import checks
from stellaris.acting.rollout import Episode, Fragment
from stellaris.diagnostics import LagReport
from stellaris.runtime.contract import Platform
from stellaris.runtime.functions import Invocation
from stellaris.systems.rollouts import Waiting

#: The name under which a run's policy is published.
POLICY = "policy"
#: Prefix of a metric's name in the trace, so that a metric cannot be confused with another event.
METRIC = "metric:"
#: Prefix of a field of a `LagReport`: `lag:3:kl_sum` is the field `kl_sum` at lag 3.
LAG = "lag:"
#: Prefix of a field of `rollouts.Lags`, which is recorded when a fragment becomes part of a batch.
AGE = "age:"
#: Columns of a history that are not metrics.
COLUMNS = frozenset(
    (
        *("round", "seconds", "steps", "version", "episodes", "episode_return", "gradients"),
        *("staleness_mean", "staleness_max", "sampled_length", "trained_length", "evaluation_return", "policy_kl"),
        *("actors", "actor_seconds", "learner_seconds", "round_return", "lag_in_flight", "lag_in_queue", "lag_mean"),
        *("lag_oldest", "version_span", "discarded", "gradients_dropped", "lost_steps", "lost_episode_steps"),
    )
)
#: Names that a metric may not have, because the metric would replace a column in a row of the history.
_COLUMN = re.compile("|".join([*COLUMNS, "cost_.*", r"lag\d+_.*"]))


@dataclass(frozen=True)
class Record:
    """Writes a system's actions into its platform's trace, from which the history is read.

    Args:
      platform: the platform, which has the trace and the clock.
    """

    platform: Platform

    def sampled(self, done: Invocation, fragment: Fragment) -> None:
        """Records a delivered fragment or a piece of it: its steps, and the episodes that ended in it."""
        self._write("sampled", fragment.steps, done)
        self._write("environment", fragment.environment, done)
        self._ended(done, fragment.resets, fragment.episodes)

    def fragment(self, done: Invocation, pieces: int) -> None:
        """Records that a delivered piece completes a fragment, and how many pieces the fragment has."""
        self._write("fragment", pieces, done)

    def lost(self, done: Invocation, *, steps: int, episode: int) -> None:
        """Records the loss of an environment: the lost steps of the unfinished fragment and episode."""
        for event, value in (("lost_steps", steps), ("lost_episode", episode)):
            if value:  # no row for a fragment that lost nothing, which is the usual case
                self._write(event, value, done)

    def abandoned(
        self, done: Invocation, *, steps: int, resets: int, episodes: Iterable[Episode], episode: int
    ) -> None:
        """Records the steps of a fragment that will not be delivered: all as sampled, and all but resets as lost.

        `episodes` ended in these steps; `episode` is the length of one that was lost before them.
        """
        self._write("sampled", steps, done)
        self._ended(done, resets, episodes)
        self.lost(done, steps=steps - resets, episode=episode)

    def discarded(self, steps: int) -> None:
        """Records discarded transitions."""
        self._write("discarded", steps)

    def trained(self, fragments: Iterable[Waiting], version: int) -> None:
        """Records fragments that become a batch: their age under the newest version, and their episodes."""
        for waiting in fragments:
            for name, value in waiting.lags(version)._asdict().items():
                self._write(f"{AGE}{name}", value)
            for episode in waiting.fragment.episodes:
                self._write("trained_episode", episode.length)

    def batch(self, fragments: Iterable[Waiting], target: int) -> None:
        """Records the making of a batch: the version with which it is prepared, and its fragments, in order."""
        self._write("batch", target)
        for waiting in fragments:
            self._write("batched", waiting.number)

    def learns(self, invocation: Invocation, batch: int) -> None:
        """Records the number of the batch that an invocation learns from."""
        checks.whole(at_least=0, batch=batch)  # the number of a batch, and not the batch
        self._write("of_batch", batch, invocation)

    def computes(self, invocation: Invocation, batch: int, minibatch: int, *, learner: int) -> None:
        """Records the minibatch whose gradient an invocation computes, and the learner that it runs for."""
        self.learns(invocation, batch)
        self._write("minibatch", minibatch, invocation)
        self._write("of_learner", learner, invocation)

    def learned_from(self, batch: int) -> None:
        """Records that later versions normalise by the observations of this batch."""
        self._write("learned_batch", batch)

    def scheduled(self, actors: int) -> None:
        """Records the number of actors of a round."""
        self._write("scheduled", actors)

    def took(self, part: str, seconds: float) -> None:
        """Records the seconds that a round has waited for an `"actor"`'s fragment, or for its `"learner"`."""
        self._write(f"{part}_took", seconds)

    def queued(self, done: Invocation) -> None:
        """Records that a learner's gradient was put into the queue."""
        self._write("pushed", 1, done)

    def metrics(self, done: Invocation, metrics: Mapping[str, Any]) -> None:
        """Records a learner's metrics by name: numbers, and every `LagReport` lag by lag."""
        for name, value in scalars(metrics):
            self._write(name, value, done)

    def applied(self, invocation: int, *, staleness: int, steps: int, function: str = "learner") -> None:
        """Records that a gradient leaves the queue to be applied.

        Args:
          invocation: the number of the invocation that computed the gradient.
          staleness: staleness of the gradient in versions.
          steps: number of transitions that no applied gradient had seen before.
          function: the function that computed the gradient.
        """
        trace, now = self.platform.trace, self.platform.now
        trace.append(now, "staleness", function=function, invocation=invocation, value=float(staleness))
        trace.append(now, "learned", function=function, invocation=invocation, value=float(steps))

    def dropped(self, invocation: int) -> None:
        """Records that a gradient left the queue and is not applied, because it is too stale.

        Args:
          invocation: the number of the learner's invocation that computed the gradient.
        """
        self.platform.trace.append(
            self.platform.now, "dropped_gradient", function="learner", invocation=invocation, value=1.0
        )

    def diverged(self, divergence: float) -> None:
        """Records the divergence of the newest policy from the policy before the last batch; nothing if it is NaN."""
        if not math.isnan(divergence):  # NaN stands for a distribution without `kl_divergence`
            self._write("policy_kl", divergence)

    def unused(self, *, gradients: int, steps: int) -> None:
        """Records the unused data at the end of a run: gradients in the queue, and transitions not learned from."""
        self._write("queued", gradients)
        self._write("waiting", steps)

    def evaluated(self, episodes: Iterable[Episode]) -> None:
        """Records the returns of an evaluation's episodes."""
        for episode in episodes:
            self._write("evaluated", episode.episode_return)

    def round_over(self, number: int) -> None:
        """Records the end of a round, or of the run: the history's row covers the events up to here."""
        self._write("round", number)

    def _ended(self, done: Invocation, resets: int, episodes: Iterable[Episode]) -> None:
        self._write("reset", resets, done)
        for episode in episodes:
            self._write("episode", episode.episode_return, done)
            self._write("episode_length", episode.length, done)

    def _write(self, event: str, value: float, done: Invocation | None = None) -> None:
        platform = self.platform
        if done is None:
            platform.trace.append(platform.now, event, value=value)
        else:
            platform.trace.append(platform.now, event, function=done.function, invocation=done.number, value=value)


def scalars(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields metrics as events of a trace, by name. A `LagReport` becomes one event per field at each lag with samples.

    Raises:
      ValueError: if a metric is neither a number nor a `LagReport`, or is named like a column of the history; the error
        names the metric.

    Example:
      >>> report = LagReport(*np.array([[0.0, 2.0], [0.0, 0.5], [0.0, 1.0], [0.0, 0.0], [0.0, 2.0], [0.0, 2.5]]))
      >>> dict(scalars({"kl": np.float32(0.25), "by_lag": report}))["lag:1:kl_sum"]
      0.5
    """
    for name, value in metrics.items():
        if isinstance(value, LagReport):
            for lag in np.flatnonzero(np.asarray(value.count)).tolist():
                for field, sums in value._asdict().items():
                    yield f"{LAG}{lag}:{field}", float(sums[lag])
        elif _COLUMN.fullmatch(name):
            raise ValueError(f"metric {name!r} is named like a column of the history: rename it")
        elif np.ndim(value) == 0:
            yield f"{METRIC}{name}", float(value)
        else:
            raise ValueError(
                f"metric {name!r} has shape {np.shape(value)}: report a scalar, or a LagReport for values by policy lag"
            )
