"""Trains with PPO of Stable-Baselines3 (`stable_baselines3`) or of SBX (`sbx`), named by the second argument.

One process steps the environments in turn. Settings outside the task are the libraries' defaults: Adam with epsilon
1e-5, orthogonal initial weights (SB3) or flax's (SBX), and advantages standardised by minibatch. Observations are
normalised by running statistics, and rewards if the task says so. With a third argument, the name of a preset, the
task's hyperparameters are not used.
"""

import importlib
import sys
from typing import Any

from experiments.benchmarks.sides.protocol import Reporter, Task, task_given


def main(task: Task, library: str, preset: str = "") -> None:
    """Trains, and reports after every round."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    settings = _PRESETS[preset]() if preset else _settings(task)
    env = make_vec_env(task.environment, task.actors, seed=task.seed, vec_env_cls=DummyVecEnv)
    discount = {"gamma": settings["gamma"]} if "gamma" in settings else {}
    model = importlib.import_module(library).PPO(
        "MlpPolicy",  # tanh in both libraries
        VecNormalize(env, norm_reward=task.scale_rewards, **discount),
        device="cpu",
        seed=task.seed,
        **settings,
    )

    class Report(BaseCallback):  # type: ignore[misc]
        """Reports at the start of each rollout, when the library has learned from the previous rollout."""

        def _on_training_start(self) -> None:
            self.reporter = Reporter(task)
            self.more = True

        def _on_rollout_start(self) -> None:
            returns = [episode["r"] for episode in self.model.ep_info_buffer]  # the last 100, rewards not scaled
            mean = sum(returns) / 100 if len(returns) == 100 else None
            self.more = self.reporter.report(self.num_timesteps, mean)

        def _on_step(self) -> bool:
            return self.more

    endless: Any = 10**9
    model.learn(endless, callback=Report())


def _settings(task: Task) -> dict[str, Any]:
    """Returns the task's hyperparameters."""
    return {
        "learning_rate": task.learning_rate,
        "n_steps": task.fragment,
        "batch_size": task.minibatch,
        "n_epochs": task.epochs,
        "gamma": task.discount,
        "gae_lambda": task.lambda_,
        "clip_range": task.clip,
        "vf_coef": task.value_coefficient,
        "max_grad_norm": task.max_gradient_norm,
        "policy_kwargs": {"net_arch": {"pi": [task.hidden] * 2, "vf": [task.hidden] * 2}},
    }


def _defaults() -> dict[str, Any]:
    """Returns no settings: with one environment, the zoo's defaults for MuJoCo are the library's and `VecNormalize`.

    Source: `mujoco-defaults` in RL Baselines3 Zoo, hyperparams/ppo.yml at 208b6fd.
    """
    return {}


def _zoo() -> dict[str, Any]:
    """Returns the settings that the zoo tuned for a million steps of Hopper-v4, for Stable-Baselines3 only.

    Source: `Hopper-v4` in RL Baselines3 Zoo, hyperparams/ppo.yml at 208b6fd.
    """
    from torch import nn

    return {
        "learning_rate": 9.80828e-05,
        "n_steps": 512,
        "batch_size": 32,
        "n_epochs": 5,
        "gamma": 0.999,
        "gae_lambda": 0.99,
        "clip_range": 0.2,
        "ent_coef": 0.00229519,
        "vf_coef": 0.835671,
        "max_grad_norm": 0.7,
        "policy_kwargs": {
            "log_std_init": -2,
            "ortho_init": False,
            "activation_fn": nn.ReLU,
            "net_arch": {"pi": [256, 256], "vf": [256, 256]},
        },
    }


_PRESETS = {"defaults": _defaults, "zoo": _zoo}

if __name__ == "__main__":
    main(task_given(), *sys.argv[2:])
