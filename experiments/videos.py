"""Videos of episodes in Gymnasium's environments that render."""

import functools
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from experiments.toolkit.shell import UsageError
from stellaris._core.extras import install, missing, needs
from stellaris.acting import Policy, PolicyVersion
from stellaris.acting.envs import Environment
from stellaris.acting.evaluation import evaluate
from stellaris.acting.rollout import Episode
from stellaris.runtime.files import atomic_path

#: Frames per second of an environment that does not name them.
_RATE = 30
_MODE = "rgb_array"


@dataclass(frozen=True)
class Rendered:
    """An environment of Gymnasium that renders."""

    name: str
    rate: float  #: frames per second.

    @classmethod
    def checked(cls, environment: Environment) -> "Rendered":
        """Returns the environment, after making it once and rendering its first frame.

        Raises:
          UsageError: if Gymnasium does not have the environment, it does not render, or a package is missing. Every
            error is replaced, because environments may raise errors of any class.
        """
        if not isinstance(environment, str):
            raise UsageError(f"--video: {environment!r} does not render: Gymnasium makes environments by name only")
        for device in ("SDL_AUDIODRIVER", "SDL_VIDEODRIVER"):  # pygame complains about a missing device, but needs none
            os.environ.setdefault(device, "dummy")
        try:
            with needs("--video"):
                import imageio_ffmpeg
            imageio_ffmpeg.get_ffmpeg_exe()
            env = _made(environment)
            try:
                env.reset(seed=0)
                frame = np.asarray(env.render())
                rate = float(env.metadata.get("render_fps", _RATE))
            finally:
                env.close()
        except Exception as error:
            package = missing(error) or missing(error.__cause__)
            why = f"it needs {install(package)}" if package else f"{type(error).__name__}: {error}"
            raise UsageError(f"--video: {environment} cannot be recorded: {why}") from error
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
            raise UsageError(
                f"--video: {environment} does not render: its frame is {frame.dtype}{[*frame.shape]} instead of "
                f"uint8[height, width, 3], so render_mode={_MODE!r} is probably not supported"
            )
        return cls(environment, rate)

    def film(
        self, policy: Policy, version: PolicyVersion, path: Path, *, episodes: int, seed: int
    ) -> tuple[Episode, ...]:
        """Plays episodes one after the other, and writes all their frames into one MP4 file.

        Args:
          policy: the policy of the version.
          version: the version that acts.
          path: the file, whose folder exists.
          episodes: the number of episodes.
          seed: the seed of the first episode; the seed of each further episode is greater by 1.
        """
        played: list[Episode] = []
        with atomic_path(path) as draft, _writer(draft, self.rate) as write:
            for i in range(episodes):
                environment = functools.partial(_filmed, self.name, write)
                played += evaluate(policy, version, environment, episodes=1, seed=seed + i)
        return tuple(played)


class _Filmed:
    """Passes the frames of an environment's first episode to a function.

    A vector environment resets the environment after an episode, and may step it further; those frames are not passed.
    """

    def __init__(self, env: Any, write: Callable[[Any], None]) -> None:
        self.action_space, self.observation_space = env.action_space, env.observation_space
        self._env = env
        self._write = write
        self._ended = False

    def reset(self, **options: Any) -> Any:
        """Resets the environment."""
        result = self._env.reset(**options)
        self._show()
        return result

    def step(self, action: Any) -> Any:
        """Steps the environment."""
        result = self._env.step(action)
        self._show()
        _, _, terminated, truncated, _ = result
        self._ended |= bool(terminated or truncated)
        return result

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()

    def _show(self) -> None:
        if not self._ended:
            self._write(self._env.render())


def _made(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium recommends newer versions, and the check finds a missing mode
        return gymnasium.make(name, render_mode=_MODE)


def _filmed(name: str, write: Callable[[Any], None]) -> _Filmed:
    return _Filmed(_made(name), write)


@contextmanager
def _writer(path: Path, rate: float) -> Iterator[Callable[[Any], None]]:
    """Yields a function that appends a frame to an MP4 file."""
    from imageio.v2 import get_writer

    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", r"os\.fork\(\) was called", RuntimeWarning
        )  # the new process runs ffmpeg at once
        # H.264 needs even widths and heights.
        writer: Any = get_writer(path, format="FFMPEG", fps=rate, macro_block_size=2)
        with writer:
            yield writer.append_data
