"""A TOML file taken apart by a schema: values of the right kinds with their places, and all problems at once."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from wharf.limits.rules.schema import REQUIRED, TableSchema
from wharf.limits.rules.values import InvalidValue, format_value
from wharf.limits.toml.locations import KeyPath, find_locations
from wharf.limits.toml.problems import FileProblem, InvalidFile, SourceLocation

MAX_FILE_CHARACTERS: Final = 64 << 20
_AT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class TableEntry(msgspec.Struct, frozen=True):
    """The keys of one table that were given, read by their kinds. Any: the kind of each key says what it is."""

    values: Mapping[str, Any]
    locations: Mapping[str, SourceLocation]
    location: SourceLocation
    file: str
    raw: Mapping[str, Any]
    path: KeyPath


class TomlDocument:
    """One file. Reading a table notes what is wrong with it and goes on; `finish` raises if anything was."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[FileProblem] = []
        self._forgiven: set[str] = set()
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
            raise InvalidFile([_syntax_problem(str(error), text, file)]) from None
        except RecursionError:
            raise InvalidFile([FileProblem(file, SourceLocation(1, 1), "", "the file is nested too deeply")]) from None
        self._places = find_locations(text.replace("\r\n", "\n"))

    def raise_problems(self) -> None:
        if self.problems:
            raise InvalidFile(self.problems)

    def set_optional_keys(self, keys: set[str]) -> None:
        """These keys need not be there, although their table says so: another file gives them."""
        self._forgiven = keys

    def add_problem(self, location: SourceLocation, key: str, message: str) -> None:
        self.problems.append(FileProblem(self.file, location, key, message))

    def get_location(self, path: KeyPath) -> SourceLocation:
        while path and path not in self._places:
            path = path[:-1]
        return self._places.get(path, SourceLocation(1, 1))

    def check_names(self, known: set[str]) -> None:
        for name in self.raw:
            if name not in known:
                self.add_problem(self.get_location((name,)), name, f"is not known{suggest_name(name, known)}")

    def read_entries(
        self, table: TableSchema, raw: Mapping[str, Any], path: KeyPath, name: str, inner: set[str]
    ) -> Iterator[TableEntry]:
        """Every entry of a list of tables."""
        given = raw.get(name, [])
        if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
            self.add_problem(self.get_location((*path, name)), name, f"is a list of tables: write [[{name}]]")
            return
        for index, entry in enumerate(given):
            yield self.read_entry(table, entry, (*path, name, index), inner)

    def read_entry(self, table: TableSchema, raw: Mapping[str, Any], path: KeyPath, inner: set[str]) -> TableEntry:
        """One table. `inner` are names of tables in it that are read on their own."""
        values: dict[str, Any] = {}
        places: dict[str, SourceLocation] = {}
        for name, value in raw.items():
            if name in inner:
                continue
            place = self.get_location((*path, name))
            key = table.find_key(name)
            if key is None:
                known = {key.name for key in table.keys} | inner
                self.add_problem(place, format_key(path, name), f"is not known{suggest_name(name, known)}")
                continue
            try:
                values[name] = key.kind.read(value)
                places[name] = place
            except InvalidValue as problem:
                self.add_problem(place, format_key(path, name), str(problem))
        for key in table.keys:
            said = format_key(path, key.name)
            if key.default == REQUIRED and key.name not in raw and said not in self._forgiven:
                self.add_problem(self.get_location(path), said, f"is missing. {key.description} {key.kind.description}")
        return TableEntry(values, places, self.get_location(path), self.file, raw, path)

    def read_table(self, table: TableSchema, name: str) -> TableEntry:
        """A table that there is once, or not at all."""
        raw = self.raw.get(name, {})
        if not isinstance(raw, dict):
            self.add_problem(self.get_location((name,)), name, f"{format_value(raw)} is no table: write [{name}]")
            raw = {}
        return self.read_entry(table, raw, (name,), set())


def suggest_name(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"


def format_key(path: KeyPath, name: str) -> str:
    """A key as a person names it: `rule[2].ceiling`."""
    said = ""
    for part in (*path, name):
        said += f"[{part}]" if isinstance(part, int) else f".{part}" if said else part
    return said


def _syntax_problem(error: str, text: str, file: str) -> FileProblem:
    found = _AT.search(error)
    if found is not None and found[1]:
        place = SourceLocation(int(found[1]), int(found[2]))
    else:
        lines = text.split("\n")
        place = SourceLocation(len(lines), len(lines[-1]) + 1)
    return FileProblem(file, place, "", f"is not TOML: {_AT.sub('', error)}")
