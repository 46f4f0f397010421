"""Advantages and value targets of trajectories, time-major.

All but `n_step_returns` solve one backward recurrence, `x_t = b_t + c_t x_{t+1}` from `x_T = 0`. For `gae` it is

    x = jnp.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        b = reward[t] + discount[t] * value[t + 1] - value[t]
        c = lambda_ * discount[t]
        x = b + c * x
        advantage[t] = x

and for `vtrace` it has truncated ratios in `b` and `c`; for `retrace` and `upgo_returns` the ratio or the value of the
next step decides about `c`. At invalid steps `b` and `c` are zero.

On a CPU the recurrence runs as a loop that computes `b` and `c` row by row, so that every array is read once. On other
devices it runs as an associative scan of logarithmic depth, which needs `b` and `c` for all steps. Both use the same
code for `b` and `c`, written as a function of a *row reader*: `row(x)` is `x[t]` in the loop and `x[:T]` in the scan,
`row(x, 1)` is `x[t + 1]` and `x[1:T + 1]`.

Arguments are checked in every call. The computation is behind `jax.jit`: outside of a caller's `jit` it compiles once
for its shapes and types; within a caller's `jit` it is inlined.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from stellaris._core import checks
from stellaris.corrections.ratios import importance_ratio
from stellaris.types import Array, Scalar, alike, at_least_float32

#: On a CPU the recurrence's loop is unrolled by two if a row has at least this many elements; measured by
#: `python -m experiments.benchmarks losses`.
WIDE = 64
#: The loop of gae's gradient is unrolled by two if all rows together have at least this many elements.
LARGE = 8192
#: A row reader: `row(x)` is `x[t]`, and `row(x, 1)` is `x[t + 1]`, for one t in a loop and for every t in a scan.
_Row: TypeAlias = Callable[..., jax.Array]


def gae(
    reward: Float[Array, "T *batch"],
    discount: Float[Array, "T *batch"],
    value: Float[Array, "T+1 *batch"],
    *,
    lambda_: Scalar = 0.95,
    valid: Shaped[Array, "T *batch"] | None = None,
) -> Float[Array, "T *batch"]:
    """Generalised advantage estimation.

    `A_t = delta_t + discount_t * lambda * A_{t+1}` with `delta_t = r_t + discount_t * V_{t+1} - V_t` and `A_T = 0`.

    Args:
      reward: `[T, ...]`.
      discount: `[T, ...]`, `gamma * (1 - terminated)`: zero if the next state's value is zero, `gamma` at a truncation.
      value: `[T + 1, ...]`; the last row bootstraps.
      lambda_: decay of the traces, in [0, 1]: 0 gives one-step temporal differences, 1 Monte-Carlo returns minus the
        value. A number, or a traced scalar that `vmap` sweeps.
      valid: `[T, ...]`, False for steps that are not transitions (an environment's reset). Their advantage is zero, and
        no trace crosses them. To skip steps instead, such as tokens that the policy did not choose, move the
        valid ones to the front, as `docs/functions.md` shows. By default all steps are transitions.

    Returns:
      The advantages `[T, ...]`, in the dtype to which the inputs promote. The value target is
      `advantage + value[:-1]`. Derivatives of any order flow to reward, discount, value and `lambda_`.

    Raises:
      TypeError: if reward, discount or value is not an array of floats, or `lambda_` is not a number.
      ValueError: if the shapes do not fit, or `lambda_` lies outside [0, 1].

    Source:
      Schulman et al. 2016, High-Dimensional Continuous Control Using Generalized Advantage Estimation, Eq. 16.

    Example:
      Two steps at discount 0.5 and lambda 0.5; the second ends the episode:

      >>> import jax.numpy as jnp
      >>> reward, discount = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.0])
      >>> gae(reward, discount, jnp.array([0.0, 1.0, 9.0]), lambda_=0.5).tolist()
      [1.75, 1.0]
    """
    _check_trajectory(reward=reward, discount=discount, value=value, valid=valid)
    checks.between_zero_and_one(lambda_=lambda_)
    valid = None if valid is None else checks.mask(valid, reward)
    advantage: jax.Array = _advantages(reward, discount, value, valid, lambda_)
    return advantage


class VTrace(NamedTuple):
    """The result of `vtrace`; no gradient flows through it.

    Source:
      Espeholt et al. 2018, IMPALA, Section 4.1.

    Example:
      >>> estimate = VTrace(target=jnp.ones(1), advantage=jnp.ones(1), q_estimate=jnp.ones(1))
      >>> estimate.target.shape == estimate.advantage.shape
      True
    """

    target: Float[Array, "T *batch"]  #: target of the value function.
    advantage: Float[Array, "T *batch"]  #: advantage for the policy gradient, already weighted by the truncated ratio.
    q_estimate: Float[Array, "T *batch"]  #: estimate of the value of the action taken, `reward + discount V'_{t+1}`.


def vtrace(
    reward: Float[Array, "T *batch"],
    discount: Float[Array, "T *batch"],
    value: Float[Array, "T+1 *batch"],
    log_ratio: Float[Array, "T *batch"],
    *,
    lambda_: Scalar = 1.0,
    rho_clip: Scalar = 1.0,
    c_clip: Scalar = 1.0,
    pg_rho_clip: Scalar = 1.0,
    ratio_cap: Float[Array, "T *batch"] | Scalar | None = None,
    valid: Shaped[Array, "T *batch"] | None = None,
) -> VTrace:
    """Off-policy value targets and advantages by V-trace.

    With `r_t = exp(log_ratio_t)`, `rho_t = min(r_t, rho_clip, cap_t)` and `c_t = lambda * min(r_t, c_clip)`:

    `target_t = V_t + sum_{k >= t} (prod_{t <= i < k} discount_i c_i) rho_k (reward_k + discount_k V_{k+1} - V_k)`,

    `advantage_t = min(r_t, pg_rho_clip, cap_t) (reward_t + discount_t V'_{t+1} - V_t)`, where
    `V' = lambda target + (1 - lambda) V`. On-policy this equals `gae` at the same lambda; with `lambda = 1` it is the
    paper's advantage.

    Args:
      reward: `[T, ...]`.
      discount: `[T, ...]`, `gamma * (1 - terminated)`.
      value: `[T + 1, ...]`; the last row bootstraps.
      log_ratio: `[T, ...]`, the log-probability under the learning policy minus that under the behaviour policy.
      lambda_: decay of the traces, in [0, 1].
      rho_clip: bound on the ratios that weight temporal differences; it sets the fixed point. `math.inf` for no bound.
      c_clip: bound on the ratios that carry traces. The V-trace operator is a contraction if `c_clip` is at most
        `max(1, rho_clip)`. If `c_clip` is above 1, the traces of long trajectories may overflow.
      pg_rho_clip: bound on the ratios that weight the policy gradient.
      ratio_cap: `[T, ...]` from `global_ratio_cap`, or a constant; a further bound on the ratios that `rho_clip` and
        `pg_rho_clip` bound. The cap has no effect where it is not below these clips. A global cap is at least 1, so it
        never has an effect with the default clips of 1. Stellaris' IMPALA replaces the clips by the cap:
        `rho_clip = pg_rho_clip = math.inf`.
      valid: `[T, ...]`, False for steps that are not transitions. Their target is their value, their advantage is zero,
        and no trace crosses them, as in `gae`.

    Returns:
      `VTrace(target, advantage, q_estimate)`, each `[T, ...]`, in the dtype to which the inputs promote. No gradient
      flows through them. `q_estimate` is `reward_t + discount_t V'_{t+1}`, as in the advantage; the value at an invalid
      step.

    Raises:
      TypeError: if an array that should hold floats holds integers, or a setting is not a number. (To lift a clip use
        `math.inf`, not None.)
      ValueError: if the shapes do not fit, `lambda_` lies outside [0, 1], or a clip is negative.

    Source:
      Espeholt et al. 2018, IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures,
      Eq. 1 and Section 4.2; its Remark 2 for lambda.

    Example:
      Two steps of ratios 2 and 1/2 at discount 1/2. The first ratio is truncated to 1; the second stays 1/2:

      >>> import jax.numpy as jnp
      >>> reward, discount = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5])
      >>> value, log_ratio = jnp.array([0.0, 1.0, 4.0]), jnp.log(jnp.array([2.0, 0.5]))
      >>> target, advantage, q_estimate = vtrace(reward, discount, value, log_ratio)
      >>> print(target, advantage)
      [2.25 2.5 ] [2.25 1.5 ]
    """
    _check_trajectory(reward=reward, discount=discount, value=value, log_ratio=log_ratio, valid=valid)
    checks.per_sample(reward, "reward", checks.positive, **checks.given(ratio_cap=ratio_cap))
    checks.between_zero_and_one(lambda_=lambda_)
    valid = None if valid is None else checks.mask(valid, reward)
    checks.not_negative(rho_clip=rho_clip, c_clip=c_clip, pg_rho_clip=pg_rho_clip)
    constants = jax.lax.stop_gradient(((reward, discount, value, log_ratio), ratio_cap))
    estimate: VTrace = _vtrace(*constants, valid, lambda_, (rho_clip, c_clip, pg_rho_clip))
    return estimate


def lambda_returns(
    reward: Float[Array, "T *batch"],
    discount: Float[Array, "T *batch"],
    value: Float[Array, "T+1 *batch"],
    *,
    lambda_: Scalar = 0.95,
    valid: Shaped[Array, "T *batch"] | None = None,
) -> Float[Array, "T *batch"]:
    """Lambda-returns, the targets of TD(lambda): `gae(...) + value[:-1]`.

    `G_t = r_t + discount_t ((1 - lambda) V_{t+1} + lambda G_{t+1})` with `G_T = V_T`.

    Args:
      reward: `[T, ...]`.
      discount: `[T, ...]`, `gamma * (1 - terminated)`.
      value: `[T + 1, ...]`; the last row bootstraps.
      lambda_: decay of the traces, in [0, 1]: 0 gives one-step targets, 1 discounted returns.
      valid: `[T, ...]`, False for steps that are not transitions, as in `gae`: their return is their value.

    Returns:
      The returns `[T, ...]`. Gradients flow as in `gae`; as targets, pass them through `jax.lax.stop_gradient`.

    Raises:
      TypeError: if reward, discount or value is not an array of floats, or `lambda_` is not a number.
      ValueError: if the shapes do not fit, or `lambda_` lies outside [0, 1].

    Source:
      Sutton 1988, Learning to Predict by the Methods of Temporal Differences.

    Example:
      >>> import jax.numpy as jnp
      >>> reward, discount, value = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5]), jnp.array([9.0, 1.0, 4.0])
      >>> lambda_returns(reward, discount, value, lambda_=0.5).tolist()  # 2 + 4 / 2, and 1 + (1 / 2 + 4 / 2) / 2
      [2.25, 4.0]
    """
    advantage = gae(reward, discount, value, lambda_=lambda_, valid=valid)
    return (advantage + jnp.asarray(value)[:-1]).astype(jnp.result_type(advantage))


def n_step_returns(
    reward: Float[Array, "T *batch"],
    discount: Float[Array, "T *batch"],
    value: Float[Array, "T+1 *batch"],
    *,
    steps: int,
    valid: Shaped[Array, "T *batch"] | None = None,
) -> Float[Array, "T *batch"]:
    """Returns over a fixed number of steps: `n` rewards, then the value.

    `G_t = r_t + d_t r_{t+1} + ... + d_t ... d_{t+n-2} r_{t+n-1} + d_t ... d_{t+n-1} V_{t+n}` with `d` the discounts;
    within the last `n` steps of the trajectory, up to its end, where `V_T` bootstraps.

    Args:
      reward: `[T, ...]`.
      discount: `[T, ...]`, `gamma * (1 - terminated)`.
      value: `[T + 1, ...]`; the last row bootstraps.
      steps: n, at least 1. The cost grows with the logarithm of n.
      valid: `[T, ...]`, False for steps that are not transitions, as in `gae`: their return is their value, and returns
        that reach them bootstrap from it.

    Returns:
      The returns `[T, ...]`, in the dtype to which the inputs promote. Gradients flow to reward, discount and value.

    Raises:
      TypeError: if reward, discount or value is not an array of floats, or `steps` is not a whole number.
      ValueError: if the shapes do not fit, or `steps` is below 1.

    Source:
      Sutton and Barto 2018, Reinforcement Learning: An Introduction, Eq. 7.1.

    Example:
      >>> import jax.numpy as jnp
      >>> reward, discount, value = jnp.array([1.0, 2.0, 4.0]), jnp.full(3, 0.5), jnp.array([9.0, 9.0, 8.0, 16.0])
      >>> n_step_returns(reward, discount, value, steps=2).tolist()  # 1 + 2 / 2 + 8 / 4, 2 + 4 / 2 + 16 / 4, 4 + 16 / 2
      [4.0, 8.0, 12.0]
    """
    _check_trajectory(reward=reward, discount=discount, value=value, valid=valid)
    checks.whole(at_least=1, steps=steps)
    valid = None if valid is None else checks.mask(valid, reward)
    found: jax.Array = _n_step(reward, discount, value, valid, int(steps))
    return found


def retrace(
    reward: Float[Array, "T *batch"],
    discount: Float[Array, "T *batch"],
    q_value: Float[Array, "T *batch"],
    value: Float[Array, "T+1 *batch"],
    log_ratio: Float[Array, "T *batch"],
    *,
    lambda_: Scalar = 1.0,
    valid: Shaped[Array, "T *batch"] | None = None,
) -> Float[Array, "T *batch"]:
    """Off-policy targets of action values by Retrace(lambda).

    `G_t = r_t + discount_t (V_{t+1} + c_{t+1} (G_{t+1} - Q_{t+1}))` with `c_t = lambda min(1, exp(log_ratio_t))` and
    `G_T = Q_T`, so that the last target is `r + discount V_T`. Unlike V-trace, which evaluates a truncated policy, it
    evaluates the learning policy itself.

    Args:
      reward: `[T, ...]`.
      discount: `[T, ...]`, `gamma * (1 - terminated)`.
      q_value: `[T, ...]`, `Q(s_t, a_t)` of the actions taken, from the target network.
      value: `[T + 1, ...]`, the expectation of `Q(s_t, a)` over the actions of the learning policy; the last row
        bootstraps.
      log_ratio: `[T, ...]`, the log-probability under the learning policy minus that under the behaviour policy.
      lambda_: decay of the traces, in [0, 1].
      valid: `[T, ...]`, False for steps that are not transitions. Their target is their action value, and no trace
        crosses them.

    Returns:
      The targets `[T, ...]` for `Q(s_t, a_t)`, in the dtype to which the inputs promote, without a gradient.

    Raises:
      TypeError: if an array that should hold floats holds integers, or `lambda_` is not a number.
      ValueError: if the shapes do not fit, or `lambda_` lies outside [0, 1].

    Source:
      Munos et al. 2016, Safe and Efficient Off-Policy Reinforcement Learning, Eq. 3 and 4 with the traces of Retrace,
      in the recursive form of rlax (`general_off_policy_returns_from_q_and_v`).

    Example:
      >>> import jax.numpy as jnp
      >>> reward, discount = jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5])
      >>> q_value, value, log_ratio = jnp.array([0.0, 3.0]), jnp.array([0.0, 1.0, 4.0]), jnp.log(jnp.array([9.0, 0.5]))
      >>> print(retrace(reward, discount, q_value, value, log_ratio))  # 1 + (1 + (4 - 3) / 2) / 2, and 2 + 4 / 2
      [1.75 4.  ]
    """
    _check_trajectory(reward=reward, discount=discount, value=value, q_value=q_value, log_ratio=log_ratio, valid=valid)
    checks.between_zero_and_one(lambda_=lambda_)
    valid = None if valid is None else checks.mask(valid, reward)
    constants = jax.lax.stop_gradient((reward, discount, q_value, value, log_ratio))
    target: jax.Array = _retrace(constants, valid, lambda_)
    return target


def upgo_returns(
    reward: Float[Array, "T *batch"],
    discount: Float[Array, "T *batch"],
    value: Float[Array, "T+1 *batch"],
    *,
    valid: Shaped[Array, "T *batch"] | None = None,
) -> Float[Array, "T *batch"]:
    """Upgoing returns (UPGO): follow the trajectory while it is better than expected, and bootstrap where it is not.

    `G_t = r_t + discount_t G_{t+1}` if `r_{t+1} + discount_{t+1} V_{t+2} >= V_{t+1}`, and `r_t + discount_t V_{t+1}`
    otherwise and at the last step. These are lambda-returns with a lambda of 1 or 0 at each step.

    Args:
      reward: `[T, ...]`.
      discount: `[T, ...]`, `gamma * (1 - terminated)`; AlphaStar does not discount.
      value: `[T + 1, ...]`; the last row bootstraps.
      valid: `[T, ...]`, False for steps that are not transitions, as in `gae`: their return is their value.

    Returns:
      The returns `[T, ...]`, in the dtype to which the inputs promote, without a gradient. AlphaStar's advantage is
      `min(exp(log_ratio), 1) * (upgo_returns(...) - value[:-1])`.

    Raises:
      TypeError: if reward, discount or value is not an array of floats.
      ValueError: if the shapes do not fit.

    Source:
      Vinyals et al. 2019, Grandmaster level in StarCraft II using multi-agent reinforcement learning, Methods; checked
      against DI-engine's `upgo_returns`, which does not discount either.

    Example:
      >>> import jax.numpy as jnp
      >>> reward, discount, value = jnp.array([1.0, 3.0, -3.0]), jnp.ones(3), jnp.array([0.0, 1.0, 2.0, 0.0])
      >>> upgo_returns(reward, discount, value).tolist()  # the third step is worse than expected: 3 + 2, then 1 + 5
      [6.0, 5.0, -3.0]
    """
    _check_trajectory(reward=reward, discount=discount, value=value, valid=valid)
    valid = None if valid is None else checks.mask(valid, reward)
    found: jax.Array = _upgo(*jax.lax.stop_gradient((reward, discount, value)), valid)
    return found


# ---- the recurrence -------------------------------------------------------------------------------------------------


def _recurrence(terms: Callable[[_Row], tuple[jax.Array, ...]], out: jax.Array) -> jax.Array:
    """Solves `x_t = b_t + c_t x_{t+1}` from `x_T = 0`.

    Args:
      terms: a function `(row reader) -> (b, c)`, for one step or for all; see the module's docstring.
      out: zeros of the solution's shape and dtype.
    """
    if not out.size:
        return out

    def step(i: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        later, out = carry
        t = len(out) - 1 - i
        b, c = terms(_at(t))
        now = b + c * later
        return now, _put(out, now, t)

    def loop() -> Any:
        return jax.lax.fori_loop(0, len(out), step, (out[0], out), unroll=2 if out[0].size >= WIDE else 1)[1]

    def scan() -> jax.Array:
        return _compose(*terms(_all(len(out))), reverse=True)

    solved: jax.Array = jax.lax.platform_dependent(cpu=loop, default=scan)
    return solved


def _compose(b: jax.Array, c: jax.Array, *, reverse: bool = False) -> jax.Array:
    """Solves `x_t = b_t + c_t x_{t-1}` or, in reverse, `x_t = b_t + c_t x_{t+1}`, by composing affine maps in pairs."""

    def compose(first: tuple[jax.Array, jax.Array], then: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return then[0] + then[1] * first[0], then[1] * first[1]

    composed: jax.Array = jax.lax.associative_scan(compose, (b, c), reverse=reverse)[0]
    return composed


def _at(t: Any) -> _Row:
    """Reads the row of one step."""

    def row(x: Array, ahead: int = 0) -> jax.Array:
        found: jax.Array = jax.lax.dynamic_index_in_dim(x, t + ahead, keepdims=False)
        return found

    return row


def _all(steps: int) -> _Row:
    """Reads the rows of all steps at once."""
    return lambda x, ahead=0: x[ahead : ahead + steps]


def _put(x: jax.Array, row: jax.Array, t: Any) -> jax.Array:
    updated: jax.Array = jax.lax.dynamic_update_index_in_dim(x, row, t, 0)
    return updated


def _next(x: jax.Array) -> jax.Array:
    """Shifts to `x_{t+1}`, with zero after the last row."""
    return jnp.concatenate([x[1:], jnp.zeros_like(x[:1])])


def _masked(row: _Row, valid: Array | None, *terms: jax.Array) -> tuple[jax.Array, ...]:
    """Zeroes the terms at steps that are not transitions."""
    return terms if valid is None else tuple(jnp.where(row(valid), term, 0.0) for term in terms)


# ---- vtrace ----------------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, inline=True)
def _vtrace(arrays: Any, ratio_cap: Any, valid: Any, lambda_: Any, clips: Any) -> VTrace:
    dtype = jnp.result_type(*arrays)
    wide = _as(at_least_float32(dtype))
    arrays, settings = jax.tree.map(wide, (arrays, jax.lax.stop_gradient((lambda_, clips, ratio_cap))))
    (reward, discount, value, log_ratio), valid, (lambda_, clips, ratio_cap) = alike((arrays, valid, settings))
    rho_clip, c_clip, pg_rho_clip = clips
    ratio = importance_ratio(log_ratio)
    capped = ratio if ratio_cap is None else jnp.minimum(ratio, ratio_cap)

    def terms(row: _Row) -> tuple[jax.Array, ...]:
        error = row(reward) + row(discount) * row(value, 1) - row(value)
        b = jnp.minimum(row(capped), rho_clip) * error
        c = row(discount) * lambda_ * jnp.minimum(row(ratio), c_clip)
        return _masked(row, valid, b, c)

    excess = _recurrence(terms, jnp.zeros_like(reward))
    advantage = reward + discount * (value[1:] + lambda_ * _next(excess)) - value[:-1]
    weighted, advantage = _masked(_all(len(reward)), valid, jnp.minimum(capped, pg_rho_clip) * advantage, advantage)
    return VTrace(*(x.astype(dtype) for x in (excess + value[:-1], weighted, advantage + value[:-1])))


# ---- n steps, retrace, upgo -----------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="steps", inline=True)
def _n_step(reward: Any, discount: Any, value: Any, valid: Any, steps: int) -> jax.Array:
    dtype = jnp.result_type(reward, discount, value)
    reward, discount, value = map(_as(at_least_float32(dtype)), (reward, discount, value))
    own = value[:-1]
    if valid is not None:
        # Returns reach no value that follows an invalid step. It may be NaN, which times 0 would be NaN.
        value = jnp.where(jnp.pad(valid, [(1, 0), *[(0, 0)] * (valid.ndim - 1)]), value, 0.0)
    # Each step is a map of the later return, `x -> b + c x`. At an invalid step it is the constant `V_t`.
    b = reward if valid is None else jnp.where(valid, reward, value[:-1])
    c = discount if valid is None else jnp.where(valid, discount, 0.0)

    def then(first: tuple[jax.Array, jax.Array], length: int, second: tuple[jax.Array, jax.Array]) -> Any:
        """Composes the maps of `length` steps from each t with the maps of the steps after them."""
        later_b, later_c = _ahead(second[0], length, 0.0), _ahead(second[1], length, 1.0)
        return first[0] + first[1] * later_b, first[1] * later_c

    composed, length = (jnp.zeros_like(b), jnp.ones_like(c)), 0
    power, size = (b, c), 1
    steps = min(steps, len(reward))
    while length < steps:  # by the binary digits of the number of steps
        if steps & size:
            composed, length = then(composed, length, power), length + size
        power, size = then(power, size, power), 2 * size
    end = value[jnp.minimum(jnp.arange(len(reward)) + steps, len(reward))]
    found = composed[0] + composed[1] * end
    return (found if valid is None else jnp.where(valid, found, own)).astype(dtype)


def _ahead(x: jax.Array, steps: int, beyond: float) -> jax.Array:
    """Shifts to `x_{t+steps}`, with a constant after the last row."""
    # Gathered, not concatenated: before jax 0.9.1, XLA computes wrong float64 numbers from concatenations on a CPU.
    at = jnp.arange(len(x)) + steps
    inside = (at < len(x)).reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(inside, x.take(at, axis=0, mode="clip"), beyond)


@functools.partial(jax.jit, inline=True)
def _retrace(arrays: Any, valid: Any, lambda_: Any) -> jax.Array:
    dtype = jnp.result_type(*arrays)
    arrays, lambda_ = jax.tree.map(_as(at_least_float32(dtype)), (arrays, jax.lax.stop_gradient(lambda_)))
    (reward, discount, q_value, value, log_ratio), valid, lambda_ = alike((arrays, valid, lambda_))
    # The ratio of an invalid step would reach the step before it, and may be NaN.
    log_ratio = log_ratio if valid is None else jnp.where(valid, log_ratio, 0.0)
    trace = discount * _next(lambda_ * jnp.minimum(importance_ratio(log_ratio), 1.0))

    def terms(row: _Row) -> tuple[jax.Array, ...]:
        b = row(reward) + row(discount) * row(value, 1) - row(q_value)
        return _masked(row, valid, b, row(trace))

    target: jax.Array = q_value + _recurrence(terms, jnp.zeros_like(reward))
    return target.astype(dtype)


@functools.partial(jax.jit, inline=True)
def _upgo(reward: Any, discount: Any, value: Any, valid: Any) -> jax.Array:
    dtype = jnp.result_type(reward, discount, value)
    reward, discount, value, valid = alike((*map(_as(at_least_float32(dtype)), (reward, discount, value)), valid))
    error = reward + discount * value[1:] - value[:-1]
    trace = jnp.where(_next(error) >= 0, discount, 0.0)

    def terms(row: _Row) -> tuple[jax.Array, ...]:
        return _masked(row, valid, row(error), row(trace))

    found: jax.Array = value[:-1] + _recurrence(terms, jnp.zeros_like(reward))
    return found.astype(dtype)


# ---- gae, and its derivative as a linear system ---------------------------------------------------------------------


@functools.partial(jax.jit, inline=True)
def _advantages(reward: Any, discount: Any, value: Any, valid: Any, lambda_: Any) -> jax.Array:
    dtype = jnp.result_type(reward, discount, value)
    wide = _as(at_least_float32(dtype))
    reward, discount, value, lambda_ = map(wide, (reward, discount, value, lambda_))
    advantage: jax.Array = _gae(*alike((reward, discount, value, valid, lambda_)))
    return advantage.astype(dtype)


@jax.custom_jvp
def _gae(reward: Any, discount: Any, value: Any, valid: Any, lambda_: Any) -> jax.Array:
    def terms(row: _Row) -> tuple[jax.Array, ...]:
        b = row(reward) + row(discount) * row(value, 1) - row(value)
        return _masked(row, valid, b, lambda_ * row(discount))

    return _recurrence(terms, jnp.zeros_like(reward))


@_gae.defjvp
def _gae_derivative(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Solves the recurrence for the tangents of its terms, so that a gradient is the same loop forward in time.

    From `A_t = r_t + d_t V_{t+1} - V_t + lambda d_t A_{t+1}`:
    `A'_t = r'_t + d_t V'_{t+1} - V'_t + d'_t (V_{t+1} + lambda A_{t+1}) + lambda' d_t A_{t+1} + lambda d_t A'_{t+1}`.
    """
    _, discount, value, valid, lambda_ = primals
    reward_, discount_, value_, _, by_lambda = tangents
    advantage = _gae(*primals)
    every, later = _all(len(advantage)), _next(advantage)
    # At invalid steps the factors are zero as well as the terms: they may be NaN, which times 0 would be NaN.
    d, slope, trace = _masked(every, valid, discount, value[1:] + lambda_ * later, lambda_ * discount)
    b = reward_ + d * value_[1:] - value_[:-1] + discount_ * slope + by_lambda * d * later
    (b,) = _masked(every, valid, b)
    # Masked once more for the gradient: what a loss sends back to an invalid step may be NaN.
    (found,) = _masked(every, valid, _solved(trace, b))
    return advantage, found


def _solved(c: jax.Array, b: jax.Array) -> jax.Array:
    """Solves `x_t = b_t + c_t x_{t+1}` in a form that JAX can differentiate and transpose."""

    def backward(_: Any, b: jax.Array) -> jax.Array:
        return _recurrence(lambda row: (row(b), row(c)), jnp.zeros_like(b))

    def forward(_: Any, g: jax.Array) -> jax.Array:
        return _forward(c, g)

    found: jax.Array = jax.lax.custom_linear_solve(lambda x: x - c * _next(x), b, backward, forward)
    return found


def _forward(c: jax.Array, g: jax.Array) -> jax.Array:
    """Solves the transposed system forward in time: `u_t = g_t + c_{t-1} u_{t-1}`."""
    if not g.size:
        return g

    def step(t: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        flow, u = carry
        now = g[t] + flow
        return c[t] * now, _put(u, now, t)

    def loop() -> Any:
        zeros = jnp.zeros_like(g)
        return jax.lax.fori_loop(0, len(g), step, (zeros[0], zeros), unroll=2 if g.size >= LARGE else 1)[1]

    def scan() -> jax.Array:
        return _compose(g, jnp.concatenate([jnp.zeros_like(c[:1]), c[:-1]]))

    solved: jax.Array = jax.lax.platform_dependent(cpu=loop, default=scan)
    return solved


# ---- errors ---------------------------------------------------------------------------------------------------------


def _check_trajectory(*, reward: Array, value: Array, valid: Array | None, **others: Array | None) -> None:
    """Raises unless every argument fits `reward` in type and shape; the error names the argument."""
    checks.floats(reward=reward, value=value, **others)
    if reward.ndim < 1:
        raise ValueError(f"reward has shape {reward.shape}: expected [T, ...]")
    if value.shape != (reward.shape[0] + 1, *reward.shape[1:]):
        expected = (reward.shape[0] + 1, *reward.shape[1:])
        turned = reward.ndim > 1 and value.shape == (*reward.shape[:-1], reward.shape[-1] + 1)
        raise ValueError(
            f"value has shape {value.shape}: expected {expected}, one row more than reward {reward.shape}"
            + ("; time is the first axis: transpose both" if turned else "")
        )
    checks.same_shape(reward, "reward", valid=valid, **others)


def _as(dtype: Any) -> Callable[[Any], jax.Array]:
    """A conversion to this dtype."""
    return lambda x: jnp.asarray(x, dtype)
