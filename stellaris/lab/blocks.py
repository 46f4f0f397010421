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

from stellaris._core.describe import digest
from stellaris.acting.policies import Policy
from stellaris.lab.plan import Plan, plan_of
from stellaris.lab.program import Keys, Outcome, Program
from stellaris.lab.runs import Run, Static
from stellaris.systems.progress import evaluation_seed
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
        return {*_columns(jax.tree.unflatten(tree, [0] * tree.num_leaves))}

    def __call__(self) -> dict[str, NDArray]:
        columns = _columns(jax.device_get(self.program(*self.arguments)))
        return {name: np.asarray(column)[: self.runs] for name, column in columns.items()}


def _columns(outcome: Outcome) -> dict[str, Any]:
    """Returns the results of a block by name."""
    own = {"steps": outcome.steps, "episodes": outcome.episodes, "episode_return": outcome.episode_return}
    if outcome.evaluation_return is not None:
        own["evaluation_return"] = outcome.evaluation_return
    return {**own, **outcome.metrics}


class Programs:
    """Caches first parameters and plans, so that each is made once per sweep; programs are kept over sweeps."""

    def __init__(self) -> None:
        self._digests: dict[Static, str] = {}
        self._params: dict[tuple[Policy, int], Tree] = {}
        self._plans: dict[str, Plan] = {}

    def prepare(self, members: Sequence[Run], rho: float, size: int) -> Call:
        """Returns the call of a block, and compiles its program unless one of the same shape is kept.

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
        places = np.asarray(_places([run.seed for run in padded]))
        distinct = list({run.seed: run for run in padded}.values())
        keys = [SessionKeys.of(run.seed) for run in distinct]

        # Thousands of runs share some tens of seeds: stacking one array per run would take longer than the runs. NumPy
        # stacks the parameters, because JAX would compile a program for the shape of every leaf.
        stacked = {
            "numbers": {
                name: jnp.asarray([run.numbers[name] for run in padded], jnp.float32) for name in padded[0].numbers
            },
            "plan": own,
            "params": jax.tree.map(lambda *of: np.stack(of)[places], *[self._first(run) for run in distinct]),
            "keys": Keys(
                jnp.stack([key.batches for key in keys])[places],
                jnp.stack([key.noise for key in keys])[places],
                jnp.asarray([run.seed for run in padded], jnp.int32),
                np.stack([self._evaluations(run) for run in distinct])[places],
            ),
        }
        mesh = jax.sharding.Mesh(np.array(devices), ("runs",))
        split = PartitionSpec("runs")  # type: ignore[no-untyped-call]
        stacked = jax.device_put(stacked, jax.NamedSharding(mesh, split))
        shared = jax.device_put(shared, jax.NamedSharding(mesh, PartitionSpec()))  # type: ignore[no-untyped-call]
        static = members[0].static
        if static not in self._digests:
            self._digests[static] = digest([static, static.code()])
        program = _program(static, self._digests[static], None if "rho" in padded[0].numbers else rho)
        # JAX itself keeps what it has lowered and compiled, by the shapes of the arguments and its own settings.
        return Call(program.lower(shared, stacked).compile(), (shared, stacked), len(members))

    def _first(self, run: Run) -> Tree:
        """The first parameters of a run."""
        # Runs are initialised one by one: a network that calls LAPACK, as flax's orthogonal initialiser does, may hang
        # on a CPU if the matrices of many runs are made at once.
        key = run.static.policy, run.seed
        if key not in self._params:
            params = jax.jit(Policy.init, static_argnums=0)(run.static.policy, SessionKeys.of(run.seed).params)
            self._params[key] = jax.device_get(params)
        return self._params[key]

    def _evaluations(self, run: Run) -> NDArray:
        """Returns the seeds of a run's evaluations, as in `train`."""
        evaluation, updates = run.static.evaluation, run.schedule.updates
        numbers = [] if evaluation is None else range(evaluation.every, updates + 1, evaluation.every)
        return np.array([evaluation_seed(run.seed, number) for number in numbers], np.int32)

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


@functools.lru_cache(maxsize=32)
def _program(static: Static, content: str, rho: float | None) -> Any:
    """Returns the function of a block, not compiled yet.

    It is kept over sweeps, because a sweep with other numbers, seeds or lags often has the same program, and compiling
    it takes 5 to 20 s. `content` is a digest of the parts and their code: an environment is the same object after one
    of its attributes has changed, and a class is the same after an edit of a function that it calls.
    """
    del content
    return jax.jit(functools.partial(_run_block, static, rho))


def _places(seeds: Sequence[int]) -> list[int]:
    """Returns the place of each seed in the order in which seeds first occur."""
    place: dict[int, int] = {}
    return [place.setdefault(seed, len(place)) for seed in seeds]


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
            static.evaluation,
        )
        return program.run(Plan(**shared, **own["plan"]), own["params"], own["keys"])[1]

    return jax.vmap(one)(stacked)


def _with(settings: Any, prefix: str, numbers: Mapping[str, Any]) -> Any:
    """Sets the fields of `settings` to the traced numbers whose names are `prefix` and the field's name."""
    own = {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}
    return dataclasses.replace(settings, **own) if own else settings
