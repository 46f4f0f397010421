"""Improvement under truncation: how much worse than the behaviour policy can a policy of bounded ratio be?

Achiam et al. 2017 (Constrained Policy Optimization), with `J` the discounted return from the start distribution, `d`
the normalised discounted state distribution of mu, `A` its advantage, `g` the discount,

    S = E_{s~d, a~pi}[A(s, a)] / (1 - g)            the surrogate
    e = max_s |E_{a~pi}[A(s, a)]|

    J(pi) - J(mu) >= S - 2 g e E_d[TV(pi, mu)] / (1 - g)^2                  Corollary 1
                  >= S - g e sqrt(2 E_d[KL(pi, mu)]) / (1 - g)^2            Corollary 3, by Pinsker and Jensen

With the rewards' sign turned, `J` and `S` change theirs and `e` does not: both hold of |J(pi) - J(mu) - S|, as is
checked here.

If pi <= rho mu everywhere, then KL(pi, mu) = E_pi[log(pi / mu)] <= log rho, and TV(pi, mu) <= 1 - 1 / rho: the mass
that pi has above mu is sum (pi - mu)^+ <= sum_{pi > mu} pi (1 - 1 / rho). Hence

    J(pi) - J(mu) >= S - g e sqrt(2 log rho) / (1 - g)^2                    with the surrogate: always
    J(pi) - J(mu) >=   - g e sqrt(2 log rho) / (1 - g)^2                    as on Stellaris' slides: where S >= 0
    J(pi) - J(mu) >= S - 2 g e (1 - 1 / rho) / (1 - g)^2                    sharper

**As printed, the slides' form needs S >= 0, which they do not say.** A policy that maximises the surrogate near mu has
it (S = 0 at mu itself), as in the proof of CPO's Proposition 1; a stale policy need not. A process of one state is a
counterexample: with discount 0 the right side is 0 for every rho, and any pi worse than mu has J(pi) < J(mu).

**Stellaris' default, rho = 1.** Both penalties are then 0, so the printed bound says J(pi) >= J(mu): truncation for
free. But pi <= mu everywhere, both summing to 1, means pi = mu. The premise bounds the *policy's* ratio, and the only
policy that meets it at rho = 1 is the behaviour policy; what is truncated at 1 is the *estimator's* ratio, of which the
theorem does not speak. `update` measures what such estimators do to policies.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import rel_entr

from theory_checks import mdp
from theory_checks.check import Claim, Family, Instance, Sides, Theorem


def forms(instance: Instance) -> Mapping[str, Sides]:
    """Every form of the bound for one process and two policies, `pi` of a ratio of at most `rho`, and `mu`."""
    process, discount, rho = mdp.process(instance), instance.fixed["discount"], instance.fixed["rho"]
    pi, mu = mdp.policies(instance)
    pi = mdp.within(pi, mu, rho)
    here = _compare(process, pi, mu)
    far = discount / (1 - discount) ** 2
    off = abs(here.surrogate - here.change)
    variation = here.occupancy @ abs(pi - mu).sum(1) / 2
    divergence = here.occupancy @ rel_entr(pi, mu).sum(1)
    log_rho = far * jnp.sqrt(2 * jnp.log(rho))
    # The surrogate is linear in the rewards: where it is negative, a bonus for what pi prefers makes it zero.
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
    """Of pi with mu."""

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
    def family(states: int, actions: int, sharpness: float) -> Family:
        return Family(
            lambda key, index: mdp.draw(key, states, actions, policies=2, sharpness=sharpness, discounts=discounts)
        )

    return {"dense": family(4, 3, 1.0), "nearly deterministic": family(4, 3, 8.0), "tiny": family(2, 2, 3.0)}


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
        search=False,
    ),
)
