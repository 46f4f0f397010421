"""Networks, parameters and batches to learn from: in float64 where x64 is on."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
import scipy.stats

from stellaris.algorithms import Batch
from stellaris.distributions import Categorical, DiagonalGaussian

FEATURES, ACTIONS = 3, 2


def close(got, want, tolerance=1e-5):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), got, want)


def equal(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


def gaussian(params, observation):
    return DiagonalGaussian(observation @ params["policy"], params["log_std"]), observation @ params["value"]


def categorical(params, observation):
    return Categorical(observation @ params["policy"]), observation @ params["value"]


class ActorCritic(nn.Module):
    """Two hidden layers and two heads."""

    actions: int = ACTIONS

    @nn.compact
    def __call__(self, observation):
        hidden = nn.tanh(nn.Dense(16)(nn.tanh(nn.Dense(16)(observation))))
        log_std = self.param("log_std", nn.initializers.zeros, (self.actions,))
        return DiagonalGaussian(nn.Dense(self.actions)(hidden), log_std), nn.Dense(1)(hidden)[..., 0]


def arrays(seed):
    random = np.random.default_rng(seed)
    return {
        "policy": random.normal(size=(FEATURES, ACTIONS), scale=0.5),
        "value": random.normal(size=FEATURES),
        "log_std": random.normal(size=ACTIONS, scale=0.2),
    }


def parameters(seed, like=None, distance=0.1):
    """Bare parameters, near those of `like`."""
    near = arrays(like) if like is not None else arrays(seed)
    return jax.tree.map(lambda a, b: jnp.asarray(a + distance * (b - a)), near, arrays(seed))


def sample_batch(apply_fn, size=24, invalid=0.2, seed=0):
    """Samples of a behaviour policy, `parameters(0)`, some of them invalid."""
    random = np.random.default_rng(seed)
    observation = jnp.asarray(random.normal(size=(size, FEATURES)))
    distribution, value = apply_fn(parameters(0), observation)
    noise = random.normal(size=(size, ACTIONS))
    action = distribution.sample(jnp.asarray(noise))
    return Batch(
        observation=observation,
        action=action,
        log_prob=distribution.log_prob(action) + jnp.asarray(random.normal(size=size, scale=0.3)),
        value=value,
        advantage=jnp.asarray(random.normal(size=size)),
        target=value + jnp.asarray(random.normal(size=size)),
        version=jnp.zeros(size, jnp.int32),
        valid=jnp.asarray(random.uniform(size=size) >= invalid),
    )


def loss_and_gradient(ppo, apply_fn, params, batch, peers=(), rho=1.0):
    return jax.value_and_grad(lambda p: ppo.loss(apply_fn, p, batch, peers, rho=rho), has_aux=True)(params)


def compiled(algorithm, apply_fn, params, batch, peers=(), rho=1.0):
    """The same: one program, whether an argument is left out or is what it is by default."""
    return _compiled(algorithm, apply_fn, params, batch, peers, rho)


_compiled = jax.jit(loss_and_gradient, static_argnums=(0, 1, 5))


def by_scipy(apply_fn, params, observation, action):
    """Log-probabilities of actions, entropies and values of either bare network `[n]`, in NumPy and scipy."""
    mean, value = observation @ params["policy"], observation @ params["value"]
    if apply_fn is categorical:
        probabilities = scipy.special.softmax(mean, axis=-1)
        chosen = np.take_along_axis(probabilities, action[..., None], axis=-1)[..., 0]
        return np.log(chosen), scipy.stats.entropy(probabilities, axis=-1), value
    law = scipy.stats.norm(mean, np.exp(params["log_std"]))
    return law.logpdf(action).sum(-1), law.entropy().sum(-1), value
