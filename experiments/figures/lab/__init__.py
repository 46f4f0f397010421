"""Studies in `stellaris.lab`: imposed staleness, with many runs in one compiled program."""
