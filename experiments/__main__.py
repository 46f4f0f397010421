"""`python -m experiments NAME`: runs an experiment."""

from collections.abc import Sequence

from experiments.toolkit import shell


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command, and imports it only here: the import takes seconds, and signals must be handled before it."""
    from experiments import command

    return command.main(argv)


if __name__ == "__main__":
    shell.start(main)
