"""The benchmark of the language task: its tasks, and a row of one with few updates."""

import pytest

from experiments.benchmarks import language
from stellaris.lab.language import GRPO, Answering, Sorting, Transformer, workload


def test_every_case_trains_on_its_own_task():
    for case in language._cases():
        env = case.workload.environment
        assert case.algorithm.environment == env
        assert case.name.startswith(type(env.task).__name__)


@pytest.mark.slow
def test_a_row_has_both_sides_and_the_exact_share_of_each_seed(monkeypatch):
    env = Answering(Sorting(most=1, base=2), group=2)
    small = workload(env, Transformer.of(env.task, width=8, layers=1, heads=1), actors=language._ACTORS)
    monkeypatch.setattr(language, "_cases", lambda: [language._Case("small", small, GRPO(env), 3)])
    said: list[str] = []
    (row,) = language.measure(said.append)
    assert said == ["small, 3 updates ..."]
    assert row.ratio == pytest.approx(float(row.measured) / float(row.against.replace(",", "")), rel=0.5)
    assert row.ratio > 0
    assert all(0 <= float(share) <= 1 for share in row.parts["exact"].split(", "))
    assert len(row.parts["exact"].split(", ")) == language._SEEDS
