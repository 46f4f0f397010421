"""The rows of CSV files, as tests read them."""

import csv


def rows(path):
    """Each row as a dict of texts."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
