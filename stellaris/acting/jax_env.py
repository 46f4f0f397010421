"""Environments of pure JAX functions: their protocol, steps that also reset, and a `VectorEnv` made of them.

After an episode's end the *next* step resets the environment, as in every `VectorEnv`. All random numbers of an
environment are derived from its seed, a number that identifies its start, and the number of steps since that start.
They therefore depend neither on other environments in the same batch nor on the program that steps the environment.
"""

import functools
import threading
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.acting.vector import EnvSpec, Step, checked_slots
from stellaris.types import NDArray, Tree


class Transition(NamedTuple):
    """The result of one step of one environment."""

    state: Tree  #: the environment's state, any tree of arrays.
    observation: Tree  #: `[*obs]`; at an episode's end, its last observation.
    reward: jax.Array  #: float32 scalar.
    terminated: jax.Array  #: bool: the episode ended in a state of value zero.
    truncated: jax.Array  #: bool: the episode was cut off, by a time limit for instance.


@runtime_checkable
class JaxEnvironment(Protocol):
    """One environment as pure functions. Make it a frozen dataclass: equal environments share compiled programs."""

    @property
    def spec(self) -> EnvSpec:
        """The specification that policies are made for."""

    def reset(self, key: jax.Array) -> tuple[Tree, Tree]:
        """Starts an episode; returns the state and the first observation."""

    def step(self, state: Tree, action: jax.Array, key: jax.Array) -> Transition:
        """Steps an episode that has not ended.

        The action is the environment's: discrete ones count from `spec.start`; continuous ones are within `spec.low`
        and `spec.high`, where given, and have `spec.action_shape` if it is given, otherwise `[spec.actions]`.
        """


class Slot(NamedTuple):
    """The state of one environment between two steps."""

    state: Tree
    observation: Tree
    key: jax.Array  #: the key from which the keys of the steps follow.
    steps: jax.Array  #: int32: steps since the start, including steps that only reset.
    ended: jax.Array  #: bool: whether the next step only resets.
    episode_return: jax.Array  #: float32: return of the running episode.
    episode_length: jax.Array  #: int32: steps of the running episode.


class Stepped(NamedTuple):
    """A step of a slot, as a trajectory records it."""

    reward: jax.Array
    terminated: jax.Array
    valid: jax.Array  #: False for a step that only reset the environment.
    finished: jax.Array  #: bool: whether an episode ended in this step.
    episode_return: jax.Array  #: float32: return of the episode up to this step.


def check_environment(env: JaxEnvironment) -> None:
    """Raises a TypeError unless `reset` and `step` return what `spec` says; computes shapes only, once for each."""
    try:
        hash(env)  # as compiled programs do
    except TypeError as error:
        raise TypeError(
            f"environment={env!r} cannot be hashed: make it a frozen dataclass, with tuples in place of arrays"
        ) from error
    _check(env)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=256)
def _check(env: JaxEnvironment) -> None:
    name, spec = type(env).__name__, env.spec
    key = jax.eval_shape(lambda: jax.random.key(0))
    begun = jax.eval_shape(env.reset, key)
    if not isinstance(begun, tuple) or len(begun) != 2:
        raise TypeError(f"{name}.reset returned {begun}: expected (state, observation)")
    state, observation = begun
    _check_observation(f"{name}.reset", observation, spec)
    action = jax.eval_shape(lambda: _converted(jnp.int32(0) if spec.discrete else jnp.zeros(spec.actions), spec))
    moved = jax.eval_shape(env.step, state, action, key)
    if not isinstance(moved, Transition):
        raise TypeError(f"{name}.step returned {moved}: expected a Transition")
    _check_observation(f"{name}.step", moved.observation, spec)
    # Slots keep the types of `reset`: a state that `step` makes a float would be rounded to an integer again.
    for part, before, after in (("state", state, moved.state), ("observation", observation, moved.observation)):
        if _shapes(after) != _shapes(before) or _types(after) != _types(before):
            raise TypeError(f"{name}.step returned the {part} {after}: reset has {before}")


def _check_observation(where: str, observation: Tree, spec: EnvSpec) -> None:
    if _shapes(observation) != _shapes(spec.observation):
        raise TypeError(f"{where} returned the observation {observation}: spec has {spec.observation}")


def _shapes(tree: Tree) -> tuple[Any, list[tuple[int, ...]]]:
    return jax.tree.structure(tree), [leaf.shape for leaf in jax.tree.leaves(tree)]


def _types(tree: Tree) -> list[Any]:
    return [leaf.dtype for leaf in jax.tree.leaves(tree)]


def _converted(action: jax.Array, spec: EnvSpec) -> jax.Array:
    """Converts a policy's action to the environment's."""
    if spec.discrete:
        return action + spec.start if spec.start else action
    if spec.low or spec.high:
        low, high = (jnp.array(bound, action.dtype) if bound else None for bound in (spec.low, spec.high))
        action = jnp.clip(action, low, high)
    return action.reshape(spec.action_shape) if spec.action_shape else action


def start(env: JaxEnvironment, seed: Any, number: Any) -> Slot:
    """Starts an environment with random numbers that are determined by `seed` and `number`.

    Args:
      env: the environment.
      seed: an integer scalar, different for every slot.
      number: any integer scalar, different for every start.
    """
    # Steps have keys of another parent than the parts into which `reset` may split its key: with JAX's default,
    # `fold_in(key, i)` is `split(key)[i]`, so that the first step would repeat the numbers of the reset.
    of_reset, of_steps = jax.random.split(jax.random.fold_in(jax.random.key(seed), number))
    state, observation = env.reset(of_reset)
    zero = jnp.int32(0)
    return Slot(state, observation, of_steps, zero, jnp.bool_(False), jnp.float32(0), zero)


def advance(env: JaxEnvironment, slot: Slot, action: jax.Array) -> tuple[Slot, Stepped]:
    """Steps an environment, or resets it if its episode has ended."""
    key = jax.random.fold_in(slot.key, slot.steps)
    fresh_state, fresh_observation = env.reset(key)
    moved = env.step(slot.state, _converted(action, env.spec), key)
    valid = ~slot.ended

    def choose(new: Tree, fresh: Tree) -> Tree:
        return jax.tree.map(lambda one, other: jnp.where(valid, one, other), new, fresh)

    reward = jnp.where(valid, moved.reward, 0.0).astype(jnp.float32)
    terminated, truncated = moved.terminated & valid, moved.truncated & valid
    total = jnp.where(valid, slot.episode_return + reward, 0.0)
    after = Slot(
        choose(moved.state, fresh_state),
        choose(moved.observation, fresh_observation),
        slot.key,
        slot.steps + 1,
        terminated | truncated,
        total,
        jnp.where(valid, slot.episode_length + 1, 0),
    )
    return after, Stepped(reward, terminated, valid, terminated | truncated, total)


class JaxVectorEnv:
    """Slots of a JAX environment behind the protocol `VectorEnv`, so that every training system can step it.

    Args:
      env: the environment.
      slots: number of environments.
      seed: the seed of slot 0; slot `i` is seeded with `seed + i`.

    Example:
      >>> from stellaris.lab import CartPole
      >>> env = JaxVectorEnv(CartPole(), slots=3)
      >>> env.reset(np.arange(3)).shape
      (3, 4)
      >>> env.step(np.array([2, 0]), np.array([1, 1])).reward.tolist()
      [1.0, 1.0]
    """

    def __init__(self, env: JaxEnvironment, *, slots: int, seed: int = 0) -> None:
        self.spec = env.spec
        self._env = env
        self._seed = np.int64(seed)  # of 64 bits, because slots are added, as numbers of 32 bits
        self._resets = np.zeros(slots, np.uint32)
        self._lock = threading.Lock()  # several threads may step different slots at the same time
        self._slots: Any = _start(env, seed + np.arange(slots), self._resets)

    def reset(self, slots: NDArray) -> Tree:
        """Starts new episodes in `[n]` slots; each slot numbers its starts 0, 1, and so on."""
        slots = checked_slots(slots, len(self._resets), self.spec)
        with self._lock:
            numbers = self._resets[slots]
            self._resets[slots] += 1
        return self.begin(slots, numbers)

    def begin(self, slots: NDArray, numbers: NDArray) -> Tree:
        """Starts new episodes in `[n]` slots; `numbers`, uint32 `[n]`, are the numbers with which `start` is called."""
        slots = checked_slots(slots, len(self._resets), self.spec)
        with self._lock:
            fresh = _start(self._env, self._seed + slots, np.asarray(numbers, np.uint32))
            self._slots = _placed(self._slots, slots, fresh)
        return jax.tree.map(np.asarray, fresh.observation)

    def step(self, slots: NDArray, action: NDArray) -> Step:
        """Steps `[n]` slots; see `VectorEnv.step`."""
        slots = checked_slots(slots, len(self._resets), self.spec)
        count = len(slots)
        # The batch is padded to a power of two, so that few shapes are compiled. The padding names a slot beyond the
        # last one, so it changes no slot.
        padding = (0, (1 << (count - 1).bit_length()) - count)
        where = np.pad(slots, padding, constant_values=len(self._resets))
        actions = np.pad(np.asarray(action), [padding, *[(0, 0)] * (np.ndim(action) - 1)])
        with self._lock:
            self._slots, results = _advance(self._env, self._slots, where, actions)
        return Step(*jax.tree.map(lambda x: np.asarray(x)[:count], results))

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


@functools.partial(jax.jit, static_argnums=0)
def _start(env: JaxEnvironment, seeds: Any, numbers: Any) -> Slot:
    return jax.vmap(functools.partial(start, env))(seeds, numbers)


@functools.partial(jax.jit, donate_argnums=0)
def _placed(slots: Slot, where: Any, fresh: Slot) -> Slot:
    placed: Slot = jax.tree.map(lambda kept, new: kept.at[where].set(new), slots, fresh)
    return placed


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _advance(env: JaxEnvironment, slots: Slot, where: Any, action: Any) -> tuple[Slot, Any]:
    own = jax.tree.map(lambda x: jnp.take(x, where, axis=0, mode="clip"), slots)
    after, stepped = jax.vmap(functools.partial(advance, env))(own, action)
    kept = jax.tree.map(lambda x, new: x.at[where].set(new, mode="drop"), slots, after)
    truncated = stepped.finished & ~stepped.terminated
    return kept, (after.observation, stepped.reward, stepped.terminated, truncated)
