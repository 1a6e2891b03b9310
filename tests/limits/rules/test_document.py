"""The locations that problems of a file have."""

import pytest

from wharf.languages.source_locations import SourceLocation
from wharf.languages.toml_locations import KeyPath
from wharf.limits.rules.document import TomlDocument

TEXT = 'first = 1\n\n[table]\n  key = "x"\n\n[[list]]\nname = "a"\n[[list]]\nname = "b"\ninner = { deep = 1 }\n'


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        (("first",), 1, 1),
        (("table", "key"), 4, 3),
        (("list", 0, "name"), 7, 1),
        (("list", 1, "name"), 9, 1),
        (("list", 1, "inner", "deep"), 10, 11),
    ],
)
def test_a_key_is_located_by_line_and_column(path: KeyPath, line: int, column: int) -> None:
    assert TomlDocument(TEXT, "rules.toml").get_location(path) == SourceLocation(line, column)


@pytest.mark.parametrize(
    ("missing", "nearest"),
    [
        (("table", "other"), ("table",)),
        (("table", "key", "deeper", 3), ("table", "key")),
        (("list", 1, "other"), ("list", 1)),
    ],
)
def test_a_missing_key_is_located_at_the_nearest_table_around_it(missing: KeyPath, nearest: KeyPath) -> None:
    document = TomlDocument(TEXT, "rules.toml")

    assert document.get_location(missing) == document.get_location(nearest) != SourceLocation(1, 1)


@pytest.mark.parametrize("path", [(), ("other",), ("other", 1, "key")])
@pytest.mark.parametrize("text", ["", TEXT])
def test_without_a_table_around_it_a_missing_key_is_located_at_the_start_of_the_file(text: str, path: KeyPath) -> None:
    assert TomlDocument(text, "rules.toml").get_location(path) == SourceLocation(1, 1)
