"""Blocks of vectorised runs: compiled once per shape, and called with the swept numbers and plans of their runs."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from stellaris.acting.policies import Policy
from stellaris.lab.plan import Plan, plan_of
from stellaris.lab.program import Keys, Outcome, Program
from stellaris.lab.runs import Run, Static
from stellaris.systems.session import Keys as SessionKeys
from stellaris.types import NDArray, Tree


@dataclass
class Call:
    """A compiled block with its arguments; calling it returns the results of its runs by name."""

    program: Any
    arguments: tuple[Any, ...]
    runs: int  #: number of runs; the results of the padding are dropped.

    @property
    def nbytes(self) -> int:
        """The bytes of the program's arguments, results and temporary arrays."""
        memory = self.program.memory_analysis()
        return int(memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes)

    @property
    def names(self) -> set[str]:
        """The names of the results, which are known before the call."""
        tree = self.program.out_tree
        return {*_columns(jax.tree.unflatten(tree, [None] * tree.num_leaves))}

    def __call__(self) -> dict[str, NDArray]:
        columns = _columns(jax.device_get(self.program(*self.arguments)))
        return {name: np.asarray(column)[: self.runs] for name, column in columns.items()}


def _columns(outcome: Outcome) -> dict[str, Any]:
    """Returns the results of a block by name."""
    own = {"steps": outcome.steps, "episodes": outcome.episodes, "episode_return": outcome.episode_return}
    return {**own, **outcome.metrics}


class Programs:
    """Caches compiled programs, first parameters and plans, so that each is made once per sweep."""

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}
        self._params: dict[tuple[Policy, int], Tree] = {}
        self._plans: dict[str, Plan] = {}

    def prepare(self, members: Sequence[Run], rho: float, size: int) -> Call:
        """Returns the call of a block, and compiles its program unless a block of the same shape was compiled before.

        Args:
          members: the runs of the block, at most `size`.
          rho: truncation level, unless it is swept.
          size: number of runs of the program. It is rounded up to a multiple of the number of devices, and the last
            run is repeated as padding.
        """
        devices = jax.devices()
        size += -size % len(devices)  # so that every device has equally many runs
        padded = [*members, *[members[-1]] * (size - len(members))]
        shared, own = self._plan(padded)
        places = jnp.asarray(_places([run.seed for run in padded]))
        distinct = list({run.seed: run for run in padded}.values())
        keys = [SessionKeys.of(run.seed) for run in distinct]

        def spread(*leaves: jax.Array) -> jax.Array:
            # Thousands of runs share some tens of seeds: stacking one array per run would take longer than the runs.
            return jnp.stack(leaves)[places]

        stacked = {
            "numbers": {
                name: jnp.asarray([run.numbers[name] for run in padded], jnp.float32) for name in padded[0].numbers
            },
            "plan": own,
            "params": jax.tree.map(spread, *[self._first(run) for run in distinct]),
            "keys": Keys(
                spread(*[key.batches for key in keys]),
                spread(*[key.noise for key in keys]),
                jnp.asarray([run.seed for run in padded], jnp.int32),
            ),
        }
        mesh = jax.sharding.Mesh(np.array(devices), ("runs",))
        split = PartitionSpec("runs")  # type: ignore[no-untyped-call]
        stacked = jax.device_put(stacked, jax.NamedSharding(mesh, split))
        shared = jax.device_put(shared, jax.NamedSharding(mesh, PartitionSpec()))  # type: ignore[no-untyped-call]
        static = members[0].static
        key = static, len(padded), tuple(own), tuple(shared), jax.tree.structure(stacked), _shapes((stacked, shared))
        if key not in self._compiled:
            rho_fixed = None if "rho" in padded[0].numbers else rho
            run = functools.partial(_run_block, static, rho_fixed)
            self._compiled[key] = jax.jit(run).lower(shared, stacked).compile()
        return Call(self._compiled[key], (shared, stacked), len(members))

    def _first(self, run: Run) -> Tree:
        """The first parameters of a run."""
        # Runs are initialised one by one: a network that calls LAPACK, as flax's orthogonal initialiser does, may hang
        # on a CPU if the matrices of many runs are made at once.
        key = run.static.policy, run.seed
        if key not in self._params:
            params = jax.jit(Policy.init, static_argnums=0)(run.static.policy, SessionKeys.of(run.seed).params)
            self._params[key] = params
        return self._params[key]

    def _plan(self, members: Sequence[Run]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the plan columns that are equal in all runs, and the other columns, stacked over the runs."""
        plans = []
        for run in members:
            name = run.schedule.digest
            if name not in self._plans:
                self._plans[name] = plan_of(run.schedule, width=run.static.sizes.width)[1]
            plans.append(self._plans[name])
        shared, own = {}, {}
        for name in Plan._fields:
            columns = [getattr(plan, name) for plan in plans]
            if all(column is columns[0] or np.array_equal(column, columns[0]) for column in columns):
                shared[name] = columns[0]
            else:
                own[name] = np.stack(columns)
        return shared, own


def _places(seeds: Sequence[int]) -> list[int]:
    """Returns the place of each seed in the order in which seeds first occur."""
    place: dict[int, int] = {}
    return [place.setdefault(seed, len(place)) for seed in seeds]


def _shapes(tree: Tree) -> tuple[Any, ...]:
    return tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(tree))


def _run_block(static: Static, rho: float | None, shared: dict[str, Any], stacked: dict[str, Any]) -> Outcome:
    def one(own: dict[str, Any]) -> Outcome:
        numbers = own["numbers"]
        program = Program(
            static.environment,
            static.policy,
            _with(static.algorithm, "algorithm.", numbers),
            _with(static.aggregator, "aggregator.", numbers),
            numbers.get("rho", rho),
            static.length,
            static.pieces,
            static.sizes,
        )
        return program.run(Plan(**shared, **own["plan"]), own["params"], own["keys"])[1]

    return jax.vmap(one)(stacked)


def _with(settings: Any, prefix: str, numbers: Mapping[str, Any]) -> Any:
    """Sets the fields of `settings` to the traced numbers whose names are `prefix` and the field's name."""
    own = {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}
    return dataclasses.replace(settings, **own) if own else settings
