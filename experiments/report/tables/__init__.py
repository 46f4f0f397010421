"""The tables of results in the documentation's pages, computed from the committed results."""

from collections.abc import Callable, Mapping

from experiments.report.tables import (
    cluster,
    corrections,
    counts,
    equal_time,
    gpu,
    gradients,
    language,
    learning,
    map,
    minionsrl,
    peers,
    powers,
    speed,
    stellaris,
    sweeps,
    tolerance,
)
from experiments.report.tables.table import Table

#: The tables by the names in the pages' marks.
TABLES: Mapping[str, Callable[[], Table]] = {
    "runs": counts.ran,
    "powers": powers.needed,
    "claims": stellaris.claimed,
    "why": stellaris.ladder,
    "why-without-overhead": lambda: stellaris.ladder(stellaris.WITHOUT),
    "training": stellaris.training,
    "parts": stellaris.parts,
    "aggregators": stellaris.aggregators,
    "calibration": stellaris.calibration,
    "sweeps": lambda: sweeps.sweep(
        "small/stellaris-sweeps",
        "default: coefficient of variation 0.1, a gradient of 10 ms, sharing slows by 2",
    ),
    "demo-sweeps": lambda: sweeps.sweep("small/stellaris-demo-sweeps", "default: the same, and 5 s a round"),
    "hpc-sweeps": lambda: sweeps.sweep(
        "small/stellaris-hpc-sweeps", "default: variation 0.1, a gradient of 10 ms for any number of samples", "PAR-RL"
    ),
    "map-speed": map.speeds,
    "map-eta": map.efficiencies,
    "map-answers": map.answers,
    "map-foretold": map.foretold,
    "map-confirmed": map.confirmed,
    "tuned-for-equal-time": lambda: equal_time.tuned("Hopper-v4"),
    "tuned-on-cartpole": lambda: equal_time.tuned("CartPole-v1"),
    "tuned-for-hpc": equal_time.tuned_for_hpc,
    "equal-time": lambda: equal_time.compared("Hopper-v4"),
    "equal-time-halfcheetah": lambda: equal_time.compared("HalfCheetah-v4"),
    "equal-time-walker2d": lambda: equal_time.compared("Walker2d-v4"),
    "equal-time-humanoid": lambda: equal_time.compared("Humanoid-v4"),
    "million-steps": stellaris.million_steps,
    "minionsrl-ceiling": minionsrl.ceiling,
    "minionsrl-trained": minionsrl.trained,
    "minionsrl-training": minionsrl.compared,
    "trajectories": learning.trajectories,
    "half-lost": lambda: learning.half_lost("best"),
    "half-lost-at-shared-rate": lambda: learning.half_lost("shared"),
    "free-lag": learning.free_lag,
    "what-if": learning.what_if,
    "cluster-vs-simulation": cluster.predicted,
    "gpu-gradients": gpu.gradients,
    "peers-returns": peers.compared,
    "tolerance-claims": tolerance.claimed,
    **speed.TABLES,
    **corrections.TABLES,
    **language.TABLES,
    **gradients.TABLES,
}
