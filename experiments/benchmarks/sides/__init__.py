"""The sides of `benchmarks peers`: programs that train in their library's Python environment and print their rounds.

The peers' sides import only `protocol` from this repository, which needs only the standard library.
"""
