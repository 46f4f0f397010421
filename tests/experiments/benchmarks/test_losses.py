"""The pure functions and their peers: what is timed agrees; the figures are not judged here."""

import pytest

from experiments.benchmarks import losses, measuring

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    monkeypatch.setattr(measuring, "REPEATS", 1)
    monkeypatch.setattr(losses, "SIZES", ((6, 2), (12, 3)))


def test_losses_are_compared_with_their_peers():
    """Every row has a positive ratio but for times added, which may round to less; every size has its row."""
    rows = list(losses.measure(lambda line: None))
    assert all(row.ratio > 0 for row in rows if "added" not in row.what)
    assert sum("[12, 3]" in row.what for row in rows) == 3 + 1  # gae, its gradient, vtrace; the cap
    assert sum("geometric mean" in row.what for row in rows) == 3


def test_peers_that_differ_are_not_timed(monkeypatch):
    monkeypatch.setattr(losses, "gae", lambda reward, discount, value, lambda_: reward)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        list(losses.measure(lambda line: None))


def test_memory_is_what_the_arguments_need():
    """At least one read of the arguments and one write of the result: four bytes each, for every sample."""
    assert losses._bytes(lambda x: x + 1.0, [(100,)]) == 2 * 400
    row = losses._memory_row("it", [8.0, 4.0])
    assert (row.measured, row.against, row.ratio) == ("8.0 B", "4.0 B", 2.0)
