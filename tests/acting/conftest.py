"""Fixtures of the acting side's tests."""

import gymnasium
import pytest

from tests.acting.environments import Own


@pytest.fixture
def made():
    """The `Own` environments that a test makes by `register`, in order."""
    return []


@pytest.fixture
def register(monkeypatch, made):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)

    def registered(name, **spaces_of_it):
        gymnasium.register(name, lambda: Own(**spaces_of_it, made=made), disable_env_checker=True)
        return name

    return registered
