"""Compares the library's corrections for stale data with hand-written versions of the same formulas.

A hand-written version covers one case only. Both sides compute the mean loss of [2048, 64] samples and its gradient,
and are compiled. Before the timing, the values and gradients of both sides are checked to agree.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.losses import peak_bytes
from experiments.benchmarks.measuring import Comparison, interleaved
from stellaris import (
    adaptive_clip,
    approximate_proximal_log_ratio,
    bounded_importance_weight,
    decoupled_ppo_loss,
    effective_sample_fraction,
    impala_loss,
    off_policy_sequence_mask,
    ppo_loss,
    probability_mask,
    ratio_report,
    sapo_loss,
    second_moment_mask,
    sequence_log_ratio,
    truncated_policy_gradient_loss,
    vespo_weight,
)
from stellaris.types import Array

DESCRIPTION = "corrections for stale data, with their gradients, against the same formulas written by hand"

#: Steps and sequences of a batch.
SIZE = (2048, 64)
#: Steps of a packed sequence.
PACKED = 256
#: Numbers of steps at which memory is compared.
LENGTHS = (512, 1024, 2048, 4096)

#: The arrays of a batch, by the names in `_batch`: the log-probability, which is differentiated, the behaviour
#: log-probability, the proximal log-ratio, the advantage, the mask of valid steps, and the segment, which is the number
#: of the packed sequence that a step belongs to.
Batch = Mapping[str, jax.Array]
Loss = Callable[[Batch], Array]


def measure(say: Callable[[str], None]) -> Iterator[Comparison]:
    """Times every pair, and calls `say` with the progress."""
    batch = _batch(SIZE)
    for name, (ours, theirs) in PAIRS.items():
        say(f"{name} ...")
        sides = {"ours": _compiled(ours), "theirs": _compiled(theirs)}
        got, want = (side(batch) for side in sides.values())
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-3, atol=1e-9), got, want)
        seconds = interleaved({key: functools.partial(side, batch) for key, side in sides.items()})
        yield Comparison(
            f"{name}, {list(SIZE)}",
            f"{1e6 * seconds['ours']:,.0f} us",
            f"{1e6 * seconds['theirs']:,.0f} us",
            seconds["ours"] / seconds["theirs"],
            "<= 1.10",
        )
    say("peak memory ...")
    for name in ("GSPO, packed", "M2PO", "SAT", "quantiles"):
        ours = _quantiles if name == "quantiles" else PAIRS[name][0]
        yield _memory(name, ours)


def _batch(size: tuple[int, int]) -> dict[str, jax.Array]:
    """Returns random samples, as from a behaviour policy a few updates old; one step in ten is padding."""
    keys = jax.random.split(jax.random.key(0), 5)
    behaviour = -jax.random.exponential(keys[0], size)
    return {
        "log_prob": jnp.minimum(behaviour + 0.3 * jax.random.normal(keys[1], size), -1e-3),
        "behaviour": behaviour,
        "proximal": 0.2 * jax.random.normal(keys[2], size),
        "advantage": jax.random.normal(keys[3], size),
        "valid": jax.random.uniform(keys[4], size) > 0.1,
        "segment": jnp.broadcast_to(jnp.arange(size[0])[:, None] // PACKED, size),
    }


def _compiled(loss: Loss) -> Callable[[Batch], Any]:
    """Compiles the mean loss, in which padding counts as 0, with its gradient with respect to the log-probabilities."""

    def mean(log_prob: jax.Array, batch: Batch) -> Array:
        return jnp.mean(jnp.where(batch["valid"], loss({**batch, "log_prob": log_prob}), 0.0))

    return jax.jit(lambda batch: jax.value_and_grad(mean)(batch["log_prob"], batch))


def _memory(name: str, loss: Loss) -> Comparison:
    """Compares the most and least peak bytes per sample over `LENGTHS`, which are equal if memory grows linearly."""
    per_sample = []
    for length in LENGTHS:
        shapes = jax.eval_shape(lambda length=length: _batch((length, SIZE[1])))
        per_sample.append(peak_bytes(_compiled(loss), shapes) / (length * SIZE[1]))
    return Comparison(
        f"{name}: bytes per sample, the most of {len(LENGTHS)} lengths, against the least",
        f"{max(per_sample):.1f} B",
        f"{min(per_sample):.1f} B",
        max(per_sample) / min(per_sample),
        "about 1",
    )


# ---- the pairs: the library's function, and the formula by hand -----------------------------------------------------


def _log_ratio(b: Batch) -> Array:
    return b["log_prob"] - b["behaviour"]


def _clipped(ratio: Any, advantage: Any, low: Any = 0.8, high: Any = 1.2) -> Array:
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)


def _constant(x: Any) -> Any:
    return jax.lax.stop_gradient(x)


def _gspo(b: Batch) -> Array:
    """Returns one loss per sequence."""
    s = sequence_log_ratio(_log_ratio(b), valid=b["valid"], over="mean")
    return ppo_loss(s, b["advantage"][0], clip=3e-4, clip_high=4e-4)


def _packed(b: Batch) -> Array:
    s = sequence_log_ratio(_log_ratio(b), valid=b["valid"], segment=b["segment"], over="mean")
    return ppo_loss(s, b["advantage"], clip=3e-4, clip_high=4e-4)


def _gspo_by_hand(b: Batch) -> Array:
    total = jnp.sum(jnp.where(b["valid"], _log_ratio(b), 0.0), axis=0)
    s = jnp.exp(total / jnp.maximum(jnp.sum(b["valid"], axis=0), 1))
    return _clipped(s, b["advantage"][0], 1 - 3e-4, 1 + 4e-4)


def _packed_by_hand(b: Batch) -> Array:
    """Returns GSPO's loss of packed sequences.

    It uses the number of segments, which the library's function does not get.
    """
    steps, columns = b["valid"].shape
    segments = -(-steps // PACKED)
    number = (b["segment"] + segments * jnp.arange(columns)).ravel()
    add_up = functools.partial(jax.ops.segment_sum, segment_ids=number, num_segments=segments * columns)
    total = add_up(jnp.where(b["valid"], _log_ratio(b), 0.0).ravel())
    s = jnp.exp(total / jnp.maximum(add_up(b["valid"].astype(jnp.float32).ravel()), 1.0))
    return _clipped(s[number].reshape(steps, columns), b["advantage"], 1 - 3e-4, 1 + 4e-4)


def _areal(b: Batch) -> Array:
    weight = bounded_importance_weight(b["proximal"], high=5.0, outside="mask").weight
    return decoupled_ppo_loss(_log_ratio(b), b["proximal"], b["advantage"], weight=weight)


def _areal_by_hand(b: Batch) -> Array:
    w = jnp.exp(b["proximal"])
    return jnp.where(w <= 5.0, w, 0.0) * _clipped(jnp.exp(_log_ratio(b) - b["proximal"]), b["advantage"])


def _a3po(b: Batch) -> Array:
    proximal = approximate_proximal_log_ratio(_log_ratio(b), b["segment"].astype(jnp.int32))
    return decoupled_ppo_loss(_log_ratio(b), proximal, b["advantage"])


def _a3po_by_hand(b: Batch) -> Array:
    l, d = _log_ratio(b), b["segment"].astype(jnp.float32)  # noqa: E741
    proximal = _constant(jnp.where(d > 0, (d - 1) / jnp.maximum(d, 1), 0.0) * l)
    return jnp.exp(proximal) * _clipped(jnp.exp(l - proximal), b["advantage"])


def _sequence_tis(b: Batch) -> Array:
    whole = sequence_log_ratio(b["proximal"], valid=b["valid"])
    return bounded_importance_weight(whole, high=8.0).weight * ppo_loss(_log_ratio(b) - b["proximal"], b["advantage"])


def _sequence_tis_by_hand(b: Batch) -> Array:
    whole = jnp.exp(jnp.sum(jnp.where(b["valid"], b["proximal"], 0.0), axis=0))
    return jnp.minimum(whole, 8.0) * _clipped(jnp.exp(_log_ratio(b) - b["proximal"]), b["advantage"])


def _m2po(b: Batch) -> Array:
    kept = second_moment_mask(_log_ratio(b), b["advantage"], valid=b["valid"])
    return jnp.where(kept, ppo_loss(_log_ratio(b), b["advantage"], clip=math.inf), 0.0)


def _m2po_by_hand(b: Batch) -> Array:
    l, a = _log_ratio(b), b["advantage"]  # noqa: E741
    outward = b["valid"] & (l * jnp.sign(a) > 0)
    square = jnp.where(outward, l * l, jnp.inf).ravel()
    ascending = jnp.sort(square)
    too_much = jnp.cumsum(ascending) > 0.04 * jnp.arange(1, square.size + 1)
    first = jnp.min(jnp.where(too_much, ascending, jnp.inf))
    kept = _constant(~outward | (l * l < first))
    return jnp.where(kept, -jnp.exp(l) * a, 0.0)


def _dppo(b: Batch, divergence: str, bound: float) -> Array:
    kept = probability_mask(b["log_prob"], b["behaviour"], b["advantage"], max_distance=bound, divergence=divergence)
    return jnp.where(
        kept, truncated_policy_gradient_loss(b["log_prob"], _log_ratio(b), b["advantage"], ratio_cap=5.0), 0.0
    )


def _dppo_by_hand(b: Batch, divergence: str, bound: float) -> Array:
    p, q = jnp.exp(_constant(b["log_prob"])), jnp.exp(b["behaviour"])
    distance = jnp.abs(p - q) if divergence == "tv" else q * jnp.log(q / p) + (1 - q) * jnp.log((1 - q) / (1 - p))
    kept = ~((b["advantage"] * (p - q) > 0) & (distance > bound))
    weight = jnp.minimum(jnp.exp(_constant(_log_ratio(b))), 5.0)
    return jnp.where(kept, -weight * b["advantage"] * b["log_prob"], 0.0)


def _opsm(b: Batch) -> Array:
    moved = sequence_log_ratio(_log_ratio(b), valid=b["valid"], over="mean")
    kept = off_policy_sequence_mask(moved, b["advantage"][0], max_divergence=1e-3)
    return jnp.where(kept, ppo_loss(_log_ratio(b), b["advantage"]), 0.0)


def _opsm_by_hand(b: Batch) -> Array:
    l = _log_ratio(b)  # noqa: E741
    moved = -jnp.sum(jnp.where(b["valid"], l, 0.0), axis=0) / jnp.maximum(jnp.sum(b["valid"], axis=0), 1)
    return jnp.where((b["advantage"][0] < 0) & (moved > 1e-3), 0.0, _clipped(jnp.exp(l), b["advantage"]))


def _vespo(b: Batch) -> Array:
    weight = vespo_weight(sequence_log_ratio(_log_ratio(b), valid=b["valid"]), b["advantage"][0])
    return weight * impala_loss(b["log_prob"], b["advantage"])


def _vespo_by_hand(b: Batch) -> Array:
    whole = jnp.clip(jnp.sum(jnp.where(b["valid"], _constant(_log_ratio(b)), 0.0), axis=0), -30.0, 30.0)
    positive, negative = (jnp.exp(k * whole + rate * (1 - jnp.exp(whole))) for k, rate in ((2.0, 3.0), (3.0, 2.0)))
    return -jnp.where(b["advantage"][0] < 0, negative, positive) * b["advantage"] * b["log_prob"]


def _sapo_by_hand(b: Batch) -> Array:
    tau = jnp.where(b["advantage"] > 0, 1.0, 1.05)
    return -4 / tau * jax.nn.sigmoid(tau * (jnp.exp(_log_ratio(b)) - 1)) * b["advantage"]


def _sat(b: Batch) -> Array:
    widths = adaptive_clip(_log_ratio(b), valid=b["valid"])
    return ppo_loss(_log_ratio(b), b["advantage"], clip=widths.low, clip_high=widths.high)


def _sat_by_hand(b: Batch) -> Array:
    l = _log_ratio(b)  # noqa: E741
    x = jnp.abs(_constant(l))
    ascending = jnp.sort(jnp.where(b["valid"], x, jnp.inf).ravel())
    place = 0.9 * (jnp.sum(b["valid"]) - 1).astype(jnp.float32)
    below = jnp.floor(place).astype(jnp.int32)
    q = ascending[below] + (place - below) * (ascending[below + 1] - ascending[below])
    c = 0.2 * jnp.minimum(2 / (1 + (x / q) ** 2), 1.0)
    return _clipped(jnp.exp(l), b["advantage"], jnp.where(l > 0, 0.8, 1 - c), jnp.where(l > 0, 1 + c, 1.2))


def _p3o(b: Batch) -> Array:
    cap = effective_sample_fraction(_log_ratio(b), valid=b["valid"])
    return bounded_importance_weight(_log_ratio(b), high=cap).weight * impala_loss(b["log_prob"], b["advantage"])


def _p3o_by_hand(b: Batch) -> Array:
    ratio = jnp.exp(_constant(_log_ratio(b)))
    there = jnp.where(b["valid"], ratio, 0.0)
    cap = jnp.sum(there) ** 2 / (jnp.sum(b["valid"]) * jnp.sum(there * there))
    return -jnp.minimum(ratio, cap) * b["advantage"] * b["log_prob"]


def _weighted_by_hand(b: Batch, low: Any, high: Any) -> Array:
    """Returns the policy-gradient loss, weighted by the bounded ratio as a constant."""
    return -jnp.clip(jnp.exp(_constant(_log_ratio(b))), low, high) * b["advantage"] * b["log_prob"]


def _topr(b: Batch) -> Array:
    low = jnp.where(b["advantage"] > 0, 1.0, 0.0)
    return bounded_importance_weight(_log_ratio(b), low=low, high=1.0).weight * impala_loss(
        b["log_prob"], b["advantage"]
    )


PAIRS: dict[str, tuple[Loss, Loss]] = {
    "PPO, two widths": (
        lambda b: ppo_loss(_log_ratio(b), b["advantage"], clip=0.2, clip_high=0.28),
        lambda b: _clipped(jnp.exp(_log_ratio(b)), b["advantage"], 0.8, 1.28),
    ),
    "TIS": (
        lambda b: (
            bounded_importance_weight(b["proximal"]).weight * ppo_loss(_log_ratio(b) - b["proximal"], b["advantage"])
        ),
        lambda b: (
            jnp.minimum(jnp.exp(b["proximal"]), 2.0) * _clipped(jnp.exp(_log_ratio(b) - b["proximal"]), b["advantage"])
        ),
    ),
    "TIS of sequences": (_sequence_tis, _sequence_tis_by_hand),
    "AReaL": (_areal, _areal_by_hand),
    "A-3PO": (_a3po, _a3po_by_hand),
    "CISPO": (
        lambda b: truncated_policy_gradient_loss(
            b["log_prob"], _log_ratio(b), b["advantage"], ratio_cap=1.28, ratio_floor=0.8
        ),
        lambda b: _weighted_by_hand(b, 0.8, 1.28),
    ),
    "TOPR": (_topr, lambda b: _weighted_by_hand(b, jnp.where(b["advantage"] > 0, 1.0, 0.0), 1.0)),
    "P3O": (_p3o, _p3o_by_hand),
    "GSPO": (_gspo, _gspo_by_hand),
    "GSPO, packed": (_packed, _packed_by_hand),
    "M2PO": (_m2po, _m2po_by_hand),
    "DPPO, total variation": (lambda b: _dppo(b, "tv", 0.15), lambda b: _dppo_by_hand(b, "tv", 0.15)),
    "DPPO, KL": (lambda b: _dppo(b, "kl", 0.05), lambda b: _dppo_by_hand(b, "kl", 0.05)),
    "OPSM": (_opsm, _opsm_by_hand),
    "VESPO": (_vespo, _vespo_by_hand),
    "SAPO": (lambda b: sapo_loss(_log_ratio(b), b["advantage"]), _sapo_by_hand),
    "SAT": (_sat, _sat_by_hand),
}


def _quantiles(b: Batch) -> Array:
    report = ratio_report(_log_ratio(b), valid=b["valid"])
    return b["log_prob"] * jnp.sum(report.log_quantiles)
