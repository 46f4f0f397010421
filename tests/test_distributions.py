"""Action distributions, against scipy."""

from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from stellaris import PPO
from stellaris.distributions import Categorical, DiagonalGaussian, as_distribution
from tests.algorithms import problems
from tests.algorithms.test_impala import sample_trajectory

BATCHES = [(), (4, 3), (0,)]
LOGITS = np.log([0.5, 0.25, 0.25])


def gaussian(batch, seed=0):
    """Mean, standard deviation and an action, float64."""
    random = np.random.default_rng(seed)
    mean, value = random.normal(size=(2, *batch, 3))
    return mean, random.uniform(0.3, 3.0, size=(*batch, 3)), value


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("shared_std", [False, True])
def test_gaussian_matches_scipy(batch, shared_std):
    """Log-probability and entropy are sums of scipy's over the last axis, also with one `log_std` for all."""
    mean, std, value = gaussian(batch)
    std = np.array([0.3, 1.0, 2.0]) if shared_std else std
    with jax.enable_x64(True):
        policy = DiagonalGaussian(jnp.asarray(mean), jnp.log(std))
        log_prob, entropy = policy.log_prob(jnp.asarray(value)), policy.entropy()
    np.testing.assert_allclose(log_prob, scipy.stats.norm.logpdf(value, mean, std).sum(-1), rtol=1e-12)
    expected = np.broadcast_to(scipy.stats.norm.entropy(mean, std), mean.shape).sum(-1)
    np.testing.assert_allclose(entropy, expected, rtol=1e-12)
    assert log_prob.dtype == entropy.dtype == jnp.float64
    assert log_prob.shape == entropy.shape == batch


@pytest.mark.parametrize("batch", BATCHES)
def test_categorical_matches_scipy(batch):
    """Logits need not be normalised."""
    logits = np.random.default_rng(0).normal(size=(*batch, 4), scale=2.0)
    value = np.random.default_rng(1).integers(4, size=batch)
    with jax.enable_x64(True):
        policy = Categorical(jnp.asarray(logits))
        log_prob, entropy = policy.log_prob(jnp.asarray(value)), policy.entropy()
    expected = np.take_along_axis(scipy.special.log_softmax(logits, -1), np.asarray(value)[..., None], -1)[..., 0]
    np.testing.assert_allclose(log_prob, expected, rtol=1e-12)
    np.testing.assert_allclose(entropy, scipy.stats.entropy(scipy.special.softmax(logits, -1), axis=-1), rtol=1e-12)
    assert log_prob.dtype == entropy.dtype == jnp.float64
    assert log_prob.shape == entropy.shape == batch


def test_by_hand():
    """A step of two deviations from N(1, 2): -2 - log 2 - log sqrt(2 pi); probabilities 1/2, 1/4, 1/4: 1.5 bits."""
    policy = DiagonalGaussian(jnp.array([1.0]), jnp.log(jnp.array([2.0])))
    np.testing.assert_allclose(policy.log_prob(jnp.array([5.0])), -2 - np.log(2) - 0.5 * np.log(2 * np.pi), rtol=1e-6)
    policy = Categorical(jnp.asarray(LOGITS, jnp.float32) + 7.0)
    np.testing.assert_allclose(policy.log_prob(jnp.int32(1)), np.log(0.25), rtol=1e-5)
    np.testing.assert_allclose(policy.entropy(), 1.5 * np.log(2), rtol=1e-5)


def test_narrow_logits_over_many_actions():
    """Sums over a vocabulary are those of the same logits in float32, rounded once to the logits' dtype."""
    rng = np.random.default_rng(0)
    narrow = [Categorical(jnp.asarray(rng.normal(size=(2, 50_000)), jnp.bfloat16)) for _ in range(2)]
    wide = [Categorical(policy.logits.astype(jnp.float32)) for policy in narrow]
    value = jnp.array([3, 49_999])
    for of in (
        lambda one, _: one.log_prob(value),
        lambda one, _: one.entropy(),
        lambda one, other: one.kl_divergence(other),
    ):
        got, expected = of(*narrow), of(*wide)
        assert got.dtype == jnp.bfloat16
        np.testing.assert_allclose(got.astype(jnp.float32), expected, rtol=2**-8)


def test_gaussian_sample_is_affine_in_its_noise():
    """`mean + std * noise`, so that zero noise is the mean."""
    mean, std, noise = (jnp.asarray(x, jnp.float32) for x in gaussian((5,)))
    policy = DiagonalGaussian(mean, jnp.log(std))
    np.testing.assert_array_equal(policy.sample(jnp.zeros_like(mean)), mean)
    np.testing.assert_allclose(policy.sample(noise), mean + std * noise, rtol=1e-6)


def test_categorical_sample_is_the_argmax_of_logits_plus_noise():
    """logits 0, 1, 2 plus noise 0, 2, 0.5 = 0, 3, 2.5."""
    assert Categorical(jnp.array([0.0, 1.0, 2.0])).sample(jnp.array([0.0, 2.0, 0.5])) == 1


def test_categorical_sample_has_the_probabilities():
    """Of 20000 draws, each action's share lies within four standard errors of its probability."""
    n, probabilities = 20_000, np.array([0.1, 0.2, 0.7])
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(probabilities)), (n, 3))
    drawn = Categorical(logits).sample(Categorical.noise(jax.random.key(0), (n, 3)))
    share = np.bincount(drawn, minlength=3) / n
    assert (np.abs(share - probabilities) < 4 * np.sqrt(probabilities * (1 - probabilities) / n)).all()


@pytest.mark.slow
@pytest.mark.parametrize(("distribution", "law"), [(DiagonalGaussian, "norm"), (Categorical, "gumbel_r")])
def test_noise_law(distribution, law):
    """The noise follows the standard law, comes in the shape asked for, and is the key's alone."""
    noise = distribution.noise(jax.random.key(0), [40, 5, 5])
    assert noise.shape == (40, 5, 5)
    assert scipy.stats.kstest(np.ravel(noise), law).pvalue > 0.01
    np.testing.assert_array_equal(noise, distribution.noise(jax.random.key(0), (40, 5, 5)))
    assert not np.any(noise == distribution.noise(jax.random.key(1), (40, 5, 5)))


@pytest.mark.parametrize("distribution", [DiagonalGaussian, Categorical])
def test_every_row_is_its_own_policy(distribution):
    """A batch, `vmap` and `jit` give what each row gives alone."""
    rows = [jnp.asarray(x, jnp.float32) for x in gaussian((6,))]
    parameters, noise = (rows[:2] if distribution is DiagonalGaussian else rows[:1]), rows[2]

    def everything(parameters, noise):
        policy = distribution(*parameters)
        action = policy.sample(noise)
        return action, policy.log_prob(action), policy.entropy()

    whole = everything(parameters, noise)
    assert {x.dtype for x in whole} <= {jnp.dtype("float32"), jnp.dtype("int32")}
    for transform in (jax.jit, jax.vmap):
        problems.close(transform(everything)(parameters, noise), whole)


@pytest.mark.slow
def test_impossible_actions_make_no_nan():
    """Entropy, log-probability and gradients are those of the actions left, and none of the others is drawn."""
    logits = jnp.array([[0.0, -jnp.inf, 1.0], [-jnp.inf, -jnp.inf, 2.0], [1e4, -1e4, -jnp.inf]])
    possible, noise = jnp.array([2, 2, 0]), jnp.array([[0.0, 1e9, 0.0]] * 2 + [[0.0, 0.0, 1e9]])
    assert Categorical(logits).sample(noise).tolist() == possible.tolist()
    np.testing.assert_allclose(Categorical(logits[0]).entropy(), Categorical(logits[0, ::2]).entropy(), rtol=1e-6)
    with jax.debug_nans(True):
        for f in (lambda x: Categorical(x).entropy(), lambda x: Categorical(x).log_prob(possible)):
            value, gradient = f(logits), jax.grad(lambda x, f=f: jnp.sum(f(x)))(logits)
            assert np.isfinite(value).all()
            assert np.isfinite(gradient).all()
            assert not np.any(np.asarray(gradient)[np.isneginf(logits)])


class Ours(NamedTuple):
    """A distribution of the user's."""

    mean: jax.Array

    def log_prob(self, value):
        return -jnp.sum(jnp.square(value - self.mean), axis=-1)

    def entropy(self):
        return jnp.zeros(self.mean.shape[:-1])


class Pair(NamedTuple):
    """A pair with names."""

    mean: jax.Array
    log_std: jax.Array


def test_what_a_network_may_return():
    """Logits of JAX or NumPy, a mean with a log-deviation, and any distribution, the library's or the user's."""
    logits, mean, log_std = np.array([[0.0, 1.0, 2.0]], np.float32), jnp.array([[1.0, 2.0]]), jnp.array([0.5, -0.5])
    for parameters in (jnp.asarray(logits), logits):
        got = as_distribution(parameters)
        assert isinstance(got, Categorical)
        problems.equal(got.logits, logits)
    jax.jit(lambda x: as_distribution(x).log_prob(jnp.array([2])))(logits)
    for pair in ((mean, log_std), Pair(mean, log_std)):
        got = as_distribution(pair)
        assert isinstance(got, DiagonalGaussian)
        problems.equal((got.mean, got.log_std), (mean, log_std))
    for distribution in (Categorical(mean), DiagonalGaussian(mean, log_std), Ours(mean)):
        assert as_distribution(distribution) is distribution


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        (None, "NoneType"),
        (1.0, "float"),
        ("logits", "str"),
        ({"logits": jnp.zeros(2)}, "dict"),
        ([jnp.zeros(2)] * 3, "list"),
        ((jnp.zeros(2),), "tuple"),
        ((jnp.zeros(2),) * 3, "tuple"),
        (SimpleNamespace(log_prob=abs), "SimpleNamespace"),  # without an entropy
    ],
)
def test_anything_else_is_an_error(parameters, name):
    """It says what came and what is expected."""
    message = f"apply_fn returned a {name} .* expected logits, .*mean, log_std.*, or an object with log_prob and ent"
    apply_fn = lambda params, observation: (parameters, jnp.zeros(3))  # noqa: E731
    batch = PPO().prepare(sample_trajectory(problems.gaussian))
    with pytest.raises(TypeError, match=message):
        PPO().loss(apply_fn, {}, batch)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("shared_std", [False, True])
def test_divergence_of_gaussians_is_the_expected_log_ratio(batch, shared_std):
    """Against Gauss-Hermite quadrature of E[log p - log q], of each action by itself."""
    mean, std, _ = gaussian(batch)
    other_mean, other_std, _ = gaussian(batch, seed=1)
    std = np.array([0.3, 1.0, 2.0]) if shared_std else std
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    at = mean[..., None] + np.broadcast_to(std, mean.shape)[..., None] * nodes
    difference = scipy.stats.norm.logpdf(at, mean[..., None], np.broadcast_to(std, mean.shape)[..., None])
    difference -= scipy.stats.norm.logpdf(at, other_mean[..., None], other_std[..., None])
    with jax.enable_x64(True):
        one = DiagonalGaussian(jnp.asarray(mean), jnp.log(std))
        two = DiagonalGaussian(jnp.asarray(other_mean), jnp.log(other_std))
        divergence, of_itself = one.kl_divergence(two), one.kl_divergence(one)
    np.testing.assert_allclose(divergence, (difference @ (weights / weights.sum())).sum(-1), rtol=1e-10)
    np.testing.assert_allclose(of_itself, 0.0, atol=1e-15)
    assert divergence.shape == batch


@pytest.mark.parametrize("batch", BATCHES)
def test_divergence_of_categoricals_matches_scipy(batch):
    """Logits need not be normalised."""
    logits, other = np.random.default_rng(0).normal(size=(2, *batch, 4), scale=2.0)
    with jax.enable_x64(True):
        divergence = Categorical(jnp.asarray(logits)).kl_divergence(Categorical(jnp.asarray(other)))
    expected = scipy.stats.entropy(scipy.special.softmax(logits, -1), scipy.special.softmax(other, -1), axis=-1)
    np.testing.assert_allclose(divergence, expected, rtol=1e-12)
    assert divergence.shape == batch


def test_divergence_where_an_action_has_no_probability():
    """Under the first it adds nothing; under the other alone the divergence is infinite."""
    sure, fair = Categorical(jnp.array([0.0, -jnp.inf])), Categorical(jnp.zeros(2))
    np.testing.assert_allclose(sure.kl_divergence(fair), np.log(2), rtol=1e-6)
    assert fair.kl_divergence(sure) == jnp.inf


@pytest.mark.parametrize("family", [lambda n: Categorical(jnp.zeros(n)), lambda n: DiagonalGaussian(jnp.zeros(n), 0.0)])
def test_divergence_of_another_number_of_actions_is_refused(family, unchecked):
    with pytest.raises(ValueError, match="other"):
        family(3).kl_divergence(family(2))


def gaussian_of(mean, log_std):
    return DiagonalGaussian(jnp.zeros(mean), jnp.zeros(log_std))


LOGITS_OF_TWO = Categorical(jnp.zeros((3, 2)))


@pytest.mark.parametrize(
    ("policy", "value", "error", "message"),
    [
        # an action [B] for a mean [B, 1] would be broadcast to [B, B]
        (gaussian_of((3, 1), 1), jnp.zeros(3), ValueError, r"value .*\(3,\): expected mean's"),
        (gaussian_of((3, 2), 2), jnp.zeros(2), ValueError, r"value .*\(2,\): expected mean's"),
        # a pair of logits is taken for a mean and a log-deviation
        (gaussian_of((3, 2), (3, 2)), jnp.zeros((3, 2), int), TypeError, "value has dtype int"),
        (gaussian_of((3, 2), 3), jnp.zeros((3, 2)), ValueError, r"log_std has shape \(3,\)"),
        (gaussian_of((3, 2), (1, 3, 2)), jnp.zeros((3, 2)), ValueError, "log_std has shape"),
        (gaussian_of((), ()), jnp.zeros(()), ValueError, "log_std has shape"),
        (LOGITS_OF_TWO, jnp.zeros(3), TypeError, "value has dtype float32: expected integers"),
        (LOGITS_OF_TWO, jnp.zeros(3, bool), TypeError, "value has dtype bool: expected integers"),
        (LOGITS_OF_TWO, jnp.zeros((3, 1), int), ValueError, r"value has shape \(3, 1\): expected \(3,\)"),
        (LOGITS_OF_TWO, jnp.zeros((), int), ValueError, r"value has shape \(\): expected \(3,\)"),
    ],
)
def test_actions_that_do_not_fit(policy, value, error, message, unchecked):
    """Whatever would be broadcast or rounded without a word; as called, and while `jit` traces."""
    for run in (lambda f: f, jax.jit):
        with pytest.raises(error, match=message):
            run(lambda p, v: p.log_prob(v))(policy, value)


@pytest.mark.parametrize("policy", [gaussian_of((3, 2), 2), LOGITS_OF_TWO])
def test_noise_that_does_not_fit(policy, unchecked):
    """One row of noise for all would make their actions alike."""
    with pytest.raises(ValueError, match=r"noise has shape \(2,\): expected (mean|logits)'s \(3, 2\)"):
        policy.sample(jnp.zeros(2))
