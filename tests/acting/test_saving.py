"""Policies in files: what is read is what was written, and nothing else is accepted."""

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from stellaris.acting import ActorCritic, EnvSpec, PolicyVersion, load_policy, save_policy
from stellaris.acting.normalisation import Statistics
from stellaris.acting.saving import PolicyFileError, description_of

SPEC = EnvSpec("Hopper-v4", np.zeros(11), actions=3, discrete=False)
TREE = EnvSpec("mine", {"a": np.zeros(3, np.float32), "b": np.zeros(2, np.uint8)}, actions=2, discrete=True)


def made(spec=SPEC, **settings):
    policy = ActorCritic(hidden=(8,), **settings)(spec)
    seen = Statistics.of(np.random.default_rng(0).normal(3, 2, (50, 11)))
    returns = Statistics.of_returns(np.arange(9.0), np.ones(9, bool)) if policy.scaling_discount else None
    return policy, PolicyVersion(policy.init(jax.random.key(1)), seen._replace(returns=returns).normaliser())


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"scaling_discount": 0.9}, {"state_dependent_std": True}])
def test_what_is_read_is_what_was_written(tmp_path, settings):
    policy, version = made(**settings)
    path = tmp_path / "policy.safetensors"
    save_policy(path, version, {"environment": "Hopper-v4", "seeds": [1, 2]})
    saved = load_policy(path, policy)
    chex.assert_trees_all_equal(saved.version, jax.tree.map(np.asarray, version))
    assert jax.tree.structure(saved.version) == jax.tree.structure(version)
    assert saved.description == description_of(path) == {"environment": "Hopper-v4", "seeds": [1, 2]}
    observation = np.ones((4, 11), np.float32)
    for one, other in zip(
        *(jax.tree.leaves(policy.apply(of, observation)) for of in (saved.version, version)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert "params/params/policy/Dense_0/kernel" in load_file(path)


def test_a_file_is_read_in_either_precision(tmp_path):
    """A policy of continuous actions that was trained in JAX's default precision is loaded under x64."""
    policy, version = made()
    save_policy(tmp_path / "policy.safetensors", version)
    with jax.enable_x64(True):
        saved = load_policy(tmp_path / "policy.safetensors", policy)
    chex.assert_trees_all_equal(saved.version, jax.tree.map(np.asarray, version))


def test_another_policy_is_refused(tmp_path):
    """Other shapes, missing and additional arrays, each by name."""
    path = tmp_path / "policy.safetensors"
    save_policy(path, made()[1])
    with pytest.raises(PolicyFileError, match=r"bias is float32\[8\] instead of float32\[16\]"):
        load_policy(path, ActorCritic(hidden=(16,))(SPEC))
    with pytest.raises(PolicyFileError, match="lacks the array normaliser/reward: make the policy with the settings"):
        load_policy(path, made(scaling_discount=0.9)[0])
    with pytest.raises(PolicyFileError, match="has, unlike the policy, the array params/params/log_std"):
        load_policy(path, made(state_dependent_std=True)[0])


def test_damaged_files(tmp_path):
    path = tmp_path / "policy.safetensors"
    policy, version = made()
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_policy(path, policy)
    save_policy(path, version)
    whole = path.read_bytes()
    for damaged in (b"", whole[:40], whole[:-5], b"no policy"):
        path.write_bytes(damaged)
        for read in (lambda: load_policy(path, policy), lambda: description_of(path)):
            with pytest.raises(PolicyFileError, match="is not a policy's file"):
                read()
    save_file({"x": np.zeros(3)}, path)
    with pytest.raises(PolicyFileError, match="the array"):
        load_policy(path, policy)


def test_a_description_is_plain_data(tmp_path):
    with pytest.raises(TypeError):
        save_policy(tmp_path / "policy.safetensors", made()[1], {"policy": object()})
    assert list(tmp_path.iterdir()) == []


def test_two_arrays_of_one_name(tmp_path):
    """One of them would be lost."""
    twice = PolicyVersion({"a/b": np.zeros(1), "a": {"b": np.ones(1)}}, ())
    with pytest.raises(ValueError, match=r"two arrays have the place 'params/a/b': keys .* must not contain '/'"):
        save_policy(tmp_path / "policy", twice)
    assert not (tmp_path / "policy").exists()
