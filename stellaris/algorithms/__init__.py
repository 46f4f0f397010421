"""Algorithms: each a frozen configuration and one loss over `(apply_fn, params, batch, peers)`."""

from stellaris.algorithms.batch import Batch as Batch
from stellaris.algorithms.gradients import gradient as gradient
from stellaris.algorithms.impact import IMPACT as IMPACT
from stellaris.algorithms.impact import TargetBatch as TargetBatch
from stellaris.algorithms.impala import IMPALA as IMPALA
from stellaris.algorithms.ppo import PPO as PPO
