"""Sequence models that learn from a table of trajectories (GEAR, ICML 2023), and a behaviour-cloning baseline."""
