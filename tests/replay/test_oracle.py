"""Random sequences of operations on a table, and on one of plain loops over NumPy, which must agree after each."""

import jax
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from stellaris.replay import Window, gather, init, insert, random_steps, reweigh, select, update_weights, write
from stellaris.replay.table import BAD_INDEX, BAD_LENGTH, BAD_WEIGHT, EMPTY, TOO_FEW
from stellaris.replay.weight_tree import FANOUT
from tests.replay.by_hand import window_of

CAPACITY = 40  # so that the sums have two levels
LENGTH = 4
COUNT = 3
SPEC = {"done": ((), "bool"), "frame": ((2,), "uint8"), "reward": ((), "float32"), "token": ((), "int32")}
WINDOWS = {
    "all": Window("reward", LENGTH, value=-7.0),
    "before": Window("token", 3, offset=-3, pad="head", value=-7),
    "around": Window("frame", 3, offset=-1, pad="tail", value=7),
    "beyond": Window("done", 2, offset=LENGTH - 1, pad="head", value=True),
    "to go": Window("reward", 2, offset=-1, pad="head", value=-7.0, return_to_go=0.5),
}

#: Few different ones, so that ties are common; all sums of these are exact.
weight = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 64.0])
weight_or_bad = st.one_of(weight, weight, weight, st.sampled_from([-1.0, np.nan, np.inf, 1e31]))
length = st.integers(-1, LENGTH + 1)
seed = st.integers(0, 2**31 - 1)


def some(values, count):
    return st.lists(values, min_size=count, max_size=count)


class Oracle:
    def __init__(self, spec):
        self.empty = {name: np.zeros((LENGTH, *shape), dtype) for name, (shape, dtype) in spec.items()}
        self.rows = [None] * CAPACITY
        self.inserted = 0
        self.faults = 0

    def sound(self, weight):
        if 0.0 <= weight <= 1e30:
            return weight
        self.faults |= BAD_WEIGHT
        return 0.0

    def place(self, removal, taken):
        """Where the next trajectory of a batch goes, of which some rows are taken already."""
        if removal == "oldest":
            return self.inserted % CAPACITY
        free = [i for i in range(CAPACITY) if i not in taken]
        return min(free, key=lambda i: -1.0 if self.rows[i] is None else self.rows[i]["weight"])

    def insert(self, columns, lengths, weights, versions, removal):
        taken = []
        steps = columns["reward"].shape[1]
        for i, length in enumerate(lengths):
            taken.append(self.place(removal, taken))
            kept = {name: zeros.copy() for name, zeros in self.empty.items()}
            for step in range(min(max(length, 0), steps)):
                for name, column in columns.items():
                    kept[name][step] = column[i, step]
            fits = 1 <= length <= steps
            if not fits:
                self.faults |= BAD_LENGTH
            self.rows[taken[-1]] = {
                "columns": kept,
                "length": min(max(length, 0), steps),
                "weight": self.sound(weights[i]) if fits else 0.0,
                "version": versions[i],
                "number": self.inserted,
            }
            self.inserted += 1

    def write(self, index, columns, lengths, weights, versions):
        """Writes trajectories to rows, or columns of them; None for what stays. The last of equal rows counts."""
        steps = next(iter(columns.values())).shape[1]
        for i, row in enumerate(index):
            held = self.rows[row] if 0 <= row < CAPACITY else None
            if held is None:
                self.faults |= BAD_INDEX
                continue
            length = held["length"] if lengths is None else lengths[i]
            if not (0 if lengths is None else 1) <= length <= steps:
                self.faults |= BAD_LENGTH
                continue
            for name, column in columns.items():
                held["columns"][name] = self.empty[name].copy()
                held["columns"][name][:length] = column[i, :length]
            held["length"] = length
            if weights is not None:
                held["weight"] = self.sound(weights[i])
            if versions is not None:
                held["version"] = versions[i]

    def update_weights(self, index, weights):
        for i, weight in zip(index, weights, strict=True):
            if 0 <= i < CAPACITY and self.rows[i] is not None:
                self.rows[i]["weight"] = self.sound(weight)
            else:
                self.faults |= BAD_INDEX

    def reweigh(self, weights):
        for row, weight in zip(self.rows, weights, strict=True):
            if row is not None:
                row["weight"] = self.sound(weight)

    def weights(self):
        return [0.0 if row is None else row["weight"] for row in self.rows]


class Machine(RuleBasedStateMachine):
    """The table and the oracle side by side."""

    spec = SPEC

    @initialize(removal=st.sampled_from(["oldest", "lowest"]))
    def start(self, removal):
        self.removal = removal
        spec = {name: jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for name, (shape, dtype) in self.spec.items()}
        self.table = init(spec, capacity=CAPACITY, length=LENGTH)
        self.oracle = Oracle(self.spec)

    @rule(
        size=st.sampled_from([(1, LENGTH), (13, 2), (CAPACITY, LENGTH)]),
        drawn=some(st.tuples(length, weight_or_bad, st.integers(0, 9)), 4),
        seed=seed,
    )
    def insert(self, size, drawn, seed):
        batch, steps = size
        random = np.random.default_rng(seed)
        columns = {
            name: random.integers(0, 200, (batch, steps, *shape)).astype(dtype)
            for name, (shape, dtype) in self.spec.items()
        }
        lengths, weights, versions = map(list, zip(*(drawn[i % 4] for i in range(batch)), strict=True))
        self.oracle.insert(columns, lengths, weights, versions, self.removal)
        self.table = insert(
            self.table,
            columns,
            length=np.array(lengths),
            weight=np.array(weights, np.float32),
            version=np.array(versions),
            removal=self.removal,
        )

    @rule(
        steps=st.sampled_from([LENGTH, 2]),
        written=some(st.tuples(st.integers(-2, CAPACITY + 2), length, weight_or_bad, st.integers(0, 9)), 5),
        kept=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        names=st.sets(st.sampled_from(sorted(SPEC)), min_size=1),
        seed=seed,
    )
    def write(self, steps, written, kept, names, seed):
        index, *given = map(list, zip(*written, strict=True))
        lengths, weights, versions = (None if stays else values for stays, values in zip(kept, given, strict=True))
        random = np.random.default_rng(seed)
        columns = {
            name: random.integers(0, 200, (len(index), steps, *shape)).astype(dtype)
            for name, (shape, dtype) in self.spec.items()
            if lengths is not None or name in names
        }
        self.oracle.write(index, columns, lengths, weights, versions)
        self.table = write(
            self.table,
            np.array(index),
            columns,
            length=None if lengths is None else np.array(lengths),
            weight=None if weights is None else np.array(weights, np.float32),
            version=None if versions is None else np.array(versions),
        )

    @rule(changes=some(st.tuples(st.integers(-2, CAPACITY + 2), weight_or_bad), 6))
    def change_weights(self, changes):
        index, weights = zip(*changes, strict=True)
        self.oracle.update_weights(index, weights)
        self.table = update_weights(self.table, np.array(index), np.array(weights, np.float32))

    @rule(weights=some(weight_or_bad, 5))
    def change_all_weights(self, weights):
        weights = (weights * CAPACITY)[:CAPACITY]
        self.oracle.reweigh(weights)
        self.table = reweigh(self.table, np.array(weights, np.float32))

    @invariant()
    def tables_are_equal(self):
        assert jax.tree.map(lambda x: x.dtype, self.table.columns) == {
            k: np.dtype(d) for k, (_, d) in self.spec.items()
        }
        nothing = {"columns": self.oracle.empty, "length": 0, "weight": 0.0, "version": 0, "number": -1}
        rows = [nothing if row is None else row for row in self.oracle.rows]
        for name in self.spec:
            np.testing.assert_array_equal(self.table.columns[name], [row["columns"][name] for row in rows])
        for name in ("length", "weight", "version", "number"):
            assert getattr(self.table, name).tolist() == [row[name] for row in rows], name
        sums = [sum(self.oracle.weights()[i : i + FANOUT]) for i in range(0, FANOUT**2, FANOUT)]
        assert self.table.weights[1].tolist() == sums
        assert int(self.table.faults) == self.oracle.faults
        assert int(self.table.size) == min(self.oracle.inserted, CAPACITY)

    def selected(self, by, replace, seed):
        """A selection, after looking at all that is said of it."""
        selection = select(self.table, jax.random.key(seed), COUNT, by=by, replace=replace)
        rows = selection.row.tolist()
        weights = self.oracle.weights()
        if by == "uniform":
            weights = [float(row is not None) for row in self.oracle.rows]
        possible = [i for i in range(CAPACITY) if weights[i] > 0]
        expected = EMPTY if not possible else TOO_FEW if not replace and len(possible) < COUNT else 0
        assert int(selection.faults) == expected
        if expected == 0:
            assert {*rows} <= {*possible}
            chances = [1.0 if by == "top" else weights[i] / sum(weights) for i in rows]
            np.testing.assert_allclose(selection.probability, chances, rtol=1e-6)
            if not replace:
                assert len({*rows}) == COUNT
            if by == "top":
                assert rows == sorted(range(CAPACITY), key=lambda i: -weights[i])[:COUNT]
        return selection

    @rule(
        kind=st.sampled_from(
            [("uniform", True), ("uniform", False), ("weight", True), ("weight", False), ("top", False)]
        ),
        seed=seed,
        steps=st.one_of(st.none(), some(st.integers(-1, LENGTH), COUNT)),
    )
    def gather(self, kind, seed, steps):
        selection = self.selected(*kind, seed)
        lengths = [0 if row is None else row["length"] for row in self.oracle.rows]
        if steps is None:
            steps = random_steps(self.table, selection, jax.random.key(seed)).tolist()
            if int(selection.faults) == 0:
                assert all(0 <= step < max(lengths[row], 1) for step, row in zip(steps, selection.row, strict=True))
        batch = gather(self.table, selection, WINDOWS, step=np.array(steps))
        for i, step in enumerate(steps):
            row = {"columns": self.oracle.empty, "length": 0, "version": 0}  # of a fault
            if int(selection.faults) == 0:
                row = self.oracle.rows[int(selection.row[i])]
            assert (int(batch.length[i]), int(batch.version[i])) == (row["length"], row["version"])
            for name, window in WINDOWS.items():
                values, mask = window_of(row["columns"][window.column], row["length"], step, window)
                np.testing.assert_array_equal(batch.values[name][i], values)  # whole numbers and halves are exact
                assert batch.mask[name][i].tolist() == mask


class Wide(Machine):
    spec = {**SPEC, "state": ((3,), "float64")}  # noqa: RUF012


LIMITS = settings(max_examples=12, stateful_step_count=12, deadline=None, derandomize=True)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_tables_agree():
    """With all columns of 32 bits and fewer."""
    run_state_machine_as_test(Machine, settings=LIMITS)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_tables_agree_with_64_bits_enabled():
    with jax.enable_x64(True):
        run_state_machine_as_test(Wide, settings=LIMITS)
