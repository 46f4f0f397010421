"""When queued gradients are applied, with which weights, and how a stale gradient is corrected."""

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
