"""The papers' bounds, verified where they hold and broken where they should break: `python -m theory_checks`."""
