"""The corrections and the formulas by hand: what is timed agrees; the figures are not judged here."""

import pytest

from experiments.benchmarks import corrections, measuring

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    monkeypatch.setattr(measuring, "REPEATS", 1)
    monkeypatch.setattr(corrections, "SIZE", (24, 3))
    monkeypatch.setattr(corrections, "PACKED", 8)
    monkeypatch.setattr(corrections, "LENGTHS", (16, 32))


def test_corrections_are_compared_with_formulas_by_hand(monkeypatch):
    """Three of them, to be quick; each pair agrees in value and gradient, and has a row."""
    some = {name: corrections.PAIRS[name] for name in ("CISPO", "GSPO, packed", "M2PO", "SAT")}
    monkeypatch.setattr(corrections, "PAIRS", some)
    rows = list(corrections.measure(lambda line: None))
    assert [row.what.partition(", [")[0] for row in rows[: len(some)]] == list(some)
    assert all(row.ratio > 0 for row in rows)
    assert len(rows) == len(some) + 4


def test_pairs_that_differ_are_not_timed(monkeypatch):
    """A formula by hand that is another ends the benchmark."""
    ours, _ = corrections.PAIRS["CISPO"]
    monkeypatch.setattr(corrections, "PAIRS", {"CISPO": (ours, lambda b: 2 * ours(b))})
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        list(corrections.measure(lambda line: None))
