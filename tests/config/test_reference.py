"""The page with all settings matches their declarations."""

from pathlib import Path as FilePath

from wharf.config.reference import MARKER, PAGE, render_page
from wharf.config.schema import ANY_NAME, iterate_fields
from wharf.config.tree import KeyPath


def page() -> str:
    return (FilePath(__file__).parents[2] / PAGE).read_text("utf-8")


def test_the_page_matches_the_declarations() -> None:
    assert page() == render_page(page())


def test_every_setting_is_on_the_page() -> None:
    written = page().partition(MARKER)[2]

    assert [path for path, _ in iterate_fields() if not is_on(written, path)] == []


def is_on(written: str, path: KeyPath) -> bool:
    """Return whether a setting is on the page: as a row, or as the heading of a table."""
    key = ".".join(path)
    return f"| `{key}` |" in written or f"## `[{key}]`" in written or f"## `[{key}.{ANY_NAME}]`" in written


def test_every_description_is_a_sentence() -> None:
    assert [path for path, field in iterate_fields() if not field.info.description.endswith(".")] == []
