"""Times the gradient of a learner function on an accelerator, by network, minibatch and number of sharers.

The argument is a network. The main process starts `SHARERS` processes, each a learner function's container with its own
runtime on the same device. The first compiles, and the others read its programs from a cache. Then one, two, ... of
them compute gradients at the same time, while the others wait.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

SHARERS = 4
#: The samples per gradient; 120 is the minibatch of the authors' demo of Stellaris.
MINIBATCHES = (120, 512, 1024, 2048, 4096)
#: Networks by name: the papers' for MuJoCo, and MinionsRL's for Atari with three frames.
NETWORKS = ("2x256", "convolutions")
#: Seconds of a measurement.
SECONDS = 0.3


def gradients(network: str) -> dict[int, Callable[[], Any]]:
    """Returns a function for each minibatch, which copies the minibatch to the device and computes its gradient.

    Args:
      network: a name in `NETWORKS`.
    """
    import jax
    import numpy as np

    from stellaris import PPO, ActorCritic
    from stellaris.acting import EnvSpec, Pixels
    from stellaris.acting.policies import PolicyVersion
    from stellaris.algorithms import gradient
    from stellaris.types import Trajectory

    noise = np.random.default_rng(0)
    if network == "2x256":
        policy = ActorCritic((256, 256))(EnvSpec("Hopper-v4", np.zeros(11, np.float32), actions=3, discrete=False))
        observation = noise.normal(size=(max(MINIBATCHES) + 1, 1, 11)).astype(np.float32)
        action = noise.normal(size=(max(MINIBATCHES), 1, 3)).astype(np.float32)
    else:
        frames = np.zeros((3, 84, 84), np.uint8)
        policy = Pixels("minionsrl")(EnvSpec("Qbert-v5", frames, actions=6, discrete=True))
        observation = noise.integers(0, 256, (max(MINIBATCHES) + 1, 1, 3, 84, 84), np.uint8)
        action = noise.integers(0, 6, (max(MINIBATCHES), 1)).astype(np.int32)
    version = PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser())
    ppo = PPO()

    def of(samples: int) -> Callable[[], Any]:
        one = np.ones((samples, 1), np.float32)
        sampled_by = np.ones((samples, 1), np.int32)
        bootstrapped = np.ones((samples + 1, 1), np.float32)
        trajectory = Trajectory(
            observation[: samples + 1],
            action[:samples],
            one,
            one < 0,
            one > 0,
            -one,
            bootstrapped,
            sampled_by,
        )
        batch = jax.device_get(ppo.prepare(trajectory, policy.apply, version))
        compute = jax.jit(lambda version, batch: gradient(ppo, policy.apply, version, batch, version=1)[0].params)
        return lambda: jax.block_until_ready(compute(version, batch))  # type: ignore[no-untyped-call]

    return {samples: of(samples) for samples in MINIBATCHES}


def sharer(network: str) -> None:
    """Answers each line of the input, a minibatch, with the seconds per gradient."""
    calls = gradients(network)
    for call in calls.values():
        call()
    print("ready", flush=True)
    for line in sys.stdin:
        call = calls[int(line)]
        call()
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            call()
            done += 1
        print((time.perf_counter() - began) / done, flush=True)


def main(network: str) -> None:
    """Prints `{minibatch: [seconds per gradient with 1, 2, ... sharers]}`."""
    sharers: list[Any] = []
    found: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        try:
            sharers.append(_started(network, environment))
            _line(sharers[0])
            sharers += [_started(network, environment) for _ in range(SHARERS - 1)]
            for one in sharers[1:]:
                _line(one)
            for samples in MINIBATCHES:
                # The slowest sharer counts: a group waits for its last gradient.
                found[samples] = [max(_asked(sharers[:count], f"{samples}\n")) for count in range(1, SHARERS + 1)]
        finally:
            for one in sharers:
                one.kill()
    print(json.dumps(found))


def _started(network: str, environment: dict[str, str]) -> Any:
    command = [sys.executable, "-m", "experiments.benchmarks.sides.gpu_gradients", network, "sharer"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _asked(sharers: list[Any], question: str) -> list[float]:
    answers: list[float] = [0.0] * len(sharers)

    def ask(place: int) -> None:
        sharers[place].stdin.write(question)
        sharers[place].stdin.flush()
        answers[place] = float(_line(sharers[place]))

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(sharers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _line(process: Any) -> str:
    line: str = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a sharer ended with status {process.wait()}")
    return line


if __name__ == "__main__":
    (sharer if sys.argv[2:] == ["sharer"] else main)(sys.argv[1])
