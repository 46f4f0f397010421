"""Trains with PPO, APPO or IMPALA of Ray RLlib; arguments 2 and 3 are the numbers of runner and learner processes.

With 0 learner processes the driver learns. PPO's value clipping and divergence penalty are off, and the standard
deviation is a parameter, as on the other sides. IMPALA's optimizer is RLlib's default, Adam.
"""

import math
import os
import sys
import warnings
from typing import Any

from experiments.benchmarks.sides.protocol import Reporter, Task, task_given

#: Seconds between two reports of APPO and IMPALA, which do not learn in rounds.
_EVERY = 1.0


def main(task: Task, runners: int, learners: int) -> None:
    """Trains, and reports after every round."""
    warnings.filterwarnings("ignore")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    import ray
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.env_to_module import MeanStdFilter
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    # `num_cpus` only limits how many processes Ray starts, so it may exceed the machine's processors.
    ray.init(num_cpus=runners + learners + 1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    network = DefaultModelConfig(
        fcnet_hiddens=[task.hidden] * 2, fcnet_activation="tanh", vf_share_layers=False, free_log_std=True
    )
    config = {"ppo": PPOConfig, "impala": IMPALAConfig, "appo": APPOConfig}[task.algorithm]()
    config.environment(task.environment, clip_actions=True, normalize_actions=False)
    config.env_runners(
        num_env_runners=runners,
        num_envs_per_env_runner=task.actors // max(runners, 1),
        rollout_fragment_length=task.fragment,
        env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
    )
    config.rl_module(model_config=network)
    config.learners(num_learners=learners, num_gpus_per_learner=0)
    config.training(
        lr=task.learning_rate,
        gamma=task.discount,
        vf_loss_coeff=task.value_coefficient,
        entropy_coeff=0.0,
        grad_clip=task.max_gradient_norm,
        grad_clip_by="global_norm",
        train_batch_size_per_learner=task.batch,
    )
    if task.algorithm == "ppo":
        config.training(
            lambda_=task.lambda_,
            clip_param=task.clip,
            vf_clip_param=1e9,
            use_kl_loss=False,
            minibatch_size=task.minibatch,
            num_epochs=task.epochs,
        )
        config.reporting(metrics_num_episodes_for_smoothing=100)
    else:
        if task.algorithm == "appo":
            config.training(clip_param=task.clip, use_kl_loss=False, num_epochs=task.epochs)
        config.reporting(metrics_num_episodes_for_smoothing=100, min_time_s_per_iteration=_EVERY)
    config.debugging(seed=task.seed, log_level="ERROR")
    algorithm = config.build_algo()
    reporter = Reporter(task)
    steps, episodes = 0, 0
    while True:
        results = algorithm.train()
        sampled = results.get("env_runners", {})
        ended = sampled.get("num_episodes", 0)
        episodes += 0 if math.isnan(ended) else int(ended)
        mean = sampled.get("episode_return_mean") if episodes >= 100 else None
        steps = _learned_from(task, results) or steps
        if not reporter.report(steps, None if mean is None else float(mean)):
            break
    ray.shutdown()


def _learned_from(task: Task, results: dict[str, Any]) -> int:
    if task.algorithm == "ppo":  # PPO's learners count a step once per epoch
        return int(results["env_runners"]["num_env_steps_sampled_lifetime"])
    steps = results.get("learners", {}).get("__all_modules__", {}).get("num_module_steps_trained_lifetime", 0)
    return 0 if math.isnan(steps) else int(steps)


if __name__ == "__main__":
    main(task_given(), int(sys.argv[2]), int(sys.argv[3]))
