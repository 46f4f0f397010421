"""Benchmarks: speed as a ratio to a limit or to a peer that is measured in the same run."""
