"""Checks the papers' bounds: that they hold, and that controls break: `python -m theory_checks`."""
