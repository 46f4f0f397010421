"""The effect of the truncated update on a policy: exact gradient steps with the global cap, in asynchronous runs.

Every update k of a run applies one learner's gradient. The data are from the actor's behaviour policy mu, which is some
versions old; the learner holds another old version, and three more learners hold other versions. The gradient is
taken of

    E_{s~d_mu, a~mu}[min(pi / mu, cap) A_mu(s, a)],    cap = max(min_j pi_j / mu, rho)

in exact expectation over a finite process, in the logits of a tabular softmax policy, applied to the newest version.

Theorem (`improvement`): with rho' = max pi'/mu of the *next* policy pi', |J(pi') - J(mu) - S| <= 2 g e (1 -
1/rho')/(1-g)^2. This holds at every update of every run, for any truncation. It does not imply rho' <= rho. The cap
bounds the weight of a sample in one gradient: it stops a gradient from pushing actions whose ratio is already above the
cap. It stops neither a step that crosses the cap nor the sum with other learners' gradients, and if all held policies
are above rho it does not truncate at all. So rho cannot replace rho' in the theorem: the controls break.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import rel_entr

import stellaris
from experiments.toolkit import plots
from stellaris.types import Array, NDArray
from theory_checks import mdp
from theory_checks.check import Claim, Family, Instance, Sides, Theorem, draws

#: Updates of a run, the largest lag, held policies, states and actions.
_UPDATES, _OLDEST, _HELD, _STATES, _ACTIONS = 12, 4, 4, 4, 3


class Measured(NamedTuple):
    """Comparisons of the next policy pi' with the behaviour policy mu, at every update `[updates]`."""

    change: jax.Array  #: J(pi') - J(mu)
    surrogate: jax.Array  #: S
    gain: jax.Array  #: e = max_s |E_pi'[A_mu]|
    ratio: jax.Array  #: max pi'/mu
    divergence: jax.Array  #: E_d[KL(mu, pi')]


def run(instance: Instance, rho: Any) -> Measured:
    """Runs asynchronous updates, and measures each."""
    process, fixed = mdp.process(instance), instance.fixed

    def surrogate(logits: jax.Array, peers: jax.Array, mu: jax.Array, here: mdp.Values) -> jax.Array:
        ratios = jnp.concatenate([jax.nn.log_softmax(logits)[None], jax.nn.log_softmax(peers)]) - jnp.log(mu)
        cap = stellaris.global_ratio_cap(ratios, rho=rho)
        ratio = stellaris.truncate_ratio(stellaris.importance_ratio(ratios[0]), cap)
        return here.occupancy @ (mu * ratio * here.advantage).sum(1)

    def update(versions: jax.Array, lags: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Measured]:
        actor, held = lags
        mu = jax.nn.softmax(versions[actor])
        here = mdp.evaluate(process, mu)
        gradient = jax.grad(surrogate)(versions[held[0]], versions[held[1:]], mu, here)
        newest = versions[0] + fixed["step"] * gradient
        pi = jax.nn.softmax(newest)
        gain = (pi * here.advantage).sum(1)
        measured = Measured(
            mdp.evaluate(process, pi).performance - here.performance,
            here.occupancy @ gain / (1 - process.discount),
            jnp.max(abs(gain)),
            jnp.max(pi / mu),
            here.occupancy @ rel_entr(mu, pi).sum(1),
        )
        return jnp.concatenate([newest[None], versions[:-1]]), measured

    start = jnp.broadcast_to(instance.free["policy"][0], (_OLDEST + 1, _STATES, _ACTIONS))
    measured: Measured = jax.lax.scan(update, start, (fixed["actor"], fixed["held"]))[1]
    return measured


def sides(instance: Instance) -> Mapping[str, Sides]:
    """Returns both sides of every claim at every update."""
    rho, discount = instance.fixed["rho"], instance.fixed["discount"]
    change, surrogate, gain, ratio, _ = _with_levels(instance, rho, 1.0)
    (change, at_default), surrogate, gain, ratio = change, surrogate[0], gain[0], ratio[0]
    ratio, far = jnp.maximum(ratio, 1.0), discount / (1 - discount) ** 2
    off = abs(surrogate - change)
    both = {
        "1 - 1/rho', the next policy's": (off, 2 * far * gain * (1 - 1 / ratio)),
        "log rho', the next policy's": (off, far * gain * jnp.sqrt(2 * jnp.log(ratio))),
        "the cap bounds the next policy": (ratio, rho),
        "rho in the place of rho'": (off, 2 * far * gain * (1 - 1 / rho)),
        "the default improves: J(pi') >= J(mu)": (-at_default, 0.0),
    }
    tolerance = 1e-11 / (1 - discount) ** 2
    return {name: Sides(left, right, tolerance) for name, (left, right) in both.items()}


def _with_levels(instance: Instance, *levels: Any) -> Measured:
    """Runs the same instance with several truncation levels, `[levels, updates]`."""
    return jax.vmap(run, in_axes=(None, 0))(instance, jnp.stack([jnp.asarray(level, float) for level in levels]))


def draw(key: jax.Array, index: jax.Array) -> Instance:
    """Draws a process, an initial policy, a step size, and the actor's and the learners' lags at every update."""
    del index
    free, fixed = mdp.draw(key, _STATES, _ACTIONS, policies=1, sharpness=2.0, discounts=(0.1, 0.95), ratios=(1.0, 3.0))
    numbers = jax.random.uniform(jax.random.fold_in(key, 1), (1 + _UPDATES * (1 + _HELD),))
    lags = jnp.floor(numbers[1:] * (_OLDEST + 1)).astype(jnp.int32).reshape(_UPDATES, 1 + _HELD)
    return Instance(free, fixed | {"step": 100.0 ** numbers[0], "actor": lags[:, 0], "held": lags[:, 1:]})


THEOREMS = (
    Theorem(
        "update",
        claims=(
            Claim("1 - 1/rho', the next policy's", "|S - dJ| <= 2 g e (1 - 1/rho') / (1-g)^2"),
            Claim("log rho', the next policy's", "|S - dJ| <= g e sqrt(2 log rho') / (1-g)^2"),
            Claim("the cap bounds the next policy", "max pi'/mu <= rho", control=True),
            Claim("rho in the place of rho'", "|S - dJ| <= 2 g e (1 - 1/rho) / (1-g)^2", control=True),
            Claim("the default improves: J(pi') >= J(mu)", "rho = 1  =>  J(pi') >= J(mu)", control=True),
        ),
        families={"asynchronous": Family(draw)},
        sides=sides,
    ),
)

#: Truncation levels to compare on the same runs.
_LEVELS = (1.0, 1.5, 3.0, np.inf)


@functools.cache
def compared(seed: int) -> Mapping[float, Measured]:
    """Returns a thousand runs at every truncation level: `[runs, updates]`."""
    instances = draws(THEOREMS[0].families["asynchronous"], seed, 1_000)
    runs = jax.jit(jax.vmap(run, in_axes=(0, None)))
    return {rho: jax.tree.map(np.asarray, runs(instances, rho)) for rho in _LEVELS}


def _quantile(column: Array, share: float) -> float:
    return float(np.quantile(column, share))


def findings(seed: int) -> Mapping[str, Any]:
    """Returns statistics of the same thousand runs at every truncation level."""
    return {
        f"rho {rho:g}": {
            "max pi'/mu, median": _quantile(runs.ratio, 0.5),
            "max pi'/mu, 90 %": _quantile(runs.ratio, 0.9),
            "divergence from mu, 90 %": _quantile(runs.divergence, 0.9),
            "updates that end below J(mu) (%)": float(100 * (runs.change < -1e-12).mean()),
            "mean (1 - discount) (J(pi') - J(mu))": float(_per_step(seed, runs).mean()),
        }
        for rho, runs in compared(seed).items()
    }


def _per_step(seed: int, runs: Measured) -> NDArray:
    discount = draws(THEOREMS[0].families["asynchronous"], seed, 1_000).fixed["discount"]
    return np.asarray(runs.change * (1 - discount[:, None]))


def picture(path: Path, seed: int) -> None:
    """Draws, over the updates, the next policy's largest ratio to the sampling policy, and its gain."""
    with plots.figure(path, "asynchronous runs with the global cap", columns=2) as (ratio, gain):
        at = np.arange(1, _UPDATES + 1)
        for (rho, runs), style in zip(compared(seed).items(), plots.LINES, strict=True):
            ratio.plot(at, np.quantile(runs.ratio, 0.9, axis=0), label=f"rho = {rho:g}", **style)
            gain.plot(at, _per_step(seed, runs).mean(0), label=f"rho = {rho:g}", **style)
        ratio.set(ylim=(1, None), xlabel="update", ylabel="max pi'/mu, 90 % of the runs are below")
        gain.set(xlabel="update", ylabel="mean of (1 - discount) (J(pi') - J(mu))")
        ratio.legend()
