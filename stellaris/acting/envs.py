"""Makes a `VectorEnv` from a name, from a function that makes one environment, or from a user's vector environment."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard, cast

from stellaris._core import checks
from stellaris._core.extras import install, missing, needs
from stellaris.acting.envpool_env import EnvPoolEnv as EnvPoolEnv
from stellaris.acting.gymnasium_env import GymnasiumEnv as GymnasiumEnv
from stellaris.acting.jax_env import JaxEnvironment, JaxVectorEnv, check_environment
from stellaris.acting.vector import EnvSpec as EnvSpec
from stellaris.acting.vector import Step as Step
from stellaris.acting.vector import VectorEnv as VectorEnv


@dataclass(frozen=True)
class Vectorised:
    """A user's own vector environment.

    Args:
      make: a function `(slots, seed) -> VectorEnv` with `slots` slots. It should seed slot `i` with `seed + i`.

    Example:
      >>> def two_armed(slots, seed):
      ...     return GymnasiumEnv("two-armed", TwoArmed, slots=slots, seed=seed)  # or any `VectorEnv`
      >>> environment = Vectorised(two_armed)
    """

    make: Callable[[int, int], Any]

    def __call__(self, slots: int, seed: int) -> VectorEnv:
        """Makes the environment with `slots` slots.

        Raises:
          TypeError: if `make` returns something other than a `VectorEnv`.
        """
        env = self.make(slots, seed)
        lacks = [part for part in ("spec", "reset", "step", "close") if not hasattr(env, part)]
        if lacks:
            raise TypeError(f"{self} made {env!r}, which lacks {', '.join(lacks)}: expected a stellaris VectorEnv")
        if not isinstance(env.spec, EnvSpec):
            raise TypeError(f"{self} made {env!r} with spec={env.spec!r}: expected a stellaris EnvSpec")
        return env  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Configured:
    """An EnvPool environment with options; made by `configure`."""

    name: str
    options: tuple[tuple[str, Any], ...]


def configure(name: str, **options: Any) -> Configured:
    """Describes an EnvPool environment with options other than its defaults.

    Args:
      name: one of `envpool.list_all_envs()`.
      **options: options of `envpool.make`. For Atari: `stack_num`, frames per observation (default 4);
        `repeat_action_probability`, the probability of sticky actions (0); `episodic_life`, whether losing a life ends
        the episode (False); `reward_clip`, whether rewards are replaced by their sign (False).

    Example:
      >>> configure("Pong-v5", stack_num=3, reward_clip=True)
      Configured(name='Pong-v5', options=(('reward_clip', True), ('stack_num', 3)))
    """
    return Configured(name, tuple(sorted(options.items())))


#: A name; an EnvPool environment with options; a callable without arguments that makes one `gymnasium.Env`; a user's
#: own vector environment; or an environment of JAX functions.
Environment: TypeAlias = str | Configured | Callable[[], Any] | Vectorised | JaxEnvironment


def make(environment: Environment, *, slots: int, seed: int = 0, threads: int = 1) -> VectorEnv:
    """Makes a vector environment.

    A name refers to EnvPool's environment if EnvPool has one, otherwise to Gymnasium's. A user's own registration with
    Gymnasium (an entry point in a module outside Gymnasium) takes precedence over an EnvPool environment of the same
    name. Without EnvPool all names refer to Gymnasium's environments. These are slower than EnvPool's, and play other
    episodes for the same seed.

    Args:
      environment: a name such as `"Hopper-v4"`, or `"module:Name-v0"` for one that a module registers when it is
        imported; an EnvPool environment with options, from `configure`; a class, function or `functools.partial` that
        makes one `gymnasium.Env`; `Vectorised`; or a `JaxEnvironment`, such as `lab.CartPole()`.
      slots: number of environments, at least 1.
      seed: the seed of slot 0; slot `i` is seeded with `seed + i`.
      threads: number of threads that step EnvPool's environments. Results do not depend on their number.

    Returns:
      The environment; reset its slots before stepping them.

    Raises:
      ModuleNotFoundError: without Gymnasium, without EnvPool for an environment of `configure`, or without the
        physics of Gymnasium's environment; the message names the extra.
      TypeError: if `environment` is neither a name nor callable, the object made is not an environment, or a number is
        not whole.
      ValueError: if neither library knows the name, a package that no extra has is not installed, its observations
        are not arrays of numbers, its actions are neither discrete nor a box of floats, or a number is out of range.

    Example:
      >>> import numpy as np
      >>> env = make("CartPole-v1", slots=3)
      >>> env.reset(np.arange(3)).shape
      (3, 4)
      >>> env.step(np.array([2, 0]), np.array([1, 1])).reward.tolist()
      [1.0, 1.0]
    """
    check(environment)
    checks.whole(at_least=1, slots=slots, threads=threads)
    checks.seed(seed=seed)
    if is_jax(environment):
        return JaxVectorEnv(as_jax(environment), slots=slots, seed=seed)
    match environment:
        case str():
            return _named(environment, slots=slots, seed=seed, threads=threads)
        case Configured(name, options):
            return EnvPoolEnv(name, slots=slots, seed=seed, threads=threads, **dict(options))
        case Vectorised():
            return environment(slots, seed)
        case _:
            new = cast(Callable[[], Any], environment)
            return GymnasiumEnv(_name(new), new, slots=slots, seed=seed)


def check(environment: Any) -> None:
    """Raises unless `make` accepts `environment`.

    Raises:
      TypeError: if it is not a name, a result of `configure`, a `Vectorised`, a `JaxEnvironment`, or a callable without
        arguments.
    """
    if isinstance(environment, str | Configured | Vectorised) or is_jax(environment):
        return
    if not callable(environment):
        one = ", which is a single environment" if hasattr(environment, "step") else ""
        raise TypeError(
            f"environment={environment!r}{one}: expected a name, a callable that makes one environment (a class, "
            "a function, a functools.partial), or envs.Vectorised"
        )
    try:
        inspect.signature(environment).bind()
    except ValueError:
        return  # a C function without a signature: its arguments are unknown
    except TypeError as error:
        raise TypeError(
            f"environment={environment!r} cannot be called without arguments ({error}): bind them by functools.partial"
        ) from None


def is_jax(environment: Any) -> TypeGuard[JaxEnvironment]:
    """Whether this is a `JaxEnvironment`; Gymnasium's environments have the same methods, but another `spec`."""
    return isinstance(getattr(environment, "spec", None), EnvSpec) and isinstance(environment, JaxEnvironment)


def as_jax(environment: Any) -> JaxEnvironment:
    """Returns a `JaxEnvironment`; raises a TypeError for others, and if it does not return what its `spec` says."""
    if not is_jax(environment):
        made = isinstance(environment, type)
        remedy = "lab.CartPole(), or a JaxEnvironment"
        if isinstance(environment, str):
            remedy = f"lab.Gymnax({environment!r}), if gymnax has it, or a JaxEnvironment"
        remedy = f"an instance, {environment.__name__}()" if made else remedy
        raise TypeError(f"environment={environment!r} is not written in JAX: pass {remedy}")
    check_environment(environment)
    return environment


def _name(environment: Callable[[], Any]) -> str:
    if isinstance(environment, functools.partial):
        return _name(environment.func)
    return str(getattr(environment, "__qualname__", type(environment).__qualname__))


def _named(name: str, *, slots: int, seed: int, threads: int) -> VectorEnv:
    with needs(f"environment {name!r}"):
        import gymnasium
    pools = _pools()
    try:
        if name in pools and not _is_own(gymnasium.registry.get(name)):
            return EnvPoolEnv(name, slots=slots, seed=seed, threads=threads)
        if name in gymnasium.registry or ":" in name:
            return GymnasiumEnv(name, functools.partial(gymnasium.make, name), slots=slots, seed=seed)
    except (ImportError, gymnasium.error.Error) as error:
        if package := missing(error) or missing(error.__cause__):  # Gymnasium's own error has the import's as its cause
            raise ModuleNotFoundError(f"environment {name!r} needs {install(package)}", name=package) from error
        raise ValueError(f"environment {name!r} cannot be made: {error} ({_suggest(name, pools)})") from error
    others = "" if pools else f"; EnvPool, which has others, is not installed ({install('envpool')})"
    raise ValueError(f"unknown environment {name!r}: {_suggest(name, [*pools, *gymnasium.registry])}{others}")


def _pools() -> list[str]:
    """Names of EnvPool's environments; empty if it is not installed."""
    try:
        import envpool
    except ModuleNotFoundError as error:
        if error.name != "envpool":
            raise
        return []
    return list(envpool.list_all_envs())


def _is_own(registered: Any) -> bool:
    """Whether an entry of Gymnasium's registry is a user's own: its entry point lies outside Gymnasium."""
    if registered is None:
        return False
    entry = registered.entry_point
    module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
    return str(module).partition(".")[0] != "gymnasium"


def _suggest(name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, sorted(set(known)), n=3)
    return f"did you mean {' or '.join(close)}?" if close else "see envpool.list_all_envs() and gymnasium.registry"
