"""Improvement under truncation: bounds on how much worse than the behaviour policy a policy with bounded ratio can be.

Achiam et al. 2017 (Constrained Policy Optimization), with `mu` the behaviour policy, `pi` another policy, `J` the
discounted return from the start distribution, `d` the normalised discounted state distribution of mu, `A` the advantage
of mu, `g` the discount,

    S = E_{s~d, a~pi}[A(s, a)] / (1 - g)            the surrogate
    e = max_s |E_{a~pi}[A(s, a)]|

    J(pi) - J(mu) >= S - 2 g e E_d[TV(pi, mu)] / (1 - g)^2                  Corollary 1
                  >= S - g e sqrt(2 E_d[KL(pi, mu)]) / (1 - g)^2            Corollary 3, by Pinsker and Jensen

Negating the rewards negates `J` and `S` but not `e`, so both corollaries bound |J(pi) - J(mu) - S|; the check uses
this form.

If pi <= rho mu everywhere, then KL(pi, mu) = E_pi[log(pi / mu)] <= log rho, and TV(pi, mu) <= 1 - 1 / rho: the mass
of pi above mu is sum (pi - mu)^+ <= sum_{pi > mu} pi (1 - 1 / rho). Hence

    J(pi) - J(mu) >= S - g e sqrt(2 log rho) / (1 - g)^2                    with the surrogate: always
    J(pi) - J(mu) >=   - g e sqrt(2 log rho) / (1 - g)^2                    as on Stellaris' slides: where S >= 0
    J(pi) - J(mu) >= S - 2 g e (1 - 1 / rho) / (1 - g)^2                    sharper

**As printed, the slides' form needs S >= 0, which the slides do not state.** A policy that maximises the surrogate
near mu satisfies it (S = 0 at mu itself), as in the proof of CPO's Proposition 1; a stale policy need not. A process
with one state is a counterexample: with discount 0 the right side is 0 for every rho, and any pi worse than mu has
J(pi) < J(mu).

**Stellaris' default, rho = 1.** Both penalties are then 0, so the printed bound claims J(pi) >= J(mu) for every pi
that satisfies the premise. But pi <= mu everywhere, both summing to 1, implies pi = mu. The premise bounds the
*policy's* ratio, and only the behaviour policy meets it at rho = 1; the system truncates the *estimator's* ratio at 1,
about which the theorem says nothing. `update` measures the effect of such estimators on policies.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import rel_entr

from experiments.toolkit import plots
from stellaris.types import NDArray
from theory_checks import mdp
from theory_checks.check import Claim, Family, Instance, Sides, Theorem, draws, look, worst


def forms(instance: Instance) -> Mapping[str, Sides]:
    """Returns every form of the bound for one process and two policies, whose ratio pi / mu is at most `rho`."""
    process, discount, rho = mdp.process(instance), instance.fixed["discount"], instance.fixed["rho"]
    pi, mu = mdp.policies(instance)
    pi = mdp.within(pi, mu, rho)
    here = _compare(process, pi, mu)
    far = discount / (1 - discount) ** 2
    off = abs(here.surrogate - here.change)
    variation = here.occupancy @ abs(pi - mu).sum(1) / 2
    divergence = here.occupancy @ rel_entr(pi, mu).sum(1)
    log_rho = far * jnp.sqrt(2 * jnp.log(rho))
    # The surrogate is linear in the rewards: if it is negative, a bonus for the actions that pi prefers makes it zero.
    bonus = _compare(process._replace(reward=pi - mu), pi, mu).surrogate
    lift = jnp.where(here.surrogate < 0, -here.surrogate / jnp.where(bonus == 0, 1.0, bonus), 0.0)
    reward = process.reward + lift * (pi - mu)
    lifted = _compare(process._replace(reward=reward / jnp.max(abs(reward))), pi, mu)
    sides = {
        "total variation": (off, 2 * far * here.gain * variation),
        "divergence": (off, far * here.gain * jnp.sqrt(2 * jnp.maximum(divergence, 1e-300))),
        "log rho": (off, log_rho * here.gain),
        "1 - 1/rho": (off, 2 * far * here.gain * (1 - 1 / rho)),
        "printed, S >= 0": (-lifted.change, log_rho * lifted.gain),
        "printed, S < 0": (jnp.where(here.surrogate < 0, -here.change, here.change), log_rho * here.gain),
        "a claimed rho of 1": (here.surrogate - here.change, 0.0),
        "half the excess of rho": (off, 2 * far * here.gain * (1 - 2 / (1 + rho))),
    }
    tolerance = 1e-12 / (1 - discount) ** 2
    return {name: Sides(left, right, tolerance) for name, (left, right) in sides.items()}


class _Comparison(NamedTuple):
    """The comparison of pi with mu."""

    change: jax.Array  #: J(pi) - J(mu)
    surrogate: jax.Array  #: S
    gain: jax.Array  #: e
    occupancy: jax.Array  #: d


def _compare(process: mdp.MDP, pi: jax.Array, mu: jax.Array) -> _Comparison:
    behaviour = mdp.evaluate(process, mu)
    change = mdp.evaluate(process, pi).performance - behaviour.performance
    gain = (pi * behaviour.advantage).sum(1)
    surrogate = behaviour.occupancy @ gain / (1 - process.discount)
    return _Comparison(change, surrogate, jnp.max(abs(gain)), behaviour.occupancy)


def _families(discounts: tuple[float, float]) -> dict[str, Family]:
    def of_size(states: int, actions: int) -> Callable[..., Instance]:
        def draw(key: jax.Array, index: jax.Array, sharpness: Any) -> Instance:
            del index
            return mdp.draw(key, states, actions, policies=2, sharpness=sharpness, discounts=discounts)

        return draw

    small, tiny = of_size(4, 3), of_size(2, 2)
    return {
        "dense": Family(small, settings={"sharpness": 1.0}),
        "nearly deterministic": Family(small, settings={"sharpness": 8.0}),
        "tiny": Family(tiny, settings={"sharpness": 3.0}),
    }


THEOREMS = (
    Theorem(
        "improvement",
        claims=(
            Claim("total variation", "|S - dJ| <= 2 g e E[TV] / (1-g)^2"),
            Claim("divergence", "|S - dJ| <= g e sqrt(2 E[KL]) / (1-g)^2"),
            Claim("log rho", "|S - dJ| <= g e sqrt(2 log rho) / (1-g)^2"),
            Claim("1 - 1/rho", "|S - dJ| <= 2 g e (1 - 1/rho) / (1-g)^2"),
            Claim("printed, S >= 0", "-dJ <= g e sqrt(2 log rho) / (1-g)^2"),
            Claim("a claimed rho of 1", "S - dJ <= 0", control=True),
            Claim("half the excess of rho", "|S - dJ| <= 2 g e (1 - 2/(1+rho)) / (1-g)^2", control=True),
        ),
        families=_families((0.1, 0.99)),
        sides=forms,
    ),
    Theorem(
        "improvement, discount <= 0.6",
        claims=(Claim("printed, S < 0", "-dJ <= g e sqrt(2 log rho) / (1-g)^2", control=True),),
        families=_families((0.01, 0.6)),
        sides=forms,
        steps=0,
    ),
)


#: Discounts and truncation levels of the adversary's searches, and number of starts for each pair.
_DISCOUNTS, _LEVELS, _EACH = (0.1, 0.5, 0.9, 0.99), (1.0001, 1.001, 1.01, 1.1, 1.5, 2.0, 4.0, 10.0), 16


@functools.cache
def tightness(seed: int) -> Mapping[str, NDArray]:
    """Returns the largest left / right found for the forms in log rho and in 1 - 1/rho: `[discounts, levels]`."""
    theorem, names = THEOREMS[0], ("log rho", "1 - 1/rho")
    claims = tuple(claim for claim in theorem.claims if claim.name in names)
    forms_of_rho = dataclasses.replace(theorem, claims=claims, steps=1_000)
    cells = jnp.array(list(itertools.product(_DISCOUNTS, _LEVELS)))
    # The search starts from nearly deterministic processes: with large discounts, the worst processes hardly leave a
    # state.
    sharper = {"transition": 4.0, "start": 4.0, "policy": 3.0, "reward": 1.0}
    free = {name: sharper[name] * x for name, x in draws(theorem.families["tiny"], seed, _EACH).free.items()}
    starts = jax.tree.map(lambda x: jnp.tile(x, (len(cells),) + (1,) * (x.ndim - 1)), free)
    fixed = dict(zip(("discount", "rho"), jnp.repeat(cells, _EACH, axis=0).T, strict=True))
    ratio = worst(forms_of_rho, Instance(starts, fixed))
    best = ratio.reshape(len(_DISCOUNTS), len(_LEVELS), _EACH, len(claims)).max(2)
    return {claim.name: best[..., i] for i, claim in enumerate(claims)}


def findings(seed: int) -> Mapping[str, Any]:
    """Returns the tightness of the forms, by discount."""
    return {
        f"largest left/right of {name}": {
            f"discount {discount}": float(row.max()) for discount, row in zip(_DISCOUNTS, rows, strict=True)
        }
        for name, rows in tightness(seed).items()
    }


def picture(path: Path, seed: int) -> None:
    """Draws the tightness over rho, and the fraction of instances with S < 0 that break the printed form."""
    with plots.figure(path, "improvement under truncation", columns=2) as (tight, broken):
        for i, (discount, style) in enumerate(zip(_DISCOUNTS, plots.LINES, strict=True)):
            for rows, marker in zip(tightness(seed).values(), ("o", "s"), strict=True):
                label = f"discount {discount}" if marker == "s" else None
                tight.plot(np.array(_LEVELS) - 1, rows[i], marker=marker, markersize=4, label=label, **style)
        tight.set(xscale="log", ylim=(0, 1.05), ylabel="largest left / right found")
        tight.set(xlabel="rho - 1 (squares: 1 - 1/rho, circles: log rho)")
        tight.legend(fontsize=7)
        bins = np.linspace(0.0, 0.95, 20)
        free, _ = draws(THEOREMS[1].families["nearly deterministic"], seed, 20_000)
        span = jnp.linspace(0.0, 0.95, 20_000, endpoint=False)
        for rho, style in zip((1.1, 2.0, 10.0), plots.LINES, strict=False):
            instances = Instance(free, {"discount": span, "rho": jnp.full_like(span, rho)})
            shares = look(THEOREMS[1], instances).broken.reshape(len(bins), -1).mean(1)
            broken.plot(bins + 0.02, 100 * shares, label=f"rho {rho:g}", **style)
        broken.set(xlabel="discount", ylabel="instances with S < 0 that\nbreak the printed form (%)", ylim=(0, 100))
        broken.legend()
