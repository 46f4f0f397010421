"""Checks that the papers' bounds hold and that controls break: `python -m theory_checks`."""
