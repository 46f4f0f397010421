"""The documentation's tables have the numbers of the committed results."""

import re
from pathlib import Path

from experiments.report import command
from tests.experiments.csv_rows import rows

ROOT = Path(command.__file__).parents[2]
SMALL = ROOT / "experiments" / "results" / "small"
PAGE = (ROOT / "docs" / "results.md").read_text()


def to_the_cent(text):
    """Rounds all numbers of a text to two decimals."""
    return re.sub(r"[\d,]+\.?\d*", lambda number: f"{float(number[0].replace(',', '')):.2f}", text)


def middle(text):
    return to_the_cent(text).split(" ")[0]


def test_the_way_from_the_baseline_to_the_demo():
    table = rows(SMALL / "stellaris-why" / "table.csv")
    assert len(table) == 18
    for row in table:
        name = row["with"].removesuffix(", 0 s")
        if name == "baseline":
            continue
        returns = ("return, equal time", "mean until then", "by evaluation", "equal steps")
        ratios = [to_the_cent(row[column]) for column in ("/ row before", *returns)]
        cells = [name, *ratios, middle(row["virtual time"]), middle(row["by use"])]
        assert f"| {' | '.join(cells)} |" in PAGE, row
    readme = (ROOT / "README.md").read_text()
    of = {row["with"]: to_the_cent(row["return, equal time"]).replace(" (", " times (") for row in table}
    assert f"reaches {of['no waiting']} its baseline's return at equal time" in readme
    assert f"with four times as many reaches {of['4 x gradients']} its own" in readme


def test_the_overhead_of_the_demos_rounds():
    table = rows(SMALL / "stellaris-demo-sweeps" / "table.csv")
    assert [row["testbed"] for row in table] == [f"overhead {seconds}" for seconds in (0, 1, 5, 10)]
    for row in table:
        seconds, bills = row["testbed"].removeprefix("overhead "), (row["cost, demo's bill"], row["cost by use"])
        assert (
            f"| {seconds} | {to_the_cent(row['return at equal time'])} | {' | '.join(map(middle, bills))} |" in PAGE
        ), row
