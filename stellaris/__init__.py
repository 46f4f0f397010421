"""stellaris: reinforcement learning from stale data and stale gradients."""

import importlib
from typing import TYPE_CHECKING, Any

from stellaris.aggregation.apply import apply_update as apply_update
from stellaris.aggregation.compensation import add_delay_compensation as add_delay_compensation
from stellaris.aggregation.compensation import delay_compensate as delay_compensate
from stellaris.aggregation.compensation import gap_aware as gap_aware
from stellaris.aggregation.compensation import limit_alignment as limit_alignment
from stellaris.aggregation.compensation import reduce_by_gap as reduce_by_gap
from stellaris.aggregation.gradient_queue import AggregatorState as AggregatorState
from stellaris.aggregation.gradient_queue import Update as Update
from stellaris.aggregation.protocol import Aggregator as Aggregator
from stellaris.aggregation.staleness import exponential_weight as exponential_weight
from stellaris.aggregation.staleness import hinge_weight as hinge_weight
from stellaris.aggregation.staleness import polynomial_weight as polynomial_weight
from stellaris.aggregation.staleness import scale_by_staleness as scale_by_staleness
from stellaris.aggregation.staleness import staleness_weight as staleness_weight
from stellaris.aggregation.staleness_aware import staleness_aware as staleness_aware
from stellaris.aggregation.synchronisation import buffered as buffered
from stellaris.aggregation.synchronisation import fully_asynchronous as fully_asynchronous
from stellaris.aggregation.synchronisation import softsync as softsync
from stellaris.aggregation.synchronisation import stale_synchronous as stale_synchronous
from stellaris.aggregation.synchronisation import synchronous as synchronous
from stellaris.aggregation.thresholds import demo_threshold as demo_threshold
from stellaris.aggregation.thresholds import staleness_threshold as staleness_threshold
from stellaris.algorithms import IMPACT as IMPACT
from stellaris.algorithms import IMPALA as IMPALA
from stellaris.algorithms import PPO as PPO
from stellaris.algorithms import Batch as Batch
from stellaris.algorithms import TargetBatch as TargetBatch
from stellaris.corrections.caps import global_ratio_cap as global_ratio_cap
from stellaris.corrections.caps import truncate_ratio as truncate_ratio
from stellaris.corrections.clipping import ClipWidths as ClipWidths
from stellaris.corrections.clipping import adaptive_clip as adaptive_clip
from stellaris.corrections.effective_samples import effective_sample_fraction as effective_sample_fraction
from stellaris.corrections.effective_samples import scale_by_effective_samples as scale_by_effective_samples
from stellaris.corrections.masks import off_policy_sequence_mask as off_policy_sequence_mask
from stellaris.corrections.masks import probability_mask as probability_mask
from stellaris.corrections.masks import second_moment_mask as second_moment_mask
from stellaris.corrections.ratios import approximate_proximal_log_ratio as approximate_proximal_log_ratio
from stellaris.corrections.ratios import importance_ratio as importance_ratio
from stellaris.corrections.ratios import sequence_log_ratio as sequence_log_ratio
from stellaris.corrections.weights import BoundedImportanceWeight as BoundedImportanceWeight
from stellaris.corrections.weights import bounded_importance_weight as bounded_importance_weight
from stellaris.corrections.weights import vespo_weight as vespo_weight
from stellaris.diagnostics import LagReport as LagReport
from stellaris.diagnostics import RatioReport as RatioReport
from stellaris.diagnostics import VersionSpan as VersionSpan
from stellaris.diagnostics import gradient_cosine as gradient_cosine
from stellaris.diagnostics import lag_report as lag_report
from stellaris.diagnostics import ratio_report as ratio_report
from stellaris.diagnostics import version_span as version_span
from stellaris.distributions import Categorical as Categorical
from stellaris.distributions import DiagonalGaussian as DiagonalGaussian
from stellaris.losses import adapt_kl_coefficient as adapt_kl_coefficient
from stellaris.losses import approximate_kl as approximate_kl
from stellaris.losses import decoupled_ppo_loss as decoupled_ppo_loss
from stellaris.losses import impact_loss as impact_loss
from stellaris.losses import impala_loss as impala_loss
from stellaris.losses import ppo_loss as ppo_loss
from stellaris.losses import ppo_penalty_loss as ppo_penalty_loss
from stellaris.losses import sapo_loss as sapo_loss
from stellaris.losses import truncated_policy_gradient_loss as truncated_policy_gradient_loss
from stellaris.losses import value_loss as value_loss
from stellaris.pacing import rollout_capacity as rollout_capacity
from stellaris.returns import VTrace as VTrace
from stellaris.returns import gae as gae
from stellaris.returns import vtrace as vtrace
from stellaris.types import Trajectory as Trajectory

if TYPE_CHECKING:
    from stellaris import runtime as runtime
    from stellaris import systems as systems
    from stellaris.acting import ActorCritic as ActorCritic
    from stellaris.acting import EnvSpec as EnvSpec
    from stellaris.acting import Pixels as Pixels
    from stellaris.acting import Policy as Policy
    from stellaris.runtime import Bill as Bill
    from stellaris.runtime import Function as Function
    from stellaris.runtime import FunctionError as FunctionError
    from stellaris.runtime import FunctionSpec as FunctionSpec
    from stellaris.runtime import Invocation as Invocation
    from stellaris.runtime import PriceSheet as PriceSheet
    from stellaris.runtime import SimulatedPlatform as SimulatedPlatform
    from stellaris.runtime import Trace as Trace
    from stellaris.runtime import Versioned as Versioned
    from stellaris.systems import Budget as Budget
    from stellaris.systems import Result as Result
    from stellaris.systems import Workload as Workload
    from stellaris.systems import train as train

__version__ = "0.1.0"

#: Names by the package that is imported when one of them is first asked for: a trainer that takes one loss from here
#: should not wait for platforms and systems.
_LATER = {
    "stellaris.acting": ("ActorCritic", "EnvSpec", "Pixels", "Policy"),
    "stellaris.runtime": (
        *("Bill", "Function", "FunctionError", "FunctionSpec", "Invocation", "PriceSheet"),
        *("SimulatedPlatform", "Trace", "Versioned"),
    ),
    "stellaris.systems": ("Budget", "Result", "Workload", "train"),
}
_PACKAGE_OF = {name: package for package, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports the package of a name in `_LATER`, or the package itself."""
    if f"stellaris.{name}" in _LATER:
        return importlib.import_module(f"stellaris.{name}")
    if name not in _PACKAGE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PACKAGE_OF[name]), name)
    globals()[name] = value  # found at once from now on
    return value


def __dir__() -> list[str]:
    """Lists the names in `_LATER` as well, for completion in an editor."""
    return sorted({*globals(), *_PACKAGE_OF, *(package.removeprefix("stellaris.") for package in _LATER)})
