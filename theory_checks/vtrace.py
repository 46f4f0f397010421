"""V-trace: the modulus (Lipschitz constant per state) and the fixed point of V-trace's operator.

Espeholt et al. 2018 (IMPALA), Theorem 1. With rho_t = min(rho, pi/mu), c_t = min(c, pi/mu), for a value function V

    R V(x) = V(x) + E_mu[sum_t g^t c_0 ... c_{t-1} rho_t (r_t + g V(x_{t+1}) - V(x_t)) | x_0 = x]

In matrices, with d(x) = E_mu[rho_0 | x], P_c(x, y) = sum_a mu(a|x) min(c, pi/mu) P(y|x, a) and P_rho with rho,

    R V = V + (I - g P_c)^{-1} (r_rho + g P_rho V - d V)

(as mu min(c, pi/mu) = min(c mu, pi), this needs no division, and mu may lack actions of pi). Its linear part is
M = I - d + (I - g P_c)^{-1} g (P_rho - P_c d). If c <= max(1, rho), all entries are nonnegative: with rho >= 1 because
d <= 1 and c <= rho; with rho < 1 because d <= rho and min(c, w) rho <= min(rho, w). Then the row sums, M 1, are the
Lipschitz constants:

    sum_y |M(x, y)| = eta(x) = 1 - (1 - g) [(I - g P_c)^{-1} d](x) <= 1 - (1 - g) min_y d(y)

and the first relation is checked as an equality: an inequality would let wrong indices pass. R is a contraction if
d > 0 everywhere. Its fixed point is the value of pi_rho(a|x) proportional to min(rho mu, pi), for every c: in general
neither pi's nor mu's.

On policy, with c and rho at least 1, R is the constant map to V^mu. The library computes the same sum truncated after n
steps: this is checked over every trajectory of n steps.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import stellaris
from experiments.toolkit import plots
from theory_checks import mdp
from theory_checks.check import Claim, Family, Instance, Sides, Theorem, draws


class Operator(NamedTuple):
    """V-trace's operator on value functions, in matrices."""

    mass: jax.Array  #: d [S]
    resolvent: jax.Array  #: (I - g P_c)^{-1} [S, S]
    onward: jax.Array  #: g P_rho [S, S]
    reward: jax.Array  #: r_rho [S]
    modulus: jax.Array  #: eta [S]

    def __call__(self, value: jax.Array) -> jax.Array:
        """Returns `R V`."""
        return value + self.resolvent @ (self.reward + self.onward @ value - self.mass * value)

    def lipschitz(self) -> jax.Array:
        """Returns by differentiation the largest change of each `R V(x)` if no `V(y)` changes by more than 1: `[S]`."""
        slopes: jax.Array = jax.jacfwd(self.__call__)(jnp.zeros_like(self.reward))
        return abs(slopes).sum(1)


def operator(process: mdp.MDP, pi: jax.Array, mu: jax.Array, rho: jax.Array, c: jax.Array) -> Operator:
    """Returns V-trace's operator for two policies and two clips."""

    def onward(weight: jax.Array) -> jax.Array:
        chain: jax.Array = process.discount * jnp.einsum("sa,sat->st", weight, process.transition)
        return chain

    clipped, traced = jnp.minimum(rho * mu, pi), jnp.minimum(c * mu, pi)
    mass, resolvent = clipped.sum(1), mdp.inverse(jnp.eye(len(pi)) - onward(traced))
    reward = (clipped * process.reward).sum(1)
    return Operator(mass, resolvent, onward(clipped), reward, 1 - (1 - process.discount) * resolvent @ mass)


def sides(instance: Instance) -> Mapping[str, Sides]:
    """Returns both sides of every claim about the operator."""
    fixed, process = instance.fixed, mdp.process(instance)
    # Positive rewards give values of one sign, so that the ratios of both sides are meaningful.
    process = process._replace(reward=process.reward + 1.1)
    discount, rho, most = process.discount, fixed["rho"], jnp.maximum(1.0, fixed["rho"])
    pi, mu = mdp.policies(instance)
    mu = _normalise(mu * fixed["support"])
    never = jnp.eye(mu.shape[1])[0]  # in the last case pi's only action in the first state, which mu never takes
    apart = mu.at[0].set(_normalise(mu[0] * (never == 0)))
    cases = (
        (pi, mu, rho, fixed["share"] * most),
        (pi, mu, rho, (1 + 4 * fixed["share"]) * most),
        (mu, mu, most, most),
        (pi.at[0].set(never), apart, rho, fixed["share"] * most),
    )
    stacked = (jnp.stack(column) for column in zip(*cases, strict=True))
    operators = jax.vmap(operator, in_axes=(None, 0, 0, 0, 0))(process, *stacked)
    lipschitz = jax.vmap(Operator.lipschitz)(operators)
    here, beyond, on_policy, _ = (jax.tree.map(lambda x, i=i: x[i], operators) for i in range(len(cases)))
    clipped = _normalise(jnp.minimum(rho * mu, pi))
    value, others = mdp.evaluate(process, clipped).value, mdp.evaluate(process, pi).value
    far = 1 / (1 - discount)
    both = {
        "modulus": (lipschitz[0], here.modulus),
        "contraction": (lipschitz[0], 1 - (1 - discount) * here.mass.min()),
        "fixed point": (here(value), value),
        "fixed point, any c": (beyond(value), value),
        "on policy": (on_policy(far * instance.free["value"]), mdp.evaluate(process, mu).value),
        "c > max(1, rho): the modulus": (lipschitz[1], beyond.modulus),
        "c > max(1, rho): a contraction": (lipschitz[1], 1.0),
        "fixed point of pi's value": (here(others), others),
        "disjoint supports: a contraction": (jnp.max(lipschitz[3]), 1 - 1e-6),
    }
    tolerance = {"fixed point": 1e-12 * far**2, "fixed point, any c": 1e-12 * far**2, "on policy": 1e-12 * far**2}
    return {name: Sides(*two, tolerance.get(name, 1e-10)) for name, two in both.items()}


def _normalise(weight: jax.Array) -> jax.Array:
    return weight / weight.sum(-1, keepdims=True)


def _draw(key: jax.Array, index: jax.Array, sharpness: Any, missing: Any) -> Instance:
    """Draws a process and two policies; mu lacks some actions."""
    free, fixed = mdp.draw(key, 4, 3, policies=2, sharpness=sharpness, discounts=(0.1, 0.99), ratios=(0.2, 5.0))
    numbers = jax.random.uniform(jax.random.fold_in(key, 1), (1 + 4 + 12,))
    support = (numbers[5:].reshape(4, 3) >= missing).at[:, 0].set(True).at[0, 1].set(True).astype(float)
    return Instance(free | {"value": 2 * numbers[1:5] - 1}, fixed | {"share": numbers[0], "support": support})


#: Number of actions and of states of the processes whose trajectories are enumerated, and steps of a trajectory.
_SMALL, _STEPS = 2, 4
#: Every trajectory: actions and next states `[_STEPS, trajectories]`.
_CHOICES = np.array(list(itertools.product(range(_SMALL), repeat=2 * _STEPS))).T
_ACTIONS, _NEXT = _CHOICES[:_STEPS], _CHOICES[_STEPS:]


def trajectory_sides(instance: Instance) -> Mapping[str, Sides]:
    """Returns the mean of `stellaris.vtrace` over every trajectory, and the operator truncated to as many steps."""
    process, rho = mdp.process(instance), instance.fixed["rho"]
    pi, mu = mdp.policies(instance)
    c = jnp.maximum(1.0, rho) * instance.fixed["share"]
    value = instance.free["value"]

    def expected(start: int) -> jax.Array:
        states = jnp.concatenate([jnp.full((1, _NEXT.shape[1]), start), _NEXT])
        here = states[:-1]
        chance = (mu[here, _ACTIONS] * process.transition[here, _ACTIONS, _NEXT]).prod(0)
        target = stellaris.vtrace(
            process.reward[here, _ACTIONS],
            jnp.full(_NEXT.shape, process.discount),
            value[states],
            jnp.log(pi / mu)[here, _ACTIONS],
            rho_clip=rho,
            c_clip=c,
        ).target
        return jnp.sum(chance * target[0])

    whole = operator(process, pi, mu, rho, c)
    through_c = process.discount * jnp.einsum("sa,sat->st", jnp.minimum(c * mu, pi), process.transition)
    error = whole.reward + whole.onward @ value - whole.mass * value
    # The infinite sum minus its terms after n steps: this tests the operator's own resolvent.
    broken_off = whole(value) - jnp.linalg.matrix_power(through_c, _STEPS) @ whole.resolvent @ error
    left = jnp.stack([expected(start) for start in range(_SMALL)])
    # Both sides are shifted by more than the largest value, so that they are positive.
    return {"the library's n steps": Sides(left + 100.0, broken_off + 100.0, 1e-11)}


def _draw_small(key: jax.Array, index: jax.Array) -> Instance:
    free, fixed = mdp.draw(key, _SMALL, _SMALL, policies=2, sharpness=2.0, discounts=(0.1, 0.99), ratios=(0.2, 5.0))
    numbers = jax.random.uniform(jax.random.fold_in(key, 1), (1 + _SMALL,))
    return Instance(free | {"value": 2 * numbers[1:] - 1}, fixed | {"share": numbers[0]})


THEOREMS = (
    Theorem(
        "vtrace",
        claims=(
            Claim("modulus", "sum_y |dRV(x)/dV(y)| = 1 - (1-g) [(I - g P_c)^-1 d](x)", equality=True),
            Claim("contraction", "|RV - RV'| <= (1 - (1-g) min d) |V - V'|"),
            Claim("fixed point", "R V = V for V^pi_rho", equality=True),
            Claim("fixed point, any c", "R V = V for V^pi_rho", equality=True),
            Claim("on policy", "pi = mu; c, rho >= 1  =>  RV = V^mu", equality=True),
            Claim("c > max(1, rho): the modulus", "sum_y |dRV(x)/dV(y)| <= eta(x)", control=True),
            Claim("c > max(1, rho): a contraction", "|RV - RV'| <= |V - V'|", control=True),
            Claim("fixed point of pi's value", "R V = V for V^pi", control=True, equality=True),
            Claim("disjoint supports: a contraction", "|RV - RV'| < |V - V'|", control=True),
        ),
        families={
            "full support": Family(_draw, settings={"sharpness": 2.0, "missing": 0.0}),
            "partly missing": Family(_draw, settings={"sharpness": 2.0, "missing": 0.4}),
            "nearly deterministic": Family(_draw, settings={"sharpness": 8.0, "missing": 0.2}),
        },
        sides=sides,
    ),
    Theorem(
        "vtrace, every trajectory",
        claims=(
            Claim("the library's n steps", "E[target] = V + sum_{t<n} (g P_c)^t (r + g P V - d V)", equality=True),
        ),
        families={"small": Family(_draw_small)},
        sides=trajectory_sides,
    ),
)


def picture(path: Path, seed: int) -> None:
    """Draws the modulus over both clips, and the fraction of cases beyond c = max(1, rho) that do not contract."""
    instances = draws(THEOREMS[0].families["full support"], seed, 1_000)
    clips = jnp.linspace(0.0, 5.0, 41)

    def constants(instance: Instance, rho: Any, c: Any) -> tuple[jax.Array, jax.Array]:
        fixed = instance.fixed | {"discount": 0.9}
        pi, mu = mdp.policies(instance)
        here = operator(mdp.process(instance._replace(fixed=fixed)), pi, mu, rho, c)
        return here.modulus.max(), here.lipschitz().max()

    over = jax.jit(jax.vmap(jax.vmap(constants, in_axes=(0, None, None)), in_axes=(None, None, 0)))
    with plots.figure(path, "discount 0.9", columns=2) as (modulus, beyond):
        for rho, style in zip((0.5, 1.0, 2.0, 4.0), plots.LINES, strict=True):
            eta, lipschitz = (np.asarray(x) for x in over(instances, rho, clips))
            within = np.asarray(clips) <= max(1.0, rho)
            modulus.plot(clips[within], eta.mean(1)[within], label=f"rho = {rho:g}", **style)
            beyond.plot(clips, 100 * (lipschitz > 1 + 1e-9).mean(1), label=f"rho = {rho:g}", **style)
        modulus.set(xlabel="c, up to max(1, rho)", ylabel="modulus, mean of 1,000 processes")
        beyond.set(xlabel="c", ylabel="R is not a contraction (%)")
        modulus.legend()
