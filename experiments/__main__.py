"""`python -m experiments NAME`: runs an experiment."""

from collections.abc import Sequence

from experiments.toolkit import shell


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Its imports take seconds: made here, they come after the signal handlers are installed."""
    from experiments import command

    return command.main(argv)


if __name__ == "__main__":
    shell.start(main)
