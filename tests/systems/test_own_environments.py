"""Environments of a stranger's own, of any kind, are learned by both systems."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import ActorCritic, Pixels, Policy
from stellaris.acting import Vectorised
from stellaris.acting.envs import GymnasiumEnv
from stellaris.runtime import Checkpoints, FunctionError, FunctionSpec
from stellaris.runtime.delays import Constant
from stellaris.systems import CentralInference, Evaluation, Synchronous, Workload
from tests.systems import tiny
from tests.systems.bandits import Bandit, Picture, Sensors, both, learned

SMALL = ActorCritic(hidden=(16,))


def vectorised(slots: int, seed: int) -> GymnasiumEnv:
    return GymnasiumEnv("Bandit", Bandit, slots=slots, seed=seed)


@pytest.mark.slow
def test_a_vector_environment() -> None:
    assert learned("stellaris", Vectorised(vectorised), SMALL) == learned("stellaris", Bandit, SMALL)


class TinyCNN(nn.Module):
    """One convolution, for images that are too small for the Nature CNN."""

    @nn.compact
    def __call__(self, image: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = nn.relu(nn.Conv(8, (3, 3), strides=3)(image / 255))
        x = x.reshape(*x.shape[:-3], -1)
        return nn.Dense(2)(x), nn.Dense(1)(x)[..., 0]


@dataclass(frozen=True)
class Trusting:
    """A network on dictionaries, of bare arrays: a linear one for each sensor that may be trusted."""

    def init(self, key: jax.Array, observation: Any) -> Any:
        assert observation["decoration"][0].dtype == jnp.uint8
        assert observation["trusted"].dtype == jnp.int32
        sensors = observation["sensors"].shape[-1]
        return {"policy": 0.1 * jax.random.normal(key, (2, sensors, 2)), "value": jnp.zeros((2, sensors))}

    def apply(self, params: Any, observation: Any) -> tuple[jax.Array, jax.Array]:
        trusted = jax.nn.one_hot(observation["trusted"], 2)
        logits = jnp.einsum("...s,...t,tsa->...a", observation["sensors"], trusted, params["policy"])
        return logits, jnp.einsum("...s,...t,ts->...", observation["sensors"], trusted, params["value"])


trusting = lambda spec: Policy(spec, Trusting())  # noqa: E731


@pytest.mark.slow
@both
@pytest.mark.parametrize(
    ("environment", "policy", "options"),
    [
        (Bandit, SMALL, {}),
        (functools.partial(Picture, 6), lambda spec: Policy(spec, TinyCNN(), normalise=False), {}),
        (Sensors, trusting, {"learning_rate": 5e-2, "rounds": 35}),
    ],
    ids=["class", "images", "dictionaries"],
)
def test_environments(environment: Any, policy: Any, options: Any, system: str) -> None:
    """A class that is registered nowhere, images of bytes, and dictionaries whose floats alone are normalised."""
    first, last = learned(system, environment, policy, **options)
    assert first < 0.7
    assert last > 0.9


@pytest.mark.slow
def test_pixels() -> None:
    first, last = learned("stellaris", functools.partial(Picture, 36), Pixels(), learning_rate=1e-3, rounds=20)
    assert first < 0.7
    assert last > 0.9


@pytest.mark.slow
def test_a_run_that_is_resumed(tmp_path: Path) -> None:
    """What actors keep of dictionaries, and their statistics, are saved: it goes on as if nothing had happened."""
    learn = functools.partial(learned, "stellaris", Sensors, trusting)
    whole = learn(rounds=6, checkpoints=Checkpoints(tmp_path / "whole", every=2))
    learn(rounds=3, checkpoints=Checkpoints(tmp_path / "parts", every=2))
    assert learn(rounds=6, checkpoints=Checkpoints(tmp_path / "parts", every=2), resume=True) == whole


class Careless:
    """A vector environment of two bandits, whose steps are changed."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.env, self.change = GymnasiumEnv("Careless", Bandit, slots=2), change
        self.spec, self.reset, self.close = self.env.spec, self.env.reset, self.env.close

    def step(self, slots: Any, action: Any) -> Any:
        return self.change(self.env.step(slots, action))


@pytest.mark.slow
@pytest.mark.parametrize("system", [Synchronous(tiny.PPO_CONFIG), CentralInference(tiny.PPO_CONFIG)])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda step: step._replace(terminated=step.terminated.astype(int)), r"terminated has shape .* and type int64"),
        (lambda step: step._replace(truncated=step.truncated[0]), r"truncated has shape \(\) and type bool"),
        (lambda step: step._replace(reward=step.reward[:, None]), r"reward has shape \(\d, 1\) and type float32"),
        (lambda step: step._replace(reward=step.reward.astype(str)), r"reward has shape .* and type <U"),
        (lambda step: step._replace(reward=np.full_like(step.reward, np.nan)), r"reward=\[nan.* is not finite"),
        (lambda step: tuple(step), r"step returned a value of type tuple: expected a stellaris Step"),
        (lambda step: None, r"step returned None: expected a stellaris Step"),
    ],
)
def test_a_vector_environment_that_returns_something_else(change: Any, message: str, system: Any) -> None:
    """Is named, with what was returned: ones and zeros would not have been taken for ends and valid steps."""
    assert_named(change, message, system)


def test_observations_of_another_shape() -> None:
    """NumPy would stretch one number to four."""
    narrow = lambda step: step._replace(observation=step.observation[:, :1])  # noqa: E731
    assert_named(narrow, r"observations have shape \(\d, 1\): expected", Synchronous(tiny.PPO_CONFIG))


def assert_named(change: Any, message: str, system: Any) -> None:
    workload = Workload(Vectorised(lambda slots, seed: Careless(change)), SMALL, actors=2, fragment=16)
    functions = tiny.deployment() | {"inference": FunctionSpec(Constant(0.01))}
    with pytest.raises(FunctionError, match=f"function 'actor', .*Error: Careless: {message}"):
        tiny.run(system, functions, workload=workload, prices=())


@pytest.mark.slow
def test_rewards_of_whole_numbers() -> None:
    """Or of bits: they are learned from as the floats that they are equal to."""

    def changed(change: Callable[[Any], Any]) -> Any:
        workload = Workload(Vectorised(lambda slots, seed: Careless(change)), SMALL, actors=2, fragment=16)
        return list(tiny.run(Synchronous(tiny.PPO_CONFIG), tiny.deployment(), workload=workload).history)

    plain = changed(lambda step: step)
    for dtype in (bool, int, np.float64):
        assert changed(lambda step, dtype=dtype: step._replace(reward=step.reward.astype(dtype))) == plain


class Failing(Bandit):
    """It cannot be stepped."""

    def step(self, action: Any) -> Any:
        raise ArithmeticError("the simulator has exploded")


@pytest.mark.slow
def test_an_error_in_an_evaluation_says_so() -> None:
    """With the round, and what was wrong; the rows before it were handed out."""
    kinds = itertools.chain([Bandit], itertools.repeat(Failing))  # the run's environments are made first

    def vectors(slots: int, seed: int) -> GymnasiumEnv:
        return GymnasiumEnv("Bandit", next(kinds), slots=slots, seed=seed)

    rows: list[Any] = []
    with pytest.raises(
        RuntimeError, match="the evaluation after round 2 has failed: ArithmeticError: the simulator has exploded"
    ) as caught:
        tiny.run(
            Synchronous(tiny.PPO_CONFIG),
            tiny.deployment(),
            workload=Workload(Vectorised(vectors), SMALL, actors=2, fragment=16),
            evaluation=Evaluation(every=2, episodes=1),
            on_progress=rows.append,
        )
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert [row["round"] for row in rows] == [1]
