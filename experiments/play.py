"""Plays episodes with a policy that `train` has saved."""

import argparse
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments import settings
from experiments.toolkit import options
from experiments.toolkit.shell import UsageError
from stellaris.acting import envs, load_policy
from stellaris.acting.evaluation import evaluate
from stellaris.acting.saving import PolicyFileError, description_of

DESCRIPTION = "play episodes with the policies that `train` has saved"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("path", type=Path, help="a policy's file, or a folder of such files, such as results/train/policies")
    add("--episodes", type=options.whole(1), default=10, help="episodes of each policy")
    add("--seed", type=options.whole(0), default=0, help="seed of environments and actions")


def main(arguments: argparse.Namespace) -> int:
    """Plays every policy, and prints the mean, the least and the greatest return."""
    paths = [arguments.path] if arguments.path.is_file() else sorted(arguments.path.glob("**/*.safetensors"))
    if not paths:
        raise UsageError(f"{arguments.path} holds no policy: train one with `python -m experiments train`")
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 150)
    table = Table("policy", "environment", "return", "least", "greatest", "mean length")
    for path in paths:
        try:
            said = description_of(path)
            environment = settings.value_of(said["environment"], "environment")
            env = envs.make(environment, slots=1)
            policy = settings.value_of(said["policy"], "policy")(env.spec)
            env.close()
            version = load_policy(path, policy).version
        except (PolicyFileError, KeyError, TypeError) as error:
            raise UsageError(f"{path}: {error}") from error
        played = evaluate(policy, version, environment, episodes=arguments.episodes, seed=arguments.seed)
        returns = [episode.episode_return for episode in played]
        length = statistics.fmean(episode.length for episode in played)
        numbers = [f"{x:,.1f}" for x in (statistics.fmean(returns), min(returns), max(returns), length)]
        table.add_row(path.stem, said["environment"], *numbers)
    console.print(table)
    return 0
