"""EnvPool's environments as a vector environment."""

import os

import numpy as np
import pytest

from stellaris._core.describe import describe
from stellaris.acting.envs import configure, make
from stellaris.systems import Workload
from tests.acting.environments import array


def test_closing_ends_a_pools_threads():
    """Not only once somebody collects it: a loop that restarts environments would gather them."""
    before = len(os.listdir("/proc/self/task"))
    env = make("CartPole-v1", slots=8, threads=4)
    env.reset(np.arange(8))
    assert len(os.listdir("/proc/self/task")) >= before + 4
    env.close()
    env.close()
    assert len(os.listdir("/proc/self/task")) == before
    with pytest.raises(IndexError, match=r"slots=\[0\]: CartPole-v1 is closed"):
        env.reset(np.array([0]))


def test_options():
    """EnvPool's own: here a stack of three frames; one that it does not know is named."""
    env = make(configure("Qbert-v5", stack_num=3, reward_clip=True), slots=1)
    assert env.spec.observation == array(3, 84, 84, dtype=np.uint8)
    assert env.reset(np.arange(1)).dtype == np.uint8
    with pytest.raises(ValueError, match=r"Qbert-v5: EnvPool does not take the options \{'frames': 3\}"):
        make(configure("Qbert-v5", frames=3), slots=1)


def test_an_environment_with_options_is_a_value():
    one, other = configure("Qbert-v5", a=1, b=2), configure("Qbert-v5", b=2, a=1)
    assert one == other
    assert hash(one) == hash(other)
    assert describe(Workload(one))["environment"]["options"] == [["a", 1], ["b", 2]]
