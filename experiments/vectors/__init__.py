"""Reference vectors of the pure functions: inputs, settings, values and gradients in one file.

`scenes` makes the inputs, `entries` names the inputs and settings of each function, `recording` computes values and
gradients, and `files` writes and reads the file. `python -m experiments vectors` writes it anew.
"""
