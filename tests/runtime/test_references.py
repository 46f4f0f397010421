"""References among arguments, and the sizes of values."""

import jax
import numpy as np
import pytest

from stellaris.runtime.references import size


class Parcel:
    """Says how large it is."""

    nbytes = 33


def test_size():
    """Of every leaf; what is of unknown size is an error, and no 0."""
    tree = {"a": [np.zeros(5, np.float32), jax.numpy.zeros(3, jax.numpy.int8)], "b": (True, 2, 3.0, "größe", b"ab")}
    assert size(tree) == 20 + 3 + 3 * 8 + 7 + 2
    assert size(None) == size(()) == 0
    assert size([Parcel(), np.float64(1)]) == 41
    for unknown in (object(), {1, 2}, [1, lambda: None]):
        with pytest.raises(TypeError, match=r"is of unknown size: make it a tree of arrays, or give it an attribute"):
            size(unknown)
