"""`python -m theory_checks`: are the papers' bounds true, how tight are they, and what does each assumption buy?"""

from collections.abc import Sequence

from experiments.toolkit import shell


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; its imports take seconds, and signals are to be looked after first."""
    from stellaris._core.extras import needs

    with needs("theory_checks"):
        from theory_checks import command

    return command.main(argv)


if __name__ == "__main__":
    shell.start(main)
