"""Schedules of recorded runs: what they refuse, and why."""

import pytest

from stellaris.lab import recorded
from stellaris.runtime import Checkpoints
from stellaris.scheduling import Fixed
from stellaris.systems import Budget, CentralInference, Synchronous
from tests.systems import tiny

FOUR_ROUNDS = Budget(steps=32 * 4)


def test_a_run_with_a_scheduler_is_refused():
    result = tiny.run(Synchronous(tiny.PPO_CONFIG, Fixed(1)), tiny.deployment(), budget=FOUR_ROUNDS)
    with pytest.raises(ValueError, match=r"had a scheduler.* record a run without a scheduler"):
        recorded(result.trace)


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_whose_environments_restarted_is_refused(every, tmp_path):
    """A schedule says nothing of the new seeds, so the lab would learn from other episodes."""
    saved = Checkpoints(tmp_path, every=every)
    result = tiny.run(Synchronous(tiny.PPO_CONFIG), tiny.deployment(), budget=FOUR_ROUNDS, checkpoints=saved)
    with pytest.raises(ValueError, match=r"saved a checkpoint.* record a run without checkpoints"):
        recorded(result.trace)


def test_checkpoints_that_were_never_due_change_nothing(tmp_path):
    options = {"budget": FOUR_ROUNDS}
    plain = tiny.run(Synchronous(tiny.PPO_CONFIG), tiny.deployment(), **options)
    saved = tiny.run(Synchronous(tiny.PPO_CONFIG), tiny.deployment(), **options, checkpoints=Checkpoints(tmp_path, 99))
    assert recorded(saved.trace) == recorded(plain.trace)


def test_a_run_of_central_inference_is_refused():
    deployed = tiny.deployment()
    functions = {**deployed, "inference": deployed["parameter"]}
    result = tiny.run(CentralInference(tiny.PPO_CONFIG), functions, budget=FOUR_ROUNDS)
    with pytest.raises(ValueError, match="another system than CentralInference"):
        recorded(result.trace)
