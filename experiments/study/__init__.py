"""Studies run every variant with every seed, in parallel processes; runs are cached, and the results are drawn."""
