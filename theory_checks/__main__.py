"""`python -m theory_checks`: are the papers' bounds true, how tight are they, and which assumptions do they need?"""

from collections.abc import Sequence

from experiments.toolkit import shell


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command, which is imported only here: the import takes seconds, in which signals must be handled."""
    from stellaris._core.extras import needs

    with needs("theory_checks"):
        from theory_checks import command

    return command.main(argv)


if __name__ == "__main__":
    shell.start(main)
