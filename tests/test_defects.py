"""The seeded defects fit the code as it stands; `python -m tests.defects` shows that the tests catch them."""

import pytest

from tests.defects import DEFECTS, ROOT, Defect, rooms_of


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: f"{defect.file}: {defect.wrong}")
def test_a_defect_can_be_seeded(defect: Defect) -> None:
    """Its line occurs once, and the tests that should notice exist."""
    assert (ROOT / defect.file).read_text().count(defect.right) == 1
    assert all((ROOT / path).exists() for path in rooms_of(defect))
