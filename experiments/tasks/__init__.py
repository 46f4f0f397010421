"""Workloads, presets and testbeds of the experiments, with sources for every number."""
