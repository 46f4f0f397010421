"""Writes the reference vectors anew."""

import argparse
from pathlib import Path

from experiments.vectors import files
from experiments.vectors.entries import ENTRIES
from experiments.vectors.recording import cases

DESCRIPTION = "reference vectors of the pure functions: inputs, values and gradients, in one file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the option."""
    parser.add_argument("--out", type=Path, default=files.PATH, help="the file to write (default: the committed one)")


def main(arguments: argparse.Namespace) -> int:
    """Computes all cases and writes the file."""
    vectors = {name: [*cases(entry)] for name, entry in ENTRIES.items()}
    files.save(arguments.out, vectors)
    print(f"{sum(map(len, vectors.values()))} cases of {len(vectors)} functions: {arguments.out}")
    return 0
