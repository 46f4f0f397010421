"""Algorithms: each a frozen configuration and one loss over `(apply_fn, params, batch, peers)`."""

from stellaris.algorithms.ppo import PPO as PPO
from stellaris.algorithms.ppo import Batch as Batch
