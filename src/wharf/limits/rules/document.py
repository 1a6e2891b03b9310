"""A TOML file taken apart by a schema: values of the right kinds with their places, and all problems at once."""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from wharf.limits.rules.places import Path, find_places
from wharf.limits.rules.problems import FileRefused, Place, Problem
from wharf.limits.rules.schema import NEEDED, Table
from wharf.limits.rules.values import Unfit, show

FILE_CHARACTERS_MOST: Final = 64 << 20
_AT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class Entry(msgspec.Struct, frozen=True):
    """The keys of one table that were given, read by their kinds. Any: the kind of each key says what it is."""

    values: Mapping[str, Any]
    places: Mapping[str, Place]
    place: Place
    file: str
    raw: Mapping[str, Any]
    path: Path


class Document:
    """One file. Reading a table notes what is wrong with it and goes on; `finish` raises if anything was."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._forgiven: set[str] = set()
        if len(text) > FILE_CHARACTERS_MOST:
            raise FileRefused(
                [Problem(file, Place(1, 1), "", f"the file is longer than {FILE_CHARACTERS_MOST} characters")]
            )
        try:
            self.raw: Mapping[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise FileRefused([_syntax_problem(str(error), text, file)]) from None
        except RecursionError:
            raise FileRefused([Problem(file, Place(1, 1), "", "the file is nested too deeply")]) from None
        self._places = find_places(text.replace("\r\n", "\n"))

    def finish(self) -> None:
        if self.problems:
            raise FileRefused(self.problems)

    def forgive(self, keys: set[str]) -> None:
        """These keys need not be there, although their table says so: another file gives them."""
        self._forgiven = keys

    def note(self, place: Place, key: str, what: str) -> None:
        self.problems.append(Problem(self.file, place, key, what))

    def place(self, path: Path) -> Place:
        while path and path not in self._places:
            path = path[:-1]
        return self._places.get(path, Place(1, 1))

    def check_names(self, known: set[str]) -> None:
        for name in self.raw:
            if name not in known:
                self.note(self.place((name,)), name, f"is not known{nearest(name, known)}")

    def entries(self, table: Table, raw: Mapping[str, Any], path: Path, name: str, inner: set[str]) -> Iterator[Entry]:
        """Every entry of a list of tables."""
        given = raw.get(name, [])
        if not isinstance(given, list) or not all(isinstance(entry, dict) for entry in given):
            self.note(self.place((*path, name)), name, f"is a list of tables: write [[{name}]]")
            return
        for index, entry in enumerate(given):
            yield self.entry(table, entry, (*path, name, index), inner)

    def entry(self, table: Table, raw: Mapping[str, Any], path: Path, inner: set[str]) -> Entry:
        """One table. `inner` are names of tables in it that are read on their own."""
        values: dict[str, Any] = {}
        places: dict[str, Place] = {}
        for name, value in raw.items():
            if name in inner:
                continue
            place = self.place((*path, name))
            key = table.key(name)
            if key is None:
                known = {key.name for key in table.keys} | inner
                self.note(place, say(path, name), f"is not known{nearest(name, known)}")
                continue
            try:
                values[name] = key.kind.read(value)
                places[name] = place
            except Unfit as problem:
                self.note(place, say(path, name), str(problem))
        for key in table.keys:
            said = say(path, key.name)
            if key.default == NEEDED and key.name not in raw and said not in self._forgiven:
                self.note(self.place(path), said, f"is missing. {key.about} {key.kind.says}")
        return Entry(values, places, self.place(path), self.file, raw, path)

    def single(self, table: Table, name: str) -> Entry:
        """A table that there is once, or not at all."""
        raw = self.raw.get(name, {})
        if not isinstance(raw, dict):
            self.note(self.place((name,)), name, f"{show(raw)} is no table: write [{name}]")
            raw = {}
        return self.entry(table, raw, (name,), set())


def nearest(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"


def say(path: Path, name: str) -> str:
    """A key as a person names it: `rule[2].ceiling`."""
    said = ""
    for part in (*path, name):
        said += f"[{part}]" if isinstance(part, int) else f".{part}" if said else part
    return said


def _syntax_problem(error: str, text: str, file: str) -> Problem:
    found = _AT.search(error)
    if found is not None and found[1]:
        place = Place(int(found[1]), int(found[2]))
    else:
        lines = text.split("\n")
        place = Place(len(lines), len(lines[-1]) + 1)
    return Problem(file, place, "", f"is not TOML: {_AT.sub('', error)}")
