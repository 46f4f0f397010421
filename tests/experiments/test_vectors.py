"""The reference vectors: complete, and what the functions compute today."""

import argparse
import zlib
from pathlib import Path

import numpy as np
import pytest

from experiments.vectors import command, files
from experiments.vectors.entries import ENTRIES, EXCLUDED
from experiments.vectors.recording import Case, record
from tests.test_docstrings import FUNCTIONS, METHODS

COMMITTED = files.load(files.PATH)


def assert_agree(case: Case, committed: Case) -> None:
    """Inputs have the same bits; XLA may round values differently from processor to processor."""
    assert (case.about, case.settings) == (committed.about, committed.settings)
    for part in files.ARRAYS:
        new, old = getattr(case, part), getattr(committed, part)
        assert [*new] == [*old]
        for name, x in new.items():
            assert (x.dtype, x.shape) == (old[name].dtype, old[name].shape), name
            if part in ("inputs", "cotangents"):
                assert x.tobytes() == old[name].tobytes(), name
            else:
                np.testing.assert_allclose(x, old[name], rtol=1e-10, atol=1e-12, err_msg=f"{case.about}: {name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_one_case_is_regenerated(name: str) -> None:
    """Another case for each function, so that all scenes occur."""
    calls = [*ENTRIES[name].calls()]
    number = zlib.crc32(name.encode()) % len(calls)
    assert_agree(record(ENTRIES[name], *calls[number]), COMMITTED[name][number])


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_all_cases_are_regenerated(name: str) -> None:
    for call, committed in zip(ENTRIES[name].calls(), COMMITTED[name], strict=True):
        assert_agree(record(ENTRIES[name], *call), committed)


def test_every_public_function_has_vectors() -> None:
    """Or a reason why it has none. Reports and aggregators are covered by the functions that make them."""
    methods = {name for name in METHODS if name.partition(".")[0] in ("Categorical", "DiagonalGaussian")}
    static = {"Categorical.noise", "DiagonalGaussian.noise"}  # `vars` has an object there that is not a function
    assert {*ENTRIES} | {*EXCLUDED} == {*FUNCTIONS} | methods | static
    assert not {*ENTRIES} & {*EXCLUDED}
    assert {*COMMITTED} == {*ENTRIES}
    page = (Path(__file__).parents[2] / "docs" / "vectors.md").read_text()
    assert f"{len(COMMITTED)} functions" in page
    for name, reason in EXCLUDED.items():
        assert reason.strip()
        assert f"{name}`" in page, f"{name} is excluded, and docs/vectors.md does not say why"


def test_the_cases_are_many_and_the_file_is_small() -> None:
    assert files.PATH.stat().st_size < 2_000_000
    for name, cases in COMMITTED.items():
        assert len(cases) >= 20, name
        abouts = {case.about for case in cases}
        if "valid" in {argument for case in cases for argument in case.inputs}:
            assert {"all steps of a column are masked", "no step is valid"} <= abouts, name
        if "segment" in {argument for case in cases for argument in case.inputs}:
            assert "packed sequences" in abouts, name
        for case in cases:
            for x in (*case.inputs.values(), *case.outputs.values(), *case.gradients.values()):
                assert x.dtype in (np.float64, np.int32, np.int64, bool), name
                assert not np.isnan(x).any(), name


def test_extremes_occur() -> None:
    """Log-ratios that overflow a float64's exponential, and actions of probability zero."""
    largest = [np.abs(x).max(initial=0.0) for case in COMMITTED["ppo_loss"] for x in case.inputs.values()]
    assert np.isinf(max(largest))
    assert any(1e3 < x < np.inf for x in largest)


@pytest.mark.slow
def test_the_file_is_written_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command writes the same file twice, and it reads back as the committed cases."""
    few = {name: ENTRIES[name] for name in ("adapt_kl_coefficient", "polynomial_weight")}
    monkeypatch.setattr(command, "ENTRIES", few)
    paths = [tmp_path / name for name in ("one", "other")]
    for path in paths:
        command.main(_arguments(path))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    read = files.load(paths[0])
    assert {*read} == {*few}
    for name, cases in read.items():
        for case, committed in zip(cases, COMMITTED[name], strict=True):
            assert_agree(case, committed)


def _arguments(path: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["--out", str(path)])


# ---- wrong implementations, which the cases must not pass ------------------------------------------------------------


def _mean_of_all(log_ratio, valid=True, over="sum"):
    """`sequence_log_ratio` whose mean is that of all steps, padding included."""
    return np.where(valid, log_ratio, 0.0).sum(axis=0) / (max(len(log_ratio), 1) if over == "mean" else 1)


def _sequences_of_all(loss, valid=True, over="steps", length=1.0):
    """`reduce_loss` whose mean over a sequence is that of all of its steps."""
    valid = np.broadcast_to(valid, loss.shape)
    kept = np.where(valid, loss, 0.0)
    sequences = max(valid.any(axis=0).sum(), 1)
    if over == "sequences":
        return kept.sum() / max(len(loss), 1) / sequences
    return kept.sum() / max(valid.sum(), 1) if over == "steps" else kept.sum() / length / sequences


def _jumping_gae(reward, discount, value, valid=True, lambda_=0.95):
    """`gae` whose trace jumps over invalid steps."""
    valid = np.broadcast_to(valid, reward.shape)
    advantage, ahead = np.zeros_like(reward), np.zeros(reward.shape[1:])
    for t in reversed(range(len(reward))):
        delta = reward[t] + discount[t] * value[t + 1] - value[t]
        ahead = np.where(valid[t], delta + discount[t] * lambda_ * ahead, ahead)
        advantage[t] = np.where(valid[t], ahead, 0.0)
    return advantage


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("sequence_log_ratio", _mean_of_all), ("reduce_loss", _sequences_of_all), ("gae", _jumping_gae)],
)
def test_a_mistake_about_the_mask_is_found(name: str, wrong) -> None:
    """It agrees where all steps are valid, so that it is no other mistake."""
    found = {True: [], False: []}
    for case in COMMITTED[name]:
        if "segment" not in case.inputs:
            result, expected = wrong(**case.inputs, **case.settings), case.outputs["result"]
            assert np.shape(result) == expected.shape
            found["valid" in case.inputs].append(np.allclose(result, expected, rtol=1e-6, atol=1e-9))
    assert all(found[False])
    assert not all(found[True])
