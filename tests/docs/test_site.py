"""The documentation as a site: complete, without a broken link, with a search, and with pictures of real terminals."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.pictures import draw_pages
from docs.pictures.draw_terminals import PICTURES, get_file
from tests.docs.walking import PAGES

DOCS = PAGES / "docs"
GUIDES = sorted(page for page in DOCS.glob("*.md") if page.name != "index.md")
PROMISE = re.compile(
    r"\b(?:you|your)\b|\bthis page \w+s\b|\bon this page\b", re.IGNORECASE
)  # What the reader can do or finds here.
LOADED = re.compile(r"""(?:src|href|url\()=?["']?https?://""")


def build_site(source: Path, target: Path, builder: str) -> subprocess.CompletedProcess[str]:
    """Build a site as `make site` does."""
    options = ["-W", "--keep-going", "-q", "-b", builder, "-d", str(target / "trees"), "-c", str(PAGES / "tools/site")]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(source), str(target / "site")],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_a_page_links_each_file_of_a_checkout_that_its_reader_needs(page: Path) -> None:
    """The site contains the files that its pages link. A reader of the site has no checkout."""
    text = re.sub(r"\]\([^)]*\)", "]()", page.read_text())  # Without the targets of links.

    assert re.findall(r"\b(?:packaging/[\w./-]+|requirements/[\w./-]+\.txt)", text) == []


def test_a_linked_file_is_part_of_the_site(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Files\n\nInstall [the unit](../unit.service).\n")
    (tmp_path / "unit.service").write_text("[Unit]\n")

    built = build_site(tmp_path / "docs", tmp_path, "html")

    assert (built.returncode, built.stderr) == (0, "")
    assert [file.read_text() for file in (tmp_path / "site/_downloads").rglob("unit.service")] == ["[Unit]\n"]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_a_link_to_a_page_has_a_text_that_names_its_subject(page: Path) -> None:
    assert re.findall(r"\[[\w/-]+\.md\]\(", page.read_text()) == []


def list_texts(module: Path) -> list[str]:
    """Return the strings of a module that are no docstrings, and no names of files."""
    tree = ast.parse(module.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return [node.value for node in strings if isinstance(node.value, str) and " " in node.value]


def test_texts_of_the_program_name_pages_by_their_titles() -> None:
    """A user has the site and the program, and no folder `docs`."""
    titles = tuple(page.read_text().partition("\n")[0].removeprefix("# ") for page in GUIDES)
    texts = [text for module in sorted((PAGES / "src/wharf").rglob("*.py")) for text in list_texts(module)]
    names = [name for text in texts for name in text.split("documentation page ")[1:]]

    assert len(names) > 20
    assert [name for name in names if not name.startswith(titles)] == []
    assert [text for text in texts if re.search(r"\bdocs/[\w-]+\.md", text)] == []


def test_no_link_of_the_documentation_is_broken(tmp_path: Path) -> None:
    """The builder that writes no files resolves the same links as that of `make site`, in a sixth of the time."""
    built = build_site(DOCS, tmp_path, "dummy")

    assert (built.returncode, built.stderr) == (0, "")


def test_each_broken_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# A\n\n[b](missing.md) [c](#gone) [d](other.md#lost)\n")
    (tmp_path / "docs/other.md").write_text("# B\n\nText.\n")

    built = build_site(tmp_path / "docs", tmp_path, "dummy")

    assert built.returncode == 1
    assert [name for name in ("missing.md", "gone", "lost") if name not in built.stderr] == []


def test_a_site_has_a_search_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Harbour\n\nA lighthouse.\n")

    built = build_site(tmp_path / "docs", tmp_path, "html")

    page = (tmp_path / "site/index.html").read_text()
    assert built.returncode == 0, built.stderr
    assert "lighthous" in (tmp_path / "site/searchindex.js").read_text()
    assert (tmp_path / "site/search.html").exists()
    assert re.findall(r'(?:src|href)="https?://(?!github)[^"]*', page) == []


def test_the_navigation_lists_each_page() -> None:
    index = (DOCS / "index.md").read_text()
    listed = set(re.findall(r"^([\w-]+)$", index, re.MULTILINE))

    assert [page.stem for page in GUIDES if page.stem not in listed] == []


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_page_starts_with_what_the_reader_can_do(page: Path) -> None:
    title, paragraph = page.read_text().split("\n\n")[:2]

    assert title.startswith("# ")
    assert PROMISE.search(paragraph), paragraph


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_of_a_terminal_is_shown_and_needs_no_other_host(picture: object) -> None:
    file = get_file(picture)  # type: ignore[arg-type]
    pages = [page.read_text() for page in DOCS.glob("*.md")]

    assert any(f"](pictures/{file.name})" in page for page in pages)
    assert ElementTree.fromstring(file.read_text()).tag.endswith("svg")
    assert LOADED.search(file.read_text()) is None


MAX_PICTURES_BYTES = 600_000
"""Each clone of the repository has all pictures of all times, so they must be small."""


def test_pictures_of_pages_are_shown_and_small() -> None:
    files = [draw_pages.get_file(each, scheme) for each in draw_pages.PICTURES for scheme in draw_pages.SCHEMES]
    page = (DOCS / "pages.md").read_text()

    assert [file.name for file in files if f"](pictures/{file.name})" not in page] == []
    assert sum(file.stat().st_size for file in files) < MAX_PICTURES_BYTES
