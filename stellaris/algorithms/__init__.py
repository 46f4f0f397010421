"""PPO, IMPALA and IMPACT: frozen configurations with the methods of `Algorithm`, over any network."""

from stellaris.algorithms.algorithm import Algorithm as Algorithm
from stellaris.algorithms.batch import Batch as Batch
from stellaris.algorithms.gradients import gradient as gradient
from stellaris.algorithms.gradients import update as update
from stellaris.algorithms.impact import IMPACT as IMPACT
from stellaris.algorithms.impact import TargetBatch as TargetBatch
from stellaris.algorithms.impala import IMPALA as IMPALA
from stellaris.algorithms.ppo import PPO as PPO
