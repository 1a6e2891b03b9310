"""Every test that docs/faults.md names exists."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "faults.md"


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    existing = {
        name
        for folder in ("node", "faults")
        for file in (TESTS / folder).rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }

    assert len(named) > 25
    assert set() == named - existing
