"""Benchmarks: ratios of our speed or time to a limit, or to a peer (another library), measured in the same run."""
