"""Rows of `docs/functions.md` that compose several functions: their calls compute what rlax, or a loop, computes."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

import stellaris
from tests.close import close

PAGE = (Path(__file__).parent.parent / "docs" / "functions.md").read_text()
T, B = 6, 3


def cells(name):
    """The code of a row of the table of names."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name}")]
    return re.findall(r"`([^`]+)`", row)


@pytest.fixture
def names():
    """The notation of the page, in float64; an episode is cut at one step and ends at another."""
    random = np.random.default_rng(0)
    with jax.enable_x64(True):
        done = np.zeros((T, B), bool)
        done[1, 0] = done[3, 1] = True
        discount = np.where(done & (np.arange(B) == 1), 0.0, random.uniform(0.5, 1.0, (T, B)))
        yield {
            **{name: getattr(stellaris, name) for name in ("gae", "lambda_returns", "vtrace", "importance_ratio")},
            **{name: getattr(jnp, name) for name in ("log", "minimum", "where", "inf")},
            "reward": jnp.asarray(random.normal(size=(T, B))),
            "discount": jnp.asarray(discount),
            "value": jnp.asarray(random.normal(size=(T + 1, B))),
            "next_value": jnp.asarray(random.normal(size=(T, B))),
            "done": jnp.asarray(done),
            "lam": jnp.asarray(random.uniform(size=(T, B))),
            "l": jnp.asarray(random.normal(size=(T, B))),
            "alpha": 0.3,
        }


def each(function, *arrays):
    """`function` of one trajectory `[T]`, over `[T, B]`."""
    return jax.vmap(function, in_axes=1, out_axes=1)(*arrays)


def test_a_lambda_of_each_step(names):
    call, *_ = cells("a separate λ for each step")
    expected = each(rlax.lambda_returns, names["reward"], names["discount"], names["value"][1:], names["lam"])
    close(eval(call, names), expected, 1e-12)


def test_a_next_value_of_its_own(names):
    """`r + discount next_value - V`, carried on by lambda unless the episode is done."""
    call, carried, *_ = cells("a separate next value")
    name, _, expression = carried.partition(" = ")
    found = eval(call, names | {name: eval(expression, names)})
    reward, discount, value, next_value, done = (
        np.asarray(names[name]) for name in ("reward", "discount", "value", "next_value", "done")
    )
    expected = np.zeros((T + 1, B))
    for t in reversed(range(T)):
        error = reward[t] + discount[t] * next_value[t] - value[t]
        expected[t] = error + np.where(done[t], 0.0, 0.95 * discount[t] * expected[t + 1])
    close(found, expected[:T], 1e-12)


def test_truncation_with_resets_within_the_step(names):
    """The values of the last observations in the rewards do the same as next values of their own."""
    (call,) = re.findall(r"`(gae\(reward \+ gamma [^`]+)`", PAGE)
    (usual,) = re.findall(r"`discount = (gamma [^`]+)`", PAGE)
    random = np.random.default_rng(1)
    done = names["done"]
    truncated = done & (jnp.arange(B) == 0)
    own = names | {"gamma": 0.9, "truncated": truncated, "terminated": done & ~truncated}
    own |= {"last_value": jnp.asarray(random.normal(size=(T, B)))}
    own |= {"next_value": jnp.where(done, own["last_value"], own["value"][1:]), "discount": eval(usual, own)}
    expected, carried, *_ = cells("a separate next value")
    own |= {"carried": eval(carried.partition(" = ")[2], own)}
    close(eval(call, own), eval(expected, own), 1e-12)


def test_settings_of_other_projects_have_the_names_here():
    """The column of this library has fields of `PPO` or of a workload, or calls of functions."""
    table = PAGE.partition("| CleanRL |")[2].partition("\n\n")[0].splitlines()[2:]
    fields = {field.name for of in (stellaris.PPO, stellaris.IMPALA) for field in dataclasses.fields(of)}
    known = {*fields, "IMPALA", "vtrace"}
    for row in table:
        for code in re.findall(r"`([^`]+)`", row.split(" | ")[3]):
            assert code in known or code.startswith(("PPO(", "Workload(", "discount = ", "gae(", "value_loss("))


@pytest.mark.filterwarnings("ignore:Rlax :PendingDeprecationWarning")
def test_leaky_vtrace(names):
    (call,) = cells("leaky V-trace")
    found = eval(call, names)
    value, ratio = names["value"], jnp.exp(names["l"])
    expected = each(
        lambda *arrays: rlax.leaky_vtrace_td_error_and_advantage(*arrays, alpha=0.3),
        value[:-1],
        value[1:],
        names["reward"],
        names["discount"],
        ratio,
    )
    close(tuple(found), (expected.errors + value[:-1], expected.pg_advantage, expected.q_estimate), 1e-12)


# ---- losses of whole sequences, with the rewards of their prompt -----------------------------------------------------

GROUP = np.array([0, 1, 0, 1, 1])


@pytest.fixture
def answers():
    """Tokens of five answers to two prompts, in float64."""
    random = np.random.default_rng(2)
    functions = ("oapl_loss", "sequence_log_ratio", "group_relative_advantage")
    with jax.enable_x64(True):
        log_mu, log_ref, log_pi = -jnp.asarray(random.exponential(size=(3, T, 5)))
        yield {
            **{name: getattr(stellaris, name) for name in functions},
            "stop_gradient": jax.lax.stop_gradient,
            "log_pi": log_pi,
            "log_mu": log_mu,
            "log_ref": log_ref,
            "valid": np.arange(T)[:, None] < np.array([6, 2, 3, 5, 1]),
            "reward": random.normal(size=5),
            "group": GROUP,
            "tau": 0.2,
            "beta": 0.3,
        }


def of_tokens(loss, answers):
    """Value and gradient of a sum, of the tokens' log-probabilities."""
    return jax.value_and_grad(lambda log_pi: jnp.sum(loss(log_pi)))(answers["log_pi"])


def whole(log_ratio, answers):
    return jnp.sum(jnp.where(answers["valid"], log_ratio, 0.0), axis=0)


def above_the_mean(x):
    """Each number minus the mean of its prompt."""
    return x - jnp.stack([jnp.mean(x[GROUP[b] == GROUP]) for b in range(len(GROUP))])


def test_the_loss_of_kimi(answers):
    (call, *_) = cells("Kimi k1.5")
    got = of_tokens(lambda x: eval(call, answers | {"l": x - answers["log_mu"]}), answers)
    target = above_the_mean(answers["reward"])
    expected = of_tokens(lambda x: (0.2 * whole(x - answers["log_mu"], answers) - target) ** 2, answers)
    close(got, expected, 1e-12)


def test_trajectory_balance(answers):
    """The normaliser is estimated from the prompt's answers, and detached."""
    first, call, *_ = cells("TBA, trajectory balance")
    name, _, expression = first.partition(" = ")

    def ours(x):
        names = answers | {"log_pi": x}
        return eval(call, names | {name: eval(expression, names)})

    def theirs(x):
        difference = whole(x - answers["log_ref"], answers) - answers["reward"] / 0.3
        log_z = difference - above_the_mean(difference)
        return (difference - jax.lax.stop_gradient(log_z)) ** 2

    close(of_tokens(ours, answers), of_tokens(theirs, answers), 1e-12)
