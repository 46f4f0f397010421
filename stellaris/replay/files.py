"""Tables on disk: a folder with one safetensors file per shard, and a manifest that describes them.

A save writes new files and then replaces the manifest atomically, so a reader finds either the complete old save or the
complete new one, even if the writer is killed. Reading during a save is safe as well: the files of the previous save
stay until the next save begins, and a reader opens all files first and starts again if the manifest changed meanwhile.
A second writer to the same folder is refused.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from stellaris._core import checks
from stellaris._core.extras import needs
from stellaris.replay import table as tables
from stellaris.replay import weight_tree
from stellaris.replay.memory import Memory
from stellaris.replay.sharded import Shards
from stellaris.replay.table import Spec, Table
from stellaris.runtime.files import atomic_path, sync
from stellaris.types import NDArray

FORMAT = 1
_MANIFEST = "manifest.json"
#: A manifest's draft, left behind by a killed process.
_DRAFT = re.compile(rf"\.[0-9a-f]{{12}}\.{re.escape(_MANIFEST)}")
_SHARD = re.compile(r"([0-9]{6,})\.shard-[0-9]{5,}-of-[0-9]{5,}\.safetensors")
#: The largest size of an axis: JAX's indices are int32.
_MOST = 2**31 - 1
#: The metadata of each trajectory, apart from its columns.
_KNOWN = ("length", "weight", "version", "number")


class _Saved(NamedTuple):
    """The contents of a manifest."""

    spec: dict[str, jax.ShapeDtypeStruct]
    capacity: int  #: most trajectories, summed over shards.
    length: int  #: the most steps of a trajectory.
    shards: "list[_Shard]"

    @property
    def arrays(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The arrays of each file by name, with the shape and dtype of one trajectory."""
        columns = {_column(name): _kind((self.length, *one.shape), one.dtype) for name, one in self.spec.items()}
        return columns | {name: _kind((), "float32" if name == "weight" else "int32") for name in _KNOWN}


class _Shard(NamedTuple):
    """The manifest's record of one file."""

    path: Path
    bytes: int
    trajectories: int
    inserted: int
    faults: int
    sha256: Mapping[str, str]  #: hash of each array, by name.


def save(table: Table, folder: str | os.PathLike[str]) -> None:
    """Writes a table to a folder. An earlier save there is replaced once the new one is complete on disk.

    The disk needs room for two saves: the files of the previous one are removed when the next save begins.

    Args:
      table: one table or a sharded one. Only rows that hold a trajectory are written.
      folder: a folder for this table alone; created if it is missing.

    Raises:
      ImportError: without safetensors.
      ValueError: if other processes hold shards of the table.
      OSError: if writing fails, or another save is writing to the folder. The previous save stays.

    Example:
      >>> import jax, jax.numpy as jnp, tempfile
      >>> from stellaris.replay import init, insert
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3)
      >>> table = insert(table, {"reward": jnp.ones((2, 3))})
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save(table, folder)
      ...     load(folder).weight.tolist()
      [1.0, 1.0, 0.0, 0.0]
    """
    _safetensors()
    if not table.length.is_fully_addressable:
        raise ValueError("table has shards in other processes: save it from a process that holds all of them")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        before = _named_files(folder)
        _remove_others(folder, before)
        taken = [int(match[1]) for path in folder.iterdir() if (match := _SHARD.fullmatch(path.name))]
        try:
            _write(table, folder, 1 + max(taken, default=0))
        finally:
            if (now := _named_files(folder)) is not None:
                _remove_others(folder, now | (before or set()))


def load(
    folder: str | os.PathLike[str],
    *,
    over: Shards | None = None,
    spec: Spec | None = None,
    capacity: int | None = None,
    memory: Memory = "device",
) -> Table:
    """Reads a table into any number of shards.

    With the saved number of shards and capacity, the table is restored exactly. Otherwise the trajectories are dealt
    to the shards in turn, in the order of insertion; among equal insertion numbers the saved shards' order
    decides. Each shard then numbers its trajectories from 0.

    Args:
      folder: a folder that `save` has written.
      over: the placement of the shards; None for one table on the default device.
      spec: the columns that the table must have; None for any.
      capacity: the most trajectories, summed over shards; the saved capacity by default.
      memory: `"device"`, or `"pinned_host"` for columns in host memory: see `init`.

    Returns:
      The table.

    Raises:
      FileNotFoundError: if the manifest is missing.
      ImportError: without safetensors.
      ValueError: if a file is damaged or differs from the manifest or `spec`; the message names the file, the column or
        field, and the expected value. Also if `capacity` is below 1 or below the number of saved trajectories, or
        cannot be split evenly over the devices, if the table is too large for memory, or if `memory` is unknown.

    Example:
      >>> import jax, jax.numpy as jnp, tempfile
      >>> from stellaris.replay import init, insert
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save(insert(table, {"reward": jnp.ones((2, 3))}), folder)
      ...     load(folder, over=Shards(jax.make_mesh((1,), ("data",)))).weight.tolist()
      [[1.0, 1.0, 0.0, 0.0]]
    """
    _safetensors()
    tables.check_memory(memory)
    if capacity is not None:
        checks.whole(at_least=1, capacity=capacity)
    path = Path(folder) / _MANIFEST
    while True:
        content = _content(path)
        try:
            saved = _parsed(path, content)
            _check_spec(path, saved.spec, spec)
            with contextlib.ExitStack() as stack:
                opened = [stack.enter_context(_opened(shard)) for shard in saved.shards]
                return _assembled(path, saved, opened, capacity, over, memory)
        except ValueError:
            # A save that ended meanwhile may have removed the files. The error is raised only if the manifest is
            # unchanged; otherwise the new save is read.
            if _content(path) == content:
                raise


def _assembled(
    path: Path, saved: _Saved, opened: list[Any], capacity: int | None, over: Shards | None, memory: Memory
) -> Table:
    """Builds the table on the devices from the opened files."""
    capacity = saved.capacity if capacity is None else capacity
    parts = 1 if over is None else over.number
    held = sum(shard.trajectories for shard in saved.shards)
    if capacity < held:
        raise ValueError(
            f"capacity={capacity}: the table in {path.parent} holds {held} trajectories; choose at least {held}"
        )
    if capacity % parts:
        raise ValueError(
            f"capacity={capacity} cannot be split evenly over {parts} devices; choose a multiple of {parts}"
        )
    same = parts == len(saved.shards) and capacity == saved.capacity

    def arrays(name: str) -> list[NDArray]:
        """Reads and checks an array from each file."""
        found = []
        for shard, file in zip(saved.shards, opened, strict=True):
            found.append(_read(shard, file, name, saved.arrays[name]))
            limits = {"length": saved.length, "weight": tables.LARGEST_WEIGHT, "number": shard.inserted - 1}
            if name in limits:
                _check_numbers(shard, name, found[-1], limits[name])
        return found

    numbers = arrays("number")
    dealt = _in_place(numbers) if same else _in_order(numbers, parts)

    def rows(name: str, empty: int = 0) -> list[NDArray]:
        """The rows of an array for each shard of the new table."""
        found = np.concatenate(arrays(name))
        try:
            return [_padded(found[row], capacity // parts, empty) for row in dealt]
        except (MemoryError, ValueError) as error:  # NumPy raises ValueError beyond the address space
            raise ValueError(
                f"{path}: {_named(name)} of capacity={capacity} and length={saved.length} is too large for this "
                "machine's memory"
            ) from error

    place = functools.partial(_placed, over=over)
    columns = {name: place(rows(_column(name)), memory=memory) for name in saved.spec}
    number = rows("number", empty=-1)
    inserted = [np.array(shard.inserted, np.int32) for shard in saved.shards]
    faults = [np.array(shard.faults, np.int32) for shard in saved.shards]
    if not same:
        number = [_padded(np.arange(len(row), dtype=np.int32), capacity // parts, -1) for row in dealt]
        inserted = [np.array(len(row), np.int32) for row in dealt]
        faults = [np.array(np.bitwise_or.reduce(faults))] * parts
    trees = [weight_tree.build(jnp.asarray(weight)) for weight in rows("weight")]
    return Table(
        columns=columns,
        length=place(rows("length")),
        weights=tuple(place([np.asarray(level) for level in levels]) for levels in zip(*trees, strict=True)),
        version=place(rows("version")),
        number=place(number),
        inserted=place(inserted),
        faults=place(faults),
    )


def _in_place(numbers: list[NDArray]) -> list[NDArray]:
    """The indices of each shard's trajectories, counted through all files, as they were saved."""
    ends = np.cumsum([len(number) for number in numbers])
    return np.split(np.arange(ends[-1]), ends[:-1])


def _in_order(numbers: list[NDArray], parts: int) -> list[NDArray]:
    """The indices of each shard's trajectories, counted through all files, dealt round-robin by insertion order."""
    order = np.argsort(np.concatenate(numbers), kind="stable")
    return [order[i::parts] for i in range(parts)]


def _padded(array: NDArray, capacity: int, empty: int) -> NDArray:
    """An array padded with empty rows to the capacity."""
    whole = np.full((capacity, *array.shape[1:]), empty, array.dtype)
    whole[: len(array)] = array
    return whole


def _placed(parts: list[NDArray], over: Shards | None, memory: Memory = "device") -> jax.Array:
    """Puts each shard's array on its device, or into host memory without a detour through the smaller device memory."""
    if over is None and memory == "device":
        return jnp.asarray(parts[0])
    if over is None:
        kept: jax.Array = jax.device_put(parts[0], SingleDeviceSharding(jax.local_devices()[0], memory_kind=memory))
        return kept

    def part(index: Any) -> NDArray:
        return np.stack(parts[index[0]])

    return jax.make_array_from_callback((len(parts), *parts[0].shape), over.of_columns(memory), part)


def _write(table: Table, folder: Path, number: int) -> None:
    """Writes the files of a save, then the manifest that names them."""
    shards = list(_shards(table))
    records = []
    for i, shard in enumerate(shards):
        path = folder / f"{number:06d}.shard-{i:05d}-of-{len(shards):05d}.safetensors"
        records.append({"file": path.name, **_write_shard(shard(), path)})
    spec = {name: column.shape[table.length.ndim + 1 :] for name, column in table.columns.items()}
    manifest = {
        "format": FORMAT,
        "capacity": table.capacity * len(shards),
        "length": next(iter(table.columns.values())).shape[table.length.ndim],
        "columns": {name: {"shape": shape, "dtype": str(table.columns[name].dtype)} for name, shape in spec.items()},
        "shards": records,
    }
    sync(folder)  # so that after a crash no manifest names a file that the folder lacks
    with atomic_path(folder / _MANIFEST) as draft:
        draft.write_text(json.dumps({"sha256": _digest_of_manifest(manifest), "manifest": manifest}, indent=1) + "\n")
        sync(draft)
    sync(folder)


def _write_shard(table: Table, path: Path) -> dict[str, Any]:
    """Writes one file and returns its record for the manifest."""
    held = int(table.size)
    known = {"length": table.length, "weight": table.weight, "version": table.version, "number": table.number}
    columns = {_column(name): column for name, column in table.columns.items()}
    arrays = {name: np.ascontiguousarray(array[:held]) for name, array in (columns | known).items()}
    _safetensors().numpy.save_file({name: _storable(array) for name, array in arrays.items()}, path)
    sync(path)
    return {
        "bytes": path.stat().st_size,
        "trajectories": held,
        "inserted": int(table.inserted),
        "faults": int(table.faults),
        "sha256": {name: _digest(array) for name, array in arrays.items()},
    }


def _shards(table: Table) -> Iterator[Callable[[], Table]]:
    """Yields for each shard a function that copies it to host memory, which may be too small for all shards."""
    if table.length.ndim == 1:
        yield lambda: jax.tree.map(np.asarray, table)
        return
    for i in range(len(table.length)):
        yield functools.partial(jax.tree.map, functools.partial(_of_shard, i), table)


def _of_shard(i: int, leaf: jax.Array) -> NDArray:
    """Copies shard `i` of an array from the device that holds it, without a gather on any other device."""
    for part in leaf.addressable_shards:
        first, last, _ = part.index[0].indices(leaf.shape[0])
        if first <= i < last:
            shard: NDArray = np.asarray(part.data)[i - first]
            return shard
    raise AssertionError(f"no device has shard {i}")


def _content(path: Path) -> bytes:
    """The bytes of a manifest."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: missing; expected the manifest that `save` writes") from error


def _parsed(path: Path, content: bytes) -> _Saved:
    """Parses and checks a manifest. Its hash detects damage; it does not authenticate the writer."""
    try:
        whole = json.loads(content)
        manifest = whole["manifest"]
        if whole["sha256"] != _digest_of_manifest(manifest):
            raise ValueError("its SHA-256 does not match")
        version = manifest["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: damaged ({error}); expected the manifest that `save` writes") from error
    if version != FORMAT:
        raise ValueError(f"{path}: format {version}; this stellaris reads format {FORMAT}")

    def field(record: dict[str, Any], name: str, where: str, valid: Callable[[Any], bool], expected: str) -> Any:
        value = record.get(name)
        if not valid(value):
            raise ValueError(f"{path}: {name}{where} is {reprlib.repr(value)}: expected {expected}")
        return value

    def whole_number(record: dict[str, Any], name: str, least: int, most: int, where: str = "") -> int:
        in_range = f"a whole number from {least} to {most}"
        number: int = field(record, name, where, lambda x: type(x) is int and least <= x <= most, in_range)
        return number

    def records(name: str, kind: type) -> Any:
        """A list or dict of records."""

        def valid(x: Any) -> bool:
            inner = x.values() if isinstance(x, dict) else x
            return isinstance(x, kind) and bool(x) and all(isinstance(one, dict) for one in inner)

        return field(manifest, name, "", valid, f"a {kind.__name__} of records")

    columns = records("columns", dict)
    spec = {}
    for name, one in columns.items():
        where = f" of column {name!r}"
        shape = field(one, "shape", where, _is_shape, "a list of whole numbers")
        spec[name] = _kind(shape, field(one, "dtype", where, _is_dtype, "the name of a type of numbers"))
    listed = records("shards", list)
    capacity = whole_number(manifest, "capacity", 1, len(listed) * tables.LARGEST_CAPACITY)
    saved = _Saved(spec, capacity, whole_number(manifest, "length", 1, _MOST), [])
    names = {*saved.arrays}
    for i, one in enumerate(listed):
        where = f" of shard {i}"
        ends = f".shard-{i:05d}-of-{len(listed):05d}.safetensors"
        held = whole_number(one, "trajectories", 0, capacity // len(listed), where)
        saved.shards.append(
            _Shard(
                # Only names that `save` makes are accepted, so that the path cannot leave the folder.
                path.parent / field(one, "file", where, functools.partial(_is_name, ends=ends), f"a name *{ends}"),
                whole_number(one, "bytes", 0, 2**63 - 1, where),
                held,
                whole_number(one, "inserted", held, _MOST, where),
                whole_number(one, "faults", 0, 2 ** len(tables.FAULTS) - 1, where),
                field(one, "sha256", where, lambda x: isinstance(x, dict) and names <= {*x}, "a hash per array"),
            )
        )
    return saved


def _is_shape(x: Any) -> bool:
    return isinstance(x, list) and all(type(n) is int and 0 <= n <= _MOST for n in x)


def _is_dtype(x: Any) -> bool:
    try:
        dtype = jnp.dtype(x if isinstance(x, str) else "")
    except (TypeError, ValueError, SyntaxError):
        return False
    return (
        x == str(dtype) and dtype.isnative and bool(jnp.issubdtype(dtype, np.bool_) or jnp.issubdtype(dtype, np.number))
    )


def _is_name(x: Any, ends: str) -> bool:
    return isinstance(x, str) and _SHARD.fullmatch(x) is not None and x.endswith(ends)


def _check_spec(path: Path, saved: Spec, expected: Spec | None) -> None:
    """Raises unless a table can have the saved columns and they equal the expected ones."""
    try:
        tables.check_spec(saved)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if expected is None:
        return
    for name in [*expected, *saved]:
        if name not in saved:
            raise ValueError(f"{path}: column {name!r} is missing: expected {_shown(expected[name])}")
        if name not in expected:
            raise ValueError(f"{path}: column {name!r} is {_shown(saved[name])}: expected no such column")
        if _shown(saved[name]) != _shown(expected[name]):
            raise ValueError(f"{path}: column {name!r} is {_shown(saved[name])}: expected {_shown(expected[name])}")


def _opened(shard: _Shard) -> Any:
    """Opens a file; it stays readable even if a later save removes it."""
    path = shard.path
    try:
        if (size := path.stat().st_size) != shard.bytes:
            raise ValueError(f"{path}: has {size} bytes: expected {shard.bytes}, as the manifest says")
        return _safetensors().safe_open(path, framework="numpy")
    except FileNotFoundError as error:
        raise ValueError(f"{path}: missing; expected a file of {shard.bytes} bytes") from error
    except _safetensors().SafetensorError as error:
        raise ValueError(f"{path}: damaged ({error}); expected a file that `save` writes") from error


def _read(shard: _Shard, file: Any, name: str, each: jax.ShapeDtypeStruct) -> NDArray:
    """Reads an array of an open file and checks it against the manifest."""
    expected = _kind((shard.trajectories, *each.shape), each.dtype)
    what = f"{shard.path}: {_named(name)}"
    stored = _kind(expected.shape, _stored(expected.dtype))
    try:
        if name not in file.keys():  # noqa: SIM118 (safetensors' file does not support `in`)
            raise ValueError(f"{what} is missing: expected {_shown(expected)}")
        array: NDArray = file.get_tensor(name)
    except _safetensors().SafetensorError as error:
        raise ValueError(f"{what} cannot be read ({error}): expected {_shown(expected)}") from error
    if (array.shape, array.dtype) != (stored.shape, stored.dtype):
        raise ValueError(f"{what} is {_shown(array)}: expected {_shown(stored)}")
    if _digest(array) != shard.sha256[name]:
        raise ValueError(f"{what} is damaged: its SHA-256 is {_digest(array)}, expected {shard.sha256[name]}")
    return array.view(expected.dtype)


def _check_numbers(shard: _Shard, name: str, found: NDArray, most: float) -> None:
    """Raises unless all values of a metadata array lie in [0, most]."""
    if (others := found[~((found >= 0) & (found <= most))]).size:
        raise ValueError(f"{shard.path}: {_named(name)} has {others[0]}: expected 0 to {most}")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds an exclusive lock on a folder, so that a second save is refused."""
    import fcntl  # imported here because Windows lacks it: tables work there, but cannot be saved

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{folder}: another save is writing there; wait for it, or name another folder") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)


def _named_files(folder: Path) -> set[str] | None:
    """The files that the manifest names; None if it is damaged, because someone may still repair it."""
    try:
        return {shard.path.name for shard in _parsed(folder / _MANIFEST, _content(folder / _MANIFEST)).shards}
    except FileNotFoundError:
        return set()
    except ValueError:
        return None


def _remove_others(folder: Path, kept: set[str] | None) -> None:
    """Removes files of other saves, which were replaced or never completed; nothing if `kept` is None."""
    if kept is None:
        return
    for path in folder.iterdir():
        if _DRAFT.fullmatch(path.name) or (_SHARD.fullmatch(path.name) and path.name not in kept):
            with contextlib.suppress(OSError):  # a leftover file does no harm
                path.unlink()


def _kind(shape: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype))  # type: ignore[no-untyped-call]


def _column(name: str) -> str:
    """A column's name in a file."""
    return f"column/{name}"


def _named(name: str) -> str:
    """An array's name in error messages."""
    return f"column {name.removeprefix('column/')!r}" if name.startswith("column/") else f"the {name} of trajectories"


def _shown(one: Any) -> str:
    return f"{jnp.dtype(one.dtype)} {list(one.shape)}"


def _storable(array: NDArray) -> NDArray:
    """A view that safetensors can store: dtypes that NumPy itself lacks, such as bfloat16, become unsigned integers."""
    return array.view(_stored(array.dtype))


def _stored(dtype: Any) -> Any:
    """The dtype in which `_storable` stores `dtype`."""
    # NumPy marks its dtypes by 1. The kind of float8_e5m2 is "f", too.
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


def _digest(array: NDArray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).data).hexdigest()


def _digest_of_manifest(manifest: Any) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _safetensors() -> Any:
    """Imports safetensors, or raises an ImportError that names the extra to install."""
    with needs("a saved table"):
        import safetensors.numpy
    return safetensors
