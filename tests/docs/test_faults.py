"""Every test that docs/faults.md names exists. `make check` checks all pages."""

import re

from tools.documented_tests import check_page, find_defined_tests, read_tests
from tools.findings import ROOT

PAGE = ROOT / "docs" / "faults.md"


def test_every_test_that_the_page_names_exists() -> None:
    text, sources = PAGE.read_text(), read_tests()

    assert len(set(re.findall(r"`(test_\w+)`", text))) > 25
    assert list(check_page("docs/faults.md", text, find_defined_tests(sources), sources)) == []
