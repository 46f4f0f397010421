"""Environments by name, by what makes one, and a user's own vector environments."""

import functools

import envpool
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from stellaris.acting import envs
from stellaris.acting.envs import EnvPoolEnv, EnvSpec, GymnasiumEnv, VectorEnv, Vectorised, make
from tests.acting.environments import Own, Sensors, array, same

# ---- by name --------------------------------------------------------------------------------------------------------


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
    """The first slot's first episode is that of the library under the same seed."""
    pool = envpool.make_gymnasium("CartPole-v1", num_envs=1, seed=7).reset()[0]
    np.testing.assert_array_equal(make("CartPole-v1", slots=2, seed=7).reset(np.array([0])), pool)
    single = gymnasium.make("Taxi-v4").reset(seed=7)[0]
    assert make("Taxi-v4", slots=2, seed=7).reset(np.array([0])).tolist() == [single]


def test_unknown_names():
    """With what may have been meant, each name once."""
    with pytest.raises(ValueError, match="unknown environment 'Hoper-v4': did you mean Hopper-v4 or ") as error:
        make("Hoper-v4", slots=1)
    suggestions = str(error.value).split("did you mean ")[1].rstrip("?").split(" or ")
    assert len(suggestions) == len(set(suggestions)) > 1
    with pytest.raises(ValueError, match=r"unknown environment '\?': see envpool.list_all_envs\(\)"):
        make("?", slots=1)


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


@pytest.mark.parametrize("name", ["CartPole-v1", "Taxi-v4"])
def test_seeds_at_the_ends_of_their_range(name):
    """Both libraries take them."""
    for seed in (0, 2**31 - 1):
        assert len(make(name, slots=2, seed=seed).reset(np.arange(2))) == 2


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


@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_what_is_not_installed():
    """Says what to install, and what there is instead."""
    message = r"environment 'Hopper-v2' cannot be made: .*gymnasium-robotics.*did you mean Hopper-v\d or Hopper-v\d"
    with pytest.raises(ValueError, match=message):
        make("Hopper-v2", slots=1)


# ---- by what makes one ----------------------------------------------------------------------------------------------


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


def test_a_vector_environment_of_ones_own():
    """It is asked for slots and a seed, and used as it is."""
    asked = []

    def vector(slots, seed):
        asked.append((slots, seed))
        return GymnasiumEnv("sensors", Sensors, slots=slots, seed=seed)

    env = make(Vectorised(vector), slots=3, seed=9, threads=2)
    assert asked == [(3, 9)]
    assert isinstance(env, VectorEnv)
    same(env.reset(np.arange(3)), make(Sensors, slots=3, seed=9).reset(np.arange(3)))
    assert Vectorised(vector) == Vectorised(vector)


class Incomplete:
    """It has a specification, and cannot be stepped."""

    spec = EnvSpec("Own-v0", np.zeros(2), 2, True)


class Misspecified(Incomplete):
    """It can, but its specification is something else."""

    spec = gymnasium.spaces.Discrete(2)

    def reset(self, slots): ...

    def step(self, slots, action): ...

    def close(self): ...


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (3, r"environment=3: expected a name, a callable that makes one"),
        (None, r"environment=None: expected a name"),
        (Own(), r"environment=<.*Own.*>, which is a single environment: expected .*a class, a function, a functools"),
        (
            gymnasium.make,
            r"environment=<function make.*> cannot be called without arguments \(.*'id'\).*partial",
        ),
        (lambda slots: None, r"environment=.* cannot be called without arguments .*functools.partial"),
    ],
)
def test_what_is_no_environment(environment, message, unchecked):
    """Neither a name nor anything that makes one; it is said before any is made."""
    for look in (envs.check, functools.partial(make, slots=1)):
        with pytest.raises(TypeError, match=f"^{message}"):
            look(environment)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (dict, r"environment dict made {}, which lacks reset, step, action_space, observation_space: expected a gymn"),
        (lambda: gymnasium.make_vec("CartPole-v1"), r"environment <lambda> made a vector environment, .*Vectorised"),
        (
            Vectorised(lambda slots, seed: Own()),
            r"Vectorised\(.*\) made .* with spec=None: expected a stell",
        ),
        (Vectorised(lambda slots, seed: Incomplete()), r"Vectorised\(.*\) made .*, which lacks reset, step, close"),
        (Vectorised(lambda slots, seed: Misspecified()), r"Vectorised\(.*with spec=Discrete\(2\): expected a stell"),
    ],
)
def test_what_makes_something_else(environment, message, unchecked):
    """It is said what was made, and what is missing."""
    with pytest.raises(TypeError, match=f"^{message}"):
        make(environment, slots=1)


def test_what_gives_the_same_environment_twice():
    """Two slots would step one environment."""
    env = Own()
    with pytest.raises(
        ValueError, match=r"environment .*<lambda> returns the same environment every time, but each slot"
    ):
        make(lambda: env, slots=2)
    assert env.closed == 1


def test_what_an_environment_raises_comes_through():
    """While it is made: the traceback is the user's own."""

    def broken():
        raise RuntimeError("no simulator here")

    with pytest.raises(RuntimeError, match="no simulator here"):
        make(broken, slots=1)
