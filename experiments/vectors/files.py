"""The file of the reference vectors: arrays in the safetensors format, and an index of cases in its metadata."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import numpy as safetensors
from safetensors import safe_open

import stellaris
from experiments.vectors.recording import Case
from stellaris.types import NDArray

#: It ships with the package, so that an installed library can be compared with another implementation.
PATH = Path(stellaris.__file__).parent / "vectors.safetensors"
#: The parts of a case that are arrays.
ARRAYS = ("inputs", "outputs", "cotangents", "gradients")


def save(path: Path, vectors: Mapping[str, Iterable[Case]]) -> None:
    """Writes the cases of each function. Equal arrays are written once, under the name of the first."""
    names: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    arrays: dict[str, NDArray] = {}

    def named(array: NDArray, name: str) -> str:
        key = array.dtype.str, array.shape, array.tobytes()
        if key not in names:
            names[key] = name
            arrays[name] = array
        return names[key]

    index = {
        function: [
            {
                "about": case.about,
                "settings": case.settings,
                **{
                    part: {key: named(x, f"{function}.{number}.{part}.{key}") for key, x in getattr(case, part).items()}
                    for part in ARRAYS
                },
            }
            for number, case in enumerate(cases)
        ]
        for function, cases in vectors.items()
    }
    # One entry, because safetensors writes several in an order that differs from call to call.
    metadata = {"index": json.dumps(index, allow_nan=False, separators=(",", ":"))}
    path.write_bytes(safetensors.save(arrays, metadata))


def load(path: Path) -> dict[str, list[Case]]:
    """Reads the cases of each function."""
    with safe_open(path, "np") as file:
        index: dict[str, list[dict[str, Any]]] = json.loads(file.metadata()["index"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return {function: [_case(row, arrays) for row in rows] for function, rows in index.items()}


def _case(row: Mapping[str, Any], arrays: Mapping[str, NDArray]) -> Case:
    parts = {part: {key: arrays[name] for key, name in row[part].items()} for part in ARRAYS}
    assert {*row} == {field.name for field in dataclasses.fields(Case)}
    return Case(about=row["about"], settings=row["settings"], **parts)
