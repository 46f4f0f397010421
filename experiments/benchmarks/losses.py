"""Compares the library's pure functions with rlax, or with a minimum of work, such as one pass over their arguments.

All functions are compiled, and their arguments are on the device. "gae and its gradient" computes the sum of the
squared advantages and its gradient in one call.
"""

import functools
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.measuring import Comparison, interleaved
from stellaris import (
    decoupled_ppo_loss,
    gae,
    global_ratio_cap,
    impact_loss,
    impala_loss,
    ppo_loss,
    staleness_aware,
    truncated_policy_gradient_loss,
    vtrace,
)
from stellaris.acting.policies import ActorCritic
from stellaris.aggregation.protocol import Aggregator

DESCRIPTION = "gae, vtrace, the cap and the aggregator, against rlax and against one pass over their arguments"

#: Steps and environments of a batch.
SIZES = ((128, 16), (128, 256), (1024, 64), (16384, 4))
#: Number of learners' policies from which the ratio cap is computed, and number of gradients in an aggregated group.
HELD, GROUP = 4, 16


def measure(say: Callable[[str], None]) -> Iterator[Comparison]:
    """Runs every comparison, and calls `say` with the progress."""
    yield from _returns(say)
    say("the cap ...")
    yield from _cap()
    say("the aggregator ...")
    yield _aggregator()
    say("peak memory ...")
    yield from _memory()


# ---- gae and vtrace against rlax ------------------------------------------------------------------------------------


def _returns(say: Callable[[str], None]) -> Iterator[Comparison]:
    for name, ours, theirs in _pairs():
        ratios = []
        for size in SIZES:
            say(f"{name} of {size[0]} x {size[1]} ...")
            arguments = _trajectory(size)
            _agree(ours(*arguments), theirs(*arguments))
            seconds = interleaved({"ours": _calling(ours, arguments), "theirs": _calling(theirs, arguments)})
            ratios.append(seconds["ours"] / seconds["theirs"])
            yield _row(f"{name}, [{size[0]}, {size[1]}], against rlax", seconds["ours"], seconds["theirs"], "<= 1.05")
        mean = statistics.geometric_mean(ratios)
        yield Comparison(f"{name}, geometric mean of the sizes", "", "", mean, "<= 0.80")


def _pairs() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """Yields each function's name, our version, and rlax's version, mapped over the batch axis."""
    import rlax  # imported here: it takes seconds

    along = functools.partial(jax.vmap, in_axes=1, out_axes=1)

    def their_gae(reward: Any, discount: Any, value: Any, log_ratio: Any) -> Any:
        del log_ratio
        return along(lambda r, d, v: rlax.truncated_generalized_advantage_estimation(r, d, 0.95, v))(
            reward, discount, value
        )

    def their_vtrace(reward: Any, discount: Any, value: Any, log_ratio: Any) -> Any:
        def one(r: Any, d: Any, v: Any, ratio: Any) -> Any:
            estimate = rlax.vtrace_td_error_and_advantage(v[:-1], v[1:], r, d, ratio, 0.95)
            return estimate.errors + v[:-1], estimate.pg_advantage, estimate.q_estimate

        return along(one)(reward, discount, value, jnp.exp(log_ratio))

    def our_gae(reward: Any, discount: Any, value: Any, log_ratio: Any) -> Any:
        del log_ratio
        return gae(reward, discount, value, lambda_=0.95)

    def our_vtrace(reward: Any, discount: Any, value: Any, log_ratio: Any) -> Any:
        return tuple(vtrace(reward, discount, value, log_ratio, lambda_=0.95))

    yield "gae", jax.jit(our_gae), jax.jit(their_gae)
    yield "gae and its gradient", _with_gradient(our_gae), _with_gradient(their_gae)
    yield "vtrace (without a gradient)", jax.jit(our_vtrace), jax.jit(their_vtrace)


def _with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function with its gradient with respect to reward and value."""
    return jax.jit(jax.value_and_grad(lambda *arguments: jnp.sum(jnp.square(function(*arguments))), argnums=(0, 2)))


# ---- the cap against one pass over its inputs -----------------------------------------------------------------------


def _cap() -> Iterator[Comparison]:
    def plain(log_ratio: Any, held: Any, advantage: Any) -> Any:
        del held
        return jnp.mean(ppo_loss(log_ratio, advantage))

    def capped(log_ratio: Any, held: Any, advantage: Any) -> Any:
        return jnp.mean(ppo_loss(log_ratio, advantage, ratio_cap=global_ratio_cap(held)))

    compiled = {name: jax.jit(jax.value_and_grad(loss)) for name, loss in (("plain", plain), ("capped", capped))}
    # The pass adds policy by policy, because `jnp.sum(held, axis=0)` is forty times slower on a CPU and would flatter
    # our side.
    one_pass = jax.jit(lambda held: functools.reduce(jnp.add, list(held)))
    for size in SIZES:
        keys = jax.random.split(jax.random.key(0), 2)
        held, advantage = 0.3 * jax.random.normal(keys[0], (HELD, *size)), jax.random.normal(keys[1], size)
        arguments = (jnp.array(held[0]), held, advantage)
        sides = {name: _calling(loss, arguments) for name, loss in compiled.items()}
        seconds = interleaved({**sides, "pass": _calling(one_pass, (held,))})
        added = seconds["capped"] - seconds["plain"]
        what = f"cap over {HELD} policies in the PPO loss, [{size[0]}, {size[1]}]: time added, against a pass over them"
        yield _row(what, added, seconds["pass"], "<= 1.00")


# ---- the aggregator against a dot product and a copy ----------------------------------------------------------------


def _aggregator() -> Comparison:
    params = _network()
    keys = jax.random.split(jax.random.key(1), GROUP)
    gradients = [jax.tree.map(lambda x, key=key: jax.random.normal(key, x.shape), params) for key in keys]
    aggregator = staleness_aware(GROUP, decay=0.9, max_staleness=4.0)
    push = jax.jit(aggregator.push, donate_argnums=0)
    ready = jax.jit(aggregator.ready)
    pop = jax.jit(aggregator.pop, donate_argnums=0)
    state = [aggregator.init(params)]

    def ours() -> Any:
        queue = state.pop()
        for i, gradient in enumerate(gradients):
            queue = push(queue, gradient, np.int32(i % 4))
        now = ready(queue, 4, 0)
        update, queue = pop(queue, 4, 0)
        state.append(queue)
        return now, update

    stacked = jax.tree.map(lambda *x: jnp.stack(x), *gradients)
    weights = jnp.full(GROUP, 1 / GROUP)
    dot = jax.jit(lambda w, g: jax.tree.map(lambda x: jnp.tensordot(w, x, axes=1), g))
    copy = jax.jit(lambda g: jax.tree.map(jnp.copy, g))
    _agree_up_to_weights(ours()[1].gradient, aggregator, params, gradients)
    seconds = interleaved({"ours": ours, "theirs": lambda: (dot(weights, stacked), copy(stacked))})
    size = sum(x.size for x in jax.tree.leaves(params))
    what = f"push x {GROUP}, ready, pop of {size:,} parameters, against a tensordot and a copy of the {GROUP}"
    return _row(what, seconds["ours"], seconds["theirs"], "<= 1.50")


def _network() -> Any:
    """Returns the parameters of the papers' network for Hopper."""
    from stellaris.acting.envs import EnvSpec

    spec = EnvSpec("Hopper-v4", np.zeros(11), actions=3, discrete=False)
    return ActorCritic()(spec).init(jax.random.key(0))


def _agree_up_to_weights(got: Any, aggregator: Aggregator, like: Any, gradients: Any) -> None:
    """Checks that the timed update is the expected weighted mean."""
    weights = np.array([max(4 - i % 4, 1) ** (-1 / 3) for i in range(GROUP)])
    want = jax.tree.map(lambda *g: np.tensordot(weights / weights.sum(), np.stack(g), 1), *gradients)
    _agree(got, want)


# ---- memory ---------------------------------------------------------------------------------------------------------


def _memory() -> Iterator[Comparison]:
    def total(loss: Callable[..., Any]) -> Callable[..., Any]:
        return jax.value_and_grad(lambda *arguments: jnp.mean(loss(*arguments)))

    functions: dict[str, tuple[int, Callable[..., Any]]] = {
        "ppo_loss": (2, total(ppo_loss)),
        "ppo_loss with the cap": (
            2 + HELD,
            total(lambda r, a, *held: ppo_loss(r, a, ratio_cap=global_ratio_cap(jnp.stack(held)))),
        ),
        "impact_loss": (3, total(impact_loss)),
        "decoupled_ppo_loss": (3, total(decoupled_ppo_loss)),
        "impala_loss": (2, total(impala_loss)),
        "truncated_policy_gradient_loss": (3, total(truncated_policy_gradient_loss)),
    }
    for name, (arguments, function) in functions.items():
        yield _memory_row(name, [_bytes(function, [size] * arguments) / math.prod(size) for size in SIZES])
    for name, ours, _ in _pairs():
        per_sample = [_bytes(ours, [(t, b), (t, b), (t + 1, b), (t, b)]) / (t * b) for t, b in SIZES]
        yield _memory_row(name, per_sample)


def _bytes(function: Callable[..., Any], shapes: Any) -> int:
    """Returns the peak bytes of a function of float32 arrays of these shapes."""
    return peak_bytes(function, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))  # type: ignore[no-untyped-call]


def peak_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """Returns the peak bytes of the compiled function by XLA's analysis: arguments, results and temporaries.

    Args:
      function: the function that is compiled.
      *arguments: the shapes and dtypes of the function's arguments.
    """
    analysis: Any = jax.jit(function).lower(*arguments).compile().memory_analysis()
    parts = (analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes)
    return int(sum(parts) - analysis.alias_size_in_bytes)


def _memory_row(name: str, per_sample: list[float]) -> Comparison:
    most, least = max(per_sample), min(per_sample)
    return Comparison(
        f"{name}: bytes per sample, the most of the sizes, against the least",
        f"{most:.1f} B",
        f"{least:.1f} B",
        most / least,
        "about 1",
    )


# ---- helpers --------------------------------------------------------------------------------------------------------


def _trajectory(size: tuple[int, int]) -> tuple[jax.Array, ...]:
    """Returns random reward, discount, value and log-ratio: episodes of about 100 steps, a policy a few updates old."""
    steps, envs = size
    keys = jax.random.split(jax.random.key(0), 4)
    discount = 0.99 * (jax.random.uniform(keys[1], size) > 0.01)
    return (
        jax.random.normal(keys[0], size),
        discount,
        jax.random.normal(keys[2], (steps + 1, envs)),
        0.3 * jax.random.normal(keys[3], size),
    )


def _calling(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: function(*arguments)


def _row(what: str, ours: float, theirs: float, wanted: str) -> Comparison:
    return Comparison(what, f"{ours * 1e6:,.1f} us", f"{theirs * 1e6:,.1f} us", ours / theirs, wanted)


def _agree(got: Any, want: Any) -> None:
    """Raises an AssertionError if the sides' results differ, because the ratio of their times would mean nothing."""
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-3), got, want)
