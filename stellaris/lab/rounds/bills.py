"""The bills of a compiled run, as `stellaris.runtime.costs.billing` makes them of a trace."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.lab.rounds.containers import Pool, lived, warmed
from stellaris.lab.statistics import wide
from stellaris.runtime.costs.price_sheets import PriceSheet
from stellaris.runtime.functions import FunctionSpec
from stellaris.types import NDArray


def granularities(prices: Sequence[PriceSheet], name: str) -> NDArray:
    """Returns the units in which a function's seconds are summed: 0 for no rounding, then that of each sheet."""
    units = [sheet.functions[name].granularity if name in sheet.functions else 0.0 for sheet in prices]
    return np.array([0.0, *units])


@wide
def costs(
    prices: Sequence[PriceSheet], functions: Mapping[str, FunctionSpec], pools: Mapping[str, Pool], until: jax.Array
) -> jax.Array:
    """Returns the USD spent up to a time at which no invocation runs, float64, one number for each price sheet."""
    totals = []
    for i, sheet in enumerate(prices):
        total = until * sum(machine.per_second for machine in sheet.machines.values())
        for name, pool in pools.items():
            if (rate := sheet.functions.get(name)) is None:
                continue
            cold = warmed(granularities(prices, name), pool, until)
            seconds = pool.busy[1 + i]
            if rate.cold:
                seconds += cold[1 + i]
            if rate.idle:
                seconds += jnp.maximum(lived(functions[name], pool, until) - pool.busy[0] - cold[0], 0.0)
            total += seconds * rate.usd_per_second(functions[name].resources) + pool.started * rate.per_request
        totals.append(total)
    return jnp.stack(totals) if totals else jnp.zeros(0, jnp.float64)
