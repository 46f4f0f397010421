"""Experiments: one module a figure or table of the papers. `python -m experiments --help` lists them."""
