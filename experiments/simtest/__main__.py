"""`python -m experiments.simtest`: random systems on random platforms, with what must always hold looked at."""

from collections.abc import Sequence

from experiments import shell


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; its imports take seconds, and signals are to be looked after first."""
    from experiments.simtest import command

    return command.main(argv)


if __name__ == "__main__":
    shell.start(main)
