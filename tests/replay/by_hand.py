"""Windows of trajectories, step by step in NumPy."""

import numpy as np


def window_of(column, length, step, window):
    """The values and the mask of one window of a trajectory of `length` steps."""
    taken = []
    for at in range(step + window.offset, step + window.offset + window.length):
        if 0 <= at < length:
            value = column[at]
            if window.return_to_go is not None:
                value = sum(window.return_to_go**i * x for i, x in enumerate(column[at:length].astype(np.float64)))
            taken.append(np.asarray(value, column.dtype))
    missing = [np.full(column.shape[1:], window.value, column.dtype)] * (window.length - len(taken))
    mask, gap = [True] * len(taken), [False] * len(missing)
    if window.pad == "head":
        return np.stack([*missing, *taken]), [*gap, *mask]
    return np.stack([*taken, *missing]), [*mask, *gap]
