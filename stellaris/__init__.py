"""stellaris: reinforcement learning from stale data and stale gradients."""

from stellaris.aggregation import Aggregator as Aggregator
from stellaris.aggregation import AggregatorState as AggregatorState
from stellaris.aggregation import Update as Update
from stellaris.aggregation import apply_update as apply_update
from stellaris.aggregation import fully_asynchronous as fully_asynchronous
from stellaris.aggregation import staleness_aware as staleness_aware
from stellaris.aggregation import synchronous as synchronous
from stellaris.algorithms import PPO as PPO
from stellaris.losses import ppo_loss as ppo_loss
from stellaris.losses import value_loss as value_loss
from stellaris.returns import gae as gae
from stellaris.staleness import scale_by_staleness as scale_by_staleness
from stellaris.staleness import staleness_threshold as staleness_threshold
from stellaris.staleness import staleness_weight as staleness_weight
from stellaris.truncation import global_ratio_cap as global_ratio_cap
from stellaris.truncation import importance_ratio as importance_ratio
from stellaris.truncation import truncate_ratio as truncate_ratio
from stellaris.types import Trajectory as Trajectory
