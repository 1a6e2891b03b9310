"""docs/templates.md lists exactly the functions that exist."""

import re
from pathlib import Path

from wharf.languages.templates.functions import FUNCTION_ARITIES

PAGE = Path(__file__).parents[2] / "docs" / "templates.md"


def test_every_function_is_on_the_page() -> None:
    table = PAGE.read_text().split("## Functions")[1].split("\n- ")[0]

    assert sorted(FUNCTION_ARITIES) == sorted(re.findall(r"`(\w+)`", table))
