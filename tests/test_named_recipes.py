"""Rows of `docs/functions.md` that compose returns: their calls compute what rlax, or a loop, computes."""

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
