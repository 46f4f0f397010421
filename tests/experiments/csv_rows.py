"""The rows of CSV files, as tests read them."""

import csv
import gzip


def rows(path):
    """Each row as a dict of texts; a file may be compressed."""
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        return list(csv.DictReader(file))
