"""The Decision Transformer and behaviour cloning: what they see, what they are asked for, and the command."""

import errno
import functools
import json
import os
from dataclasses import replace
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import command
from experiments.figures.gear import hopper, playing
from experiments.figures.gear.learning import Learning, begin, draw, learn, normaliser
from experiments.figures.gear.models import BehaviourCloning, Context, DecisionTransformer
from experiments.figures.gear.playing import Memory, play
from stellaris.acting import ActorCritic
from stellaris.acting.normalisation import Normaliser
from stellaris.replay import init, insert
from stellaris.systems import Workload
from tests.experiments.csv_rows import rows

STEPS, LONGEST = 6, 20
MODELS = {
    "transformer": DecisionTransformer(2, longest=LONGEST, width=8, layers=2, heads=2),
    "cloning": BehaviourCloning(2, width=8, layers=2),
}
both = pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))


def context(steps=STEPS, seed=0):
    """Two episodes, from their fourth step on."""
    random = np.random.default_rng(seed)
    return Context(
        return_to_go=random.normal(size=(2, steps)).astype(np.float32),
        observation=random.normal(size=(2, steps, 3)).astype(np.float32),
        action=random.normal(size=(2, steps, 2)).astype(np.float32),
        step=np.tile(np.arange(3, 3 + steps), (2, 1)),
        mask=np.ones((2, steps), bool),
    )


def initialised(model):
    return jax.jit(model.init)(jax.random.key(0), context())


@functools.partial(jax.jit, static_argnums=0)
def applied(model, params, seen):
    """Means and logarithms of standard deviations."""
    distribution = model.apply(params, seen)
    return jnp.concatenate([distribution.mean, distribution.log_std], axis=-1)


@pytest.mark.slow
@both
def test_no_later_token_is_looked_at(model):
    """An action depends on its step's return to go and observation, and on nothing that comes after these."""
    seen, params = context(), initialised(model)
    expected = applied(model, params, seen)
    assert expected.shape == (2, STEPS, 2 * 2)
    transformer = isinstance(model, DecisionTransformer)
    for name, looks_at in (("return_to_go", transformer), ("observation", True), ("action", False)):
        for t in range(STEPS):
            column = getattr(seen, name).copy()
            column[:, t] += 1
            found = applied(model, params, seen._replace(**{name: column}))
            np.testing.assert_allclose(found[:, :t], expected[:, :t], atol=1e-6)
            assert (np.abs(found[:, t] - expected[:, t]).max() > 1e-5) == looks_at
            later = np.abs(found[:, t + 1 :] - expected[:, t + 1 :])
            assert t == STEPS - 1 or (later.max() > 1e-6) == transformer


@pytest.mark.slow
@both
def test_padding_changes_nothing(model):
    whole, params = context(), initialised(model)
    known = Context(*(column[:, 2:] for column in whole))
    padded = whole._replace(mask=np.tile(np.arange(STEPS) >= 2, (2, 1)))
    found = applied(model, params, padded)
    np.testing.assert_allclose(found[:, 2:], applied(model, params, known), atol=1e-6)
    assert np.isfinite(found).all()


def table(rewards=((100.0, 200.0, 400.0),), actions=None):
    """Trajectories of these rewards; an observation is the number of its step, counted through all."""
    longest = max(map(len, rewards))
    columns = {"reward": (), "observation": (3,), "action": (2,)}
    made = {name: np.zeros((len(rewards), longest, *shape), np.float32) for name, shape in columns.items()}
    count = 0.0
    for row, of in enumerate(rewards):
        for t, reward in enumerate(of):
            count += 1
            made["reward"][row, t] = reward
            made["observation"][row, t] = count
            made["action"][row, t] = (count, -0.5) if actions is None else actions
    length = np.array([*map(len, rewards)], np.int32)
    spec = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in columns.items()}
    empty = init(spec, capacity=len(rewards), length=LONGEST)
    return insert(empty, made, length=length, weight=length.astype(np.float32))


@pytest.mark.slow
def test_what_a_batch_holds():
    """The steps up to a drawn one: returns to go over a thousand, padding before the first."""
    drawn, faults = draw(table(), jax.random.key(0), Learning(updates=1, batch=32, context=2))
    assert int(faults) == 0
    expected = {
        0: ([0.0, 0.7], [0, 1], [0, 0], [False, True]),
        1: ([0.7, 0.6], [1, 2], [0, 1], [True, True]),
        2: ([0.6, 0.4], [2, 3], [1, 2], [True, True]),
    }
    seen = set()
    for k in range(32):
        newest = int(drawn.step[k, -1])
        return_to_go, observation, step, mask = expected[newest]
        np.testing.assert_allclose(drawn.return_to_go[k], return_to_go, rtol=1e-6)
        assert drawn.observation[k, :, 0].tolist() == observation
        assert drawn.step[k].tolist() == step
        assert drawn.mask[k].tolist() == mask
        assert drawn.action[k].tolist() == [[float(i), -0.5 * (i > 0)] for i in observation]
        seen.add(newest)
    assert seen == {0, 1, 2}


@pytest.mark.slow
def test_all_steps_have_the_same_chance():
    drawn, _ = draw(table([[1.0] * 15, [1.0] * 5]), jax.random.key(1), Learning(updates=1, batch=20_000, context=1))
    counts = np.bincount(np.asarray(drawn.observation[:, 0, 0]).astype(int), minlength=21)[1:]
    assert len(counts) == 20
    np.testing.assert_allclose(counts, 1000, atol=5 * np.sqrt(1000))


def test_observations_are_normalised_over_the_steps_that_there_are():
    """1, 2, 3 and 4, in trajectories of three steps and of one: mean 2.5, variance 1.25."""
    found = normaliser(table([[1.0] * 3, [1.0]]))
    np.testing.assert_allclose(found.mean, 2.5)
    np.testing.assert_allclose(found.scale, 1 / np.sqrt(1.25), rtol=1e-4)


@pytest.mark.slow
def test_both_learn_what_is_done():
    """Always the same action: its density becomes ten times what it was, for each."""
    learning = Learning(updates=100, batch=16, context=3, learning_rate=1e-2)
    data = table([[1.0] * 10] * 3, actions=(0.8, -0.3))
    key, normalise = jax.random.key(0), normaliser(data)
    learners = begin(MODELS, draw(data, key, learning)[0], key, learning)
    losses = []
    for first in range(0, 100, 20):
        learners, mean = learn(MODELS, learners, data, normalise, key, learning, first=first, updates=20)
        losses.append(mean)
    assert set(losses[0]) == set(MODELS)
    for name in MODELS:
        assert losses[-1][name] < losses[0][name] - np.log(10)


@pytest.mark.slow
def test_an_empty_table_is_no_data():
    data, learning = table(), Learning(updates=1, batch=4, context=2)
    spec = {name: jax.ShapeDtypeStruct(c.shape[2:], c.dtype) for name, c in data.columns.items()}
    empty = init(spec, capacity=2, length=4)
    key = jax.random.key(0)
    learners = begin(MODELS, draw(data, key, learning)[0], key, learning)
    with pytest.raises(ValueError, match="a table that is empty"):
        learn(MODELS, learners, empty, normaliser(data), key, learning, first=0, updates=1)


def test_what_is_asked_for_falls_by_what_was_earned():
    """Of two episodes that are asked for 1,000 and 500; a context of two steps rolls."""
    memory = Memory(np.array([1000.0, 500.0]), context=2, observation=1, actions=1)
    seen = memory.observe(np.array([[1.0], [2.0]]))
    assert seen.return_to_go.tolist() == [[0.0, 1.0], [0.0, 0.5]]
    assert seen.mask.tolist() == [[False, True]] * 2
    memory.act(np.array([[0.5], [0.25]]), np.array([200.0, 0.0]))
    seen = memory.observe(np.array([[3.0], [4.0]]))
    np.testing.assert_allclose(seen.return_to_go, [[1.0, 0.8], [0.5, 0.5]])
    assert seen.observation[..., 0].tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert seen.action[..., 0].tolist() == [[0.5, 0.0], [0.25, 0.0]]
    assert seen.step.tolist() == [[0, 1]] * 2
    memory.act(np.array([[1.0], [1.0]]), np.array([0.0, 500.0]))
    seen = memory.observe(np.array([[5.0], [6.0]]))
    np.testing.assert_allclose(seen.return_to_go, [[0.8, 0.8], [0.5, 0.0]])
    assert seen.step.tolist() == [[1, 2]] * 2
    assert seen.mask.all()


@pytest.mark.slow
def test_episodes_are_played_to_their_ends(monkeypatch):
    """On an environment of which slot `i` ends after `i + 1` steps of a reward of `i + 1`, told by its action."""

    class Steps:
        spec = type("Spec", (), {"actions": 2})

        def __init__(self):
            self.now, self.stepped = np.zeros(4, int), []

        def reset(self, slots):
            return np.zeros((len(slots), 3), np.float32)

        def step(self, slots, action):
            assert action.shape == (len(slots), 2)
            self.stepped.append(slots.tolist())
            self.now[slots] += 1
            ended = self.now[slots] == slots + 1
            observation = np.zeros((len(slots), 3), np.float32)
            return playing.envs.Step(observation, slots + 1.0, ended & (slots % 2 == 0), ended & (slots % 2 == 1))

        def close(self):
            self.closed = True

    env = Steps()
    monkeypatch.setattr(playing.envs, "make", lambda name, **options: env)
    model = MODELS["transformer"]
    how = {"context": 2, "longest": 3, "seed": 0, "threads": 1}
    unchanged = Normaliser(np.zeros(3, np.float32), np.ones(3, np.float32))
    returns = play(model, initialised(model), unchanged, "steps", [1.0, 2.0, 3.0, 4.0], **how)
    assert returns.tolist() == [1.0, 4.0, 9.0, 12.0]  # the last was taken as it was after three steps
    assert env.stepped == [[0, 1, 2, 3], [1, 2, 3], [2, 3]]
    assert env.closed


@pytest.fixture
def tiny(monkeypatch):
    """A few hundred steps, a few updates, and episodes of 30 steps at most."""
    workload = Workload("Hopper-v4", policy=ActorCritic(hidden=(8,)), actors=4, fragment=64)
    learning = Learning(updates=4, batch=8, context=3)
    smoke = replace(hopper.PRESETS["smoke"], steps=512, learning=learning, workload=workload, capacity=16, width=8)
    monkeypatch.setattr(hopper, "PRESETS", {"smoke": replace(smoke, layers=1, longest=60)})
    monkeypatch.setattr(hopper, "_PPO", replace(hopper._PPO, epochs=1, minibatch_size=256))


@pytest.mark.slow
def test_the_command(tiny, tmp_path, capsys):
    options = ("--preset", "smoke", "--seeds", "2", "--seed", "3", "--out", str(tmp_path))
    assert command.main(["gear-hopper", *options]) == 0
    assert "transformer, asked for 100% of the best" in capsys.readouterr().out
    names = {"played.csv", "losses.csv", "data.csv", "provenance.json", "gear_hopper.png"}
    assert {path.name for path in tmp_path.iterdir()} == names
    played = rows(tmp_path / "played.csv")
    assert len(played) == 2 * (5 + 1 + 1 + 1)
    assert {row["seed"] for row in played} == {"3", "4"}
    assert [row["asked"] for row in played if row["model"] == "cloning"] == [""] * 4
    best = max(float(row["best_return"]) for row in rows(tmp_path / "data.csv") if row["seed"] == "3")
    sampled = [row["asked"] for row in played if (row["seed"], row["actions"]) == ("3", "sampled")]
    asked = [float(number) for number in sampled if number]
    np.testing.assert_allclose(asked, [part * best for part in (0.2, 0.4, 0.6, 0.8, 1.0)], atol=0.1)
    losses = rows(tmp_path / "losses.csv")
    assert [row["update"] for row in losses if row["seed"] == "4"] == ["1", "2", "3", "4"]
    assert all(np.isfinite([float(row["transformer"]), float(row["cloning"])]).all() for row in losses)
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert record["seeds"] == [3, 4]
    assert record["preset"]["learning"]["updates"] == 4


def test_whether_it_rises():
    """The rank correlation of what was asked for and what was achieved: 1 if each is higher, -1 if each is lower."""

    def outcome(*achieved):
        played = [hopper.Played("transformer", 10.0 * i, [value]) for i, value in enumerate(achieved)]
        return hopper.Outcome(0, [1.0], [], played, {})

    assert outcome(1.0, 5.0, 6.0).rises == pytest.approx(1.0)
    assert outcome(6.0, 5.0, 1.0).rises == pytest.approx(-1.0)


def test_the_interval():
    """Returns 1, 2 and 3: a standard deviation of 1, so 1.96 over the root of 3."""
    played = hopper.Played("cloning", float("nan"), [1.0, 2.0, 3.0])
    assert played.mean == 2.0
    assert played.margin == pytest.approx(1.1316, abs=1e-4)


def test_a_full_disk_costs_no_earlier_result(tmp_path, monkeypatch, capsys):
    """The error is one line, after the table of the new results."""
    asked = {hopper.TRANSFORMER: (20.0, 40.0, 60.0, 80.0, 100.0), hopper.CLONING: (float("nan"),)}
    played = [hopper.Played(name, target, [1.0, 2.0]) for name, targets in asked.items() for target in targets]
    played += [hopper.Played(name, targets[-1], [3.0, 4.0], sampled=False) for name, targets in asked.items()]
    monkeypatch.setattr(hopper, "_one", lambda *arguments: hopper.Outcome(0, [1.0], [], played, {}))
    monkeypatch.setattr(Path, "replace", mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    (tmp_path / "played.csv").write_text("earlier")
    assert command.main(["gear-hopper", "--preset", "smoke", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert "behaviour cloning" in said.out
    (line,) = said.err.splitlines()
    assert line.startswith(f"error: --out {tmp_path} cannot be written into: No space left on device")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"played.csv": "earlier"}
