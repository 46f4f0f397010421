"""Every public function of the pure layer outside of `jit`: it compiles once, keeps nothing, and is strict about types.

One table for all of them; a function that is exported and not in the table fails a test.
"""

import gc
import inspect
import itertools
import os
import subprocess
import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import stellaris
from stellaris import IMPACT, IMPALA, PPO, Categorical, DiagonalGaussian, Trajectory, Update
from stellaris.algorithms import gradient
from stellaris.algorithms import update as learn
from tests.test_docstrings import FUNCTIONS, METHODS

T, B = 5, 2


def x(n, *shape):
    """New arrays at every call, of the same shape."""
    return jnp.asarray(np.random.default_rng(n).normal(size=shape or (T, B), scale=0.3), jnp.float32)


def v(n):
    return x(n, T + 1, B)


def mask(n):
    return x(n) > -0.3


def flat(array):
    return array.ravel()


def tree(n):
    return {"w": x(n, 3, 2), "b": x(n, 2)}


def apply_fn(params, observation):
    return observation @ params["policy"], observation @ params["value"]


def params(n):
    both = x(n, 3, 3)
    return {"policy": both[:, :2], "value": both[:, 2]}


def peers(n):
    return params(n + 2), params(n + 3)


def segment(n):
    """Several sequences in a column."""
    return jnp.cumsum(mask(n + 1).astype(jnp.int32), axis=0)


def trajectory(n):
    return Trajectory(
        observation=x(n, T + 1, B, 3),
        action=jnp.asarray(np.random.default_rng(n).integers(2, size=(T, B)), jnp.int32),
        reward=x(n),
        terminated=x(n) > 0.5,
        valid=mask(n + 1),
        log_prob=x(n) - 0.7,
        value=v(n),
        version=jnp.full((T, B), n, jnp.int32),
    )


ppo, impala, impact = PPO(minibatch_size=4, epochs=2), IMPALA(), IMPACT(minibatch_size=4, epochs=2)
optimizer = ppo.optimizer()


def batch(n):
    return ppo.prepare(trajectory(n))._replace(valid=flat(mask(n + 1)))


def target_batch(n):
    batch = impact.prepare(trajectory(n), apply_fn, params(n))
    return batch._replace(samples=batch.samples._replace(valid=flat(mask(n + 1))))


def update(n, combine="mean"):
    """A group of two gradients."""
    lead, scale = ((), jnp.float32(0.5)) if combine == "mean" else ((3,), jnp.array([1.0, 0.5, 0.0]))
    gradients = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*lead, *leaf.shape)), tree(n))
    return Update(gradients, scale, jnp.int32(2), jnp.array([n, n + 1, -1], jnp.int32))


def linked(transformation, n, **extra):
    """One step of an optax transformation."""
    return transformation.update(tree(n), transformation.init(tree(n)), tree(n + 1), **extra)


AGGREGATORS = {
    "staleness_aware": stellaris.staleness_aware(3, decay=0.9),
    "staleness_aware, sequential": stellaris.staleness_aware(
        3, decay=0.9, max_staleness=4, combine="sequential", threshold="demo"
    ),
    "softsync": stellaris.softsync(2),
    "buffered": stellaris.buffered(2),
    "stale_synchronous": stellaris.stale_synchronous(2, learners=3),
    "fully_asynchronous": stellaris.fully_asynchronous(capacity=3),
    "synchronous": stellaris.synchronous(3),
}
queues = {name: aggregator.init(tree(0)) for name, aggregator in AGGREGATORS.items()}


def learned(params, n, **count):
    """Several steps of PPO."""
    indices = ppo.minibatches(jax.random.key(n), batch(n))
    return learn(ppo, apply_fn, params, optimizer.init(params), batch(n), indices, **count)


gaussian = DiagonalGaussian(x(0, B, 3), x(1, 3))
categorical = Categorical(x(0, B, 3))

#: What each function does with the arrays of one call, by name, and after a comma in which form.
CALLS = {
    "gae": lambda n: stellaris.gae(x(n), x(n), v(n), valid=mask(n)),
    "gae, masked gradient": lambda n: jax.grad(lambda r: jnp.sum(stellaris.gae(r, r, v(n), valid=mask(n))))(x(n)),
    "gae, gradient": lambda n: jax.grad(lambda r, s: jnp.sum(stellaris.gae(r, r, v(n), lambda_=s)), (0, 1))(x(n), 0.9),
    "vtrace": lambda n: stellaris.vtrace(x(n), x(n), v(n), x(n), ratio_cap=jnp.exp(x(n)), valid=mask(n)),
    "lambda_returns": lambda n: stellaris.lambda_returns(x(n), x(n), v(n), valid=mask(n)),
    "n_step_returns": lambda n: stellaris.n_step_returns(x(n), x(n), v(n), steps=3, valid=mask(n)),
    "retrace": lambda n: stellaris.retrace(x(n), x(n), x(n), v(n), x(n), valid=mask(n)),
    "upgo_returns": lambda n: stellaris.upgo_returns(x(n), x(n), v(n), valid=mask(n)),
    "group_relative_advantage": lambda n: stellaris.group_relative_advantage(x(n), segment(n), valid=mask(n)),
    "leave_one_out_advantage": lambda n: stellaris.leave_one_out_advantage(x(n), segment(n), valid=mask(n)),
    "optimal_advantage": lambda n: stellaris.optimal_advantage(x(n), segment(n), beta=0.5, valid=mask(n)),
    "optimal_baseline": lambda n: stellaris.optimal_baseline(x(n), x(n), jnp.exp(x(n)), segment(n), valid=mask(n)),
    "reduce_loss": lambda n: stellaris.reduce_loss(x(n), valid=mask(n), over="sequences"),
    "importance_ratio": lambda n: stellaris.importance_ratio(x(n)),
    "global_ratio_cap": lambda n: stellaris.global_ratio_cap(x(n)),
    "least_ratio_cap": lambda n: stellaris.least_ratio_cap(x(n)),
    "truncate_ratio": lambda n: stellaris.truncate_ratio(x(n), jnp.exp(x(n))),
    "ppo_loss": lambda n: stellaris.ppo_loss(x(n), x(n), ratio_cap=jnp.exp(x(n))),
    "ppo_loss, gradient": lambda n: jax.grad(lambda r: jnp.sum(stellaris.ppo_loss(r, x(n), ratio_cap=1.1)))(x(n)),
    "ppo_penalty_loss": lambda n: stellaris.ppo_penalty_loss(x(n), x(n), x(n), coefficient=0.5, clip=0.2),
    "adapt_kl_coefficient": lambda n: stellaris.adapt_kl_coefficient(x(n)[0, 0], x(n)[0, 1]),
    "approximate_kl": lambda n: stellaris.approximate_kl(x(n)),
    "impala_loss": lambda n: stellaris.impala_loss(x(n), x(n)),
    "truncated_policy_gradient_loss": lambda n: stellaris.truncated_policy_gradient_loss(x(n), x(n), x(n)),
    "impact_loss": lambda n: stellaris.impact_loss(x(n), x(n), x(n), ratio_cap=1.5),
    "decoupled_ppo_loss": lambda n: stellaris.decoupled_ppo_loss(x(n), x(n), x(n), ratio_cap=1.5),
    "decoupled_ppo_loss, weighted": lambda n: stellaris.decoupled_ppo_loss(
        x(n), x(n), x(n), clip=jnp.exp(x(n)), clip_high=jnp.exp(x(n)), weight=jnp.exp(x(n)), ratio_cap=jnp.exp(x(n))
    ),
    "sapo_loss": lambda n: stellaris.sapo_loss(x(n), x(n), ratio_cap=1.5),
    "oapl_loss": lambda n: stellaris.oapl_loss(x(n), x(n), coefficient=0.5),
    "sequence_log_ratio": lambda n: stellaris.sequence_log_ratio(x(n), valid=mask(n)),
    "approximate_proximal_log_ratio": lambda n: stellaris.approximate_proximal_log_ratio(x(n), segment(n)),
    "bounded_importance_weight": lambda n: stellaris.bounded_importance_weight(x(n), high=jnp.exp(x(n))),
    "vespo_weight": lambda n: stellaris.vespo_weight(x(n), x(n)),
    "second_moment_mask": lambda n: stellaris.second_moment_mask(x(n), x(n), valid=mask(n)),
    "probability_mask": lambda n: stellaris.probability_mask(x(n) - 1.0, x(n + 1) - 1.0, x(n)),
    "off_policy_sequence_mask": lambda n: stellaris.off_policy_sequence_mask(x(n), x(n), max_divergence=0.1),
    "bidirectional_kl_mask": lambda n: stellaris.bidirectional_kl_mask(x(n) - 1.0, x(n + 1) - 1.0),
    "total_variation_mask": lambda n: stellaris.total_variation_mask(x(n), x(n), valid=mask(n), max_distance=0.1),
    "second_moment_clip": lambda n: stellaris.second_moment_clip(x(n), x(n), valid=mask(n)),
    "balanced_clip": lambda n: stellaris.balanced_clip(x(n), x(n + 1), valid=mask(n)),
    "adaptive_clip": lambda n: stellaris.adaptive_clip(x(n), valid=mask(n), clip_high=0.3),
    "effective_sample_fraction": lambda n: stellaris.effective_sample_fraction(x(n), valid=mask(n)),
    "scale_by_effective_samples": lambda n: linked(
        stellaris.scale_by_effective_samples(), n, effective_sample_fraction=jnp.float32(0.1 * n)
    ),
    "ratio_report": lambda n: stellaris.ratio_report(x(n), valid=mask(n)),
    "rollout_capacity": lambda n: stellaris.rollout_capacity(n, begun=40, batch=16, max_staleness=1),
    "value_loss": lambda n: stellaris.value_loss(x(n), x(n), old_value=x(n), clip=0.2, loss_clip=1.0, huber=1.0),
    "staleness_weight": lambda n: stellaris.staleness_weight(jnp.array([0, n, 9])),
    "polynomial_weight": lambda n: stellaris.polynomial_weight(jnp.array([0, n, 9])),
    "hinge_weight": lambda n: stellaris.hinge_weight(jnp.array([0, n, 9])),
    "exponential_weight": lambda n: stellaris.exponential_weight(jnp.array([0, n, 9]), rate=0.5),
    "staleness_threshold": lambda n: stellaris.staleness_threshold(n, max_staleness=4, decay=0.9),
    "demo_threshold": lambda n: stellaris.demo_threshold(n, max_staleness=4, decay=0.9),
    "scale_by_staleness": lambda n: linked(stellaris.scale_by_staleness(), n, staleness=jnp.int32(n)),
    "delay_compensate": lambda n: stellaris.delay_compensate(tree(n), tree(n + 1), tree(n + 2), 0.5),
    "add_delay_compensation": lambda n: linked(stellaris.add_delay_compensation(0.5), n, params_then=tree(n)),
    "reduce_by_gap": lambda n: stellaris.reduce_by_gap(tree(n), tree(n + 1), tree(n + 2), tree(n + 3)),
    "gap_aware": lambda n: linked(stellaris.gap_aware(optax.sgd(0.1)), n, params_then=tree(n)),
    "limit_alignment": lambda n: stellaris.limit_alignment(tree(n), tree(n + 1), limit=0.1),
    "apply_update": lambda n: stellaris.apply_update(optimizer, update(n), tree(n), optimizer.init(tree(n))),
    "apply_update, sequential": lambda n: stellaris.apply_update(
        optimizer, update(n, "sequential"), tree(n), optimizer.init(tree(n))
    ),
    "lag_report": lambda n: stellaris.lag_report(
        jnp.full((T, B), n, jnp.int32), x(n), valid=mask(n), clipped=mask(n), truncated=mask(n)
    ),
    "version_span": lambda n: stellaris.version_span(jnp.full((T, B), n, jnp.int32), valid=mask(n)),
    "gradient_cosine": lambda n: stellaris.gradient_cosine(tree(n), tree(n + 1)),
    "gradient": lambda n: gradient(ppo, apply_fn, params(n), batch(n), peers(n), version=n, fresh=params(n + 1)),
    "gradient, IMPALA": lambda n: gradient(impala, apply_fn, params(n), trajectory(n), peers(n), version=n),
    "update": lambda n: learned(params(n), n),
    "update, counted": lambda n: learned(params(n), n, count=n + 1),
    "PPO.prepare": lambda n: ppo.prepare(trajectory(n)),
    "IMPALA.prepare": lambda n: impala.prepare(trajectory(n)),
    "IMPACT.prepare": lambda n: impact.prepare(trajectory(n), apply_fn, params(n)),
}
for name, made, sample in (
    ("DiagonalGaussian", gaussian, lambda n: x(n, B, 3)),
    ("Categorical", categorical, lambda n: jnp.full(B, n, jnp.int32) % 3),
):
    CALLS |= {
        f"{name}.log_prob": lambda n, d=made, sample=sample: d.log_prob(sample(n)),
        f"{name}.entropy": lambda n, d=made: d.entropy(),
        f"{name}.sample": lambda n, d=made: d.sample(x(n, B, 3)),
        f"{name}.kl_divergence": lambda n, d=made: d.kl_divergence(type(d)(x(n, B, 3), *d[1:])),
    }
for name, a, made in (("PPO", ppo, batch), ("IMPALA", impala, trajectory), ("IMPACT", impact, target_batch)):
    CALLS |= {
        f"{name}.optimizer": lambda n, a=a: linked(a.optimizer(), n),
        f"{name}.minibatches": lambda n, a=a, made=made: a.minibatches(jax.random.key(n), made(n)),
        f"{name}.select": lambda n, a=a, made=made: a.select(made(n), jnp.arange(2)),
        f"{name}.loss": lambda n, a=a, made=made: a.loss(apply_fn, params(n), made(n), peers(n), version=n),
    }
for name, aggregator in AGGREGATORS.items():
    maker, _, form = name.partition(", ")
    suffix = f", {form}" if form else ""
    CALLS |= {
        f"{maker}.init{suffix}": lambda n, a=aggregator: a.init(tree(n)),
        f"{maker}.push{suffix}": lambda n, a=aggregator, q=name: a.push(queues[q], tree(n), n, learner=n % 3),
        f"{maker}.ready{suffix}": lambda n, a=aggregator, q=name: a.ready(queues[q], n, n),
        f"{maker}.pop{suffix}": lambda n, a=aggregator, q=name: a.pop(
            a.push(queues[q], tree(n), n, learner=n % 3), n, n
        ),
        f"{maker}.admit{suffix}": lambda n, a=aggregator, q=name: a.admit(queues[q], n % 3, n),
    }
#: Calls of optax's alone: its Adam raises a float to an integer's power.
NOT_STRICT = {"PPO.optimizer", "IMPACT.optimizer"}


def called(name, n):
    """One call, where neither types nor ranks are promoted without a word."""
    promotion = "standard" if name in NOT_STRICT else "strict"
    with jax.numpy_dtype_promotion(promotion), jax.numpy_rank_promotion("raise"):
        return CALLS[name](n)


def test_the_table_holds_every_public_function():
    protocol = {name for name in METHODS if name.startswith("Aggregator.")}
    methods = {name.partition(".")[2] for name in protocol}
    assert methods == {"init", "push", "ready", "pop", "admit"}
    makers = {name for name, f in FUNCTIONS.items() if methods <= set(dir(inspect.signature(f).return_annotation))}
    assert makers >= {"staleness_aware", "softsync", "synchronous"}
    expected = (set(FUNCTIONS) - makers) | (set(METHODS) - protocol)
    expected |= {f"{maker}.{method}" for maker in makers for method in methods}
    assert {name.partition(", ")[0] for name in CALLS} == expected


#: Calls of functions that take `valid`, and of those that learn from what holds it.
MASKED = [
    name
    for name in CALLS
    if "valid" in inspect.signature(FUNCTIONS.get(name.partition(", ")[0], len)).parameters
    or name.partition(", ")[0] in ("gradient", "update", "PPO.prepare", "IMPACT.prepare")
    or name.endswith(".loss")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKED)
def test_masks_are_bools_or_numbers(name, monkeypatch):
    """A number is False where it is 0, as in trainers of language models: results have the same values and types."""
    bools = mask
    expected = called(name, 1)
    for dtype in ("int32", "bfloat16"):
        monkeypatch.setattr(sys.modules[__name__], "mask", lambda n, d=dtype: bools(n).astype(d))
        got = called(name, 1)
        jax.tree.map(np.testing.assert_array_equal, got, expected)
        assert [y.dtype for y in jax.tree.leaves(got)] == [y.dtype for y in jax.tree.leaves(expected)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_within_shard_map(name, monkeypatch):
    """All arrays, or some, differ between the devices: the types fit, as JAX checks by default."""
    same = x
    for of in ((0, 1), (0,), (1,)):
        count = itertools.count()

        def differing(n, *shape, of=of, count=count):
            device = jax.lax.axis_index("devices").astype(jnp.float32)
            return same(n, *shape) + (device if next(count) % 2 in of else 0.0)

        monkeypatch.setattr(sys.modules[__name__], "x", differing)
        results = lambda: jax.tree.map(lambda y: jnp.asarray(y)[None], CALLS[name](1))  # noqa: E731
        mesh = jax.make_mesh((1,), ("devices",))
        jax.eval_shape(jax.shard_map(results, mesh=mesh, in_specs=(), out_specs=jax.P("devices")))


@pytest.mark.slow
@pytest.mark.parametrize("file", ["two_devices.py", "explicit_mesh.py"])
def test_two_devices(file):
    """All tests in a file, in a process of their own, because JAX counts devices once."""
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here / file)]
    flags = f"--xla_force_host_platform_device_count=2 {os.environ.get('XLA_FLAGS', '')}"
    devices = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(command, env=os.environ | devices, capture_output=True, text=True, cwd=here.parents[1])
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.fixture
def compilations():
    """The programs that XLA has compiled since the test began."""
    events = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_compiles_once(name, compilations):
    """New arrays of the same shapes are no reason to compile; neither types nor ranks are promoted without a word."""
    called(name, 0)
    compilations.clear()
    called(name, 1)
    called(name, 2)
    assert not compilations


@pytest.mark.slow
def test_nothing_grows():
    def call_all():
        for name in CALLS:
            called(name, 0)
        gc.collect()
        return len(gc.get_objects()), len(jax.live_arrays())

    call_all()
    objects, arrays = call_all()
    objects_then, arrays_then = call_all()
    assert arrays_then <= arrays
    assert objects_then - objects < len(CALLS)


@pytest.mark.slow
def test_a_network_need_not_be_hashable():
    class Network:
        __hash__ = None

        def __call__(self, params, observation):
            return apply_fn(params, observation)

    arguments = params(0), optimizer.init(params(0)), batch(0), ppo.minibatches(jax.random.key(0), batch(0))
    got = learn(ppo, Network(), *arguments)
    expected = learn(ppo, apply_fn, *arguments)
    chex.assert_trees_all_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_functions_that_close_over_traced_arrays_leave_none_behind():
    """Within a `jit`, a network of the caller's may hold what is being traced; it is not kept."""
    arguments = params(0), optimizer.init(params(0)), batch(0), ppo.minibatches(jax.random.key(0), batch(0))

    @jax.jit
    def within(scale, arguments):
        return learn(ppo, lambda p, o: apply_fn(p, o * scale), *arguments)[0]

    constants = jax.jit(lambda scale: learn(ppo, lambda p, o: apply_fn(p, o * scale), *arguments)[0])
    with jax.checking_leaks():
        got = within(jnp.float32(0.5), arguments)
        chex.assert_trees_all_close(constants(jnp.float32(0.5)), got, rtol=1e-5)
    expected = learn(ppo, lambda p, o: apply_fn(p, o * 0.5), *arguments)[0]
    chex.assert_trees_all_close(got, expected, rtol=1e-5, atol=1e-6)
