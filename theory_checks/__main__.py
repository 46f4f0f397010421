"""`python -m theory_checks`: are the papers' bounds true, how tight are they, and which assumptions do they need?"""

from collections.abc import Sequence

from experiments.toolkit import shell


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command, and imports it only here: the import takes seconds, and signals must be handled before it."""
    from stellaris._core.extras import needs

    with needs("theory_checks"):
        from theory_checks import command

    return command.main(argv)


if __name__ == "__main__":
    shell.start(main)
