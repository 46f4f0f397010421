"""Environments by name, by what makes one, and a user's own vector environments."""

import functools

import envpool
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from stellaris.acting import envs
from stellaris.acting.envs import EnvPoolEnv, EnvSpec, GymnasiumEnv, VectorEnv, Vectorised, make
from tests.acting.environments import Own, array


@pytest.mark.parametrize(
    ("name", "kind", "spec"),
    [
        ("CartPole-v1", EnvPoolEnv, EnvSpec("CartPole-v1", array(4), 2, True)),
        (
            "Hopper-v4",
            EnvPoolEnv,
            EnvSpec("Hopper-v4", array(11), 3, False, (-1.0,) * 3, (1.0,) * 3, action_shape=(3,)),
        ),
        ("Taxi-v4", GymnasiumEnv, EnvSpec("Taxi-v4", array(dtype=np.int32), 6, True)),
    ],
)
def test_make(name, kind, spec):
    """EnvPool's where it has one of this name, Gymnasium's otherwise; with what a policy must know of it."""
    env = make(name, slots=2)
    assert type(env) is kind
    assert isinstance(env, VectorEnv)
    assert env.spec == spec


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
def test_seeds_are_the_libraries_own():
    """The first slot's first episode is that of the library under the same seed; both take the greatest seed."""
    for name in ("CartPole-v1", "Taxi-v4"):
        assert len(make(name, slots=2, seed=2**31 - 1).reset(np.arange(2))) == 2
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=1, seed=7).reset()[0]
    np.testing.assert_array_equal(make("CartPole-v1", slots=2, seed=7).reset(np.array([0])), pool)
    single = gymnasium.make("Taxi-v4").reset(seed=7)[0]
    assert make("Taxi-v4", slots=2, seed=7).reset(np.array([0])).tolist() == [single]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"slots": 0}, ValueError, "slots=0 is below 1"),
        ({"slots": 1, "threads": 0}, ValueError, "threads=0 is below 1"),
        ({"slots": 2.0}, TypeError, r"slots=2\.0 is not a whole number"),
        ({"slots": 1, "seed": -1}, ValueError, "seed=-1 is below 0"),
        ({"slots": 1, "seed": 2**31}, ValueError, r"seed=2147483648 is not below 2\*\*31"),
        ({"slots": 1, "seed": "1"}, TypeError, "seed='1' is not a whole number"),
    ],
)
@pytest.mark.parametrize("name", ["CartPole-v1", "Taxi-v4", Own])
def test_numbers_out_of_range(name, arguments, error, message, unchecked):
    """There is no environment without a slot, no step without a thread; and no seed that one library alone takes."""
    with pytest.raises(error, match=message):
        make(name, **arguments)


@pytest.mark.filterwarnings("ignore:.*Overriding environment")
def test_ones_own_comes_before_a_pool_of_the_same_name(register):
    """Whoever registers a name means it; what Gymnasium itself registers is EnvPool's as before."""
    assert type(make("CartPole-v1", slots=1)) is EnvPoolEnv
    env = make(register("CartPole-v1", actions=spaces.Discrete(7)), slots=1)
    assert type(env) is GymnasiumEnv
    assert env.spec.actions == 7
    gymnasium.register("Hopper-v5", "tests.acting.environments:Own", kwargs={"actions": spaces.Discrete(5)})
    assert make("Hopper-v5", slots=1).spec.actions == 5


def test_a_module_that_registers(register, tmp_path, monkeypatch):
    """`module:Name-v0` imports it first."""
    settings = "'Elsewhere-v0', 'tests.acting.environments:Own', kwargs={'actions': gymnasium.spaces.Discrete(4)}"
    (tmp_path / "own_registrations.py").write_text(f"import gymnasium\ngymnasium.register({settings})\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert make("own_registrations:Elsewhere-v0", slots=1).spec.actions == 4
    with pytest.raises(ValueError, match=r"environment 'own_registrations:Other-v0' cannot be made: .*Other"):
        make("own_registrations:Other-v0", slots=1)
    with pytest.raises(ValueError, match=r"environment 'no_such_module:Own-v0' cannot be made: No module named"):
        make("no_such_module:Own-v0", slots=1)


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        (Own, "Own"),
        (functools.partial(Own, spaces.Discrete(3)), "Own"),
        (lambda: gymnasium.make("CartPole-v1"), "test_<lambda>"),
        (functools.partial(gymnasium.make, "Taxi-v4"), "make"),
    ],
    ids=["class", "partial", "lambda", "gymnasium.make"],
)
def test_what_makes_an_environment(environment, name):
    """A class, a partial, a function: one for each slot, and named after it."""
    env = make(environment, slots=3, seed=5)
    assert type(env) is GymnasiumEnv
    assert env.spec.name == name.replace("test_", "")
    single = environment().reset(seed=6)[0]
    np.testing.assert_array_equal(env.reset(np.arange(3))[1], single)


class Incomplete:
    """It has a specification, and cannot be stepped."""

    spec = EnvSpec("Own-v0", np.zeros(2), 2, True)


class Misspecified(Incomplete):
    """It can, but its specification is something else."""

    spec = gymnasium.spaces.Discrete(2)

    def reset(self, slots): ...

    def step(self, slots, action): ...

    def close(self): ...


def broken():
    raise RuntimeError("no simulator here")


def vectors(made):
    return Vectorised(lambda slots, seed: made)


@pytest.mark.filterwarnings("ignore:.*is out of date")
@pytest.mark.parametrize(
    ("environment", "error", "message"),
    [
        ("?", ValueError, r"unknown environment '\?': see envpool.list_all_envs\(\)"),
        (
            "Hopper-v2",
            ValueError,
            r"'Hopper-v2' cannot be made: .*gymnasium-robotics.*did you mean Hopper-v\d or Hopper-v\d",
        ),
        (broken, RuntimeError, "no simulator here"),
        (dict, TypeError, r"environment dict made {}, which lacks reset, step, action_space, .*: expected a gymn"),
        (lambda: gymnasium.make_vec("CartPole-v1"), TypeError, r"<lambda> made a vector environment, .*Vectorised"),
        (vectors(Own()), TypeError, r"Vectorised\(.*\) made .* with spec=None: expected a stell"),
        (vectors(Incomplete()), TypeError, r"Vectorised\(.*\) made .*, which lacks reset, step, close"),
        (vectors(Misspecified()), TypeError, r"Vectorised\(.*with spec=Discrete\(2\): expected a stell"),
    ],
)
def test_what_cannot_be_made(environment, error, message, unchecked):
    with pytest.raises(error, match=message):
        make(environment, slots=1)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (3, r"environment=3: expected a name, a callable that makes one"),
        (None, r"environment=None: expected a name"),
        (Own(), r"environment=<.*Own.*>, which is a single environment: expected .*a class, a function, a functools"),
        (gymnasium.make, r"environment=<function make.*> cannot be called without arguments \(.*'id'\).*partial"),
        (lambda slots: None, r"environment=.* cannot be called without arguments .*functools.partial"),
    ],
)
def test_what_is_no_environment(environment, message, unchecked):
    for check in (envs.check, functools.partial(make, slots=1)):
        with pytest.raises(TypeError, match=f"^{message}"):
            check(environment)


def test_names_that_may_have_been_meant():
    with pytest.raises(ValueError, match="unknown environment 'Hoper-v4': did you mean Hopper-v4 or ") as error:
        make("Hoper-v4", slots=1)
    suggestions = str(error.value).split("did you mean ")[1].rstrip("?").split(" or ")
    assert len(suggestions) == len(set(suggestions)) > 1


def test_the_same_environment_for_two_slots():
    env = Own()
    with pytest.raises(ValueError, match=r"<lambda> returns the same environment every time, but each slot"):
        make(lambda: env, slots=2)
    assert env.closed == 1
