"""rejax's side of the lab's benchmark: its PPO, vectorised over seeds, in blocks on the same devices."""

import os
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from experiments.benchmarks.sides.lab_task import LabTask, report


def main() -> None:
    """Trains with rejax's PPO, which evaluates every ten updates, with as few episodes as rejax allows."""
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)  # type: ignore[no-untyped-call]
    from rejax import PPO
    from rejax.evaluate import evaluate

    task = LabTask(runs=int(sys.argv[1]))
    block = int(sys.argv[2])
    algorithm = PPO.create(
        env="CartPole-v1",
        num_envs=task.actors,
        num_steps=task.fragment,
        num_epochs=task.epochs,
        num_minibatches=task.minibatches,
        total_timesteps=task.steps,
        eval_freq=10 * task.actors * task.fragment,
        skip_initial_evaluation=True,
        learning_rate=task.learning_rate,
        max_grad_norm=0.5,
        ent_coef=0.0,
        gae_lambda=0.95,
        clip_eps=0.2,
        vf_coef=0.5,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (task.hidden, task.hidden)},
    )
    env, params = algorithm.env, algorithm.env_params

    def few(algorithm: Any, state: Any, key: Any) -> Any:
        return evaluate(algorithm.make_act(state), key, env, params, 1, params.max_steps_in_episode)

    algorithm = algorithm.replace(eval_callback=few)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("runs",))
    split = jax.sharding.NamedSharding(mesh, PartitionSpec("runs"))  # type: ignore[no-untyped-call]
    keys = jax.random.split(jax.random.key(0), task.runs).reshape(-1, block)
    blocks = [jax.device_put(some, split) for some in keys]
    began = time.perf_counter()
    train = jax.jit(jax.vmap(lambda key: algorithm.train(key)[1])).lower(blocks[0]).compile()
    compiled = time.perf_counter()
    done = [jax.block_until_ready(train(some)) for some in blocks]  # type: ignore[no-untyped-call]
    ended = time.perf_counter()
    curve = jnp.mean(jnp.concatenate([returns for _, returns in done]), axis=(0, 2))
    report(task, runs=task.runs, compiling=compiled - began, running=ended - compiled, returns=curve)


if __name__ == "__main__":
    main()
