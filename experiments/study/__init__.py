"""Studies: variants by seeds, run in parallel processes, cached, resumed and drawn."""
