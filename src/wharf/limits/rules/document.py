"""A TOML file, read by a schema: typed values with their locations, and all problems of the file together."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from wharf.languages.source_locations import SourceLocation
from wharf.languages.suggestions import find_nearest_name
from wharf.languages.toml_locations import KeyPath, find_locations
from wharf.limits.rules.schema import REQUIRED, TableSchema
from wharf.limits.rules.values import InvalidValue, format_value
from wharf.limits.toml.problems import FileProblem, InvalidFile

MAX_FILE_CHARACTERS: Final = 64 << 20
"""Longer files are rejected, because parsing them would block the process."""
_ERROR_LOCATION: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class TableEntry(msgspec.Struct, frozen=True):
    """One table of a TOML file, with its values checked and converted by a schema."""

    values: Mapping[str, Any]
    """The converted values by key; invalid values are left out."""
    locations: Mapping[str, SourceLocation]
    """Line and column of each valid key."""
    location: SourceLocation
    """Line and column of the table."""
    file: str
    raw: Mapping[str, Any]
    """The table as the TOML parser returned it."""
    path: KeyPath
    """The keys and list indexes that lead to the table, such as `("rule", 2)`."""


class TomlDocument:
    """One TOML file. Reading a table records its problems and continues; `raise_problems` raises them together.

    The constructor raises `InvalidFile` if the text is not TOML or too long.
    """

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[FileProblem] = []
        self._optional_keys: set[str] = set()
        if len(text) > MAX_FILE_CHARACTERS:
            raise InvalidFile(
                [
                    FileProblem(
                        file, SourceLocation(1, 1), "", f"the file is longer than {MAX_FILE_CHARACTERS} characters"
                    )
                ]
            )
        try:
            self.raw: Mapping[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise InvalidFile([_build_syntax_problem(str(error), text, file)]) from None
        except RecursionError:
            raise InvalidFile([FileProblem(file, SourceLocation(1, 1), "", "the file is nested too deeply")]) from None
        self._locations = find_locations(text.replace("\r\n", "\n"))

    def raise_problems(self) -> None:
        """Raise `InvalidFile` if any problem was recorded."""
        if self.problems:
            raise InvalidFile(self.problems)

    def set_optional_keys(self, keys: set[str]) -> None:
        """Accept that these required keys are missing, because a profile provides their values."""
        self._optional_keys = keys

    def add_problem(self, location: SourceLocation, key: str, message: str) -> None:
        self.problems.append(FileProblem(self.file, location, key, message))

    def get_location(self, path: KeyPath) -> SourceLocation:
        """Return line and column of the key at this path, or of the nearest table around it."""
        while path and path not in self._locations:
            path = path[:-1]
        return self._locations.get(path, SourceLocation(1, 1))

    def check_names(self, known: set[str]) -> None:
        """Record a problem for each top-level name that is not known."""
        for name in self.raw:
            if name not in known:
                self.add_problem(self.get_location((name,)), name, f"is not known{suggest_name(name, known)}")

    def read_entries(
        self, table: TableSchema, raw: Mapping[str, Any], path: KeyPath, name: str, inner: set[str]
    ) -> Iterator[TableEntry]:
        """Yield each entry of the list of tables `name` in the table `raw`, and record the problems of the entries.

        `path` leads to `raw`. `inner` are the names in an entry that are read separately.
        """
        entries = raw.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            self.add_problem(self.get_location((*path, name)), name, f"must be a list of tables: write [[{name}]]")
            return
        for index, entry in enumerate(entries):
            yield self.read_entry(table, entry, (*path, name, index), inner)

    def read_entry(self, table: TableSchema, raw: Mapping[str, Any], path: KeyPath, inner: set[str]) -> TableEntry:
        """Return one table with its values checked and converted by the schema `table`, and record its problems.

        `raw` is the parsed table and `path` leads to it. `inner` are the names in it that are read separately.
        """
        values: dict[str, Any] = {}
        locations: dict[str, SourceLocation] = {}
        misspelled = set[str]()
        for name, value in raw.items():
            if name in inner:
                continue
            location = self.get_location((*path, name))
            key = table.find_key(name)
            if key is None:
                known = {key.name for key in table.keys} | inner
                self.add_problem(location, format_key(path, name), f"is not known{suggest_name(name, known)}")
                if nearest := find_nearest_name(name, known):
                    misspelled.add(nearest)
                continue
            try:
                values[name] = key.kind.read(value)
                locations[name] = location
            except InvalidValue as problem:
                self.add_problem(location, format_key(path, name), str(problem))
        for key in table.keys:
            key_name = format_key(path, key.name)
            is_given = key.name in raw or key.name in misspelled
            if key.default == REQUIRED and not is_given and key_name not in self._optional_keys:
                self.add_problem(
                    self.get_location(path), key_name, f"is missing. {key.description} {key.kind.description}"
                )
        return TableEntry(values, locations, self.get_location(path), self.file, raw, path)

    def read_table(self, table: TableSchema, name: str) -> TableEntry:
        """Return a top-level table by its schema, and record its problems. A missing table is read as an empty one."""
        raw = self.raw.get(name, {})
        if not isinstance(raw, dict):
            self.add_problem(self.get_location((name,)), name, f"{format_value(raw)} is not a table: write [{name}]")
            raw = {}
        return self.read_entry(table, raw, (name,), set())


def suggest_name(name: str, known: set[str]) -> str:
    """Return the end of a message about an unknown name: `; did you mean ...?`, or the list of all known names."""
    nearest = find_nearest_name(name, known)
    return f"; did you mean {nearest!r}?" if nearest else f"; known are {', '.join(sorted(known))}"


def format_key(path: KeyPath, name: str) -> str:
    """Return the key as users write it: `rule[2].ceiling`."""
    text = ""
    for part in (*path, name):
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _build_syntax_problem(error: str, text: str, file: str) -> FileProblem:
    """Return the problem for a syntax error: the message of the TOML parser without its location, which is parsed."""
    match = _ERROR_LOCATION.search(error)
    if match is not None and match[1]:
        location = SourceLocation(int(match[1]), int(match[2]))
    else:
        lines = text.split("\n")
        location = SourceLocation(len(lines), len(lines[-1]) + 1)
    return FileProblem(file, location, "", f"is not valid TOML: {_ERROR_LOCATION.sub('', error)}")
