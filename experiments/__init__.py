"""Experiments: one module for each figure or table of the papers. `python -m experiments --help` lists them."""
