"""Plays episodes with a policy that `train` has saved."""

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments import settings
from experiments.toolkit import options, output
from experiments.toolkit.shell import UsageError
from experiments.videos import Rendered
from stellaris.acting import Policy, PolicyVersion, envs, load_policy
from stellaris.acting.envs import Environment
from stellaris.acting.evaluation import evaluate
from stellaris.acting.saving import PolicyFileError, description_of

DESCRIPTION = "play episodes with the policies that `train` has saved"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("path", type=Path, help="a policy's file, or a folder of such files, such as results/train/policies")
    add("--episodes", type=options.whole(1), default=10, help="episodes of each policy")
    add("--seed", type=options.whole(0), default=0, help="seed of environments and actions")
    help_ = "play in Gymnasium's environment, and write the episodes into this file; of several policies each gets a "
    add("--video", metavar="FILE.mp4", type=_video, help=help_ + "file, FILE_POLICY.mp4")


def main(arguments: argparse.Namespace) -> int:
    """Plays every policy, and prints the mean, the least and the greatest return."""
    paths = [arguments.path] if arguments.path.is_file() else sorted(arguments.path.glob("**/*.safetensors"))
    if not paths:
        raise UsageError(f"{arguments.path} holds no policy: train one with `python -m experiments train`")
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 150)
    table = Table("policy", "environment", "return", "least", "greatest", "mean length")
    every = [_loaded(path) for path in paths]
    videos = {} if arguments.video is None else _videos(arguments.video, every, arguments.path)
    for one in every:
        if one.path in videos:
            rendered, path = videos[one.path]
            with output.kept(path.parent, lambda: "the policies are unchanged"):
                played = rendered.film(one.policy, one.version, path, episodes=arguments.episodes, seed=arguments.seed)
        else:
            played = evaluate(
                one.policy, one.version, one.environment, episodes=arguments.episodes, seed=arguments.seed
            )
        returns = [episode.episode_return for episode in played]
        length = statistics.fmean(episode.length for episode in played)
        numbers = [f"{x:,.1f}" for x in (statistics.fmean(returns), min(returns), max(returns), length)]
        table.add_row(one.path.stem, one.named, *numbers)
    console.print(table)
    for _, path in videos.values():
        console.print(f"video: {path}", markup=False)
    return 0


@dataclass(frozen=True)
class _Loaded:
    """A policy's file, and its content."""

    path: Path
    named: str  #: the environment, as the file names it.
    environment: Environment
    policy: Policy
    version: PolicyVersion


def _loaded(path: Path) -> _Loaded:
    try:
        said = description_of(path)
        environment = settings.value_of(said["environment"], "environment")
        env = envs.make(environment, slots=1)
        policy = settings.value_of(said["policy"], "policy")(env.spec)
        env.close()
        return _Loaded(path, said["environment"], environment, policy, load_policy(path, policy).version)
    except (PolicyFileError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: {error}") from error


def _video(text: str) -> Path:
    """Parses the path of a video; the type of an option."""
    path = Path(text)
    if path.suffix != ".mp4":
        raise argparse.ArgumentTypeError(f"{text} does not end in .mp4")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path.parent} is not a folder: make it first")
    return path


def _videos(video: Path, every: Sequence[_Loaded], folder: Path) -> dict[Path, tuple[Rendered, Path]]:
    """Returns, by a policy's path, the environment that renders and the path of the video; checks all of them."""
    rendered = {one.named: Rendered.checked(one.environment) for one in every}
    if len(every) == 1:
        return {every[0].path: (rendered[every[0].named], video)}
    names = {one.path: "_".join(one.path.relative_to(folder).with_suffix("").parts) for one in every}
    return {one.path: (rendered[one.named], video.with_stem(f"{video.stem}_{names[one.path]}")) for one in every}
