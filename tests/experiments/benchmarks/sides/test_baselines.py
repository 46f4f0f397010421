"""The peers' side, with made-up libraries: the settings that a library gets, and the returns that are reported."""

import sys
from collections import deque
from types import ModuleType, SimpleNamespace

import pytest

from experiments.benchmarks.sides import baselines, protocol
from experiments.benchmarks.sides.protocol import Round, Task

pytestmark = pytest.mark.slow

#: Steps of a round of the made-up library.
ROUND = 50


class Callback:
    """A callback of the library, which knows the model."""

    def __init__(self):
        self.num_timesteps = 0


class Learner:
    """A library's PPO: one episode per step, whose return is the number of the step."""

    made = None

    def __init__(self, policy, env, **settings):
        type(self).made = SimpleNamespace(policy=policy, env=env, settings=settings)
        self.ep_info_buffer = deque(maxlen=100)

    def learn(self, steps, callback):
        callback.model = self
        callback._on_training_start()
        for step in range(steps):
            if step % ROUND == 0:
                callback.num_timesteps = step
                callback._on_rollout_start()
            self.ep_info_buffer.append({"r": float(step)})
            if not callback._on_step():
                return


@pytest.fixture
def libraries(monkeypatch):
    """Modules with the names that the side imports."""
    common = "stable_baselines3.common"
    contents = {
        "stable_baselines3": {"PPO": Learner},
        "sbx": {"PPO": type("SBX", (Learner,), {})},
        common: {},
        f"{common}.callbacks": {"BaseCallback": Callback},
        f"{common}.env_util": {"make_vec_env": lambda name, number, **options: (name, number, options["seed"])},
        f"{common}.vec_env": {"DummyVecEnv": None, "VecNormalize": lambda env, **options: (env, options)},
        "torch": {"nn": SimpleNamespace(ReLU="ReLU")},
    }
    for name, content in contents.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return {name: sys.modules[name].PPO for name in ("stable_baselines3", "sbx")}


@pytest.mark.parametrize("library", ["stable_baselines3", "sbx"])
def test_defaults_are_the_librarys(libraries, library):
    """The library gets no hyperparameters; one environment, whose observations and rewards are normalised."""
    baselines.main(Task(actors=1, seed=3, steps=ROUND, scale_rewards=True), library, "defaults")
    made = libraries[library].made
    assert made.settings == {"device": "cpu", "seed": 3}
    assert made.env == (("Hopper-v4", 1, 3), {"norm_reward": True})


def test_the_zoos_settings(libraries):
    """Rewards are scaled with the discount of learning, as the zoo does it."""
    baselines.main(Task(actors=1, steps=ROUND, scale_rewards=True), "stable_baselines3", "zoo")
    made = libraries["stable_baselines3"].made
    assert made.env[1] == {"norm_reward": True, "gamma": 0.999}
    assert {"n_steps": 512, "batch_size": 32, "n_epochs": 5, "gamma": 0.999}.items() <= made.settings.items()
    assert made.settings["policy_kwargs"]["activation_fn"] == "ReLU"


def test_without_a_preset_the_task_decides(libraries):
    baselines.main(Task(discount=0.9, minibatch=7, steps=ROUND), "sbx")
    made = libraries["sbx"].made
    assert made.env == (("Hopper-v4", 16, 0), {"norm_reward": False, "gamma": 0.9})
    assert {"n_steps": 256, "batch_size": 7, "gamma": 0.9}.items() <= made.settings.items()


def test_it_reports_the_mean_of_the_last_hundred_episodes(libraries, capsys):
    """By hand: of the returns 0 to 149 the last hundred have the mean 99.5; training ends there."""
    baselines.main(Task(steps=3 * ROUND), "stable_baselines3", "defaults")
    rounds = [one._replace(seconds=0.0) for one in protocol.rounds_in(capsys.readouterr().out)]
    assert rounds == [Round(0.0, 50, None), Round(0.0, 100, 49.5), Round(0.0, 150, 99.5)]
