"""The sides of benchmarks: programs that run in their library's Python environment and print their measurements.

A peer's side imports from this repository only `protocol`, `lab_task` or `replaying`, which need at most NumPy.
"""
