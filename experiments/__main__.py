"""`python -m experiments NAME`: runs an experiment."""

from collections.abc import Sequence

from experiments.toolkit import shell


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. It is imported here and not above: that takes seconds, and signals must be handled by then."""
    from experiments import command

    return command.main(argv)


if __name__ == "__main__":
    shell.start(main)
