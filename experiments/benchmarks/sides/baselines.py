"""Trains with PPO of Stable-Baselines3 (`stable_baselines3`) or of SBX (`sbx`), named by the second argument.

One process steps the environments in turn. Settings outside the task are the libraries' defaults: Adam with epsilon
1e-5, orthogonal initial weights (SB3) or flax's (SBX), and advantages standardised by minibatch. Observations are
normalised by running statistics, and rewards if the task says so.
"""

import importlib
import sys
from typing import Any

from experiments.benchmarks.sides.protocol import Reporter, Task, task_given


def main(task: Task, library: str) -> None:
    """Trains, and reports after every round."""
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = make_vec_env(task.environment, task.actors, seed=task.seed, vec_env_cls=DummyVecEnv)
    model = importlib.import_module(library).PPO(
        "MlpPolicy",  # tanh in both libraries
        VecNormalize(env, norm_reward=task.scale_rewards, gamma=task.discount),
        learning_rate=task.learning_rate,
        n_steps=task.fragment,
        batch_size=task.minibatch,
        n_epochs=task.epochs,
        gamma=task.discount,
        gae_lambda=task.lambda_,
        clip_range=task.clip,
        vf_coef=task.value_coefficient,
        max_grad_norm=task.max_gradient_norm,
        policy_kwargs={"net_arch": {"pi": [task.hidden] * 2, "vf": [task.hidden] * 2}},
        device="cpu",
        seed=task.seed,
    )

    class Report(BaseCallback):  # type: ignore[misc]
        """Reports at the start of each rollout, when the library has learned from the previous rollout."""

        def _on_training_start(self) -> None:
            self.reporter = Reporter(task)
            self.more = True

        def _on_rollout_start(self) -> None:
            returns = [episode["r"] for episode in self.model.ep_info_buffer]  # the last 100
            mean = sum(returns) / 100 if len(returns) == 100 else None
            self.more = self.reporter.report(self.num_timesteps, mean)

        def _on_step(self) -> bool:
            return self.more

    endless: Any = 10**9
    model.learn(endless, callback=Report())


if __name__ == "__main__":
    main(task_given(), sys.argv[2])
