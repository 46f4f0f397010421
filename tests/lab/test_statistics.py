"""Statistics inside a compiled program are those that the systems keep on the host, in float64."""

import jax
import numpy as np
import pytest

from stellaris.acting.normalisation import Statistics
from stellaris.lab import statistics

RNG = np.random.default_rng(0)
#: Far from zero, where float32 would lose the deviations.
NUMBERS = {"x": (1e4 + RNG.normal(size=(2, 50, 3))).astype(np.float32)}
MIXED = NUMBERS | {"place": RNG.integers(0, 9, (2, 50))}


@pytest.mark.parametrize("observations", [NUMBERS, MIXED], ids=["numbers", "mixed"])
def test_they_are_the_hosts(observations):
    one, two = ({name: column[i] for name, column in observations.items()} for i in range(2))
    expected = Statistics.of(one).merge(Statistics.of(two))
    like = Statistics.empty({name: column[0] for name, column in one.items()})

    @jax.jit
    def merged(one, two):
        none = statistics.empty(like)
        both = statistics.merged(
            statistics.merged(none, statistics.observed(one, like)), statistics.observed(two, like)
        )
        return both, statistics.normaliser(both), statistics.normaliser(none)

    both, normaliser, first = merged(one, two)
    for ours, host in ((both, expected), (normaliser, expected.normaliser()), (first, like.normaliser())):
        assert jax.tree.structure(ours) == jax.tree.structure(host)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), ours, host)
    assert both.mean["x"].dtype == np.float64
