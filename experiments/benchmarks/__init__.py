"""Benchmarks: speed as a ratio against a limit or a peer that is measured in the same run."""
