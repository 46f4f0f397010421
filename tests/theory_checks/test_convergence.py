"""How many updates are enough."""

import numpy as np
import pytest

from theory_checks import convergence


@pytest.mark.slow
def test_the_figures_of_the_docstring():
    assert convergence.thresholds() == pytest.approx(
        {"tau 0": 1.0, "tau 1": 3.7, "tau 3": 16.4, "tau 7": 71.2}, rel=0.02
    )
    assert [convergence.last_staleness(v) for v in (1.0, 2.0, 3.0)] == [3, 13, 51]


def test_fourteen_is_enough_for_every_staleness_and_thirteen_is_not():
    late = [*range(500), 10**4, 10**6, 10**9]
    assert all(convergence.is_sufficient(14.0, tau) for tau in late)
    levels, shares = np.arange(0.3, 0.8, 0.01), np.arange(0.3, 0.7, 0.02)
    assert not any(convergence.is_sufficient(13.0, 10**9, f=f, m=m) for f in levels for m in shares)
