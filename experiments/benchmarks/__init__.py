"""Benchmarks: each compares our speed or time with a limit, or with a peer (another library) in the same run."""
