"""The sides of `benchmarks peers`: programs that train, each run by its own library's Python, and print as they go.

They import no more of this repository than `protocol`, which needs the standard library alone.
"""
