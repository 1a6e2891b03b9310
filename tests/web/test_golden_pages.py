"""The pages of a small cluster, compared with the files in `golden/`, and read as strictly as no browser does.

`pytest tests/web/test_golden_pages.py --rewrite-golden` rewrites the files: review the difference before you commit it.
"""

import re
from pathlib import Path

import pytest

from tests.web.small_cluster import ALL_NAMES, normalize, show_all_pages
from tests.web.strict_html import find_problems

FOLDER = Path(__file__).parent / "golden"
STATUS_BY_NAME = {
    "job-missing": 404,
    "step-missing": 404,
    "no-such-page": 404,
    "sign-in-refused": 400,
    "refused-to-reader": 403,
    "drain-refused": 400,
    "pool-refused": 400,
    "namespace-refused": 400,
    "quota-refused": 400,
    "volume-refused": 400,
}
"""All other pages have the status 200."""


def cut_content(html: str) -> str:
    """Return what distinguishes a page from others: its title, its content, and its footer."""
    title = re.search("<title>.*</title>", html)
    content = re.search("<main.*</footer>", html, re.DOTALL)
    assert title is not None, html
    assert content is not None, html
    return f"{title[0]}\n{content[0]}\n"


@pytest.mark.parametrize("name", ALL_NAMES)
def test_a_page_is_as_its_golden_file(name: str, request: pytest.FixtureRequest) -> None:
    page, path = show_all_pages()[name], FOLDER / f"{name}.html"
    text = normalize(page.text) if name == "overview" else cut_content(normalize(page.text))
    if request.config.getoption("--rewrite-golden"):
        path.write_text(text)

    assert page.status == STATUS_BY_NAME.get(name, 200)
    assert find_problems(page.text) == []
    assert path.read_text() == text, f"{path.name} differs; rewrite it with --rewrite-golden"


def test_there_is_no_golden_file_without_a_page() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(ALL_NAMES)
