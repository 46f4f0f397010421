"""Networks of a stranger's own, from any library, learn in both systems."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from stellaris import Policy
from stellaris.runtime import Checkpoints
from tests.systems.bandits import Aim, Bandit, both, learned


class Flax(nn.Module):
    """A flax module is a network as it is: here, one with a torso that both heads share."""

    actions: int

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        torso = nn.relu(nn.Dense(16)(observation))
        return nn.Dense(self.actions)(torso), nn.Dense(1)(torso)[..., 0]


class Model(eqx.Module):
    """An Equinox model of one observation, with all that it is."""

    policy: eqx.nn.MLP
    value: eqx.nn.MLP

    def __init__(self, key: jax.Array, observation: int, actions: int) -> None:
        keys = jax.random.split(key)
        self.policy = eqx.nn.MLP(observation, actions, 16, 1, key=keys[0])
        self.value = eqx.nn.MLP(observation, "scalar", 16, 1, key=keys[1])

    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.policy(observation), self.value(observation)


@dataclass(frozen=True)
class Equinox:
    """A model's arrays are the parameters; the rest is made anew from the settings, which are hashed."""

    observation: int
    actions: int

    def init(self, key: jax.Array, observation: jax.Array) -> Any:
        return eqx.filter(Model(key, self.observation, self.actions), eqx.is_array)

    def apply(self, params: Any, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        template = Model(jax.random.key(0), self.observation, self.actions)  # its own arrays are never computed
        model = eqx.combine(params, eqx.filter(template, eqx.is_array, inverse=True))
        acts: Any = jnp.vectorize(model, signature="(o)->(a),()")  # over any batch axes
        return acts(observation)


@dataclass(frozen=True)
class Bare:
    """Bare arrays, for discrete actions or continuous ones."""

    actions: int
    discrete: bool

    def init(self, key: jax.Array, observation: jax.Array) -> Any:
        features = observation.shape[-1]
        params = {"policy": 0.01 * jax.random.normal(key, (features, self.actions)), "value": jnp.zeros(features)}
        return params if self.discrete else params | {"log_std": jnp.full(self.actions, -0.5)}

    def apply(self, params: Any, observation: jax.Array) -> tuple[Any, jax.Array]:
        output = observation @ params["policy"]
        return output if self.discrete else (output, params["log_std"]), observation @ params["value"]


POLICIES = {
    "flax": lambda spec: Policy(spec, Flax(spec.actions)),
    "equinox": lambda spec: Policy(spec, Equinox(spec.observation_shape[0], spec.actions)),
    "bare": lambda spec: Policy(spec, Bare(spec.actions, spec.discrete)),
}


@pytest.mark.slow
@both
@pytest.mark.parametrize("policy", POLICIES)
def test_networks(policy: str, system: str) -> None:
    first, last = learned(system, Bandit, POLICIES[policy])
    assert first < 0.7
    assert last > 0.8


@pytest.mark.slow
@both
def test_continuous_actions(system: str) -> None:
    first, last = learned(system, Aim, POLICIES["bare"], learning_rate=3e-2)
    assert first < 0.55
    assert last > 0.65


@pytest.mark.slow
def test_an_equinox_network_is_resumed(tmp_path: Path) -> None:
    """Its parameters are of the library's class: their arrays are saved."""
    learn = functools.partial(learned, "stellaris", Bandit, POLICIES["equinox"])
    whole = learn(rounds=6, checkpoints=Checkpoints(tmp_path / "whole", every=2))
    learn(rounds=3, checkpoints=Checkpoints(tmp_path / "parts", every=2))
    assert learn(rounds=6, checkpoints=Checkpoints(tmp_path / "parts", every=2), resume=True) == whole
